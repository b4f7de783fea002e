package file

import (
	"context"
	"encoding/base64"
	"strconv"
	"unicode/utf8"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
)

// defaultRead is how much of a file is read where no limit is given.
const defaultRead = 64 << 10

// partOf is what a read's cursor is bound to.
type partOf struct{ Sandbox, Path, User string }

func read(ctx context.Context, s session, in *api.ReadFileIn) (*api.ReadFileOut, error) {
	if in.StartLine > 0 && (in.Offset > 0 || in.Cursor != "") || in.EndLine > 0 && in.EndLine < max(in.StartLine, 1) {
		return nil, errs.E(errs.InvalidInput, "startLine and endLine exclude offset and cursor, and endLine is not before startLine").With("path", "startLine")
	}
	req := guest.FileRead{Path: in.Path, User: in.User, Offset: in.Offset, Limit: in.Limit, LineStart: in.StartLine, LineEnd: in.EndLine}
	if req.Limit == 0 {
		req.Limit = defaultRead
	}
	if in.EndLine > 0 && in.StartLine == 0 {
		req.LineStart = 1
	}
	bound := partOf{in.SandboxID, in.Path, in.User}
	after, err := op.DecodeCursor(in.Cursor, bound, 2)
	if err != nil {
		return nil, err
	}
	if after != nil {
		if req.Offset, err = strconv.ParseInt(after[0], 10, 64); err != nil || req.Offset < 0 {
			return nil, errs.E(errs.InvalidCursor, "the cursor is not valid for this call").Suggest("Read again without a cursor.")
		}
		req.IfMatch = after[1]
	}
	f, err := s.g.ReadFile(ctx, req)
	if err != nil {
		return nil, err
	}
	data, encoding, used, err := encode(f.Data, in.Encoding, f.EOF)
	if err != nil {
		return nil, err
	}
	next, eof := f.Next, f.EOF
	if used < len(f.Data) {
		next, eof = f.Offset+int64(used), false
	}
	out := &api.ReadFileOut{
		Data: data, Encoding: encoding, Offset: f.Offset, NextOffset: next, EOF: eof, Lines: f.Lines, File: show(f.Info), Woke: s.woke,
	}
	if !eof {
		out.Cursor = op.EncodeCursor(bound, strconv.FormatInt(next, 10), f.Info.ETag)
	}
	return out, nil
}

// encode gives a part of a file as the caller wants it. A character that the part cuts at its end is left for the next part.
func encode(b []byte, want string, last bool) (data, encoding string, used int, err error) {
	whole := b
	if !last {
		whole = guest.WholeRunes(b)
	}
	isText := utf8.Valid(whole)
	switch {
	case want == "base64", want != "utf-8" && !isText:
		return base64.StdEncoding.EncodeToString(b), "base64", len(b), nil
	case isText:
		return string(whole), "utf-8", len(whole), nil
	default:
		return "", "", 0, errs.E(errs.InvalidInput, "this part of the file is not valid UTF-8").Because("not_text").
			Suggest("Read it with encoding base64, or auto.").With("path", "encoding")
	}
}

func write(ctx context.Context, s session, in *api.WriteFileIn) (*api.WriteFileOut, error) {
	data := []byte(in.Data)
	if in.Encoding == "base64" {
		var err error
		if data, err = base64.StdEncoding.DecodeString(in.Data); err != nil {
			return nil, errs.E(errs.InvalidInput, "data is not valid base64").With("path", "data")
		}
	}
	if len(data) > guest.WriteBytes {
		return nil, errs.E(errs.InvalidInput, "data must hold at most %d bytes", guest.WriteBytes).
			Suggest("Write the first part, then the others with append, each with a key of its own.").With("path", "data")
	}
	w, err := s.g.WriteFile(ctx, s.once, guest.FileWrite{Path: in.Path, User: in.User, Data: data, Append: in.Append, Mode: in.Mode, IfMatch: in.IfMatch})
	if err != nil {
		return nil, err
	}
	return &api.WriteFileOut{File: show(w.Info), SHA256: w.SHA256, Created: w.Made, Woke: s.woke}, nil
}

func edit(ctx context.Context, s session, in *api.EditFileIn) (*api.EditFileOut, error) {
	e, err := s.g.EditFile(ctx, s.once, guest.FileEdit{
		Path: in.Path, User: in.User, Old: in.OldText, New: in.NewText, Expect: in.Expect, IfMatch: in.IfMatch,
	})
	if err != nil {
		return nil, err
	}
	return &api.EditFileOut{File: show(e.Info), SHA256: e.SHA256, Replaced: e.Replaced, Woke: s.woke}, nil
}

func list(ctx context.Context, s session, in *api.ListFilesIn) (*api.ListFilesOut, error) {
	bound := *in
	bound.Cursor, bound.Limit = "", 0
	after, err := op.DecodeCursor(in.Cursor, bound, 1)
	if err != nil {
		return nil, err
	}
	req := guest.FileList{Path: in.Path, User: in.User, Depth: in.Depth, Glob: in.Glob, Limit: in.Limit}
	if req.Path == "" {
		req.Path = guest.DefaultWorkDir
	}
	if req.Limit == 0 {
		req.Limit = 200
	}
	if after != nil {
		req.After = after[0]
	}
	l, err := s.g.ListFiles(ctx, req)
	if err != nil {
		return nil, err
	}
	out := &api.ListFilesOut{Woke: s.woke}
	for _, f := range l.Entries {
		out.Items = append(out.Items, show(f))
	}
	if l.More {
		out.NextCursor = op.EncodeCursor(bound, l.Next)
	}
	return out, nil
}

func stat(ctx context.Context, s session, in *api.FileStatIn) (*api.StatFileOut, error) {
	f, err := s.g.Stat(ctx, in.Path, in.User)
	if err != nil {
		return nil, err
	}
	return &api.StatFileOut{File: show(f), Woke: s.woke}, nil
}

func mkdir(ctx context.Context, s session, in *api.MakeDirectoryIn) (*api.FileOut, error) {
	f, err := s.g.MakeDirectory(ctx, s.once, guest.FileMkdir{Path: in.Path, User: in.User, Mode: in.Mode})
	return fileOut(s, f, err)
}

func move(ctx context.Context, s session, in *api.MoveFileIn) (*api.FileOut, error) {
	f, err := s.g.MoveFile(ctx, s.once, guest.FileMove{From: in.From, To: in.To, User: in.User, Overwrite: in.Overwrite})
	return fileOut(s, f, err)
}

func fileOut(s session, f guest.FileInfo, err error) (*api.FileOut, error) {
	if err != nil {
		return nil, err
	}
	return &api.FileOut{File: show(f), Woke: s.woke}, nil
}

func remove(ctx context.Context, s session, in *api.RemoveFileIn) (*api.RemoveFileOut, error) {
	gone, err := s.g.RemoveFile(ctx, s.once, guest.FileRemove{Path: in.Path, User: in.User, Recursive: in.Recursive})
	if err != nil {
		return nil, err
	}
	return &api.RemoveFileOut{Removed: gone, Woke: s.woke}, nil
}
