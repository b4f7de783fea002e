package controlplane

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// What is no clean path is for the API to refuse, in its own form.
func TestPathsThatAreNotClean(t *testing.T) {
	api := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "api") })
	mux := http.NewServeMux()
	mux.Handle("/", api)
	mux.HandleFunc("/docs/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "docs") })
	s := httptest.NewServer(straight(mux, api))
	defer s.Close()
	for _, tt := range []struct{ line, want string }{
		{"GET /docs/", "docs"},
		{"GET /docs/page", "docs"},
		{"GET /v1/things", "api"},
		{"GET /", "api"},
		{"GET /v1/../docs/", "api"},
		{"GET /docs//page", "api"},
		{"POST /v1/things/./a", "api"},
		{"GET //v1", "api"},
		{"CONNECT 127.0.0.1:80", "api"},
	} {
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: berth\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", tt.line)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: %v", tt.line, err)
		}
		body, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusOK || strings.TrimSpace(string(body)) != tt.want {
			t.Errorf("%s: %d %q, want that %s answers", tt.line, resp.StatusCode, body, tt.want)
		}
		conn.Close()
	}
}
