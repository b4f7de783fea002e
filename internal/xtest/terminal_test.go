package xtest

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/crypto/ssh"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/controlplane"
	"github.com/berthrun/berth/internal/db/dbtest"
)

// publicKey makes a key as OpenSSH writes it.
func publicKey(t *testing.T) string {
	t.Helper()
	pub, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	k, err := ssh.NewPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	return string(ssh.MarshalAuthorizedKey(k))
}

// window is a terminal as a browser or program has one.
type window struct {
	t    *testing.T
	conn *websocket.Conn
	got  strings.Builder // binary messages
	at   int64           // offset reached
}

// dialTerminal opens one; status is the handshake's where it is refused.
func dialTerminal(t *testing.T, s *System, path string, header http.Header) (w *window, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, res, err := websocket.Dial(ctx, s.URL+path, &websocket.DialOptions{HTTPHeader: header})
	if err != nil {
		if res == nil {
			t.Fatal(err)
		}
		return nil, res.StatusCode
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	return &window{t: t, conn: conn}, http.StatusSwitchingProtocols
}

func keyHeader(key string) http.Header { return http.Header{"Authorization": {"Bearer " + key}} }

func (w *window) send(v map[string]any) {
	w.t.Helper()
	b, err := json.Marshal(v)
	if err == nil {
		err = w.conn.Write(w.t.Context(), websocket.MessageText, b)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *window) typed(s string) {
	w.t.Helper()
	if err := w.conn.Write(w.t.Context(), websocket.MessageBinary, []byte(s)); err != nil {
		w.t.Fatal(err)
	}
}

// message is one text message of the server.
type message struct {
	Type, ProcessID, Signal, Code, Reason, Woke string
	Offset                                      int64
	ExitCode                                    int
}

// next reads until a text message; what came before it is in got.
func (w *window) next() (m message, err error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	for {
		kind, b, err := w.conn.Read(ctx)
		if err != nil {
			return m, err
		}
		if kind == websocket.MessageText {
			err := json.Unmarshal(b, &m)
			return m, err
		}
		w.got.Write(b)
		w.at += int64(len(b))
	}
}

// until reads until the text has come.
func (w *window) until(text string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	for !strings.Contains(w.got.String(), text) {
		kind, b, err := w.conn.Read(ctx)
		if err != nil {
			w.t.Fatalf("%v after %q, without %q", err, w.got.String(), text)
		}
		if kind == websocket.MessageBinary {
			w.got.Write(b)
			w.at += int64(len(b))
		}
	}
}

func (w *window) ready() message {
	w.t.Helper()
	m, err := w.next()
	if err != nil || m.Type != "ready" || !strings.HasPrefix(m.ProcessID, "proc_") {
		w.t.Fatalf("first came %+v, %v", m, err)
	}
	w.at = m.Offset
	return m
}

func terminalPath(id string) string { return "/v1/sandboxes/" + id + "/terminal" }

// A terminal has its size before its program, passes characters whole, tells the exit, outlives its connection and goes on where that broke off.
func TestTerminal(t *testing.T) {
	s := Start(t, Options{})
	id := Sandbox(t, s.Client, api.CreateSandboxIn{Env: map[string]string{"OF_THE_SANDBOX": "yes"}})
	w, _ := dialTerminal(t, &s.System, terminalPath(id), keyHeader(s.Key))
	w.send(map[string]any{
		"type": "start", "cols": 91, "rows": 33, "command": "stty size; echo $TERM $OF_THE_SANDBOX $MINE; stty -echo; while read -r x; do [ $x = end ] && exit 7; [ $x = size ] && stty size; echo \"<$x>\"; done",
		"env": map[string]string{"MINE": "too"},
	})
	first := w.ready()
	w.until("33 91\r\nxterm-256color yes too\r\n")
	for _, part := range []string{"\xe4", "\xb8\x96\xf0", "\x9f\x98\x80\n"} { // characters split over messages
		w.typed(part)
	}
	w.until("<\u4e16\U0001f600>\r\n")
	w.send(map[string]any{"type": "resize", "cols": 0, "rows": 0})
	w.send(map[string]any{"type": "resize", "cols": 120, "rows": 40})
	w.typed("size\n")
	w.until("40 120\r\n<size>\r\n")
	// The connection is lost; meanwhile the program writes on.
	at := w.at
	_ = w.conn.CloseNow()
	Must(t, s.Client, api.ProcessInput, api.ProcessInputIn{ProcessIn: proc(id, first.ProcessID), Data: "meanwhile\n"})
	eventually(t, func() bool {
		return strings.Contains(Must(t, s.Client, api.ProcessOutput, api.ProcessOutputIn{ProcessIn: proc(id, first.ProcessID)}).Data, "<meanwhile>")
	})
	again, _ := dialTerminal(t, &s.System, fmt.Sprintf("%s?processId=%s&offset=%d", terminalPath(id), first.ProcessID, at), keyHeader(s.Key))
	again.ready()
	again.until("<meanwhile>\r\n")
	if got := again.got.String(); got != "<meanwhile>\r\n" {
		t.Errorf("after the break came %q", got)
	}
	again.typed("end\n")
	if m, err := again.next(); err != nil || m.Type != "exit" || m.ExitCode != 7 {
		t.Errorf("it ended with %+v, %v", m, err)
	}
	if _, err := again.next(); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("and was closed with %v", err)
	}
	if p := Must(t, s.Client, api.GetProcess, proc(id, first.ProcessID)).Process; p.State != "exited" || !p.PTY {
		t.Errorf("its process is %+v", p)
	}
}

// Without a terminal both streams come apart and as they are, and a signal's death is told.
func TestTerminalPipes(t *testing.T) {
	s := Start(t, Options{})
	id := Sandbox(t, s.Client, api.CreateSandboxIn{})
	w, _ := dialTerminal(t, &s.System, terminalPath(id), keyHeader(s.Key))
	w.send(map[string]any{"type": "start", "pipes": true, "command": "cat; echo apart >&2; kill -TERM $$"})
	w.ready()
	w.typed("\x00\xff\r\n")
	w.send(map[string]any{"type": "eof"})
	m, err := w.next()
	if err != nil || m.Type != "exit" || m.ExitCode != 143 || m.Signal != "TERM" {
		t.Errorf("it ended with %+v, %v", m, err)
	}
	if got := w.got.String(); got != "\x01\x00\xff\r\n\x02apart\n" && got != "\x02apart\n\x01\x00\xff\r\n" {
		t.Errorf("it sent %q", got)
	}
}

// A terminal that nobody is connected to is hung up after its time.
func TestTerminalIsHungUp(t *testing.T) {
	s := Start(t, Options{Change: func(c *controlplane.Config) { c.TerminalLinger = 20 * time.Millisecond }})
	id := Sandbox(t, s.Client, api.CreateSandboxIn{})
	w, _ := dialTerminal(t, &s.System, terminalPath(id), keyHeader(s.Key))
	w.send(map[string]any{"type": "start", "command": "trap 'exit 9' HUP; echo up; while :; do sleep 0.02; done"})
	p := w.ready().ProcessID
	w.until("up")
	_ = w.conn.CloseNow()
	eventually(t, func() bool {
		p := Must(t, s.Client, api.GetProcess, proc(id, p)).Process
		return p.State == "exited" && *p.ExitCode == 9
	})
}

// A ticket opens one terminal of its sandbox, once, in its time, for its key as it is then.
func TestTerminalTickets(t *testing.T) {
	dbtest.EachURL(t, func(t *testing.T, url string) {
		s := Start(t, Options{Database: url})
		id, other := Sandbox(t, s.Client, api.CreateSandboxIn{}), Sandbox(t, s.Client, api.CreateSandboxIn{})
		d := dbtest.Open(t, url)
		ticket := func() string {
			return Must(t, s.Client, api.TerminalTicket, api.SandboxWriteIn{SandboxIn: in(id)}).Ticket
		}
		open := func(sandbox, ticket string) int {
			w, status := dialTerminal(t, &s.System, terminalPath(sandbox)+"?ticket="+ticket, nil)
			if w != nil {
				_ = w.conn.CloseNow()
			}
			return status
		}
		one := ticket()
		if got := open(id, one); got != http.StatusSwitchingProtocols {
			t.Errorf("a good ticket: %d", got)
		}
		if got := open(id, one); got != http.StatusUnauthorized {
			t.Errorf("used again: %d", got)
		}
		two := ticket()
		if got := open(other, two); got != http.StatusUnauthorized {
			t.Errorf("for another sandbox: %d", got)
		}
		if got := open(id, two); got != http.StatusUnauthorized {
			t.Errorf("after it was tried on another: %d", got)
		}
		if got := open(id, "tt_MADEUP"); got != http.StatusUnauthorized {
			t.Errorf("made up: %d", got)
		}
		late := ticket()
		if _, err := d.ExecContext(t.Context(), `UPDATE terminal_tickets SET expires_at = expires_at - 30000000`); err != nil {
			t.Fatal(err)
		}
		if got := open(id, late); got != http.StatusUnauthorized {
			t.Errorf("after its time: %d", got)
		}
		// What of a kept result is replayed has no ticket in it.
		keyed := api.SandboxWriteIn{SandboxIn: in(id)}
		keyed.IdempotencyKey = "ticket-1"
		if a, b := Must(t, s.Client, api.TerminalTicket, keyed), Must(t, s.Client, api.TerminalTicket, keyed); a.Ticket == "" || b.Ticket != "" || !b.Replayed {
			t.Errorf("first %+v, then %+v", a, b)
		}
		// A key that is revoked meanwhile.
		key := Must(t, s.Client, api.CreateKey, api.CreateKeyIn{Name: "short", Scopes: []string{"compute:sandboxes:*"}})
		of := Must(t, s.With(t, key.Secret), api.TerminalTicket, api.SandboxWriteIn{SandboxIn: in(id)}).Ticket
		Must(t, s.Client, api.RevokeKey, api.RevokeKeyIn{KeyID: key.Key.ID})
		if got := open(id, of); got != http.StatusUnauthorized {
			t.Errorf("of a revoked key: %d", got)
		}
	})
}

// Who may not is refused before anything starts: keys in the URL, pages of other sites, keys that only read, what is no WebSocket.
func TestTerminalRefusals(t *testing.T) {
	s := Start(t, Options{Change: func(c *controlplane.Config) { c.PublicURL = "https://berth.example.com" }})
	id := Sandbox(t, s.Client, api.CreateSandboxIn{})
	reader := Must(t, s.Client, api.CreateKey, api.CreateKeyIn{Name: "reader", Scopes: []string{"read"}}).Secret
	with := func(key, origin string) http.Header {
		h := keyHeader(key)
		if origin != "" {
			h.Set("Origin", origin)
		}
		return h
	}
	for name, c := range map[string]struct {
		path   string
		header http.Header
		want   int
	}{
		"no key":            {terminalPath(id), nil, http.StatusUnauthorized},
		"a key in the URL":  {terminalPath(id) + "?token=" + s.Key, nil, http.StatusBadRequest},
		"a key as ticket":   {terminalPath(id) + "?ticket=" + s.Key, nil, http.StatusBadRequest},
		"another page":      {terminalPath(id), with(s.Key, "https://evil.example"), http.StatusForbidden},
		"a page of nothing": {terminalPath(id), with(s.Key, "null"), http.StatusForbidden},
		"our own page":      {terminalPath(id), with(s.Key, "https://berth.example.com"), http.StatusSwitchingProtocols},
		"our own address":   {terminalPath(id), with(s.Key, s.URL), http.StatusSwitchingProtocols},
		"a reader":          {terminalPath(id), with(reader, ""), http.StatusForbidden},
		"ssh of a reader":   {"/v1/sandboxes/" + id + "/ssh/connect", with(reader, ""), http.StatusForbidden},
		"ssh of a page":     {"/v1/sandboxes/" + id + "/ssh/connect", with(s.Key, s.URL), http.StatusForbidden},
		"no such sandbox":   {terminalPath("sbx_" + strings.Repeat("0", 20)), with(s.Key, ""), http.StatusNotFound},
		"no such process":   {terminalPath(id) + "?processId=proc_" + strings.Repeat("0", 20), with(s.Key, ""), http.StatusNotFound},
		"a bad offset":      {terminalPath(id) + "?offset=-1", with(s.Key, ""), http.StatusBadRequest},
	} {
		if _, got := dialTerminal(t, &s.System, c.path, c.header); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	ticket := Must(t, s.Client, api.TerminalTicket, api.SandboxWriteIn{SandboxIn: in(id)}).Ticket
	if _, got := dialTerminal(t, &s.System, terminalPath(id)+"?ticket="+ticket, http.Header{"Origin": {"https://evil.example"}}); got != http.StatusForbidden {
		t.Errorf("another page with a ticket: %d", got)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+terminalPath(id), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = keyHeader(s.Key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusBadRequest {
		t.Errorf("no WebSocket: %d", res.StatusCode)
	}
	p := start(t, s.Client, id, "sleep 600")
	if _, got := dialTerminal(t, &s.System, terminalPath(id)+"?processId="+p, keyHeader(s.Key)); got != http.StatusBadRequest {
		t.Errorf("a process without a terminal: %d", got)
	}
}

// Bad first messages are told what is wrong, with a code; a revoked key, a deleted sandbox end what is open.
func TestTerminalEnds(t *testing.T) {
	s := Start(t, Options{Change: func(c *controlplane.Config) { c.Recheck = 20 * time.Millisecond }})
	id := Sandbox(t, s.Client, api.CreateSandboxIn{})
	for name, c := range map[string]struct {
		say  map[string]any
		code string
	}{
		"no start": {map[string]any{"type": "resize"}, "INVALID_INPUT"},
		"both":     {map[string]any{"type": "start", "command": "x", "argv": []string{"y"}}, "INVALID_INPUT"},
		"no user":  {map[string]any{"type": "start", "command": "x", "user": "nobody-of-that-name"}, "INVALID_INPUT"},
		"too long": {map[string]any{"type": "start", "command": strings.Repeat("x", 200<<10)}, "INVALID_INPUT"},
	} {
		w, _ := dialTerminal(t, &s.System, terminalPath(id), keyHeader(s.Key))
		w.send(c.say)
		if m, err := w.next(); err != nil || m.Type != "error" || m.Code != c.code {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
	open := func(key string) *window {
		w, _ := dialTerminal(t, &s.System, terminalPath(id), keyHeader(key))
		w.send(map[string]any{"type": "start", "command": "exec cat"})
		w.ready()
		return w
	}
	key := Must(t, s.Client, api.CreateKey, api.CreateKeyIn{Name: "short", Scopes: []string{"compute:sandboxes:*"}})
	w := open(key.Secret)
	Must(t, s.Client, api.RevokeKey, api.RevokeKeyIn{KeyID: key.Key.ID})
	if m, err := w.next(); err != nil || m.Code != "UNAUTHENTICATED" {
		t.Errorf("revoked: %+v, %v", m, err)
	}
	w = open(s.Key)
	Must(t, s.Client, api.DeleteSandbox, api.SandboxWaitIn{SandboxIn: in(id), WaitIn: wait(20)})
	if m, err := w.next(); err != nil || m.Type != "error" {
		t.Errorf("deleted: %+v, %v", m, err)
	}
	// What was opened is in the audit log.
	var n int
	if err := dbtest.Open(t, s.cfg.Database).QueryRowContext(t.Context(), `SELECT COUNT(*) FROM audit WHERE operation = 'sandboxes.terminal' AND resource_id = $1`, id).Scan(&n); err != nil || n < 2 {
		t.Errorf("%d rows of audit, %v", n, err)
	}
}
