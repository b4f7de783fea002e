package mcpapi

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/call"
)

// dial opens a connection to a host that takes little in without being read.
func dial(t *testing.T, h *host) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	return c
}

const rawHead = "POST /mcp/x/all HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer " + keyAll + "\r\nContent-Type: application/json\r\nAccept: text/event-stream\r\nContent-Length: %d\r\n\r\n"

// A client that asks for progress and never reads it does not hold its call for ever.
func TestClientThatNeverReads(t *testing.T) {
	h := newHost(t, func(c *Config) { c.ProgressEvery, c.Patience = 10*time.Microsecond, 100*time.Millisecond })
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"wait_note","arguments":{},"_meta":{"progressToken":"` + strings.Repeat("x", 1000) + `"}}}`
	c := dial(t, h)
	if _, err := fmt.Fprintf(c, rawHead+"%s", len(body), body); err != nil {
		t.Fatal(err)
	}
	<-h.entered
	select {
	case err := <-h.left:
		if err == nil {
			t.Error("the call's context ended without an error")
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the call still goes on")
	}
}

// A client that reads slowly, within the time for each part, gets all of it.
func TestClientThatReadsLate(t *testing.T) {
	h := newHost(t, func(c *Config) { c.Patience = 10 * time.Second })
	c := dial(t, h)
	for range 3 { // the connection goes on after each
		if _, err := fmt.Fprintf(c, rawHead+"%s", len(listBody), listBody); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReaderSize(c, 16), nil)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(res.Body); err != nil || res.StatusCode != 200 || len(b) < 3000 || res.ContentLength != int64(len(b)) {
			t.Fatalf("%d, %d bytes of %d: %v", res.StatusCode, len(b), res.ContentLength, err)
		}
	}
}

// A connection that stops in the middle of a body is answered and given up.
func TestHalfOpenBody(t *testing.T) {
	h := newHost(t, func(c *Config) { c.Patience = 100 * time.Millisecond })
	c := dial(t, h)
	if _, err := fmt.Fprintf(c, rawHead+"%s", 100, `{"jsonrpc"`); err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != http.StatusBadRequest {
		t.Fatalf("%+v, %v", res, err)
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		t.Error(err)
	}
	if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the connection stays: %v", err)
	}
	if calls, _, _ := h.seen(); len(calls) != 0 {
		t.Errorf("calls %v", []call.Options(calls))
	}
}
