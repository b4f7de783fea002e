//go:build linux

package guest

import (
	"bytes"
	"net/http"
	"strings"
	"sync"
)

// What is kept of calls that must have one effect.
const (
	onceResults = 1024
	onceBytes   = 8 << 20
	maxOpBytes  = 128
)

// once remembers the answers to calls with an OpHeader, so that a repeat gets the first one's answer instead of a second effect.
type once struct {
	mu      sync.Mutex
	results map[string]*result
	order   []*result
	bytes   int
}

// result is one answer; done is closed once it is there.
type result struct {
	key    string
	done   chan struct{}
	status int
	header http.Header
	body   []byte
}

// middleware answers a repeated call from memory. Starting a process is left alone, since its id does the same.
func (o *once) middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op := r.Header.Get(OpHeader)
		if op == "" || r.Method != http.MethodPost || r.URL.Path == "/exec" || r.URL.Path == "/processes" {
			next.ServeHTTP(w, r)
			return
		}
		if len(op) > maxOpBytes {
			answer(w, nil, fail(CodeInvalid, "the operation's id is longer than %d bytes", maxOpBytes))
			return
		}
		res, mine := o.claim(r.URL.Path + " " + op)
		if !mine {
			select {
			case <-res.done:
				res.replay(w)
			case <-r.Context().Done():
			}
			return
		}
		rec := &recorder{header: http.Header{}, status: http.StatusOK}
		defer func() {
			res.status, res.header, res.body = rec.status, rec.header, rec.body.Bytes()
			o.settle(res)
		}()
		rec.status = http.StatusInternalServerError // if next panics
		next.ServeHTTP(rec, r)
		copyHeader(w.Header(), rec.header)
		w.WriteHeader(rec.status)
		_, _ = w.Write(rec.body.Bytes())
	})
}

// claim gives the result of a key, and whether the caller has to make it.
func (o *once) claim(key string) (*result, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if r := o.results[key]; r != nil {
		return r, false
	}
	r := &result{key: strings.Clone(key), done: make(chan struct{})}
	o.results[r.key] = r
	o.order = append(o.order, r)
	return r, true
}

// settle publishes a result. One that says the call may not have had its effect is forgotten, so that it can be tried again.
func (o *once) settle(r *result) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(r.done)
	o.bytes += len(r.body)
	if r.status >= 500 {
		o.remove(r)
	}
	for i := 0; i < len(o.order) && (len(o.order) > onceResults || o.bytes > onceBytes); {
		select {
		case <-o.order[i].done:
			o.remove(o.order[i])
		default:
			i++
		}
	}
}

func (o *once) remove(r *result) {
	if o.results[r.key] != r {
		return
	}
	delete(o.results, r.key)
	o.bytes -= len(r.body)
	for i, other := range o.order {
		if other == r {
			o.order = append(o.order[:i], o.order[i+1:]...)
			return
		}
	}
}

func (r *result) replay(w http.ResponseWriter) {
	copyHeader(w.Header(), r.header)
	w.WriteHeader(r.status)
	_, _ = w.Write(r.body)
}

func copyHeader(to, from http.Header) {
	for k, v := range from {
		to[k] = v
	}
}

// recorder keeps an answer.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }
