package api

import (
	"time"

	"github.com/berthrun/berth/api/op"
)

// TerminalIn is the input of sandboxes.terminal.
type TerminalIn struct {
	SandboxIn
	ProcessID string `json:"processId,omitempty" id:"proc" doc:"A process with a terminal to attach to. Without it one is started."`
	Offset    int64  `json:"offset,omitempty" min:"0" doc:"Of its output, to go on from."`
	Ticket    string `json:"ticket,omitempty" maxlen:"64" doc:"Of sandboxes.terminalTicket, for browsers, instead of the Authorization header."`
}

// TerminalStart is the client's first message where no processId was given.
type TerminalStart struct {
	Command string            `json:"command,omitempty" doc:"Through the shell; without it and argv a login shell."`
	Argv    []string          `json:"argv,omitempty"`
	User    string            `json:"user,omitempty"`
	Cwd     string            `json:"cwd,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Cols    int               `json:"cols,omitempty"`
	Rows    int               `json:"rows,omitempty"`
	Pipes   bool              `json:"pipes,omitempty" doc:"No terminal: each binary message of the server begins with 1 for stdout or 2 for stderr, and the process ends with the connection."`
}

// TerminalResize is a message of the client.
type TerminalResize struct {
	Cols int `json:"cols"`
	Rows int `json:"rows"`
}

// TerminalSignal is a message of the client.
type TerminalSignal struct {
	Signal string `json:"signal" doc:"Without SIG, such as INT."`
}

// TerminalReady is the server's first message.
type TerminalReady struct {
	ProcessID string `json:"processId"`
	Offset    int64  `json:"offset" doc:"Of the first byte that follows, as far as it is still kept."`
	Woke      string `json:"woke,omitempty"`
}

// TerminalOffset is a message of the server.
type TerminalOffset struct {
	Offset int64 `json:"offset" doc:"Of the next byte: what came before it is not kept any more."`
}

// TerminalExit is the server's last message.
type TerminalExit struct {
	ExitCode int    `json:"exitCode"`
	Signal   string `json:"signal,omitempty"`
}

// TerminalError is the server's last message where there is no exit.
type TerminalError struct {
	Code       string `json:"code"`
	Message    string `json:"message"`
	Suggestion string `json:"suggestion,omitempty"`
	Reason     string `json:"reason,omitempty"`
}

// TerminalTicketOut is the output of sandboxes.terminalTicket.
type TerminalTicketOut struct {
	op.WriteOut
	Ticket    string    `json:"ticket,omitempty" doc:"Good for one connection; not shown again."`
	ExpiresAt time.Time `json:"expiresAt"`
}

// Redacted implements op.Redactor: no ticket is kept.
func (o TerminalTicketOut) Redacted() any {
	o.Ticket = ""
	return &o
}

// SSHIn is the input of sandboxes.ssh.
type SSHIn struct {
	op.WriteIn
	SandboxIn
	PublicKey string `json:"publicKey" minlen:"16" maxlen:"4096" doc:"As OpenSSH writes it: ssh-ed25519 AAAA…"`
	User      string `json:"user,omitempty" pattern:"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}$" default:"user" doc:"Whom to log in as, for example root."`
}

// SSHOut is the output of sandboxes.ssh.
type SSHOut struct {
	op.WriteOut
	Certificate string    `json:"certificate" doc:"Belongs beside the private key, as its name and -cert.pub."`
	KnownHosts  string    `json:"knownHosts" doc:"A line for known_hosts: who signs for sandboxes."`
	User        string    `json:"user"`
	Host        string    `json:"host" doc:"The name that the sandbox's host certificate is for; the other is its own name, both with .berth."`
	ExpiresAt   time.Time `json:"expiresAt"`
}

// The terminal and SSH.
var (
	TerminalTicket = op.Def[SandboxWriteIn, TerminalTicketOut]{
		Name: "sandboxes.terminalTicket", Route: "POST /v1/sandboxes/{sandboxId}/terminal/ticket", Action: "compute:sandboxes:terminal",
		Hints: op.Write, Toolset: SetSandboxes, Title: "Get a ticket for a terminal",
		Doc: "Gives a ticket with which a browser, which cannot send a key, opens one terminal of this sandbox within 30 seconds.",
	}
	SSH = op.Def[SSHIn, SSHOut]{
		Name: "sandboxes.ssh", Route: "POST /v1/sandboxes/{sandboxId}/ssh", Action: "compute:sandboxes:ssh",
		Hints: op.Write, Toolset: SetSandboxes, Title: "Get an SSH certificate",
		Doc: "Signs an SSH key for this sandbox. The certificate is good for logging in during five minutes; what was begun with it goes on.",
	}
	Terminal = op.StreamDef[TerminalIn]{
		Name: "sandboxes.terminal", Route: "GET /v1/sandboxes/{sandboxId}/terminal", Action: "compute:sandboxes:terminal", Kind: op.Socket,
		Hints: op.Write | op.Wakes | op.OpenWorld, Toolset: SetSandboxes, Title: "Open a terminal",
		Doc: "A terminal in the sandbox. Binary messages are its bytes, text messages JSON with a type. A terminal outlives its connection: connect again with its processId " +
			"and the offset reached; one that nobody is connected to for 30 minutes is hung up. A connection that ends without an exit message was lost.",
		Messages: []op.Message{
			{Name: "start", Doc: "From the client, first, unless a processId was given: what to run.", Data: TerminalStart{}},
			{Name: "resize", Doc: "From the client: the window's size.", Data: TerminalResize{}},
			{Name: "eof", Doc: "From the client: the end of standard input."},
			{Name: "signal", Doc: "From the client: a signal for the process.", Data: TerminalSignal{}},
			{Name: "ready", Doc: "From the server, first.", Data: TerminalReady{}},
			{Name: "offset", Doc: "From the server: output was passed over.", Data: TerminalOffset{}},
			{Name: "exit", Doc: "From the server, last: how the process ended.", Data: TerminalExit{}},
			{Name: "error", Doc: "From the server, last: why there is no exit.", Data: TerminalError{}},
		},
	}
	SSHConnect = op.StreamDef[SandboxIn]{
		Name: "sandboxes.sshConnect", Route: "GET /v1/sandboxes/{sandboxId}/ssh/connect", Action: "compute:sandboxes:ssh", Kind: op.Socket,
		Hints: op.Write | op.Wakes | op.OpenWorld, Toolset: SetSandboxes, Title: "Connect by SSH",
		Doc:      "The bytes of an SSH connection in binary messages: what a ProxyCommand carries. It takes a certificate of sandboxes.ssh for this sandbox and this caller, nothing else.",
		Messages: []op.Message{{Name: "bytes", Doc: "Both ways, binary: the connection."}},
	}
)
