package api

import (
	"time"

	"github.com/berthrun/berth/api/op"
)

// FileIn names a file.
type FileIn struct {
	SandboxIn
	Path string `json:"path" minlen:"1" maxlen:"4096" doc:"Relative paths start at /workspace."`
	User string `json:"user,omitempty" pattern:"^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}$" default:"user" doc:"With whose rights."`
}

// File is what is known of a file.
type File struct {
	Name       string    `json:"name"`
	Path       string    `json:"path"`
	Type       string    `json:"type" doc:"file, directory, symlink or other."`
	Size       int64     `json:"size"`
	Mode       string    `json:"mode" doc:"Octal, such as 0644."`
	User       string    `json:"user"`
	Group      string    `json:"group"`
	ModifiedAt time.Time `json:"modifiedAt"`
	Target     string    `json:"target,omitempty" doc:"Of a symlink."`
	ETag       string    `json:"etag" doc:"Changes when the contents may have; for ifMatch."`
}

// ReadFileIn is the input of files.read.
type ReadFileIn struct {
	FileIn
	Offset    int64  `json:"offset,omitempty" min:"0" doc:"In bytes."`
	Limit     int64  `json:"limit,omitempty" min:"16" max:"262144" default:"65536" doc:"In bytes."`
	StartLine int64  `json:"startLine,omitempty" min:"1" doc:"Instead of offset: the first line, from 1."`
	EndLine   int64  `json:"endLine,omitempty" min:"1" doc:"The last line, inclusive."`
	Encoding  string `json:"encoding,omitempty" enum:"auto,utf-8,base64" default:"auto" doc:"auto: text where it is text."`
	Cursor    string `json:"cursor,omitempty" maxlen:"1024" doc:"Of the part before: goes on behind it, and refuses if the file changed."`
}

// ReadFileOut is the output of files.read.
type ReadFileOut struct {
	Data       string  `json:"data"`
	Encoding   string  `json:"encoding" doc:"utf-8 or base64."`
	Offset     int64   `json:"offset"`
	NextOffset int64   `json:"nextOffset"`
	EOF        bool    `json:"eof" doc:"This part reaches the end."`
	Lines      int64   `json:"lines,omitempty" doc:"Of a read by lines: how many these are."`
	Cursor     *string `json:"cursor" null:"true" doc:"For the next part; null at the end."`
	File       File    `json:"file"`
	Woke       string  `json:"woke,omitempty" doc:"boot or memory, where it started the sandbox."`
}

// WriteFileIn is the input of files.write.
type WriteFileIn struct {
	op.WriteIn
	FileIn
	Data     string `json:"data" maxlen:"2796204" doc:"At most 2 MiB once decoded."`
	Encoding string `json:"encoding,omitempty" enum:"utf-8,base64" default:"utf-8"`
	Append   bool   `json:"append,omitempty"`
	Mode     string `json:"mode,omitempty" pattern:"^0?[0-7]{3,4}$" doc:"Octal; 0644, or what the file has."`
	IfMatch  string `json:"ifMatch,omitempty" maxlen:"256" doc:"An etag: refuses if the file changed since."`
}

// WriteFileOut is the output of files.write.
type WriteFileOut struct {
	op.WriteOut
	File    File   `json:"file"`
	SHA256  string `json:"sha256" doc:"Of the whole file, read back."`
	Created bool   `json:"created"`
	Woke    string `json:"woke,omitempty" doc:"boot or memory, where it started the sandbox."`
}

// EditFileIn is the input of files.edit.
type EditFileIn struct {
	op.WriteIn
	FileIn
	OldText string `json:"oldText" minlen:"1" maxlen:"1048576" doc:"Exact text, unique in the file unless expect says how often it occurs."`
	NewText string `json:"newText" maxlen:"1048576"`
	Expect  int    `json:"expect,omitempty" min:"1" max:"100000" default:"1" doc:"How often oldText must occur; all are replaced."`
	IfMatch string `json:"ifMatch,omitempty" maxlen:"256" doc:"An etag: refuses if the file changed since."`
}

// EditFileOut is the output of files.edit.
type EditFileOut struct {
	op.WriteOut
	File     File   `json:"file"`
	SHA256   string `json:"sha256"`
	Replaced int    `json:"replaced"`
	Woke     string `json:"woke,omitempty" doc:"boot or memory, where it started the sandbox."`
}

// ListFilesIn is the input of files.list.
type ListFilesIn struct {
	SandboxIn
	Path   string `json:"path,omitempty" maxlen:"4096" default:"/workspace"`
	User   string `json:"user,omitempty" pattern:"^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}$" default:"user"`
	Depth  int    `json:"depth,omitempty" min:"1" max:"32" default:"1"`
	Glob   string `json:"glob,omitempty" maxlen:"1024" doc:"On the path below the directory, such as **/*.py."`
	Cursor string `json:"cursor,omitempty" maxlen:"8192"`
	Limit  int    `json:"limit,omitempty" min:"1" max:"500" default:"200"`
}

// ListFilesOut is the output of files.list.
type ListFilesOut struct {
	op.PageOut
	Items []File `json:"items"`
	Woke  string `json:"woke,omitempty" doc:"boot or memory, where it started the sandbox."`
}

// StatFileOut is the output of files.stat.
type StatFileOut struct {
	File File   `json:"file"`
	Woke string `json:"woke,omitempty" doc:"boot or memory, where it started the sandbox."`
}

// MakeDirectoryIn is the input of files.mkdir.
type MakeDirectoryIn struct {
	op.WriteIn
	FileIn
	Mode string `json:"mode,omitempty" pattern:"^0?[0-7]{3,4}$" default:"0755" doc:"Octal."`
}

// FileOut is the output of writes that leave one file.
type FileOut struct {
	op.WriteOut
	File File   `json:"file"`
	Woke string `json:"woke,omitempty" doc:"boot or memory, where it started the sandbox."`
}

// MoveFileIn is the input of files.move.
type MoveFileIn struct {
	op.WriteIn
	SandboxIn
	From      string `json:"from" minlen:"1" maxlen:"4096"`
	To        string `json:"to" minlen:"1" maxlen:"4096" doc:"The new path, not the directory to move into."`
	Overwrite bool   `json:"overwrite,omitempty"`
	User      string `json:"user,omitempty" pattern:"^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}$" default:"user"`
}

// RemoveFileIn is the input of files.remove.
type RemoveFileIn struct {
	op.WriteIn
	FileIn
	Recursive bool `json:"recursive,omitempty" doc:"Needed for a directory that is not empty."`
}

// RemoveFileOut is the output of files.remove.
type RemoveFileOut struct {
	op.WriteOut
	Removed bool   `json:"removed" doc:"False: there was nothing."`
	Woke    string `json:"woke,omitempty" doc:"boot or memory, where it started the sandbox."`
}

// The operations on files.
var (
	ReadFile = op.Def[ReadFileIn, ReadFileOut]{
		Name: "files.read", Route: "GET /v1/sandboxes/{sandboxId}/files/read", Action: "compute:files:read", Tool: "read_file",
		Hints: op.Read | op.Idempotent | op.Wakes, Toolset: SetFiles, Title: "Read a file",
		Doc: "Reads a file, or a part of it by bytes or lines. Pass cursor for the next part." + wakesDoc,
	}
	WriteFile = op.Def[WriteFileIn, WriteFileOut]{
		Name: "files.write", Route: "POST /v1/sandboxes/{sandboxId}/files/write", Action: "compute:files:write", Tool: "write_file",
		Hints: op.Write | op.Idempotent | op.Destructive | op.Wakes, Toolset: SetFiles, Title: "Write a file",
		Doc: "Writes a file whole, or appends to it, up to 2 MiB a call. Missing directories are made. The answer holds the size and SHA-256 of what is on the disk." + wakesDoc,
	}
	EditFile = op.Def[EditFileIn, EditFileOut]{
		Name: "files.edit", Route: "POST /v1/sandboxes/{sandboxId}/files/edit", Action: "compute:files:write", Tool: "edit_file",
		Hints: op.Write | op.Destructive | op.Wakes, Toolset: SetFiles, Title: "Edit a file",
		Doc: "Replaces exact text in a file. Text that occurs more or less often than expect changes nothing." + wakesDoc,
	}
	ListFiles = op.Def[ListFilesIn, ListFilesOut]{
		Name: "files.list", Route: "GET /v1/sandboxes/{sandboxId}/files/list", Action: "compute:files:read", Tool: "list_files",
		Hints: op.Read | op.Idempotent | op.Wakes, Toolset: SetFiles, Title: "List files",
		Doc: "Lists a directory, deeper with depth, by glob." + wakesDoc,
	}
	StatFile = op.Def[FileStatIn, StatFileOut]{
		Name: "files.stat", Route: "GET /v1/sandboxes/{sandboxId}/files/stat", Action: "compute:files:read", Tool: "stat_file",
		Hints: op.Read | op.Idempotent | op.Wakes, Toolset: SetFiles, Title: "Read a file's facts",
		Doc: "Gives a file's type, size, mode, owner and etag." + wakesDoc,
	}
	MakeDirectory = op.Def[MakeDirectoryIn, FileOut]{
		Name: "files.mkdir", Route: "POST /v1/sandboxes/{sandboxId}/files/mkdir", Action: "compute:files:write", Tool: "make_directory",
		Hints: op.Write | op.Idempotent | op.Wakes, Toolset: SetFiles, Title: "Make a directory",
		Doc: "Makes a directory and its parents. One that is there already is fine." + wakesDoc,
	}
	MoveFile = op.Def[MoveFileIn, FileOut]{
		Name: "files.move", Route: "POST /v1/sandboxes/{sandboxId}/files/move", Action: "compute:files:write", Tool: "move_file",
		Hints: op.Write | op.Destructive | op.Wakes, Toolset: SetFiles, Title: "Move a file",
		Doc: "Renames a file or directory. What is at the new path is kept, and the call refused, unless overwrite." + wakesDoc,
	}
	RemoveFile = op.Def[RemoveFileIn, RemoveFileOut]{
		Name: "files.remove", Route: "POST /v1/sandboxes/{sandboxId}/files/remove", Action: "compute:files:write", Tool: "remove_file",
		Hints: op.Write | op.Idempotent | op.Destructive | op.Wakes, Toolset: SetFiles, Title: "Remove a file",
		Doc: "Removes a file, or a directory and all in it with recursive." + wakesDoc,
	}
)

// FileStatIn is the input of files.stat.
type FileStatIn struct {
	FileIn
}
