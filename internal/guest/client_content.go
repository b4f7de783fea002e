package guest

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"hash"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// contentStall is how long a guest may make no progress with a content: longer than a caller may, so that it is the caller who is told.
const contentStall = 2 * time.Minute

// features are a guest's, as far as they were asked for.
type features struct{ known atomic.Pointer[Hello] }

// Supports gives an error where a guest, which is as old as its sandbox's boot, has no such feature.
func (c *Client) Supports(ctx context.Context, feature string) error {
	h := c.features.known.Load()
	if h == nil {
		asked, err := c.Hello(ctx)
		if err != nil {
			return err
		}
		h = &asked
		c.features.known.Store(h)
	}
	if h.Has(feature) {
		return nil
	}
	return errs.E(errs.Unavailable, "the program inside the sandbox is of an earlier version that cannot do this").Because("guest_feature").
		Suggest("Stop and start the sandbox: it then gets the host's own version.")
}

// ContentQuery says which part of a file is asked for.
type ContentQuery struct {
	Path, User string
	Offset     int64 // negative: from the end
	Length     int64 // at most; negative: to the end
	Tar        bool  // a folder as a tar stream
}

// Content is a file's bytes on their way. It must be closed.
type Content struct {
	ContentInfo
	io.ReadCloser // ends with an error where the bytes are not whole
}

// Content opens a file's bytes.
func (c *Client) Content(ctx context.Context, in ContentQuery) (*Content, error) {
	want, err := cleaned(in.Path)
	if err == nil {
		err = c.Supports(ctx, FeatureContent)
	}
	if err != nil {
		return nil, err
	}
	q := url.Values{"path": {in.Path}, "user": {in.User}}
	if in.Offset != 0 {
		q.Set("offset", strconv.FormatInt(in.Offset, 10))
	}
	if in.Length >= 0 {
		q.Set("length", strconv.FormatInt(in.Length, 10))
	}
	if in.Tar {
		q.Set("tar", "true")
	}
	k := call{method: http.MethodGet, path: "/files/content", query: q}
	res, err := c.roundTrip(ctx, k, nil, -1)
	if err != nil {
		return nil, err
	}
	out := &Content{ReadCloser: &contentBody{res.Body, c, ctx}}
	if err = readContentInfo(res, &out.ContentInfo); err == nil {
		err = checkContent(&out.ContentInfo, want, &in)
	}
	if err == nil && !in.Tar && res.ContentLength != out.Length {
		err = protocolError("a content has another length than it says")
	}
	if err != nil {
		_ = res.Body.Close()
		return nil, err
	}
	return out, nil
}

// contentBody gives errors of reading their codes.
type contentBody struct {
	io.ReadCloser
	c   *Client
	ctx context.Context //nolint:containedctx // of the call that it belongs to
}

// Read implements io.Reader.
func (b *contentBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = b.c.transportError(b.ctx, err)
	}
	return n, err
}

func readContentInfo(res *http.Response, into *ContentInfo) error {
	raw, err := base64.StdEncoding.DecodeString(res.Header.Get(ContentHeader))
	if err != nil || len(raw) == 0 || json.Unmarshal(raw, into) != nil {
		return protocolError("a content comes without its description")
	}
	return nil
}

// checkContent checks a description against what was asked for.
func checkContent(c *ContentInfo, want string, in *ContentQuery) error {
	if err := checkInfo(&c.Info, want); err != nil {
		return err
	}
	offset := in.Offset
	if offset < 0 {
		offset = max(c.Info.Size+offset, 0)
	}
	length := max(c.Info.Size-offset, 0)
	if in.Length >= 0 {
		length = min(length, in.Length)
	}
	switch {
	case in.Tar && (c.Info.Type != "directory" && c.Info.Type != "symlink" || c.Length != -1):
		return protocolError("a folder's content is not one")
	case in.Tar:
		return nil
	case c.Info.Type != "file" || c.Offset != offset || c.Length != length:
		return protocolError("a content's sizes do not fit together")
	}
	return nil
}

// ContentPut says where a content goes.
type ContentPut struct {
	Path, User string
	Mode       string
	IfMatch    string
	SHA256     string  // hex; of other bytes nothing is kept
	Tar        bool    // the content is a tar stream, to be unpacked into the folder
	Owner      *string // who owns all that is made of a tar stream, user or user:group, or the default user where empty; nil: User. It needs root's rights
	Length     int64   // of the body; negative where it is not known
}

// PutContent makes a file of a body, and gives its SHA-256. The body is read to its end; where reading it fails, or its hash is another than was said, nothing
// is kept.
func (c *Client) PutContent(ctx context.Context, in ContentPut, body io.Reader) (ContentWritten, error) {
	want, err := cleaned(in.Path)
	if err == nil {
		err = c.Supports(ctx, FeatureContent)
	}
	if err != nil {
		return ContentWritten{}, err
	}
	q := url.Values{"path": {in.Path}, "user": {in.User}, "mode": {in.Mode}, "ifMatch": {in.IfMatch}}
	if in.Tar {
		q.Set("tar", "true")
	}
	if in.Owner != nil {
		if err := c.Supports(ctx, FeatureOwner); err != nil {
			return ContentWritten{}, err
		}
		q.Set("owner", *in.Owner)
	}
	if in.Length == 0 {
		body, in.Length = http.NoBody, -1 // its end is looked at, and so its hash
	}
	src := &counted{Reader: body, length: in.Length, want: in.SHA256, hash: sha256.New()}
	res, err := c.roundTrip(ctx, call{method: http.MethodPut, path: "/files/content", query: q}, src, in.Length)
	if err != nil {
		if src.failed != nil {
			return ContentWritten{}, src.failed
		}
		return ContentWritten{}, err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, smallAnswer))
	if err != nil {
		return ContentWritten{}, c.transportError(ctx, err)
	}
	var out ContentWritten
	if json.Unmarshal(raw, &out) != nil {
		return ContentWritten{}, protocolError("its answer is not the JSON that was expected")
	}
	if out.SHA256 = ""; !in.Tar {
		out.SHA256 = hex.EncodeToString(src.hash.Sum(nil))
	}
	return out, checkPut(&out, want, &in, src.n.Load())
}

func checkPut(w *ContentWritten, want string, in *ContentPut, sent int64) error {
	if err := checkInfo(&w.Info, want); err != nil {
		return err
	}
	if in.Tar {
		if w.Info.Type != "directory" || w.Entries < 0 || w.Bytes < 0 || w.Bytes > sent {
			return protocolError("what it unpacked makes no sense")
		}
		return nil
	}
	if w.Bytes != sent {
		return protocolError("it received another number of bytes than was sent")
	}
	return nil
}

// counted counts and hashes what is read, and keeps the error that reading gave.
type counted struct {
	io.Reader
	length int64 // negative: not known
	n      atomic.Int64
	hash   hash.Hash
	want   string // in hexadecimal; empty: any
	failed error
}

// Read implements io.Reader.
func (r *counted) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.hash.Write(p[:n])
	if total := r.n.Add(int64(n)); r.want != "" && (total == r.length || err == io.EOF) {
		if sum := hex.EncodeToString(r.hash.Sum(nil)); !strings.EqualFold(r.want, sum) {
			// In place of the last bytes and the proper end, so that the guest keeps nothing.
			n, err = 0, errs.E(errs.InvalidInput, "the SHA-256 of the bytes is %s, not the one that was said", sum).Because("digest_mismatch").
				Suggest("The bytes changed on the way, or the digest is of others. Nothing was kept; send them again.")
		}
	}
	if err != nil && err != io.EOF {
		r.failed = err
	}
	return n, err
}

// roundTrip sends a request over a connection of its own and gives the answer where it is a good one.
func (c *Client) roundTrip(ctx context.Context, k call, body io.Reader, length int64) (*http.Response, error) {
	req, err := c.request(ctx, k)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Body, req.ContentLength = io.NopCloser(body), length
	}
	req.Close = true
	res, err := c.contents().RoundTrip(req)
	if err != nil {
		return nil, c.transportError(ctx, err)
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, smallAnswer))
	if err != nil {
		return nil, c.transportError(ctx, err)
	}
	return nil, answeredError(res.StatusCode, answer)
}

// contents makes a transport for one content: large buffers, and a connection that neither side may leave without progress.
func (c *Client) contents() *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := c.dial(ctx)
			if err != nil {
				return nil, &dialError{err}
			}
			return &moving{Conn: conn}, nil
		},
		DisableCompression: true, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10, WriteBufferSize: contentChunk, ReadBufferSize: 64 << 10,
	}
}

// contentChunk is how much of a body is written at once.
const contentChunk = 256 << 10

// moving is a connection on which something must move: what is read gives time to write, and the other way.
type moving struct {
	net.Conn
	set atomic.Int64 // when the deadline was last set, in seconds
}

func (m *moving) moved() {
	if now := time.Now(); m.set.Swap(now.Unix()) != now.Unix() {
		_ = m.Conn.SetDeadline(now.Add(contentStall))
	}
}

// ReadFrom moves a body in large pieces.
func (m *moving) ReadFrom(r io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{m}, r, make([]byte, contentChunk))
}

// Read implements net.Conn.
func (m *moving) Read(p []byte) (int, error) {
	m.moved()
	return m.Conn.Read(p)
}

// Write implements net.Conn.
func (m *moving) Write(p []byte) (int, error) {
	m.moved()
	return m.Conn.Write(p)
}
