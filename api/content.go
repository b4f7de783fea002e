package api

import "github.com/berthrun/berth/api/op"

// UploadFileIn is the input of files.upload.
type UploadFileIn struct {
	FileIn
	Mode string `json:"mode,omitempty" pattern:"^0?[0-7]{3,4}$" doc:"Octal; 0644, or what the file has."`
}

// UploadFileOut is the answer to files.upload.
type UploadFileOut struct {
	File    File   `json:"file"`
	SHA256  string `json:"sha256,omitempty" doc:"Of the bytes that were received; absent of a folder."`
	Bytes   int64  `json:"bytes" doc:"Received, of all files."`
	Entries int    `json:"entries,omitempty" doc:"Of a folder: files, directories and symlinks that were made."`
	Created bool   `json:"created"`
	Woke    string `json:"woke,omitempty" doc:"boot or memory, where it started the sandbox."`
}

// TarType is the media type under which a folder travels.
const TarType = "application/x-tar"

// The streams of files' contents.
var (
	DownloadFile = op.StreamDef[FileIn]{
		Name: "files.download", Route: "GET /v1/sandboxes/{sandboxId}/files/content", Action: "compute:files:read", Kind: op.Download,
		Hints: op.Read | op.Idempotent | op.Wakes, Toolset: SetFiles, Title: "Download a file",
		Doc: "Gives a file's bytes, of any size, or with Accept: " + TarType + " a folder as a tar stream. The answer has ETag, Content-Length and Last-Modified; " +
			"a HEAD request gets these alone. A tar stream has no length: it is whole where it ends properly. The header Berth-Woke says that a stopped sandbox was started for it.",
		Headers: []op.Header{
			{Name: "Range", Doc: "One range of bytes, such as bytes=1048576-; the answer is 206, or 416 beyond the end."},
			{Name: "If-Match", Doc: "An ETag: another is 412. With Range it makes sure that a download goes on in the same file."},
			{Name: "If-None-Match", Doc: "An ETag: the same is 304."},
			{Name: "If-Range", Doc: "An ETag: of another file the answer is whole."},
			{Name: "Accept", Doc: TarType + " for a folder."},
		},
	}
	UploadFile = op.StreamDef[UploadFileIn]{
		Name: "files.upload", Route: "PUT /v1/sandboxes/{sandboxId}/files/content", Action: "compute:files:write", Kind: op.Upload,
		Hints: op.Write | op.Idempotent | op.Destructive | op.Wakes, Toolset: SetFiles, Title: "Upload a file", Out: UploadFileOut{},
		Doc: "Makes a file of the request's body, of any size. It appears under its name once it is whole and on the disk; a broken upload leaves nothing. Missing directories are made. " +
			"Sent again it does the same again. With Content-Type: " + TarType + " the body is a tar stream that is unpacked into the folder at path." + wakesDoc,
		Headers: []op.Header{
			{Name: "If-Match", Doc: "An ETag: refuses with 412 if the file changed since."},
			{Name: "Content-SHA256", Doc: "In hexadecimal: of other bytes nothing is kept."},
			{Name: "Content-Digest", Doc: "The same as RFC 9530 writes it: sha-256=:BASE64:. Digest: sha-256=BASE64 is understood too."},
			{Name: "Content-Type", Doc: TarType + " for a folder."},
		},
	}
)
