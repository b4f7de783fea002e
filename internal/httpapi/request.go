package httpapi

import (
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
)

var (
	requestIDPattern = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,128}$`)
	keyPattern       = regexp.MustCompile(`berth_[a-z]+_[0-9A-Za-z]{30,}`) // longer than what people call their files
)

// keyNames are query parameters in which other APIs take a key; no operation may have an argument of such a name in its query.
var keyNames = map[string]bool{
	"key": true, "token": true, "api_key": true, "apikey": true, "access_token": true, "authorization": true, "bearer": true, "secret": true,
}

// ServeHTTP does for every request what does not depend on its route: its id, the access log, what must not be in a URL, its origin.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	rec := &recorder{ResponseWriter: w, requestID: r.Header.Get("X-Request-Id"), source: s.sourceIP(r)}
	if !requestIDPattern.MatchString(rec.requestID) || keyPattern.MatchString(rec.requestID) {
		rec.requestID = id.New(id.Request)
	}
	h := w.Header()
	h.Set("X-Request-Id", rec.requestID)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	defer s.finish(rec, r, began)
	if err := s.admit(r); err != nil {
		s.fail(rec, r, err)
		return
	}
	if !isClean(r.URL) {
		s.unknown(rec, r)
		return
	}
	s.mux.ServeHTTP(rec, r)
}

// finish turns a panic into an answer and writes the line of the access log.
func (s *server) finish(rec *recorder, r *http.Request, began time.Time) {
	p := recover()
	if p != nil && p != http.ErrAbortHandler {
		s.Logger.ErrorContext(r.Context(), "handler panicked", "request_id", rec.requestID, "panic", p, "stack", string(debug.Stack()))
		if rec.status == 0 {
			s.fail(rec, r, errs.E(errs.Internal, "panic"))
		}
	}
	level := slog.LevelInfo
	if strings.HasSuffix(r.URL.Path, "z") && rec.operation == "" && rec.status == http.StatusOK {
		level = slog.LevelDebug // probes of health come every few seconds
	}
	if rec.operation != "" && rec.principal != "" {
		level = slog.LevelDebug // the path of a call writes its line
	}
	s.Logger.LogAttrs(r.Context(), level, "http request",
		slog.String("method", r.Method), slog.String("path", redact(r.URL.Path)), slog.String("operation", rec.operation),
		slog.Int("status", rec.status), slog.Int64("bytes", rec.bytes), slog.Duration("duration", time.Since(began)),
		slog.String("request_id", rec.requestID), slog.String("source_ip", rec.source),
		slog.String("org_id", rec.orgID), slog.String("principal_id", rec.principal))
	if p == http.ErrAbortHandler {
		panic(p)
	}
}

// admit refuses requests that no route may see: a key in the URL, where it would end in logs and histories, and changes that a foreign page asks
// a browser for.
func (s *server) admit(r *http.Request) error {
	if keyInURL(r.URL) {
		return errs.E(errs.InvalidInput, "a key does not belong in the URL").Because("key_in_url").
			Suggest("Send it as the header Authorization: Bearer KEY. Treat the key as disclosed: revoke it and make a new one.")
	}
	if err := s.origins.Check(r); err != nil {
		return errs.E(errs.Forbidden, "this request comes from a page of another origin").Because("cross_origin").
			Suggest("Call the API from a program, or from a page of this server.")
	}
	return nil
}

func keyInURL(u *url.URL) bool {
	if u.User != nil || keyPattern.MatchString(u.Path) || keyPattern.MatchString(u.RawQuery) {
		return true
	}
	values, _ := url.ParseQuery(u.RawQuery) // what can be read of it: the rest is refused later
	for name, vs := range values {
		if keyNames[strings.ToLower(name)] || keyPattern.MatchString(name) || keyPattern.MatchString(strings.Join(vs, "\n")) {
			return true
		}
	}
	return false
}

func redact(s string) string { return keyPattern.ReplaceAllString(s, "berth_REDACTED") }

// isClean reports whether the path names what it says: no empty, . or .. segment, plain or escaped, no trailing slash. ServeMux would answer the
// others with a redirect.
func isClean(u *url.URL) bool {
	return u.Path == "/" || (strings.HasPrefix(u.Path, "/") && path.Clean(u.Path) == u.Path && !strings.ContainsFunc(u.Path, isControl))
}

func isControl(r rune) bool { return r < 0x20 || r == 0x7f }

func originOf(publicURL string) string {
	u, err := url.Parse(publicURL)
	if err != nil {
		return publicURL // the caller refuses it
	}
	return u.Scheme + "://" + u.Host
}

// recorder remembers what the access log needs of an answer.
type recorder struct {
	http.ResponseWriter
	requestID, source           string
	operation, orgID, principal string
	status                      int
	bytes                       int64
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	n, err := r.ResponseWriter.Write(b)
	r.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
