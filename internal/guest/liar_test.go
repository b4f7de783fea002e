package guest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// liar is a client whose guest answers whatever a test makes it answer.
func liar(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	srv := httptest.NewServer(h)
	c := NewClient(func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", srv.Listener.Addr().String())
	}, func() string { return "t" })
	t.Cleanup(func() {
		c.Close()
		srv.CloseClientConnections()
		srv.Close()
	})
	return c
}

const (
	goodRunning = `"id":"proc_a","command":"x","cwd":"/","user":"root","pid":7,"running":true,"exitCode":0,"startedAt":"2026-11-01T00:00:00Z","endedAt":"0001-01-01T00:00:00Z","stdoutBytes":9,"stderrBytes":0`
	goodEnded   = `"id":"proc_a","command":"x","cwd":"/","user":"root","pid":7,"running":false,"exitCode":3,"startedAt":"2026-11-01T00:00:00Z","endedAt":"2026-11-01T00:00:05Z","stdoutBytes":9,"stderrBytes":0`
	goodFile    = `"name":"f","path":"/d/f","type":"file","size":3,"mode":"0644","user":"root","group":"root","modifiedAt":"2026-11-01T00:00:00Z","etag":"e"`
)

// Whatever a guest answers against the protocol, the client says so and passes nothing on.
func TestLies(t *testing.T) {
	replace := strings.NewReplacer
	process := func(c *Client) error { _, err := c.Process(t.Context(), "proc_a"); return err }
	output := func(c *Client) error {
		_, err := c.Output(t.Context(), "proc_a", OutputQuery{Offset: 5, Limit: 4})
		return err
	}
	exec := func(c *Client) error { _, err := c.Exec(t.Context(), Start{ID: "proc_a", Command: "x"}, 0); return err }
	stat := func(c *Client) error { _, err := c.Stat(t.Context(), "/d/f", ""); return err }
	read := func(c *Client) error {
		_, err := c.ReadFile(t.Context(), FileRead{Path: "/d/f", Offset: 2, Limit: 2})
		return err
	}
	list := func(c *Client) error {
		_, err := c.ListFiles(t.Context(), FileList{Path: "/d", After: "/d/b", Limit: 2})
		return err
	}
	part := func(offset, next, earliest int, eof bool, data string) string {
		b, _ := json.Marshal([]byte(data))
		return fmt.Sprintf(`{"data":%s,"offset":%d,"next":%d,"earliest":%d,"eof":%v,"process":{%s}}`, b, offset, next, earliest, eof, goodRunning)
	}
	excerpts := func(s string) string {
		return `{"process":{` + goodEnded + `},"stdout":` + s + `,"stderr":{"head":"","total":0}}`
	}
	entries := func(more string, paths ...string) string {
		var all []string
		for _, p := range paths {
			all = append(all, "{"+replace("/d/f", p, `"f"`, `"`+p[strings.LastIndex(p, "/")+1:]+`"`).Replace(goodFile)+"}")
		}
		return `{"entries":[` + strings.Join(all, ",") + `],` + more + `}`
	}
	for name, tt := range map[string]struct {
		call   func(*Client) error
		answer string
	}{
		"nothing":                      {process, ""},
		"not JSON":                     {process, "<html>"},
		"another type":                 {process, "[]"},
		"empty object":                 {process, "{}"},
		"another process":              {process, "{" + replace("proc_a", "proc_b").Replace(goodRunning) + "}"},
		"no pid":                       {process, "{" + replace(`"pid":7`, `"pid":0`).Replace(goodRunning) + "}"},
		"absurd start":                 {process, "{" + replace("2026-11-01T00:00:00Z", "1926-11-01T00:00:00Z").Replace(goodRunning) + "}"},
		"absurd end":                   {process, "{" + replace("2026-11-01T00:00:05Z", "9926-11-01T00:00:05Z").Replace(goodEnded) + "}"},
		"ended without time":           {process, "{" + replace("2026-11-01T00:00:05Z", "0001-01-01T00:00:00Z").Replace(goodEnded) + "}"},
		"running with exit code":       {process, "{" + replace(`"exitCode":0`, `"exitCode":1`).Replace(goodRunning) + "}"},
		"absurd exit code":             {process, "{" + replace(`"exitCode":3`, `"exitCode":300`).Replace(goodEnded) + "}"},
		"negative output":              {process, "{" + replace(`"stdoutBytes":9`, `"stdoutBytes":-9`).Replace(goodEnded) + "}"},
		"endless command":              {process, "{" + replace(`"command":"x"`, `"command":"`+strings.Repeat("x", 5000)+`"`).Replace(goodEnded) + "}"},
		"huge answer":                  {process, `{"command":"` + strings.Repeat("x", smallAnswer+1)},
		"deep answer":                  {process, strings.Repeat("[", 20000)},
		"process twice":                {func(c *Client) error { _, err := c.Processes(t.Context()); return err }, `{"processes":[{` + goodEnded + `},{` + goodEnded + `}]}`},
		"head and tail beyond total":   {exec, excerpts(`{"head":"YWJj","total":2}`)},
		"head too long":                {exec, excerpts(`{"head":"` + strings.Repeat("YWJj", HeadTailBytes/3+1) + `","total":9999999}`)},
		"output from before":           {output, part(3, 7, 0, false, "abcd")},
		"output longer than asked for": {output, part(5, 10, 0, false, "abcde")},
		"next is not the end":          {output, part(5, 8, 0, false, "ab")},
		"gap that is none":             {output, part(7, 9, 6, false, "ab")},
		"earliest after the data":      {output, part(5, 7, 9, false, "ab")},
		"negative offset":              {output, part(-5, -3, -5, false, "ab")},
		"end of a running process":     {output, part(5, 7, 0, true, "ab")},
		"another path":                 {stat, "{" + replace("/d/f", "/d/g").Replace(goodFile) + "}"},
		"name beside the path":         {stat, "{" + replace(`"name":"f"`, `"name":"../f"`).Replace(goodFile) + "}"},
		"unknown type":                 {stat, "{" + replace(`"file"`, `"door"`).Replace(goodFile) + "}"},
		"negative size":                {stat, "{" + replace(`"size":3`, `"size":-3`).Replace(goodFile) + "}"},
		"no mode":                      {stat, "{" + replace(`"0644"`, `"rw-r--"`).Replace(goodFile) + "}"},
		"more than asked for":          {read, `{"data":"YWJj","offset":2,"next":5,"eof":true,"info":{` + goodFile + `}}`},
		"another offset":               {read, `{"data":"YWI=","offset":1,"next":3,"eof":true,"info":{` + goodFile + `}}`},
		"nothing and no end":           {read, `{"data":"","offset":2,"next":2,"eof":false,"info":{` + goodFile + `}}`},
		"too many entries":             {list, entries(`"more":false`, "/d/c", "/d/d", "/d/e")},
		"entries out of order":         {list, entries(`"more":false`, "/d/d", "/d/c")},
		"an entry told before":         {list, entries(`"more":false`, "/d/b")},
		"an entry of elsewhere":        {list, entries(`"more":false`, "/etc/f")},
		"an entry that climbs":         {list, entries(`"more":false`, "/d/../f")},
		"more without next":            {list, entries(`"more":true`, "/d/c")},
		"next that is no progress":     {list, entries(`"more":true,"next":"/d/b"`)},
		"input beyond what was given": {func(c *Client) error {
			_, err := c.Input(t.Context(), "", "proc_a", Input{Data: []byte("ab")})
			return err
		}, `{"written":3}`},
		"absurd activity": {func(c *Client) error { _, err := c.Activity(t.Context()); return err }, `{"foreground":-1,"last":"2026-11-01T00:00:00Z"}`},
		"absurd metrics":  {func(c *Client) error { _, err := c.Metrics(t.Context()); return err }, `{"at":"2026-11-01T00:00:00Z","memoryUsed":-1}`},
		"absurd hello":    {func(c *Client) error { _, err := c.Hello(t.Context()); return err }, `{"protocol":1,"minProtocol":1,"build":"` + strings.Repeat("x", 300) + `"}`},
	} {
		t.Run(name, func(t *testing.T) {
			c := liar(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, tt.answer) })
			wantCode(t, tt.call(c), errs.Upstream, "guest_protocol")
		})
	}
	// The same answers without the lie pass: the cases above fail for what they say.
	for name, tt := range map[string]struct {
		call   func(*Client) error
		answer string
	}{
		"running": {process, "{" + goodRunning + "}"}, "ended": {process, "{" + goodEnded + "}"}, "output": {output, part(5, 7, 0, false, "ab")},
		"gap": {output, part(7, 9, 7, false, "ab")}, "exec": {exec, excerpts(`{"head":"YWJj","total":3}`)}, "stat": {stat, "{" + goodFile + "}"},
		"read": {read, `{"data":"YWI=","offset":2,"next":4,"eof":false,"info":{` + goodFile + `}}`},
		"list": {list, entries(`"more":true,"next":"/d/e"`, "/d/c", "/d/e")}, "empty page": {list, entries(`"more":true,"next":"/d/e"`)},
	} {
		t.Run("true "+name, func(t *testing.T) {
			if err := tt.call(liar(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, tt.answer) })); err != nil {
				t.Error(err)
			}
		})
	}
}

// Symptom 11, 16: a process that has ended does not run again, nor end another time; after a restore it may.
func TestEndedStaysEnded(t *testing.T) {
	answer := "{" + goodEnded + "}"
	c := liar(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/configure" {
			_, _ = io.WriteString(w, "{}")
			return
		}
		_, _ = io.WriteString(w, answer)
	})
	get := func() error { _, err := c.Process(t.Context(), "proc_a"); return err }
	if err := errors.Join(get(), get()); err != nil {
		t.Fatal(err)
	}
	answer = "{" + goodRunning + "}"
	wantCode(t, get(), errs.Upstream, "guest_protocol")
	if _, err := c.Configure(t.Context(), Configure{}); err != nil {
		t.Fatal(err)
	}
	if err := get(); err != nil {
		t.Errorf("after a restore: %v", err)
	}
}

// Every code of the guest becomes one that a caller can act on, and its message cannot carry more than a line.
func TestGuestErrors(t *testing.T) {
	for _, code := range []string{
		CodeInvalid, CodeNotFound, CodeExists, CodeNotDirectory, CodeIsDirectory, CodeNotEmpty, CodeDenied, CodeTooLarge, CodeChanged, CodeAmbiguous,
		CodeNoMatch, CodeDiskFull, CodeEnded, CodeNoStdin, CodeTooMany, CodeCannotRun, CodeStopping, CodeUnauthorized, CodeInternal,
	} {
		c := liar(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(400)
			_ = json.NewEncoder(w).Encode(Error{Code: code, Message: "a\x1b[31m\nb\u202e" + strings.Repeat("c", 5000)})
		})
		_, err := c.Process(t.Context(), "proc_a")
		e := errs.From(err)
		if e == nil || e.Code == errs.Internal || e.Reason == "guest_protocol" || e.Suggestion == "" {
			t.Errorf("%s becomes %+v", code, e)
			continue
		}
		if len(e.Message) > 2*maxGuestError || strings.ContainsAny(e.Message, "\x1b\n\u202e") {
			t.Errorf("%s: the message is %q", code, e.Message)
		}
	}
	for name, body := range map[string]string{"unknown code": `{"code":"shrug","message":"x"}`, "no code": `{}`, "a page": "<html>", "nothing": ""} {
		c := liar(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(500)
			_, _ = io.WriteString(w, body)
		})
		_, err := c.Process(t.Context(), "proc_a")
		t.Run(name, func(t *testing.T) { wantCode(t, err, errs.Upstream, "guest_protocol") })
	}
}

// raw is a client whose guest is a program on a socket.
func raw(t *testing.T, serve func(net.Conn)) *Client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = http.ReadRequest(bufio.NewReader(conn))
				serve(conn)
			}()
		}
	}()
	c := NewClient(func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", l.Addr().String())
	}, func() string { return "t" })
	t.Cleanup(c.Close)
	return c
}

// Symptom 32: a guest that breaks off, stalls or speaks no HTTP never hangs a call.
func TestBrokenGuests(t *testing.T) {
	for name, tt := range map[string]struct {
		serve  func(net.Conn)
		code   errs.Code
		reason string
	}{
		"closes at once":       {func(net.Conn) {}, errs.Unavailable, "guest_unresponsive"},
		"closes in the answer": {func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{") }, errs.Unavailable, "guest_unresponsive"},
		"no HTTP":              {func(c net.Conn) { _, _ = io.WriteString(c, "SSH-2.0-OpenSSH_9.2\r\n\r\n") }, errs.Upstream, "guest_protocol"},
		"endless header": {func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", 64<<10)+"\r\n\r\n{}")
		}, errs.Upstream, "guest_protocol"},
		"a redirect": {func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
		}, errs.Upstream, "guest_protocol"},
		"stalls before": {func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, errs.Unavailable, "guest_unresponsive"},
		"stalls in the answer": {func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
			_, _ = io.Copy(io.Discard, c)
		}, errs.Unavailable, "guest_unresponsive"},
		"answers without an end": {func(c net.Conn) { endless(c) }, errs.Upstream, "guest_protocol"},
	} {
		t.Run(name, func(t *testing.T) {
			c := raw(t, tt.serve)
			var out Process
			err := c.do(t.Context(), call{method: http.MethodPost, path: "/processes/proc_a/signal", timeout: 300 * time.Millisecond, limit: 1 << 16}, &out)
			wantCode(t, err, tt.code, tt.reason)
		})
	}
	c := raw(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Exec(ctx, Start{ID: "proc_a", Command: "x"}, -1); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled call: %v", err)
	}
}

func endless(c net.Conn) {
	_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
	for {
		if _, err := io.WriteString(c, "400\r\n"+strings.Repeat("[", 1024)+"\r\n"); err != nil {
			return
		}
	}
}

// Symptom 10: an export that is cut, too large or out of order is not taken for a whole one.
func TestBrokenExports(t *testing.T) {
	p := `{"process":{` + goodEnded + `}}` + "\n"
	end := `{"end":{"processes":1}}` + "\n"
	chunk := func(stream string, at int, data string) string {
		b, _ := json.Marshal(ExportRecord{Chunk: &ExportChunk{Stream: stream, Offset: int64(at), Data: []byte(data)}})
		return string(b) + "\n"
	}
	for name, tt := range map[string]struct {
		stream string
		reason string
	}{
		"whole":          {p + chunk("stdout", 0, "ab") + chunk("stdout", 9, "c") + chunk("stderr", 0, "d") + end, ""},
		"empty":          {`{"end":{"processes":0}}`, ""},
		"nothing":        {"", "guest_unresponsive"},
		"cut":            {p + chunk("stdout", 0, "ab"), "guest_unresponsive"},
		"cut in a line":  {p + `{"chunk":{"str`, "guest_protocol"},
		"wrong count":    {p + `{"end":{"processes":2}}`, "guest_protocol"},
		"twice":          {p + p + end, "guest_protocol"},
		"chunk first":    {chunk("stdout", 0, "ab") + p + end, "guest_protocol"},
		"overlap":        {p + chunk("stdout", 0, "ab") + chunk("stdout", 1, "c") + end, "guest_protocol"},
		"streams mixed":  {p + chunk("stderr", 0, "ab") + chunk("stdout", 0, "c") + end, "guest_protocol"},
		"unknown stream": {p + chunk("stdlog", 0, "ab") + end, "guest_protocol"},
		"empty chunk":    {p + chunk("stdout", 0, "") + end, "guest_protocol"},
		"large chunk":    {p + chunk("stdout", 0, strings.Repeat("x", OutputBytes+1)) + end, "guest_protocol"},
		"endless line":   {p + strings.Repeat("x", exportLine+1), "guest_protocol"},
		"nothing in it":  {p + "{}\n" + end, "guest_protocol"},
		"both in it":     {`{"process":{` + goodEnded + `},"end":{"processes":0}}`, "guest_protocol"},
		"more than is kept": {p + func() string {
			var b strings.Builder
			for at := 0; at < SpoolBytes+2*HeadTailBytes; at += 32 << 10 {
				b.WriteString(chunk("stdout", at, strings.Repeat("x", 32<<10)))
			}
			return b.String()
		}() + end, "guest_protocol"},
	} {
		t.Run(name, func(t *testing.T) {
			c := liar(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, tt.stream) })
			err := c.Export(t.Context(), func(ExportRecord) error { return nil })
			if tt.reason == "" && err != nil || tt.reason != "" && (err == nil || errs.From(err).Reason != tt.reason) {
				t.Errorf("error = %v, want %q", err, tt.reason)
			}
		})
	}
}

// wantCode checks an error's code and reason.
func wantCode(t *testing.T, err error, code errs.Code, reason string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %s %s", code, reason)
	}
	if e := errs.From(err); e.Code != code || e.Reason != reason {
		t.Fatalf("error = %s %q (%v), want %s %q", e.Code, e.Reason, err, code, reason)
	}
}

// While nobody gets as far as the sandbox, as when the runtime of its node is just starting again, a guest is not blamed: a boot is then tried again
// instead of given up. One that is reached and says nothing is.
func TestHelloBlames(t *testing.T) {
	for name, tt := range map[string]struct {
		dial func(ctx context.Context) (net.Conn, error)
		code errs.Code
	}{
		"the node": {func(context.Context) (net.Conn, error) {
			return nil, errs.E(errs.HostUnavailable, "the runtime of this node does not answer").Because("runtime_down")
		}, errs.HostUnavailable},
		"a node that hangs": {func(ctx context.Context) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, errs.HostUnavailable},
		"the guest": {func(context.Context) (net.Conn, error) {
			return nil, errs.E(errs.Unavailable, "nothing listens").Because("refused")
		}, errs.Unavailable},
		"a silent guest": {func(context.Context) (net.Conn, error) {
			host, guest := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, guest) }()
			return host, nil
		}, errs.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := NewClient(tt.dial, func() string { return "t" })
				defer c.Close()
				begun := time.Now()
				_, err := c.Hello(t.Context())
				if errs.CodeOf(err) != tt.code || time.Since(begun) > HelloTimeout+helloTry {
					t.Errorf("after %v: %v, want %s", time.Since(begun), err, tt.code)
				}
			})
		})
	}
}
