package client

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
)

// inProcess is a transport that calls a handler on the caller's goroutine.
type inProcess struct{ http.Handler }

// RoundTrip implements http.RoundTripper. A panic of the handler is an error, as over a network.
func (t inProcess) RoundTrip(r *http.Request) (resp *http.Response, err error) {
	if r.Body != nil {
		defer r.Body.Close()
	}
	defer func() {
		if p := recover(); p != nil {
			resp, err = nil, fmt.Errorf("handler panicked: %v", p)
		}
	}()
	in := r.Clone(r.Context())
	in.RequestURI = r.URL.RequestURI()
	in.Host = r.URL.Host
	in.RemoteAddr = "127.0.0.1:0"
	if in.Body == nil {
		in.Body = http.NoBody
	}
	w := &answer{header: http.Header{}}
	t.ServeHTTP(w, in)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	w.WriteHeader(http.StatusOK) // where the handler wrote nothing
	return &http.Response{
		Status: fmt.Sprintf("%d %s", w.status, http.StatusText(w.status)), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, Body: io.NopCloser(&w.body), ContentLength: int64(w.body.Len()), Request: r,
	}, nil
}

// answer collects what a handler writes.
type answer struct {
	header, sent http.Header
	status       int
	body         bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= 200 {
		a.status, a.sent = status, a.header.Clone()
	}
}

func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}
