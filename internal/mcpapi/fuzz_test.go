package mcpapi

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/berthrun/berth/internal/caller"
)

// newFuzzHost gives a function that answers one body without a network.
func newFuzzHost(f *testing.F) func(body []byte, revision string) (int, []byte) {
	h := &host{files: map[string]string{}, entered: make(chan struct{}, 1)}
	closed := make(chan error)
	close(closed)
	h.release = closed
	handler, err := New(Config{
		Registry: h.registry(), Path: h, Visible: visibleToAll,
		Authenticate: func(context.Context, string) (*caller.Caller, error) { return &caller.Caller{OrgID: "org_1"}, nil },
	})
	if err != nil {
		f.Fatal(err)
	}
	return func(body []byte, revision string) (int, []byte) {
		w := answer(handler, body, "Mcp-Protocol-Version", revision)
		select {
		case <-h.entered:
		default:
		}
		return w.Code, w.Body.Bytes()
	}
}

func answer(h http.Handler, body []byte, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/mcp", bytes.NewReader(body))
	r.Header.Set("Authorization", "Bearer x")
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] != "" {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func benchHandler(b *testing.B) http.Handler {
	h := &host{files: map[string]string{}}
	handler, err := New(Config{
		Registry: h.registry(), Path: h, Visible: visibleToAll,
		Authenticate: func(context.Context, string) (*caller.Caller, error) { return &caller.Caller{OrgID: "org_1"}, nil },
	})
	if err != nil {
		b.Fatal(err)
	}
	return handler
}

// BenchmarkFace measures what the face adds to a call, network and path of a call aside: parse, check, answer.
func BenchmarkFace(b *testing.B) {
	for name, bb := range map[string]struct {
		body    string
		headers []string
	}{
		"call":       {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add_note","arguments":{"text":"x"}}}`, nil},
		"call-new":   {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + modernMeta + `,"name":"add_note","arguments":{"text":"x"}}}`, modern("tools/call", "add_note")},
		"list":       {listBody, nil},
		"ping":       {pingBody, nil},
		"initialize": {`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"p","version":"1"}}}`, nil},
	} {
		b.Run(name, func(b *testing.B) {
			handler := benchHandler(b)
			b.ReportAllocs()
			for b.Loop() {
				if w := answer(handler, []byte(bb.body), bb.headers...); w.Code != 200 {
					b.Fatal(w.Body)
				}
			}
		})
	}
}
