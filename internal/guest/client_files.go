package guest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"

	"github.com/berthrun/berth/internal/errs"
)

// Stat describes a path; a symlink at its end is described itself. The user is the sandbox's default one where it is empty.
func (c *Client) Stat(ctx context.Context, path, user string) (FileInfo, error) {
	want, err := cleaned(path)
	if err != nil {
		return FileInfo{}, err
	}
	return c.info(ctx, want, call{method: http.MethodGet, path: "/files/stat", query: url.Values{"path": {path}, "user": {user}}})
}

// info makes a call that answers one file.
func (c *Client) info(ctx context.Context, want string, k call) (FileInfo, error) {
	var out FileInfo
	err := c.do(ctx, k, &out)
	if err == nil {
		err = checkInfo(&out, want)
	}
	if err != nil {
		return FileInfo{}, err
	}
	return out, nil
}

// ReadFile reads a part of a file.
func (c *Client) ReadFile(ctx context.Context, in FileRead) (FileData, error) {
	want, err := cleaned(in.Path)
	if err != nil {
		return FileData{}, err
	}
	limit := in.Limit
	if limit <= 0 || limit > ReadBytes {
		limit = ReadBytes
	}
	var out FileData
	if err := c.do(ctx, call{method: http.MethodPost, path: "/files/read", body: in, safe: true, limit: readAnswer}, &out); err != nil {
		return FileData{}, err
	}
	lines := in.LineStart > 0 || in.LineEnd > 0
	switch {
	case int64(len(out.Data)) > limit || out.Offset < 0 || out.Offset > maxStream || out.Next != out.Offset+int64(len(out.Data)):
		return FileData{}, protocolError("a file's offsets do not fit together")
	case !lines && out.Offset != in.Offset:
		return FileData{}, protocolError("it read from another offset")
	case out.Lines < 0 || out.Lines > int64(len(out.Data)):
		return FileData{}, protocolError("it counted more lines than bytes")
	case !out.EOF && len(out.Data) == 0 && !lines:
		return FileData{}, protocolError("it read nothing before the end")
	}
	if err := checkInfo(&out.Info, want); err != nil {
		return FileData{}, err
	}
	return out, nil
}

// WriteFile writes a file whole or appends to it. After a whole write the hash that the guest read back is compared: another one is
// INVALID_STATE, reason changed.
func (c *Client) WriteFile(ctx context.Context, op string, in FileWrite) (FileWritten, error) {
	want, err := cleaned(in.Path)
	if err != nil {
		return FileWritten{}, err
	}
	if len(in.Data) > WriteBytes {
		return FileWritten{}, errs.E(errs.InvalidInput, "one write has at most %d bytes, not %d", WriteBytes, len(in.Data)).
			Because("too_large").Suggest("Write the first part, then append the others.")
	}
	var out FileWritten
	if err := c.do(ctx, call{method: http.MethodPost, path: "/files/write", op: op, body: in, timeout: 2 * callTimeout}, &out); err != nil {
		return FileWritten{}, err
	}
	if err := checkWritten(&out, want); err != nil {
		return FileWritten{}, err
	}
	if sum := sha256.Sum256(in.Data); !in.Append && out.SHA256 != "" && out.SHA256 != hex.EncodeToString(sum[:]) {
		return FileWritten{}, errs.E(errs.InvalidState, "the file was changed by something else while it was written").Because("changed").
			Suggest("%s", meanings[CodeChanged].suggestion)
	}
	return out, nil
}

// EditFile replaces exact text in a file.
func (c *Client) EditFile(ctx context.Context, op string, in FileEdit) (FileEdited, error) {
	want, err := cleaned(in.Path)
	if err != nil {
		return FileEdited{}, err
	}
	var out FileEdited
	if err := c.do(ctx, call{method: http.MethodPost, path: "/files/edit", op: op, body: in, timeout: 2 * callTimeout}, &out); err != nil {
		return FileEdited{}, err
	}
	if err := checkWritten(&out.FileWritten, want); err != nil {
		return FileEdited{}, err
	}
	if out.Replaced != max(in.Expect, 1) {
		return FileEdited{}, protocolError("it replaced another number of places than was asked for")
	}
	return out, nil
}

func checkWritten(w *FileWritten, want string) error {
	if len(w.SHA256) != 0 && len(w.SHA256) != 2*sha256.Size {
		return protocolError("a file's hash is not one")
	}
	return checkInfo(&w.Info, want)
}

// ListFiles lists a page of what is in a directory.
func (c *Client) ListFiles(ctx context.Context, in FileList) (FileEntries, error) {
	dir, err := cleaned(in.Path)
	if err != nil {
		return FileEntries{}, err
	}
	limit := in.Limit
	if limit <= 0 || limit > ListEntries {
		limit = ListEntries
	}
	var out FileEntries
	err = c.do(ctx, call{method: http.MethodPost, path: "/files/list", body: in, safe: true, limit: listAnswer}, &out)
	if err == nil {
		err = checkEntries(&out, dir, &in, limit)
	}
	if err != nil {
		return FileEntries{}, err
	}
	return out, nil
}

// MakeDirectory makes a directory and its parents.
func (c *Client) MakeDirectory(ctx context.Context, op string, in FileMkdir) (FileInfo, error) {
	want, err := cleaned(in.Path)
	if err != nil {
		return FileInfo{}, err
	}
	return c.info(ctx, want, call{method: http.MethodPost, path: "/files/mkdir", op: op, body: in, safe: true})
}

// MoveFile renames a file or directory.
func (c *Client) MoveFile(ctx context.Context, op string, in FileMove) (FileInfo, error) {
	want, err := cleaned(in.To)
	if err == nil {
		_, err = cleaned(in.From)
	}
	if err != nil {
		return FileInfo{}, err
	}
	return c.info(ctx, want, call{method: http.MethodPost, path: "/files/move", op: op, body: in, timeout: longTimeout})
}

// RemoveFile removes a file or directory, and reports whether there was one.
func (c *Client) RemoveFile(ctx context.Context, op string, in FileRemove) (bool, error) {
	if _, err := cleaned(in.Path); err != nil {
		return false, err
	}
	var out FileRemoved
	err := c.do(ctx, call{method: http.MethodPost, path: "/files/remove", op: op, body: in, timeout: longTimeout}, &out)
	return out.Removed, err
}
