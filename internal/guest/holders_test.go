//go:build linux

package guest

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// What has let go of its streams stays when the connection is lost, whether the main process heeds the HUP or has to be killed; what still holds one ends.
func TestAttachLostSparesServers(t *testing.T) {
	for name, main := range map[string]string{
		"heeds":      "trap 'exit 9' HUP; ",
		"is deaf":    "trap '' HUP; ",
		"reads only": "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			dir := openDir(t)
			// The deaf one's children do not heed HUP either: they inherit that.
			last := "while :; do sleep 0.02; done"
			if main == "" {
				last = "cat > /dev/null"
			}
			a := r.attach(Start{Cwd: dir, Command: main + `
				sh -c 'echo $$ > server; while :; do sleep 0.02; done' > log 2>&1 < /dev/null &
				sh -c 'echo $$ > output; while :; do sleep 0.02; done' 2> /dev/null < /dev/null &
				sh -c 'echo $$ > errors; while :; do sleep 0.02; done' > /dev/null < /dev/null &
				until [ -s server ] && [ -s output ] && [ -s errors ]; do sleep 0.02; done; echo up; ` + last})
			readUntil(t, a.Stdout, "up")
			pid := func(name string) int {
				b, err := os.ReadFile(filepath.Join(dir, name))
				n, aerr := strconv.Atoi(strings.TrimSpace(string(b)))
				if err != nil || aerr != nil {
					t.Fatal(err, aerr)
				}
				return n
			}
			_ = a.Close()
			r.ended(a.id)
			for _, name := range []string{"output", "errors"} {
				for end := time.Now().Add(20 * time.Second); alive(pid(name)); time.Sleep(5 * time.Millisecond) {
					if time.Now().After(end) {
						t.Errorf("what holds the %s goes on", name)
						break
					}
				}
			}
			if server := pid("server"); !alive(server) {
				t.Error("the server ended with the connection")
			} else if err := syscall.Kill(server, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestForwardSocket(t *testing.T) {
	r := newRig(t)
	dir := openDir(t)
	listen := func(name string, mode os.FileMode) {
		l, err := net.Listen("unix", filepath.Join(dir, name))
		if err == nil {
			err = os.Chmod(filepath.Join(dir, name), mode)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					who := uint32(1 << 31)
					if raw, err := c.(*net.UnixConn).SyscallConn(); err == nil {
						_ = raw.Control(func(fd uintptr) {
							if cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
								who = cred.Uid
							}
						})
					}
					b, _ := io.ReadAll(c) // until the writing side is closed
					_, _ = fmt.Fprintf(c, "%d bytes from %d", len(b), who)
				}()
			}
		}()
	}
	listen("open", 0o777)
	listen("closed", 0o700)
	if err := os.Symlink("closed", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, user, got string }{
		{"open", "65534:65534", "1048576 bytes from 65534"},
		{"open", "root", "1048576 bytes from 0"},
		{"closed", "root", "1048576 bytes from 0"},
	} {
		conn, err := r.ForwardSocket(t.Context(), filepath.Join(dir, c.name), c.user)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write(make([]byte, 1<<20))
		_ = conn.(interface{ CloseWrite() error }).CloseWrite()
		if got, err := io.ReadAll(conn); err != nil || string(got) != c.got {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
		_ = conn.Close()
	}
	for _, name := range []string{"closed", "link", "none", "."} {
		if _, err := r.ForwardSocket(t.Context(), filepath.Join(dir, name), "65534:65534"); errs.From(err).Reason != "connection_refused" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, path := range []string{"", "relative", "@abstract", "/" + strings.Repeat("x", maxSocketPath)} {
		if _, err := r.ForwardSocket(t.Context(), path, "root"); !errs.Is(err, errs.InvalidInput) {
			t.Errorf("%q: %v", path, err)
		}
	}
}
