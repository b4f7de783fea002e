package api

import (
	"time"

	"github.com/berthrun/berth/api/op"
)

// FollowProcessIn is the input of processes.follow.
type FollowProcessIn struct {
	ProcessIn
	Stream       string `json:"stream,omitempty" enum:"both,stdout,stderr" default:"both"`
	StdoutOffset int64  `json:"stdoutOffset,omitempty" min:"0" doc:"Where to begin, in bytes."`
	StderrOffset int64  `json:"stderrOffset,omitempty" min:"0"`
}

// OutputEvent is a piece of a stream.
type OutputEvent struct {
	Offset   int64  `json:"offset" doc:"Of the first byte. One beyond the end of the event before says that what lies between is discarded."`
	Data     string `json:"data"`
	Encoding string `json:"encoding" doc:"utf-8, or base64 where the bytes are no text. A character is never cut."`
}

// ExitEvent is how a process ended.
type ExitEvent struct {
	State    string     `json:"state" doc:"exited, or lost: the sandbox ended under it."`
	ExitCode *int       `json:"exitCode,omitempty" doc:"128 and the signal's number where a signal ended it."`
	Signal   string     `json:"signal,omitempty"`
	TimedOut bool       `json:"timedOut"`
	EndedAt  *time.Time `json:"endedAt,omitempty"`
	Stdout   int64      `json:"stdoutBytes" doc:"The full size of the stream."`
	Stderr   int64      `json:"stderrBytes"`
}

// FollowProcess is the stream of a process's output.
var FollowProcess = op.StreamDef[FollowProcessIn]{
	Name: "processes.follow", Route: "GET /v1/sandboxes/{sandboxId}/processes/{processId}/output", When: "follow", Action: "compute:processes:read", Kind: op.Events,
	Hints: op.Read | op.Idempotent, Toolset: SetProcesses, Title: "Follow a process's output",
	Doc: "Follows both streams of a process as server-sent events until it ends: what is kept of them first, then what comes. A slow reader holds nothing up: what it misses is told by the offsets. " +
		"A stream that ends without the event exit was broken: connect again with Last-Event-ID. Never starts a sandbox.",
	Headers: []op.Header{{Name: "Last-Event-ID", Doc: "The id of the last event that was read: both streams go on behind it."}},
	Messages: []op.Message{
		{Name: "stdout", Doc: "A piece of standard output, or of a terminal.", Data: OutputEvent{}},
		{Name: "stderr", Doc: "A piece of standard error.", Data: OutputEvent{}},
		{Name: "exit", Doc: "The process has ended and all was sent; the last event.", Data: ExitEvent{}},
	},
}
