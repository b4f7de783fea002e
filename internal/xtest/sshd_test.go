package xtest

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/crypto/ssh"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/controlplane"
	"github.com/berthrun/berth/internal/db/dbtest"
)

// pair is a key and what was signed for it.
type pair struct {
	private ssh.Signer
	public  string
	host    string
	known   ssh.PublicKey // who signs for hosts
}

func newPair(t *testing.T) *pair {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{}
	if p.private, err = ssh.NewSignerFromSigner(private); err != nil {
		t.Fatal(err)
	}
	p.public = string(ssh.MarshalAuthorizedKey(p.private.PublicKey()))
	return p
}

// sign gets a certificate and gives what logs in with it.
func (p *pair) sign(t *testing.T, c *client.Client, id, user string) ssh.Signer {
	t.Helper()
	out := Must(t, c, api.SSH, api.SSHIn{SandboxIn: in(id), PublicKey: p.public, User: user})
	k, _, _, _, err := ssh.ParseAuthorizedKey([]byte(out.Certificate))
	if err != nil {
		t.Fatal(err)
	}
	_, _, known, _, _, err := ssh.ParseKnownHosts([]byte(out.KnownHosts))
	if err != nil {
		t.Fatal(err)
	}
	p.host, p.known = out.Host, known
	s, err := ssh.NewCertSigner(k.(*ssh.Certificate), p.private)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// dial logs in over a WebSocket.
func (p *pair) dial(t *testing.T, c *client.Client, id, user string, with ssh.Signer) (*ssh.Client, error) {
	t.Helper()
	ws, err := client.Socket(t.Context(), c, api.SSHConnect, in(id))
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = ws.CloseNow() })
	checker := &ssh.CertChecker{IsHostAuthority: func(k ssh.PublicKey, _ string) bool { return bytes.Equal(k.Marshal(), p.known.Marshal()) }}
	conn, channels, requests, err := ssh.NewClientConn(websocket.NetConn(context.Background(), ws, websocket.MessageBinary), p.host+":22", &ssh.ClientConfig{
		User: user, Auth: []ssh.AuthMethod{ssh.PublicKeys(with)}, HostKeyCallback: checker.CheckHostKey,
	})
	if err != nil {
		return nil, err
	}
	sc := ssh.NewClient(conn, channels, requests)
	t.Cleanup(func() { _ = sc.Close() })
	return sc, nil
}

// Only a certificate of ours, in its time, for this sandbox, this caller and this user logs in.
func TestSSHLogins(t *testing.T) {
	var late atomic.Int64 // what the server's clock is behind
	s := Start(t, Options{Change: func(c *controlplane.Config) {
		c.Now = func() time.Time { return time.Now().Add(-time.Duration(late.Load())) }
	}})
	id, other := Sandbox(t, s.Client, api.CreateSandboxIn{Name: "web"}), Sandbox(t, s.Client, api.CreateSandboxIn{})
	p := newPair(t)
	good := p.sign(t, s.Client, id, "root")
	second := s.With(t, Must(t, s.Client, api.CreateKey, api.CreateKeyIn{Name: "second", Scopes: []string{"admin"}}).Secret)
	late.Store(int64(10 * time.Minute))
	expired := p.sign(t, s.Client, id, "root")
	late.Store(-int64(10 * time.Minute))
	early := p.sign(t, s.Client, id, "root")
	late.Store(0)
	_, rogue, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	forged := forge(t, p, rogue, id)
	for name, c := range map[string]struct {
		as   *client.Client
		with ssh.Signer
		user string
		ok   bool
	}{
		"a good one":                {s.Client, good, "root", true},
		"another user":              {s.Client, good, "user", false},
		"another key of the API":    {second, good, "root", false},
		"another sandbox's":         {s.Client, newPair(t).sign(t, s.Client, other, "root"), "root", false},
		"an expired one":            {s.Client, expired, "root", false},
		"one of the future":         {s.Client, early, "root", false},
		"a key without certificate": {s.Client, p.private, "root", false},
		"one that others signed":    {s.Client, forged, "root", false},
	} {
		sc, err := p.dial(t, c.as, id, c.user, c.with)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		if sc != nil {
			_ = sc.Close()
		}
	}
	for name, key := range map[string]string{
		"no key": "ssh-ed25519 what", "options": `command="x" ` + p.public, "two": p.public + p.public, "short": "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQC7",
	} {
		if code := Code(t, s.Client, api.SSH, api.SSHIn{SandboxIn: in(id), PublicKey: key}); code != "INVALID_INPUT" {
			t.Errorf("%s was signed: %q", name, code)
		}
	}
	// Who logged in, and who was not let in, is in the audit log.
	d := dbtest.Open(t, s.cfg.Database)
	eventually(t, func() bool {
		var in, out int
		err := d.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM audit WHERE operation = 'sandboxes.sshConnect' AND result = 'ok'`).Scan(&in)
		oerr := d.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM audit WHERE operation = 'sandboxes.sshConnect' AND result = 'UNAUTHENTICATED'`).Scan(&out)
		return err == nil && oerr == nil && in >= 1 && out >= 7
	})
}

// forge makes a certificate that somebody else signed.
func forge(t *testing.T, p *pair, by ed25519.PrivateKey, id string) ssh.Signer {
	t.Helper()
	ca, err := ssh.NewSignerFromSigner(by)
	if err != nil {
		t.Fatal(err)
	}
	cert := &ssh.Certificate{
		Key: p.private.PublicKey(), CertType: ssh.UserCert, KeyId: "org/key", ValidPrincipals: []string{id}, ValidBefore: ssh.CertTimeInfinity,
		Permissions: ssh.Permissions{Extensions: map[string]string{"login@berth": "root"}},
	}
	if err := cert.SignCert(rand.Reader, ca); err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewCertSigner(cert, p.private)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Sessions run commands with their streams apart, their exits and signals told; nothing is forwarded but to the sandbox itself.
func TestSSHSessions(t *testing.T) {
	s := Start(t, Options{})
	id := Sandbox(t, s.Client, api.CreateSandboxIn{Env: map[string]string{"OF_THE_SANDBOX": "yes"}})
	p := newPair(t)
	sc, err := p.dial(t, s.Client, id, "root", p.sign(t, s.Client, id, "root"))
	if err != nil {
		t.Fatal(err)
	}
	run := func(command string, before ...func(*ssh.Session)) (string, string, error) {
		ss, err := sc.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		defer ss.Close()
		var out, errOut bytes.Buffer
		ss.Stdout, ss.Stderr = &out, &errOut
		for _, f := range before {
			f(ss)
		}
		err = ss.Run(command)
		return out.String(), errOut.String(), err
	}
	out, errOut, err := run("echo $OF_THE_SANDBOX $LC_ALL; echo apart >&2; exit 42", func(ss *ssh.Session) { _ = ss.Setenv("LC_ALL", "C.UTF-8") })
	if exit, ok := errors.AsType[*ssh.ExitError](err); !ok || exit.ExitStatus() != 42 || out != "yes C.UTF-8\n" || errOut != "apart\n" {
		t.Errorf("%q, %q, %v", out, errOut, err)
	}
	_, _, err = run("kill -TERM $$")
	if exit, ok := errors.AsType[*ssh.ExitError](err); !ok || exit.Signal() != "TERM" {
		t.Errorf("killed, it ended with %v", err)
	}
	_, _, err = run("trap 'exit 8' INT; echo up; while :; do sleep 0.02; done", func(ss *ssh.Session) {
		r, w := io.Pipe()
		ss.Stdout = w
		go func() {
			_, _ = r.Read(make([]byte, 8))
			_ = ss.Signal(ssh.SIGINT)
			_, _ = io.Copy(io.Discard, r)
		}()
	})
	if exit, ok := errors.AsType[*ssh.ExitError](err); !ok || exit.ExitStatus() != 8 {
		t.Errorf("interrupted, it ended with %v", err)
	}
	big := bytes.Repeat([]byte("\x00\xff0123456789\r\n"), 400_000)
	if out, _, err := run("cat", func(ss *ssh.Session) { ss.Stdin = bytes.NewReader(big) }); err != nil || out != string(big) {
		t.Errorf("%d of %d bytes came back, %v", len(out), len(big), err)
	}
	if out, _, err := run("stty size; echo $TERM", func(ss *ssh.Session) { _ = ss.RequestPty("vt220", 33, 91, nil) }); err != nil || out != "33 91\r\nvt220\r\n" {
		t.Errorf("a terminal: %q, %v", out, err)
	}
	ss, err := sc.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := ss.Setenv("LD_PRELOAD", "/x"); err == nil {
		t.Error("LD_PRELOAD was accepted")
	}
	if ok, _ := ss.SendRequest("auth-agent-req@openssh.com", true, nil); ok {
		t.Error("an agent was forwarded")
	}
	if err := ss.RequestSubsystem("netconf"); err == nil {
		t.Error("an unknown subsystem was started")
	}
	_ = ss.Close()
	if _, _, err := sc.SendRequest("keepalive@openssh.com", true, nil); err != nil {
		t.Errorf("a keepalive was not answered: %v", err)
	}
	if l, err := sc.Listen("tcp", "127.0.0.1:0"); err == nil {
		t.Errorf("it listens on %s", l.Addr())
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	c, err := sc.Dial("tcp", "localhost:"+port)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(c, "ping")
	_ = c.(interface{ CloseWrite() error }).CloseWrite()
	if b, err := io.ReadAll(c); err != nil || string(b) != "ping" {
		t.Errorf("through a forward came %q, %v", b, err)
	}
	folder := strings.TrimSpace(Exec(t, s.Client, id, "pwd").Stdout) // the fake's sandbox is a folder of this machine
	socket, err := net.Listen("unix", folder+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	go func() {
		if c, err := socket.Accept(); err == nil {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}
	}()
	if c, err = sc.Dial("unix", "/workspace/s"); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(c, "ping")
	_ = c.(interface{ CloseWrite() error }).CloseWrite()
	if b, err := io.ReadAll(c); err != nil || string(b) != "ping" {
		t.Errorf("through a socket came %q, %v", b, err)
	}
	for _, path := range []string{"/none", "relative", ""} {
		if _, err := sc.Dial("unix", path); err == nil || !strings.Contains(err.Error(), "socket") {
			t.Errorf("%q: %v", path, err)
		}
	}
	for _, host := range []string{"192.0.2.1", "169.254.169.254", "example.com", "10.0.0.1"} {
		if _, err := sc.Dial("tcp", host+":"+port); err == nil || !strings.Contains(err.Error(), "prohibited") {
			t.Errorf("%s: %v", host, err)
		}
	}
}

// A connection ends when its key is revoked, and ends what it started when it is lost.
func TestSSHEnds(t *testing.T) {
	s := Start(t, Options{Change: func(c *controlplane.Config) { c.Recheck = 20 * time.Millisecond }})
	id := Sandbox(t, s.Client, api.CreateSandboxIn{})
	key := Must(t, s.Client, api.CreateKey, api.CreateKeyIn{Name: "short", Scopes: []string{"compute:sandboxes:*"}})
	as := s.With(t, key.Secret)
	p := newPair(t)
	sc, err := p.dial(t, as, id, "root", p.sign(t, as, id, "root"))
	if err != nil {
		t.Fatal(err)
	}
	ss, err := sc.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := ss.Start("trap 'echo hung > hung; exit' HUP; echo up > up; while :; do sleep 0.02; done"); err != nil {
		t.Fatal(err)
	}
	there := func(name string) bool {
		return Exec(t, s.Client, id, "test -s "+name+" && echo yes || echo no").Stdout == "yes\n"
	}
	eventually(t, func() bool { return there("up") })
	Must(t, s.Client, api.RevokeKey, api.RevokeKeyIn{KeyID: key.Key.ID})
	_ = sc.Wait()
	if err := ss.Wait(); err == nil {
		t.Error("a session that was cut off ended well")
	}
	eventually(t, func() bool { return there("hung") })
	// And when its sandbox is deleted, even while nothing runs in it.
	sc, err = p.dial(t, s.Client, id, "root", p.sign(t, s.Client, id, "root"))
	if err != nil {
		t.Fatal(err)
	}
	Must(t, s.Client, api.DeleteSandbox, api.SandboxWaitIn{SandboxIn: in(id), WaitIn: wait(20)})
	_ = sc.Wait()
}
