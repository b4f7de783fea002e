package api

import (
	"time"

	"github.com/berthrun/berth/api/op"
)

// CommandIn is what to run: command xor argv.
type CommandIn struct {
	Command string            `json:"command,omitempty" maxlen:"131072" doc:"Through the shell. Either this or argv."`
	Argv    []string          `json:"argv,omitempty" maxitems:"4096" doc:"Program and arguments, without a shell."`
	Cwd     string            `json:"cwd,omitempty" maxlen:"4096" default:"/workspace"`
	Env     map[string]string `json:"env,omitempty" secret:"true" maxprops:"256" doc:"Added to the sandbox's own."`
	User    string            `json:"user,omitempty" pattern:"^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}$" default:"user" doc:"For example root."`
}

// ExecIn is the input of sandboxes.exec.
type ExecIn struct {
	op.WriteIn
	SandboxIn
	CommandIn
	Stdin          string `json:"stdin,omitempty" maxlen:"2097152" doc:"Given whole, then closed. Without it standard input is closed."`
	TimeoutSeconds int    `json:"timeoutSeconds,omitempty" min:"1" max:"86400" default:"60" doc:"At its end the command and all that it started are killed."`
}

// OutputCut says how many characters a result leaves out of each stream.
type OutputCut struct {
	Stdout int64 `json:"stdout"`
	Stderr int64 `json:"stderr"`
}

// ExecOut is the output of sandboxes.exec.
type ExecOut struct {
	op.WriteOut
	Running     bool       `json:"running" doc:"It had not ended when the call had to answer; go on with processId."`
	ExitCode    *int       `json:"exitCode,omitempty" doc:"Of an ended command; 128 and the signal's number where a signal ended it."`
	Signal      string     `json:"signal,omitempty" doc:"The signal that ended it, such as KILL."`
	TimedOut    bool       `json:"timedOut" doc:"It was killed at timeoutSeconds."`
	OutOfMemory bool       `json:"outOfMemory,omitempty" doc:"It or a part of it was killed: the memory was used up."`
	Stdout      string     `json:"stdout"`
	Stderr      string     `json:"stderr"`
	StdoutBytes int64      `json:"stdoutBytes" doc:"The full size of the stream."`
	StderrBytes int64      `json:"stderrBytes"`
	Truncated   bool       `json:"truncated" doc:"Part of the output is not in this result."`
	OutputCut   *OutputCut `json:"outputCut,omitempty" doc:"How many characters of each stream are left out."`
	ProcessID   string     `json:"processId" doc:"When it still runs or output is left out, read_process_output gives the rest."`
	DurationMS  int64      `json:"durationMs"`
	Woke        string     `json:"woke,omitempty" doc:"boot or memory, where it started the sandbox."`
}

// Process is one process in a sandbox.
type Process struct {
	ID          string     `json:"id"`
	SandboxID   string     `json:"sandboxId"`
	Command     string     `json:"command"`
	Cwd         string     `json:"cwd"`
	User        string     `json:"user"`
	Background  bool       `json:"background"`
	PTY         bool       `json:"pty"`
	State       string     `json:"state" doc:"running, exited, or lost: the sandbox ended under it."`
	ExitCode    *int       `json:"exitCode,omitempty"`
	Signal      string     `json:"signal,omitempty"`
	TimedOut    bool       `json:"timedOut,omitempty"`
	OutOfMemory bool       `json:"outOfMemory,omitempty"`
	StartedAt   time.Time  `json:"startedAt"`
	EndedAt     *time.Time `json:"endedAt,omitempty"`
	StdoutBytes int64      `json:"stdoutBytes"`
	StderrBytes int64      `json:"stderrBytes"`
}

// StartProcessIn is the input of processes.start.
type StartProcessIn struct {
	op.WriteIn
	SandboxIn
	CommandIn
	OpenStdin      bool `json:"openStdin,omitempty" doc:"Keep standard input open for write_process_input."`
	PTY            bool `json:"pty,omitempty" doc:"Give it a terminal; both streams arrive as stdout."`
	Cols           int  `json:"cols,omitempty" min:"1" max:"1000" default:"80"`
	Rows           int  `json:"rows,omitempty" min:"1" max:"1000" default:"24"`
	TimeoutSeconds int  `json:"timeoutSeconds,omitempty" min:"1" max:"2592000" doc:"At its end the process and all that it started are killed; none by default."`
}

// ProcessOut is the output of processes.start.
type ProcessOut struct {
	op.WriteOut
	Process Process `json:"process"`
	Woke    string  `json:"woke,omitempty" doc:"boot or memory, where it started the sandbox."`
}

// ProcessIn names one process.
type ProcessIn struct {
	SandboxID string `json:"sandboxId" id:"sbx"`
	ProcessID string `json:"processId" id:"proc"`
}

// GetProcessOut is the output of processes.get.
type GetProcessOut struct {
	Process Process `json:"process"`
}

// ListProcessesIn is the input of processes.list.
type ListProcessesIn struct {
	op.PageIn
	SandboxIn
	State string `json:"state,omitempty" enum:"running,exited,lost"`
}

// ListProcessesOut is the output of processes.list.
type ListProcessesOut struct {
	op.PageOut
	Items []Process `json:"items"`
}

// ProcessOutputIn is the input of processes.output.
type ProcessOutputIn struct {
	ProcessIn
	Stream      string `json:"stream,omitempty" enum:"stdout,stderr" default:"stdout"`
	Offset      int64  `json:"offset,omitempty" min:"0" doc:"In bytes, nextOffset of the read before."`
	Limit       int    `json:"limit,omitempty" min:"16" max:"49152" default:"49152" doc:"In bytes."`
	WaitSeconds int    `json:"waitSeconds,omitempty" min:"0" max:"30" doc:"Wait this long for the first new byte or the end."`
}

// ProcessOutputOut is the output of processes.output.
type ProcessOutputOut struct {
	Data           string  `json:"data"`
	Encoding       string  `json:"encoding" doc:"utf-8, or base64 where the bytes are no text."`
	Offset         int64   `json:"offset" doc:"Of the first byte of data: later than asked for where that was discarded."`
	NextOffset     int64   `json:"nextOffset"`
	EarliestOffset int64   `json:"earliestOffset" doc:"What came before is discarded."`
	EOF            bool    `json:"eof" doc:"The process has ended and this is all."`
	Process        Process `json:"process"`
}

// ProcessInputIn is the input of processes.input.
type ProcessInputIn struct {
	op.WriteIn
	ProcessIn
	Data     string `json:"data,omitempty" maxlen:"1048576"`
	Encoding string `json:"encoding,omitempty" enum:"utf-8,base64" default:"utf-8"`
	EOF      bool   `json:"eof,omitempty" doc:"Close standard input after data."`
}

// ProcessInputOut is the output of processes.input.
type ProcessInputOut struct {
	op.WriteOut
	BytesWritten int64 `json:"bytesWritten"`
}

// ProcessSignalIn is the input of processes.signal.
type ProcessSignalIn struct {
	op.WriteIn
	ProcessIn
	Signal string `json:"signal" enum:"TERM,KILL,INT,HUP,QUIT,USR1,USR2,STOP,CONT,WINCH" doc:"Sent to the process and all that it started."`
}

// ProcessSignalOut is the output of processes.signal.
type ProcessSignalOut struct {
	op.WriteOut
	Process Process `json:"process"`
}

// The operations on commands and processes.
var (
	Exec = op.Def[ExecIn, ExecOut]{
		Name: "sandboxes.exec", Route: "POST /v1/sandboxes/{sandboxId}/exec", Action: "compute:sandboxes:exec", Tool: "run_command",
		Hints: op.Write | op.Destructive | op.Wakes | op.OpenWorld, Toolset: SetProcesses, Title: "Run a command",
		Doc: "Runs a command in the sandbox and gives its exit code and output. Check exitCode and timedOut: a result alone does not mean success. " +
			"Each stream keeps its beginning and end; a command that is still running when the call must answer goes on, and processId names it. Use start_process for servers." + wakesDoc,
	}
	StartProcess = op.Def[StartProcessIn, ProcessOut]{
		Name: "processes.start", Route: "POST /v1/sandboxes/{sandboxId}/processes", Action: "compute:processes:start", Tool: "start_process",
		Hints: op.Write | op.Destructive | op.Creates | op.Wakes | op.OpenWorld, Toolset: SetProcesses, Title: "Start a process", Status: 201,
		Doc: "Starts a command in the background, such as a server, and gives its processId at once. It goes on until it ends, is signalled, or the sandbox stops." + wakesDoc,
	}
	ListProcesses = op.Def[ListProcessesIn, ListProcessesOut]{
		Name: "processes.list", Route: "GET /v1/sandboxes/{sandboxId}/processes", Action: "compute:processes:read", Tool: "list_processes",
		Hints: op.Read | op.Idempotent, Toolset: SetProcesses, Title: "List processes",
		Doc: "Lists the sandbox's processes, newest first, running and ended. Never starts a sandbox: of a stopped one it gives what was kept.",
	}
	GetProcess = op.Def[ProcessIn, GetProcessOut]{
		Name: "processes.get", Route: "GET /v1/sandboxes/{sandboxId}/processes/{processId}", Action: "compute:processes:read", Tool: "get_process",
		Hints: op.Read | op.Idempotent, Toolset: SetProcesses, Title: "Read a process",
		Doc: "Gives a process's state, exit code, times and the size of its output. Never starts a sandbox.",
	}
	ProcessOutput = op.Def[ProcessOutputIn, ProcessOutputOut]{
		Name: "processes.output", Route: "GET /v1/sandboxes/{sandboxId}/processes/{processId}/output", Action: "compute:processes:read", Tool: "read_process_output",
		Hints: op.Read | op.Idempotent, Toolset: SetProcesses, Title: "Read a process's output",
		Doc: "Gives a part of what a process wrote. Pass nextOffset as offset to go on. The last 1 MiB of each stream is kept, after the end too. Never starts a sandbox.",
	}
	ProcessInput = op.Def[ProcessInputIn, ProcessInputOut]{
		Name: "processes.input", Route: "POST /v1/sandboxes/{sandboxId}/processes/{processId}/input", Action: "compute:processes:write", Tool: "write_process_input",
		Hints: op.Write, Toolset: SetProcesses, Title: "Write to a process",
		Doc: "Writes to the standard input of a process that was started with openStdin or pty, and can close it.",
	}
	ProcessSignal = op.Def[ProcessSignalIn, ProcessSignalOut]{
		Name: "processes.signal", Route: "POST /v1/sandboxes/{sandboxId}/processes/{processId}/signal", Action: "compute:processes:write", Tool: "signal_process",
		Hints: op.Write | op.Destructive, Toolset: SetProcesses, Title: "Signal a process",
		Doc: "Sends a signal to a process and all that it started: TERM asks it to end, KILL ends it.",
	}
)
