package xtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/berthrun/berth/api"
)

// desk is a person's machine: a home with the part of ssh's configuration that berth prints, and the real programs.
type desk struct {
	t      *testing.T
	r      *Real
	dir    string
	config string
	env    []string
}

func newDesk(t *testing.T, r *Real) *desk {
	t.Helper()
	d := &desk{t: t, r: r, dir: t.TempDir()}
	d.env = append(os.Environ(), "HOME="+d.dir, "XDG_CONFIG_HOME=", "BERTH_URL="+r.URL, "BERTH_API_KEY="+r.Key)
	d.config = filepath.Join(d.dir, "config")
	out, errOut, code := d.run(nil, r.bin, "sandboxes", "ssh", "--config")
	if code != 0 {
		t.Fatalf("--config: %d, %s", code, errOut)
	}
	d.write("config", out)
	return d
}

func (d *desk) write(name, data string) string {
	d.t.Helper()
	path := filepath.Join(d.dir, name)
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		d.t.Fatal(err)
	}
	return path
}

func (d *desk) command(name string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(d.t.Context(), 2*time.Minute)
	d.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...) //nolint:gosec // the programs under test
	cmd.Env, cmd.Dir, cmd.WaitDelay = d.env, d.dir, 5*time.Second
	return cmd
}

// run runs a program to its end.
func (d *desk) run(stdin io.Reader, name string, args ...string) (stdout, stderr string, code int) {
	d.t.Helper()
	cmd := d.command(name, args...)
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errOut
	if err := cmd.Run(); cmd.ProcessState == nil {
		d.t.Fatalf("%s: %v", name, err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

func (d *desk) ssh(stdin io.Reader, args ...string) (stdout, stderr string, code int) {
	d.t.Helper()
	return d.run(stdin, "ssh", append([]string{"-F", d.config, "-q"}, args...)...)
}

// ok runs a program that has to succeed.
func (d *desk) ok(name string, args ...string) {
	d.t.Helper()
	if out, errOut, code := d.run(nil, name, args...); code != 0 {
		d.t.Fatalf("%s %q: exit %d\n%s%s", name, args, code, out, errOut)
	}
}

// on runs a program on a terminal of a size. What it writes is read by until.
func (d *desk) on(size pty.Winsize, name string, args ...string) *screen {
	d.t.Helper()
	cmd := d.command(name, args...)
	f, err := pty.StartWithSize(cmd, &size)
	if err != nil {
		d.t.Fatal(err)
	}
	sc := &screen{t: d.t, cmd: cmd, f: f}
	d.t.Cleanup(func() { _ = f.Close() })
	return sc
}

type screen struct {
	t   *testing.T
	cmd *exec.Cmd
	f   *os.File
	got []byte
}

func (s *screen) typed(text string) {
	s.t.Helper()
	if _, err := s.f.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

func (s *screen) until(text string) {
	s.t.Helper()
	late := time.AfterFunc(time.Minute, func() { _ = s.cmd.Process.Kill() })
	defer late.Stop()
	buf := make([]byte, 4096)
	for !bytes.Contains(s.got, []byte(text)) {
		n, err := s.f.Read(buf)
		s.got = append(s.got, buf[:n]...)
		if err != nil {
			s.t.Fatalf("the screen ended with %v as %q, without %q", err, s.got, text)
		}
	}
	s.got = nil
}

func (s *screen) exit() int {
	_, _ = io.Copy(io.Discard, s.f)
	_ = s.cmd.Wait()
	return s.cmd.ProcessState.ExitCode()
}

// TestOpenSSH is the real OpenSSH client, scp, sftp and rsync with a real sandbox, and berth's own shell.
func TestOpenSSH(t *testing.T) {
	r := StartReal(t)
	id := Sandbox(t, r.Client, api.CreateSandboxIn{Name: "desk", Env: map[string]string{"OF_THE_SANDBOX": "yes"}})
	d := newDesk(t, r)
	t.Run("commands", func(t *testing.T) { d.as(t).commands(id) })
	t.Run("terminal", func(t *testing.T) { d.as(t).terminal() })
	t.Run("scp", func(t *testing.T) { d.as(t).scp() })
	t.Run("sftp", func(t *testing.T) { d.as(t).sftp() })
	t.Run("rsync", func(t *testing.T) { d.as(t).rsync() })
	t.Run("ports", func(t *testing.T) { d.as(t).ports() })
	t.Run("editor", func(t *testing.T) { d.as(t).editor() })
	t.Run("another sandbox's certificate", func(t *testing.T) { d.as(t).otherCertificate(id) })
	t.Run("shell without a terminal", func(t *testing.T) { d.as(t).pipes() })
	t.Run("shell", func(t *testing.T) { d.as(t).shell() })
	t.Run("end", func(t *testing.T) { d.as(t).end() })
}

func (d *desk) as(t *testing.T) *desk {
	c := *d
	c.t = t
	return &c
}

func (d *desk) commands(id string) {
	for _, c := range []struct {
		args        []string
		out, errOut string
		code        int
	}{
		{[]string{"desk.berth", "echo out; echo err >&2; exit 7"}, "out\n", "err\n", 7},
		{[]string{id + ".berth", "id -un; pwd; echo $OF_THE_SANDBOX"}, "user\n/workspace\nyes\n", "", 0},
		{[]string{"root@desk.berth", "id -un"}, "root\n", "", 0},
		{[]string{"desk.berth", "kill -KILL $$"}, "", "", 255},
	} {
		out, errOut, code := d.ssh(nil, c.args...)
		if out != c.out || errOut != c.errOut || code != c.code {
			d.t.Errorf("%q: %q, %q, %d", c.args, out, errOut, code)
		}
	}
	data := anyBytes(8 << 20)
	if out, _, code := d.ssh(bytes.NewReader(data), "desk.berth", "cat"); code != 0 || out != string(data) {
		d.t.Errorf("of %d bytes %d came back, exit %d", len(data), len(out), code)
	}
	// Without a configuration: a key and a certificate for this one run.
	if out, errOut, code := d.run(nil, d.r.bin, "sandboxes", "ssh", "desk", "--", "echo direct; exit 4"); out != "direct\n" || code != 4 {
		d.t.Errorf("berth sandboxes ssh: %q, %q, %d", out, errOut, code)
	}
	if _, errOut, code := d.run(nil, d.r.bin, "sandboxes", "ssh", "nowhere"); code != 1 || !strings.Contains(errOut, "NOT_FOUND") {
		d.t.Errorf("no such sandbox: %q, %d", errOut, code)
	}
}

func (d *desk) terminal() {
	s := d.on(pty.Winsize{Cols: 91, Rows: 33}, "ssh", "-F", d.config, "-q", "-tt", "desk.berth", "trap 'stty size' WINCH; stty size; while read -r x; do [ \"$x\" = end ] && exit 6; done")
	s.until("33 91")
	if err := pty.Setsize(s.f, &pty.Winsize{Cols: 120, Rows: 40}); err != nil {
		d.t.Fatal(err)
	}
	s.typed("\n")
	s.until("40 120")
	s.typed("end\n")
	if code := s.exit(); code != 6 {
		d.t.Errorf("it ended with %d", code)
	}
	login := d.on(pty.Winsize{Cols: 80, Rows: 24}, "ssh", "-F", d.config, "-q", "desk.berth")
	login.until("$")
	login.typed("shopt -q login_shell && echo a login=$?; printf '%s\\n' h\u00e9-\u4e16\u754c; exit 3\r")
	login.until("a login=0\r\nh\u00e9-\u4e16\u754c\r\n")
	if code := login.exit(); code != 3 {
		d.t.Errorf("a login shell ended with %d", code)
	}
}

// anyBytes are bytes of every kind, the same every time.
func anyBytes(n int) []byte {
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // not secret
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32()) //nolint:gosec // any byte
	}
	return b
}

func (d *desk) same(path string, want []byte) {
	d.t.Helper()
	got, err := os.ReadFile(filepath.Join(d.dir, path))
	if err != nil || sha256.Sum256(got) != sha256.Sum256(want) {
		d.t.Errorf("%s has %d bytes, not the %d that it should, %v", path, len(got), len(want), err)
	}
}

// there gives the checksum of a file inside.
func (d *desk) there(path string, want []byte) {
	d.t.Helper()
	out := Exec(d.t, d.r.Client, d.id(), "sha256sum < "+path).Stdout
	if want := fmt.Sprintf("%x  -\n", sha256.Sum256(want)); out != want {
		d.t.Errorf("%s inside: %q, want %q", path, out, want)
	}
}

func (d *desk) id() string {
	d.t.Helper()
	return Must(d.t, d.r.Client, api.ListSandboxes, api.ListSandboxesIn{Name: "desk", Scope: "all"}).Items[0].ID
}

func (d *desk) scp() {
	data := anyBytes(5<<20 + 7)
	d.write("up", string(data))
	for _, mode := range []string{"-s", "-O"} { // by SFTP, and by the protocol of old
		name := "scp" + mode
		d.ok("scp", mode, "-q", "-p", "-F", d.config, "up", "desk.berth:"+name)
		d.there("/workspace/"+name, data)
		d.ok("scp", mode, "-q", "-F", d.config, "desk.berth:"+name, "down"+mode)
		d.same("down"+mode, data)
	}
	if err := os.MkdirAll(filepath.Join(d.dir, "tree", "deep", "er"), 0o755); err != nil {
		d.t.Fatal(err)
	}
	d.write("tree/deep/er/\u4e16 file", "x")
	d.ok("scp", "-q", "-r", "-F", d.config, "tree", "desk.berth:")
	d.there("'/workspace/tree/deep/er/\u4e16 file'", []byte("x"))
}

func (d *desk) sftp() {
	data := anyBytes(1 << 20)
	d.write("put", string(data))
	batch := d.write("batch", "mkdir s\nput put s/a\nchmod 600 s/a\nrename s/a s/b\nsymlink b s/link\nget s/link got\nls -l s\nrm s/link\n")
	d.ok("sftp", "-F", d.config, "-b", batch, "desk.berth")
	d.same("got", data)
	d.there("/workspace/s/b", data)
	if out := Exec(d.t, d.r.Client, d.id(), "stat -c '%a %U' s/b").Stdout; out != "600 user\n" {
		d.t.Errorf("its mode and owner are %q", out)
	}
	// The rights are the user's.
	bad := d.write("bad", "get /etc/shadow stolen\n")
	if _, _, code := d.run(nil, "sftp", "-q", "-F", d.config, "-b", bad, "desk.berth"); code == 0 {
		d.t.Error("user read /etc/shadow")
	}
}

func (d *desk) rsync() {
	data := anyBytes(6 << 20)
	if err := os.MkdirAll(filepath.Join(d.dir, "sync"), 0o755); err != nil {
		d.t.Fatal(err)
	}
	d.write("sync/big", string(data))
	d.write("sync/small", "1\n")
	d.ok("rsync", "-a", "-e", "ssh -q -F "+d.config, "sync/", "desk.berth:synced/")
	d.there("/workspace/synced/big", data)
	Exec(d.t, d.r.Client, d.id(), "printf more >> synced/big; rm synced/small")
	d.ok("rsync", "-a", "--delete", "-e", "ssh -q -F "+d.config, "desk.berth:synced/", "sync/")
	d.same("sync/big", append(data, "more"...))
	if _, err := os.Stat(filepath.Join(d.dir, "sync/small")); !os.IsNotExist(err) {
		d.t.Errorf("a file that was removed inside is still here: %v", err)
	}
}

// ports reaches a server inside through -L, and through a SOCKS proxy as editors do.
func (d *desk) ports() {
	start(d.t, d.r.Client, d.id(), "echo served > page; exec python3 -m http.server 8000 --bind 127.0.0.1")
	port := freePort(d.t)
	cmd := d.command("ssh", "-F", d.config, "-q", "-N", "-o", "ExitOnForwardFailure=yes", "-L", fmt.Sprintf("127.0.0.1:%d:localhost:8000", port), "desk.berth")
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	eventually(d.t, func() bool {
		res, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/page", port))
		if err != nil {
			return false
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return string(b) == "served\n"
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	socks := freePort(d.t)
	cmd = d.command("ssh", "-F", d.config, "-q", "-N", "-D", fmt.Sprintf("127.0.0.1:%d", socks), "desk.berth")
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	eventually(d.t, func() bool {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", socks))
		if err != nil {
			return false
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		_, _ = c.Write([]byte{5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1, 8000 >> 8, 8000 & 0xff})
		_, _ = io.WriteString(c, "GET /page HTTP/1.0\r\n\r\n")
		b, _ := io.ReadAll(c)
		return bytes.HasSuffix(b, []byte("served\n"))
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// otherCertificate shows one sandbox the certificate for another.
func (d *desk) otherCertificate(id string) {
	other := Sandbox(d.t, d.r.Client, api.CreateSandboxIn{Name: "other"})
	ssh := filepath.Join(d.dir, ".config", "berth", "ssh")
	if _, errOut, code := d.ssh(nil, "desk.berth", "true"); code != 0 {
		d.t.Fatalf("%d %s", code, errOut)
	}
	out, errOut, code := d.run(nil, "ssh", "-F", "/dev/null", "-o", "IdentityFile="+ssh+"/id_ed25519", "-o", "CertificateFile="+ssh+"/desk.berth-user-cert.pub",
		"-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none", "-o", "UserKnownHostsFile="+ssh+"/known_hosts", "-o", "BatchMode=yes", "-o", "User=user",
		"-o", "ProxyCommand="+d.r.bin+" sandboxes ssh --proxy "+other, other+".berth", "echo in")
	if code != 255 || out != "" || !strings.Contains(errOut, "Permission denied") {
		d.t.Errorf("%q, %q, %d (for %s)", out, errOut, code, id)
	}
}

func (d *desk) pipes() {
	data := anyBytes(8 << 20)
	out, errOut, code := d.run(bytes.NewReader(data), d.r.bin, "sandboxes", "shell", "desk", "--", "sh", "-c", "cat; echo apart >&2; exit 9")
	if out != string(data) || errOut != "apart\n" || code != 9 {
		d.t.Errorf("%d of %d bytes, %q, %d", len(out), len(data), errOut, code)
	}
	if out, errOut, code := d.run(strings.NewReader("one\n"), d.r.bin, "sandboxes", "exec", "-i", d.id(), "--", "cat"); out != "one\n" || code != 0 {
		d.t.Errorf("exec -i: %q, %q, %d", out, errOut, code)
	}
	if err := os.MkdirAll(filepath.Join(d.dir, "tarred"), 0o755); err != nil {
		d.t.Fatal(err)
	}
	d.write("tarred/file", string(data))
	tar := d.command("tar", "c", "tarred")
	stream, err := tar.StdoutPipe()
	if err == nil {
		err = tar.Start()
	}
	if err != nil {
		d.t.Fatal(err)
	}
	if out, errOut, code := d.run(stream, d.r.bin, "sandboxes", "shell", "desk", "--", "tar", "x"); code != 0 {
		d.t.Errorf("tar: %q, %q, %d", out, errOut, code)
	}
	_ = tar.Wait()
	d.there("/workspace/tarred/file", data)
}

// shell goes on over a change of size and a restart of the server, passes Ctrl-C on, and leaves by ~. .
func (d *desk) shell() {
	s := d.on(pty.Winsize{Cols: 91, Rows: 33}, d.r.bin, "sandboxes", "exec", "-it", d.id(), "--", "bash", "--norc", "-c",
		"trap 'echo interrupted' INT; trap 'stty size' WINCH; stty size; while :; do read -r x; [ \"$x\" = end ] && exit 12; echo \"<$x>\"; done")
	s.until("33 91")
	if err := pty.Setsize(s.f, &pty.Winsize{Cols: 120, Rows: 40}); err != nil {
		d.t.Fatal(err)
	}
	s.typed("\r") // the shell runs a trap once its read is over
	s.until("40 120")
	s.typed("\x03")
	s.typed("\r")
	s.until("interrupted")
	s.typed("h\u00e9\u4e16\r")
	s.until("<h\u00e9\u4e16>")
	d.r.Stop()
	s.until("connecting again")
	d.r.Serve()
	s.typed("again\r")
	s.until("<again>")
	s.typed("end\r")
	if code := s.exit(); code != 12 {
		d.t.Errorf("it ended with %d", code)
	}
	left := d.on(pty.Winsize{Cols: 80, Rows: 24}, d.r.bin, "sandboxes", "shell", "desk", "--", "cat")
	left.typed("x\r")
	left.until("x\r\nx\r\n")
	left.typed("~.")
	left.until("--process proc_")
	if code := left.exit(); code != 255 {
		d.t.Errorf("left, it ended with %d", code)
	}
}

// end deletes the sandbox under a session.
func (d *desk) end() {
	s := d.on(pty.Winsize{Cols: 80, Rows: 24}, "ssh", "-F", d.config, "-q", "-tt", "desk.berth", "echo up; exec cat")
	s.until("up")
	Must(d.t, d.r.Client, api.DeleteSandbox, api.SandboxWaitIn{SandboxIn: in(d.id()), WaitIn: wait(20)})
	if code := s.exit(); code != 255 {
		d.t.Errorf("its sandbox deleted, ssh ended with %d", code)
	}
}
