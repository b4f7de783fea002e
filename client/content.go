package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/errs"
)

// Content is a file, or a folder as a tar stream, on its way down. Read gives its bytes; where a connection breaks, a file's go on behind the last one
// over a new connection, as long as it is the same file. A file that changed meanwhile is INVALID_STATE, reason changed.
type Content struct {
	Size int64  // of the whole file; -1 of a folder
	ETag string // empty of a folder
	Woke string // how the sandbox was started for it, or empty

	c      *Client
	ctx    context.Context //nolint:containedctx // of the call that it belongs to: it goes on while it is read
	in     api.FileIn
	body   io.ReadCloser
	offset int64 // of the next byte
	broken int   // attempts since the last byte
}

// Download opens a file's bytes from an offset on. With an etag the file must still be that one: this is how an interrupted download goes on. Close it.
func (c *Client) Download(ctx context.Context, in api.FileIn, offset int64, etag string) (*Content, error) {
	d := &Content{c: c, ctx: ctx, in: in, offset: offset, ETag: etag, Size: -1}
	for n := 1; ; n++ {
		err := d.open()
		if err == nil {
			return d, nil
		}
		e, ok := passes(err)
		if !ok || n >= c.attempts || !c.pause(ctx, n, e.RetryAfter) {
			return nil, err
		}
	}
}

func (d *Content) open() error {
	h := http.Header{}
	if d.offset > 0 {
		h.Set("Range", "bytes="+strconv.FormatInt(d.offset, 10)+"-")
	}
	if d.ETag != "" {
		h.Set("If-Match", `"`+d.ETag+`"`)
	}
	resp, err := Open(d.ctx, d.c, api.DownloadFile, d.in, h, nil, -1)
	if e, ok := errors.AsType[*Error](err); ok && e.Reason == "range" && d.offset > 0 {
		// The offset is the end: nothing is left to read, unless the file became shorter.
		if size, ok := e.Details["size"].(float64); ok && int64(size) == d.offset {
			d.Size, d.body = d.offset, http.NoBody
			return nil
		}
	}
	if err != nil {
		return err
	}
	size := resp.ContentLength
	if d.offset > 0 {
		_, whole, _ := strings.Cut(resp.Header.Get("Content-Range"), "/")
		if size, err = strconv.ParseInt(whole, 10, 64); err != nil || resp.StatusCode != http.StatusPartialContent {
			_ = resp.Body.Close()
			return &Error{Code: string(errs.Upstream), Status: resp.StatusCode, Message: "the server's answer to a Range is not one"}
		}
	}
	d.Size, d.ETag, d.body = size, strings.Trim(resp.Header.Get("ETag"), `"`), resp.Body
	if woke := resp.Header.Get("Berth-Woke"); woke != "" {
		d.Woke = woke
	}
	return nil
}

// Offset is that of the next byte.
func (d *Content) Offset() int64 { return d.offset }

// Read implements io.Reader. It ends with io.EOF only where all bytes have come.
func (d *Content) Read(p []byte) (int, error) {
	for {
		n, err := d.body.Read(p)
		d.offset += int64(n)
		if n > 0 {
			d.broken = 0
			return n, nil
		}
		if err == nil || err == io.EOF && (d.Size < 0 || d.offset >= d.Size) {
			return 0, err
		}
		if d.ETag == "" { // a folder has no part to go on from
			return 0, d.c.unreachable(d.ctx, err)
		}
		_ = d.body.Close()
		if err := d.reopen(d.c.unreachable(d.ctx, err)); err != nil {
			return 0, err
		}
	}
}

// reopen goes on over a new connection. why is the error of the last one.
func (d *Content) reopen(why error) error {
	for {
		d.broken++
		wait := time.Duration(0)
		if e, ok := errors.AsType[*Error](why); ok {
			wait = e.RetryAfter
		}
		if d.broken >= d.c.attempts || !d.c.pause(d.ctx, d.broken, wait) {
			d.body = http.NoBody
			return why
		}
		err := d.open()
		if err == nil {
			return nil
		}
		if _, ok := passes(err); !ok {
			d.body = http.NoBody
			return err
		}
		why = err
	}
}

// Close implements io.Closer.
func (d *Content) Close() error { return d.body.Close() }

// DownloadFolder opens a folder as a tar stream. Close it. A stream that broke off ends with an error.
func (c *Client) DownloadFolder(ctx context.Context, in api.FileIn) (*Content, error) {
	resp, err := Open(ctx, c, api.DownloadFile, in, http.Header{"Accept": {api.TarType}}, nil, -1)
	if err != nil {
		return nil, err
	}
	return &Content{Size: -1, Woke: resp.Header.Get("Berth-Woke"), c: c, ctx: ctx, in: in, body: resp.Body}, nil
}

// UploadOptions say what is known of an upload.
type UploadOptions struct {
	Size    int64  // of the body; 0 or less where it is not known
	SHA256  string // in hexadecimal: of other bytes nothing is kept
	IfMatch string // an etag: refuses if the file changed since
	Folder  bool   // the body is a tar stream, to be unpacked into the folder at the path
	// Progress is told how many bytes were sent so far: fewer than before where they are sent again. May be nil.
	Progress func(bytes int64)
}

// Upload makes a file of a body. Where the answer is lost or the sandbox is busy, a body that is an io.Seeker is sent again from where it was: the same
// bytes have the same effect.
func (c *Client) Upload(ctx context.Context, in api.UploadFileIn, body io.Reader, o UploadOptions) (api.UploadFileOut, error) {
	h := http.Header{"Content-Type": {"application/octet-stream"}}
	if o.Folder {
		h.Set("Content-Type", api.TarType)
	}
	if o.SHA256 != "" {
		h.Set("Content-SHA256", o.SHA256)
	}
	if o.IfMatch != "" {
		h.Set("If-Match", `"`+o.IfMatch+`"`)
	}
	if o.Size <= 0 {
		o.Size = -1
	}
	seeker, again := body.(io.Seeker)
	start := int64(0)
	if again {
		var err error
		if start, err = seeker.Seek(0, io.SeekCurrent); err != nil {
			again = false // a pipe
		}
	}
	again = again && o.IfMatch == "" // the first attempt may have changed the etag
	for n := 1; ; n++ {
		out, err := c.upload(ctx, in, h, body, o)
		if err == nil {
			return out, nil
		}
		e, ok := passes(err)
		if !ok || !again || n >= c.attempts || !c.pause(ctx, n, e.RetryAfter) {
			return out, err
		}
		if _, serr := seeker.Seek(start, io.SeekStart); serr != nil {
			return out, err
		}
	}
}

func (c *Client) upload(ctx context.Context, in api.UploadFileIn, h http.Header, body io.Reader, o UploadOptions) (out api.UploadFileOut, err error) {
	src := &sending{Reader: body, progress: o.Progress}
	resp, err := Open(ctx, c, api.UploadFile, in, h, src, o.Size)
	if src.failed != nil && (err == nil || CodeOf(err) == string(errs.Unavailable)) {
		if err == nil {
			_ = resp.Body.Close()
		}
		return out, src.failed
	}
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return out, c.unreachable(ctx, err)
	}
	if json.Unmarshal(b, &out) != nil {
		return out, failed(resp, b)
	}
	return out, nil
}

// sending counts what is read and keeps the error that reading gave.
type sending struct {
	io.Reader
	n        int64
	failed   error
	progress func(int64)
}

// Read implements io.Reader.
func (s *sending) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	s.n += int64(n)
	if err != nil && err != io.EOF {
		s.failed = err
	}
	if s.progress != nil && n > 0 {
		s.progress(s.n)
	}
	return n, err
}
