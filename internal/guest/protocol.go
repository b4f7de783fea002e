// Package guest owns what the host and the program inside a sandbox say to each other: the protocol's types, the guest's server and the
// host's client.
//
// The guest is pid 1 of a sandbox and lives in the tenant's trust domain: the client bounds and checks all that it says. The package knows
// nothing of sandboxes' states or of callers.
package guest

import "time"

// The protocol's versions. A host speaks every version that a stored checkpoint may hold; it asks for features, never for a version.
const (
	Protocol    = 1
	MinProtocol = 1

	// Port is where the guest listens inside the sandbox.
	Port = 49980

	// TokenHeader carries the guest's token, OpHeader the id of a call that must have one effect even when it is repeated.
	TokenHeader = "Berth-Token"
	OpHeader    = "Berth-Op"
)

// The features a guest may have.
const (
	FeatureExec      = "exec"
	FeatureProcesses = "processes"
	FeaturePTY       = "pty"
	FeatureFiles     = "files"
	FeatureOnce      = "once"     // calls with an OpHeader have one effect
	FeatureMetrics   = "metrics"  // GET /metrics
	FeatureExport    = "export"   // GET /processes/export
	FeatureShutdown  = "shutdown" // POST /shutdown
	FeatureContent   = "content"  // GET and PUT /files/content
	FeatureStamps    = "stamps"   // GET /stamps, and ExportChunk.AtMicros
	FeatureWarm      = "warm"     // POST /warm
	FeatureOwner     = "owner"    // PUT /files/content?tar=true&owner=
)

// The limits of the protocol.
const (
	SpoolBytes     = 1 << 20   // kept of each stream of a process
	OutputBytes    = 48 << 10  // of one read of a process's output
	HeadTailBytes  = 64 << 10  // of the beginning and of the end of each stream that an exec answers
	ReadBytes      = 256 << 10 // of one read of a file
	WriteBytes     = 2 << 20   // of one write of a file
	InputBytes     = 1 << 20   // of one input to a process
	ListEntries    = 500       // of one page of a listing
	MaxEnvBytes    = 128 << 10
	MaxPathBytes   = 4096
	MaxProcesses   = 1024 // remembered, running and ended
	MaxStamps      = 128  // of one stream
	HelloTimeout   = 5 * time.Second
	DefaultUser    = "user"
	DefaultWorkDir = "/workspace"
)

// Hello is what a guest says of itself: GET /hello.
type Hello struct {
	Protocol    int      `json:"protocol"`
	MinProtocol int      `json:"minProtocol"`
	Build       string   `json:"build"`
	Features    []string `json:"features"`
	BootID      string   `json:"bootId"` // new at every boot
}

// Configure is the first call after each boot and each restore: POST /configure. It renews what a copy must not share. An empty field
// leaves what was there.
type Configure struct {
	Token     string            `json:"token,omitempty"`
	Hostname  string            `json:"hostname,omitempty"`
	UnixNanos int64             `json:"unixNanos,omitempty"` // the host's clock
	Entropy   []byte            `json:"entropy,omitempty"`
	Env       map[string]string `json:"env"` // of every command, terminal and process from now on; nil leaves it, empty clears it
	Pids      int64             `json:"pids,omitempty"`
	User      string            `json:"user,omitempty"`    // whom everything runs as by default, as an image names it: a name or number, and a group's behind a colon; root where there is none such. Else DefaultUser
	WorkDir   string            `json:"workDir,omitempty"` // where processes run by default, where there is such a folder. Else DefaultWorkDir
}

// Configured is what Configure answers.
type Configured struct {
	ClockSkewMS int64 `json:"clockSkewMs"` // of the guest's clock against the host's when it was asked; positive where the guest is ahead
}

// Start asks for a process: POST /processes, and POST /exec which also waits. Its id is chosen by the host; an id that was started before
// is not started again.
type Start struct {
	ID        string            `json:"id"`                // proc_…
	Command   string            `json:"command,omitempty"` // through the shell, or
	Argv      []string          `json:"argv,omitempty"`    // without one
	Cwd       string            `json:"cwd,omitempty"`     // default DefaultWorkDir, else the user's home
	Env       map[string]string `json:"env,omitempty"`
	User      string            `json:"user,omitempty"`  // default DefaultUser, else root
	Stdin     []byte            `json:"stdin,omitempty"` // given whole, then closed
	OpenStdin bool              `json:"openStdin,omitempty"`
	PTY       *Size             `json:"pty,omitempty"`
	TimeoutMS int64             `json:"timeoutMs,omitempty"` // 0 is none; at its end the whole process group is killed
	// Background marks a process that does not count as activity while it is silent.
	Background bool `json:"background,omitempty"`
	Login      bool `json:"login,omitempty"` // the account's own shell as a login shell, instead of Command and Argv
	SFTP       bool `json:"sftp,omitempty"`  // a server of SFTP on standard input and output, instead of them
	// Linger ends a process that nobody is attached to; nil lets it go on.
	Linger *Linger `json:"linger,omitempty"`

	held bool // nothing it writes may be lost before someone is attached
}

// Size is a terminal's.
type Size struct {
	Cols int `json:"cols"`
	Rows int `json:"rows"`
}

// Process is the state of one process: GET /processes/{id}, GET /processes.
type Process struct {
	ID          string    `json:"id"`
	Command     string    `json:"command"` // as it was asked, at most 4 KiB of it
	Cwd         string    `json:"cwd"`
	User        string    `json:"user"`
	PID         int       `json:"pid"`
	Background  bool      `json:"background,omitempty"`
	PTY         bool      `json:"pty,omitempty"`
	Running     bool      `json:"running"`
	ExitCode    int       `json:"exitCode"`         // of an ended one; 128 and the signal's number where one ended it
	Signal      string    `json:"signal,omitempty"` // that ended it, such as KILL
	TimedOut    bool      `json:"timedOut,omitempty"`
	OutOfMemory bool      `json:"outOfMemory,omitempty"`
	StartedAt   time.Time `json:"startedAt"`
	EndedAt     time.Time `json:"endedAt"` // zero while it runs
	StdoutBytes int64     `json:"stdoutBytes"`
	StderrBytes int64     `json:"stderrBytes"`
}

// ProcessList is what GET /processes answers, oldest first. Command and Cwd are shortened to 256 and 1024 bytes.
type ProcessList struct {
	Processes []Process `json:"processes"`
}

// ExecResult is what POST /exec answers: the process as it is once it has ended or waitMs (a query parameter) has passed, with the beginning
// and the end of what it wrote.
type ExecResult struct {
	Process Process `json:"process"`
	Stdout  Excerpt `json:"stdout"`
	Stderr  Excerpt `json:"stderr"`
}

// Excerpt is the beginning and the end of a stream: all of it where Total is the length of both together.
type Excerpt struct {
	Head  []byte `json:"head"`
	Tail  []byte `json:"tail,omitempty"`
	Total int64  `json:"total"`
}

// Output is a part of a process's stream: GET /processes/{id}/output?stream=&offset=&limit=&waitMs=. With waitMs it waits for the
// first new byte or the end.
type Output struct {
	Data     []byte  `json:"data"`
	Offset   int64   `json:"offset"`   // of Data's first byte; later than asked for where that was discarded
	Next     int64   `json:"next"`     // to ask for next
	Earliest int64   `json:"earliest"` // that is still kept
	EOF      bool    `json:"eof"`      // the process has ended and Next is the end
	Process  Process `json:"process"`
}

// Input is bytes for a process's standard input: POST /processes/{id}/input, with the number of bytes written as answer.
type Input struct {
	Data []byte `json:"data,omitempty"`
	EOF  bool   `json:"eof,omitempty"`
}

// InputWritten is how much of an Input was taken: less than all of it where the process did not read on for some seconds. The rest is
// sent again, under another op.
type InputWritten struct {
	Written int `json:"written"`
}

// Signal ends or pokes a process's group: POST /processes/{id}/signal. Name is without SIG: TERM, KILL, INT, HUP, QUIT, USR1, USR2, WINCH, STOP, CONT.
type Signal struct {
	Name string `json:"name"`
}

// Resize sets a terminal's size: POST /processes/{id}/resize.
type Resize = Size

// FileInfo is one file: GET /files/stat?path=&user=.
type FileInfo struct {
	Name       string    `json:"name"`
	Path       string    `json:"path"` // absolute, cleaned
	Type       string    `json:"type"` // file, directory, symlink, other
	Size       int64     `json:"size"`
	Mode       string    `json:"mode"` // octal, such as 0644
	User       string    `json:"user"`
	Group      string    `json:"group"`
	ModifiedAt time.Time `json:"modifiedAt"`
	Target     string    `json:"target,omitempty"` // of a symlink
	ETag       string    `json:"etag"`             // changes whenever the contents may have
}

// FileRead asks for a part of a file: POST /files/read.
type FileRead struct {
	Path      string `json:"path"`
	User      string `json:"user,omitempty"`
	Offset    int64  `json:"offset,omitempty"`
	Limit     int64  `json:"limit,omitempty"`     // bytes; at most ReadBytes
	LineStart int64  `json:"lineStart,omitempty"` // from 1; with LineEnd instead of Offset
	LineEnd   int64  `json:"lineEnd,omitempty"`   // inclusive; 0 is the last
	IfMatch   string `json:"ifMatch,omitempty"`   // an etag; another is "changed"
}

// FileData is what FileRead answers.
type FileData struct {
	Data   []byte   `json:"data"`
	Offset int64    `json:"offset"`
	Next   int64    `json:"next"` // the size where it was read to the end
	EOF    bool     `json:"eof"`
	Lines  int64    `json:"lines,omitempty"` // of a read by lines: how many were given
	Info   FileInfo `json:"info"`
}

// FileWrite writes a file whole, or appends to it: POST /files/write. Missing parents are made. A whole write goes to a temporary name, is
// synced and renamed: a reader sees the old or the new file, never a part. The answer is a FileWritten.
type FileWrite struct {
	Path    string `json:"path"`
	User    string `json:"user,omitempty"`
	Data    []byte `json:"data"`
	Append  bool   `json:"append,omitempty"`
	Mode    string `json:"mode,omitempty"` // octal; default 0644, or what the file has
	IfMatch string `json:"ifMatch,omitempty"`
}

// FileWritten is what was written, read back from the file system. Through a symlink it describes the file that was written to, under the path
// that was given.
type FileWritten struct {
	Info   FileInfo `json:"info"`
	SHA256 string   `json:"sha256"` // of the whole file; empty where it is larger than 64 MiB or its mode keeps it from being read
	Made   bool     `json:"made"`   // it did not exist before
}

// FileEdit replaces exact text: POST /files/edit. Expect is how often Old must occur, 1 where 0; any other count changes nothing and is the error
// "ambiguous" or "no_match". The answer is a FileEdited.
type FileEdit struct {
	Path    string `json:"path"`
	User    string `json:"user,omitempty"`
	Old     string `json:"old"`
	New     string `json:"new"`
	Expect  int    `json:"expect,omitempty"`
	IfMatch string `json:"ifMatch,omitempty"`
}

// FileEdited is what an edit did.
type FileEdited struct {
	FileWritten
	Replaced int `json:"replaced"`
}

// FileList asks for the entries of a directory: POST /files/list. Entries are ordered by path, name by name, so that a directory is followed by
// what is in it; After is the Next of the page before. Symlinks to directories are not entered. With a Glob of more than one name and no Depth
// the depth is 32.
type FileList struct {
	Path  string `json:"path"`
	User  string `json:"user,omitempty"`
	Depth int    `json:"depth,omitempty"` // 1 where 0, at most 32
	Glob  string `json:"glob,omitempty"`  // on the path relative to the directory; ** crosses directories
	After string `json:"after,omitempty"`
	Limit int    `json:"limit,omitempty"`
}

// FileEntries is what FileList answers.
type FileEntries struct {
	Entries []FileInfo `json:"entries"`
	More    bool       `json:"more"`
	Next    string     `json:"next,omitempty"` // with More: the After of the next page, further on than the last entry where much was passed over
}

// FileMkdir makes a directory and its parents: POST /files/mkdir. One that is there is fine. The answer is its FileInfo.
type FileMkdir struct {
	Path string `json:"path"`
	User string `json:"user,omitempty"`
	Mode string `json:"mode,omitempty"`
}

// FileMove renames: POST /files/move. An existing target is the error "exists" unless Overwrite. The answer is the new FileInfo.
type FileMove struct {
	From      string `json:"from"`
	To        string `json:"to"`
	User      string `json:"user,omitempty"`
	Overwrite bool   `json:"overwrite,omitempty"`
}

// FileRemove removes: POST /files/remove. A directory that is not empty needs Recursive. What is not there is Removed: false.
type FileRemove struct {
	Path      string `json:"path"`
	User      string `json:"user,omitempty"`
	Recursive bool   `json:"recursive,omitempty"`
}

// FileRemoved is what a removal did.
type FileRemoved struct {
	Removed bool `json:"removed"`
}

// Activity is what keeps a sandbox from idling: GET /activity.
type Activity struct {
	Foreground int       `json:"foreground"` // running processes that count
	Terminals  int       `json:"terminals"`
	Last       time.Time `json:"last"` // of the last call that counts, or byte on a terminal
}

// Metrics are readings of the whole sandbox: GET /metrics. Zero where unknown.
type Metrics struct {
	At            time.Time `json:"at"`
	UptimeSeconds float64   `json:"uptimeSeconds"` // of the guest
	CPUSeconds    float64   `json:"cpuSeconds"`    // used by the guest and by processes that have ended and were waited for
	MemoryTotal   int64     `json:"memoryTotal"`   // bytes
	MemoryUsed    int64     `json:"memoryUsed"`
	DiskTotal     int64     `json:"diskTotal"` // of the root file system, bytes
	DiskUsed      int64     `json:"diskUsed"`
	Load1         float64   `json:"load1"`
	Processes     int       `json:"processes"` // in the sandbox, the guest not counted
}

// Shutdown ends the sandbox from within: POST /shutdown. New processes are refused, all that run get TERM, after GraceMS what is left gets KILL, the
// disk is synced, and the guest exits with 0 once the answer is sent. With Export the answer is the stream that GET /processes/export gives, made
// when everything has ended; otherwise it is an empty object.
type Shutdown struct {
	GraceMS int64 `json:"graceMs"`
	Export  bool  `json:"export,omitempty"`
}

// ExportRecord is one line of GET /processes/export, a stream of JSON lines of all that is remembered of processes, so that the host can
// keep it. Exactly one field is set. Each process, oldest first, is followed by its chunks: stdout, then stderr, by rising offset. A chunk whose offset
// is not where the one before it ended follows a part that was discarded. The stream is whole only where its last record is End.
type ExportRecord struct {
	Process *Process     `json:"process,omitempty"`
	Chunk   *ExportChunk `json:"chunk,omitempty"`
	End     *ExportEnd   `json:"end,omitempty"`
}

// ExportChunk is at most OutputBytes of a stream of the process before it.
type ExportChunk struct {
	Stream   string `json:"stream"` // stdout or stderr
	Offset   int64  `json:"offset"`
	AtMicros int64  `json:"atMicros,omitempty"` // when its first byte was read, UTC; 0: unknown. It never falls within a stream.
	Data     []byte `json:"data"`
}

// Stamped is when the processes that are remembered wrote what is kept of it: GET /stamps, oldest process first. Command and Cwd are shortened as in a
// ProcessList.
type Stamped struct {
	Processes []StampedProcess `json:"processes"`
}

// StampedProcess is a process with the stamps of its streams.
type StampedProcess struct {
	Process Process      `json:"process"`
	Stdout  StreamStamps `json:"stdout"`
	Stderr  StreamStamps `json:"stderr"`
}

// StreamStamps says when which part of a stream was read from its process: from each stamp's offset on at its time, until the next one's. The first
// stamp is at or before Earliest. There are none where nothing was written.
type StreamStamps struct {
	Earliest int64   `json:"earliest"` // that is still kept
	Total    int64   `json:"total"`
	Stamps   []Stamp `json:"stamps,omitempty"` // at most MaxStamps, by rising offset and time
}

// Stamp is an offset in a stream and a time in microseconds UTC.
type Stamp [2]int64

// ExportEnd counts what came before it.
type ExportEnd struct {
	Processes int `json:"processes"`
}

// ContentHeader carries a ContentInfo as base64 of JSON with the answer to GET /files/content?path=&user=&offset=&length=&tar=: the answer's body is the
// file's bytes as they are, from offset on (a negative one counts from the end) and at most length, where there is a length. With tar the path is a folder,
// or a file, and the body a tar stream of it, whose end tells that it is whole. HEAD answers the header alone.
const ContentHeader = "Berth-Content"

// ContentInfo describes what is in a content's body. Of a tar Length is -1.
type ContentInfo struct {
	Info   FileInfo `json:"info"`
	Offset int64    `json:"offset"`
	Length int64    `json:"length"` // of the body; 0 where the offset is beyond the end
}

// ContentWritten answers PUT /files/content?path=&user=&mode=&ifMatch=&tar=, whose body are the file's bytes as they are. They go to a temporary name, are
// synced and renamed. Missing parents are made, and where the body does not come to its proper end nothing is changed. With tar the body is a tar stream that
// is unpacked into the folder at path, file by file.
type ContentWritten struct {
	FileWritten       // without SHA256: the host knows what it sent
	Bytes       int64 `json:"bytes"`             // received
	Entries     int   `json:"entries,omitempty"` // unpacked
}

// Error is what the guest answers instead, with a status of 4xx or 5xx.
type Error struct {
	Code    string `json:"code"`    // one of the Code constants
	Message string `json:"message"` // for the caller
}

// The guest's error codes.
const (
	CodeInvalid      = "invalid"      // the request
	CodeUnauthorized = "unauthorized" // the token
	CodeNotFound     = "not_found"    // a path or process
	CodeExists       = "exists"
	CodeNotDirectory = "not_directory"
	CodeIsDirectory  = "is_directory"
	CodeNotEmpty     = "not_empty"
	CodeDenied       = "denied" // the user may not
	CodeTooLarge     = "too_large"
	CodeChanged      = "changed" // ifMatch does not
	CodeAmbiguous    = "ambiguous"
	CodeNoMatch      = "no_match"
	CodeDiskFull     = "disk_full"
	CodeEnded        = "ended"      // the process has
	CodeNoStdin      = "no_stdin"   // it was not asked for
	CodeTooMany      = "too_many"   // processes
	CodeCannotRun    = "cannot_run" // no such program, user or directory
	CodeStopping     = "stopping"   // the sandbox is being shut down
	CodeRefused      = "refused"    // a port
	CodeInternal     = "internal"
)
