package api

import (
	"time"

	"github.com/berthrun/berth/api/op"
)

// The levels of a log line, the least first.
const (
	LevelDebug = "debug"
	LevelInfo  = "info"
	LevelWarn  = "warn"
	LevelError = "error"
)

// LogLine is one line of a sandbox's log.
type LogLine struct {
	At        time.Time `json:"at"`
	Level     string    `json:"level" doc:"debug, info, warn or error. What is written to stderr is error."`
	Source    string    `json:"source" doc:"sandbox: what happened to it. process: what one wrote."`
	Message   string    `json:"message"`
	State     string    `json:"state,omitempty" doc:"That the sandbox came into."`
	Reason    string    `json:"reason,omitempty"`
	ProcessID string    `json:"processId,omitempty"`
	Stream    string    `json:"stream,omitempty" doc:"stdout or stderr."`
	Truncated bool      `json:"truncated,omitempty" doc:"The line is longer."`
}

// SandboxLogsIn is the input of sandboxes.logs.
type SandboxLogsIn struct {
	SandboxIn
	Cursor    string     `json:"cursor,omitempty" maxlen:"1024" doc:"nextCursor of the page before, with the same filters."`
	Limit     int        `json:"limit,omitempty" min:"1" max:"1000" default:"100"`
	Direction string     `json:"direction,omitempty" enum:"backward,forward" default:"backward" doc:"backward: the newest first."`
	Level     string     `json:"level,omitempty" enum:"debug,info,warn,error" default:"info" doc:"The least. debug has every start and end of a process."`
	Search    string     `json:"search,omitempty" maxlen:"256" doc:"Text in the line, in either case."`
	ProcessID string     `json:"processId,omitempty" id:"proc"`
	Stream    string     `json:"stream,omitempty" enum:"stdout,stderr"`
	Start     *time.Time `json:"start,omitempty"`
	End       *time.Time `json:"end,omitempty"`
}

// SandboxLogsOut is the output of sandboxes.logs.
type SandboxLogsOut struct {
	op.PageOut
	Items   []LogLine `json:"items" doc:"A page may hold fewer than limit, or none: go on while there is a nextCursor."`
	Missing string    `json:"missing,omitempty" doc:"What could not be read now, and why."`
}

// SandboxLogs reads what happened to a sandbox and what its processes wrote.
var SandboxLogs = op.Def[SandboxLogsIn, SandboxLogsOut]{
	Name: "sandboxes.logs", Route: "GET /v1/sandboxes/{sandboxId}/logs", Action: "compute:sandboxes:logs", Tool: "get_sandbox_logs",
	Hints: op.Read | op.Idempotent, Toolset: SetSandboxes, Title: "Read a sandbox's log",
	Doc: "Gives what happened to a sandbox and the lines that its processes wrote, by time. Kept after it has ended. Never starts it.",
}
