package file

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
)

// copyBytes is how much is moved at once.
const copyBytes = 256 << 10

// registerStreams binds the streams of files' contents.
func (s *Service) registerStreams(r *op.Registry) {
	op.HandleStream(r, api.DownloadFile, op.StreamHandler[api.FileIn]{
		Draft: func(ctx context.Context, in *api.FileIn) (*op.Draft, error) { return s.draft(ctx, in.SandboxID) },
		Serve: s.download,
	})
	op.HandleStream(r, api.UploadFile, op.StreamHandler[api.UploadFileIn]{
		Draft: func(ctx context.Context, in *api.UploadFileIn) (*op.Draft, error) { return s.draft(ctx, in.SandboxID) },
		Serve: s.upload,
	})
}

func (s *Service) draft(ctx context.Context, sandbox string) (*op.Draft, error) {
	res, err := s.sandboxes.Resource(ctx, sandbox)
	if err != nil {
		return nil, err
	}
	return &op.Draft{Resource: res}, nil
}

func (s *Service) download(ctx context.Context, in *api.FileIn, _ *op.Draft, st *op.Stream) error {
	want, err := requested(st.R.Header)
	if err != nil {
		return err
	}
	g, woke, err := s.sandboxes.Awake(ctx, in.SandboxID)
	if err != nil {
		return err
	}
	q := guest.ContentQuery{Path: in.Path, User: in.User, Offset: want.offset, Length: want.length, Tar: want.tar}
	if st.R.Method == http.MethodHead && !want.tar && !want.ranged {
		q.Length = 0
	}
	c, err := g.Content(ctx, q)
	if err == nil && want.ranged && !matches(st.R.Header.Get("If-Range"), c.Info.ETag) {
		_ = c.Close()
		want.ranged, q.Offset, q.Length = false, 0, -1
		c, err = g.Content(ctx, q)
	}
	if err != nil {
		return errs.Woke(s.sandboxes.Explain(ctx, in.SandboxID, err), woke)
	}
	defer c.Close()
	h := st.W.Header()
	if woke != "" {
		h.Set("Berth-Woke", woke)
	}
	whole, err := head(h, st.R, c, want)
	if err != nil || !whole {
		if err == nil {
			h.Del("Content-Length")
			st.W.WriteHeader(http.StatusNotModified)
		}
		return err
	}
	status := http.StatusOK
	if want.ranged {
		status = http.StatusPartialContent
	}
	st.W.WriteHeader(status)
	if st.R.Method == http.MethodHead {
		return nil
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{st.W}, c, make([]byte, copyBytes))
	if err == nil && c.Length >= 0 && n < c.Length {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return s.sandboxes.Explain(ctx, in.SandboxID, err)
	}
	return nil
}

// part is what a download asks for.
type part struct {
	ranged         bool
	offset, length int64
	tar            bool
}

// requested reads a download's headers. A Range that is none of bytes, or of several parts, counts as none.
func requested(h http.Header) (part, error) {
	p := part{length: -1}
	for _, accept := range h.Values("Accept") {
		for kind := range strings.SplitSeq(accept, ",") {
			kind, _, _ = mime.ParseMediaType(kind)
			p.tar = p.tar || kind == api.TarType
		}
	}
	v, ok := strings.CutPrefix(h.Get("Range"), "bytes=")
	if !ok || p.tar || strings.Contains(v, ",") {
		return p, nil
	}
	first, last, ok := strings.Cut(strings.TrimSpace(v), "-")
	bad := errs.E(errs.InvalidInput, "the header Range cannot be read").Suggest("Write bytes=FIRST-LAST, bytes=FIRST- or bytes=-COUNT.").With("path", "Range")
	number := func(s string) (int64, bool) {
		n, err := strconv.ParseInt(s, 10, 64)
		return n, err == nil && n >= 0 && s[0] != '+' && n < 1<<60
	}
	if !ok || first == "" && last == "" {
		return p, bad
	}
	p.ranged = true
	if first == "" {
		n, ok := number(last)
		if p.offset = -n; !ok {
			return p, bad
		}
		if n == 0 {
			p.offset, p.length = 1<<60, 0 // nothing can be given: 416
		}
		return p, nil
	}
	from, ok := number(first)
	if p.offset = from; !ok {
		return p, bad
	}
	if last != "" {
		to, ok := number(last)
		if !ok || to < from {
			return p, bad
		}
		p.length = to - from + 1
	}
	return p, nil
}

// head checks what the caller knows of the file and writes the headers. It gives false where the caller has it already.
func head(h http.Header, r *http.Request, c *guest.Content, p part) (send bool, err error) {
	// What a sandbox holds is not ours: it is a file to save, and nothing in it may run with our origin.
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	name := c.Info.Name
	if p.tar {
		h.Set("Content-Type", api.TarType)
		h.Set("Content-Disposition", disposition(name+".tar"))
		return true, nil
	}
	if m := r.Header.Get("If-Match"); m != "" && !matches(m, c.Info.ETag) {
		return false, errs.E(errs.InvalidState, "the file has changed since").Because("changed").Suggest("Download it from the beginning.")
	}
	h.Set("ETag", `"`+c.Info.ETag+`"`)
	if m := r.Header.Get("If-None-Match"); m != "" && matches(m, c.Info.ETag) {
		return false, nil
	}
	h.Set("Accept-Ranges", "bytes")
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", disposition(name))
	h.Set("Last-Modified", c.Info.ModifiedAt.UTC().Format(http.TimeFormat))
	length := c.Length
	if r.Method == http.MethodHead && !p.ranged {
		length = c.Info.Size
	}
	if p.ranged {
		if c.Length == 0 {
			h.Set("Content-Range", "bytes */"+strconv.FormatInt(c.Info.Size, 10))
			return false, errs.E(errs.InvalidInput, "the range is beyond the file's end, which is at %d", c.Info.Size).Because("range").With("size", c.Info.Size)
		}
		h.Set("Content-Range", "bytes "+strconv.FormatInt(c.Offset, 10)+"-"+strconv.FormatInt(c.Offset+c.Length-1, 10)+"/"+strconv.FormatInt(c.Info.Size, 10))
	}
	h.Set("Content-Length", strconv.FormatInt(length, 10))
	return true, nil
}

// matches reports whether an ETag is among those of a header. Ours are strong. An absent header matches.
func matches(header, etag string) bool {
	if header == "" {
		return true
	}
	for one := range strings.SplitSeq(header, ",") {
		one = strings.TrimSpace(one)
		if one == "*" || strings.Trim(one, `"`) == etag {
			return true
		}
	}
	return false
}

// disposition makes a browser save the file under its name.
func disposition(name string) string {
	return mime.FormatMediaType("attachment", map[string]string{"filename": strings.ToValidUTF8(name, "_")})
}

func (s *Service) upload(ctx context.Context, in *api.UploadFileIn, _ *op.Draft, st *op.Stream) error {
	put, err := offered(st.R)
	if err != nil {
		return err
	}
	put.Path, put.User, put.Mode = in.Path, in.User, in.Mode
	g, woke, err := s.sandboxes.Awake(ctx, in.SandboxID)
	if err != nil {
		return err
	}
	w, err := g.PutContent(ctx, put, &received{st.R.Body})
	if err != nil {
		return errs.Woke(s.sandboxes.Explain(ctx, in.SandboxID, err), woke)
	}
	b, err := op.Encode(&api.UploadFileOut{File: show(w.Info), SHA256: w.SHA256, Bytes: w.Bytes, Entries: w.Entries, Created: w.Made, Woke: woke})
	if err != nil {
		return err
	}
	st.W.Header().Set("Content-Type", "application/json")
	st.W.Header().Set("ETag", `"`+w.Info.ETag+`"`)
	_, err = st.W.Write(b)
	return err
}

// received is a request's body; that it broke off is the caller's doing.
type received struct{ io.Reader }

// Read implements io.Reader.
func (r *received) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && err != io.EOF {
		err = errs.Wrap(errs.InvalidInput, err, "the body broke off, or nothing of it came for a minute").Because("body_broken").
			Suggest("Nothing was kept. Send the whole body again.")
	}
	return n, err
}

// offered reads an upload's headers.
func offered(r *http.Request) (guest.ContentPut, error) {
	put := guest.ContentPut{Length: r.ContentLength}
	if m := r.Header.Get("If-Match"); m != "" && m != "*" {
		put.IfMatch = strings.Trim(m, `"`)
	}
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return put, errs.E(errs.InvalidInput, "the body is encoded as %.40s", enc).Suggest("Send the bytes as they are, without Content-Encoding.").With("path", "Content-Encoding")
	}
	if r.Header.Get("Content-Range") != "" {
		return put, errs.E(errs.InvalidInput, "a part of a file cannot be uploaded").Suggest("Send the whole file, or append with files.write.").With("path", "Content-Range")
	}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	put.Tar = kind == api.TarType
	var err error
	put.SHA256, err = digest(r.Header)
	return put, err
}

// digest is the SHA-256 that the caller says the body has, in hexadecimal.
func digest(h http.Header) (string, error) {
	sums := map[string]bool{}
	add := func(b []byte, err error) bool {
		sums[hex.EncodeToString(b)] = true
		return err == nil && len(b) == 32
	}
	bad := func(name string) error {
		return errs.E(errs.InvalidInput, "the header %s holds no SHA-256", name).With("path", name)
	}
	if v := h.Get("Content-SHA256"); v != "" && !add(hex.DecodeString(v)) {
		return "", bad("Content-SHA256")
	}
	for _, name := range []string{"Content-Digest", "Digest"} {
		for one := range strings.SplitSeq(h.Get(name), ",") {
			alg, v, _ := strings.Cut(strings.TrimSpace(one), "=")
			if strings.EqualFold(alg, "sha-256") && !add(base64.StdEncoding.DecodeString(strings.Trim(v, ":"))) {
				return "", bad(name)
			}
		}
	}
	if len(sums) > 1 {
		return "", errs.E(errs.InvalidInput, "the headers give different digests").With("path", "Content-Digest")
	}
	for sum := range sums {
		return sum, nil
	}
	return "", nil
}
