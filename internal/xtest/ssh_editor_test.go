package xtest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// editorScript is what an editor types into a shell: it installs a server, starts it in the background, and says between marks where it listens. The
// server gives back what it gets, on a port and on a socket.
const editorScript = `echo 'a1b2: begin'
mkdir -p ~/.editor && cd ~/.editor
cat > server.py <<'END'
import os, socketserver, threading
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)
class Port(socketserver.ThreadingTCPServer):
    request_queue_size = 64
    daemon_threads = True
class Socket(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
port, socket = Port(("127.0.0.1", 0), Echo), Socket("socket", Echo)
threading.Thread(target=socket.serve_forever, daemon=True).start()
print("port", port.server_address[1], flush=True)
port.serve_forever()
END
if [ -s pid ] && kill -0 "$(cat pid)" 2>/dev/null; then
	echo found
else
	rm -f socket
	python3 server.py > log 2>&1 < /dev/null &
	echo $! > pid
	until grep -q '^port' log; do kill -0 $! || break; sleep 0.05; done
fi
echo "shell==$$==" && echo "port==$(sed -n 's/^port //p' log)=="
echo 'a1b2: end'
`

// editing is one connection of an editor: ssh with a SOCKS proxy and a shell without a terminal.
type editing struct {
	cmd         *exec.Cmd
	in          io.WriteCloser
	socks       int
	said        string // between the marks
	shell, port int
	log         string // the file of what ssh tells of itself
}

// edit connects and runs the script, of about the length that those of editors have.
func (d *desk) edit(name string) *editing {
	d.t.Helper()
	e := &editing{socks: freePort(d.t), log: filepath.Join(d.dir, name)}
	e.cmd = d.command("ssh", "-F", d.config, "-T", "-vvv", "-E", e.log, "-D", fmt.Sprintf("127.0.0.1:%d", e.socks), "-o", "ExitOnForwardFailure=yes",
		"-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=20", "desk.berth", "bash")
	var err error
	e.in, err = e.cmd.StdinPipe()
	out, oerr := e.cmd.StdoutPipe()
	if err = errors.Join(err, oerr, e.cmd.Start()); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = e.cmd.Process.Kill(); _ = e.cmd.Wait() })
	if _, err := io.WriteString(e.in, strings.Repeat("# a line that does nothing\n", 2000)+editorScript); err != nil {
		d.t.Fatal(err)
	}
	r := bufio.NewReader(out)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			d.t.Fatalf("the script's output ended with %v as %q", err, e.said)
		}
		if line == "a1b2: end\n" {
			break
		}
		e.said += line
	}
	m := regexp.MustCompile(`(?s)^a1b2: begin\n.*shell==(\d+)==\nport==(\d+)==\n$`).FindStringSubmatch(e.said)
	if m == nil {
		d.t.Fatalf("the script said %q", e.said)
	}
	e.shell, _ = strconv.Atoi(m[1])
	e.port, _ = strconv.Atoi(m[2])
	return e
}

// lost kills ssh, as a laptop's lid does, and waits until the shell inside has ended.
func (e *editing) lost(d *desk) {
	d.t.Helper()
	_ = e.cmd.Process.Kill()
	_ = e.cmd.Wait()
	eventually(d.t, func() bool {
		return Exec(d.t, d.r.Client, d.id(), fmt.Sprintf("test -d /proc/%d || echo gone", e.shell)).Stdout == "gone\n"
	})
}

// editor does what remote editors do with ssh: a server that a script put into the background serves many connections through one SOCKS proxy, stays
// when the connection is lost, and is found again.
func (d *desk) editor() {
	e := d.edit("first.log")
	if strings.Contains(e.said, "found") {
		d.t.Errorf("the first script said %q", e.said)
	}
	d.alive(e, 2)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			c, err := socks(e.socks, []string{"127.0.0.1", "localhost"}[i%2], e.port)
			if err == nil {
				err = echoes(c, anyBytes(2<<20+i))
			}
			if err != nil {
				d.t.Errorf("connection %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	e.lost(d)
	again := d.edit("second.log")
	if !strings.Contains(again.said, "found") || again.port != e.port {
		d.t.Errorf("the server was not there any more, the script said %q", again.said)
	}
	c, err := socks(again.socks, "127.0.0.1", again.port)
	if err == nil {
		err = echoes(c, anyBytes(1<<20))
	}
	if err != nil {
		d.t.Error(err)
	}
	// Left in good order it stays as well.
	if err := errors.Join(again.in.Close(), again.cmd.Wait()); err != nil {
		d.t.Errorf("ssh ended with %v", err)
	}
	d.socket("/home/user/.editor/socket")
	if out := Exec(d.t, d.r.Client, d.id(), "kill $(cat ~user/.editor/pid) && echo killed").Stdout; out != "killed\n" {
		d.t.Error("the server ended with the second connection")
	}
}

// alive waits for answers to keepalives: those are refused, which says that somebody is there (packet 82 of RFC 4254).
func (d *desk) alive(e *editing, n int) {
	d.t.Helper()
	eventually(d.t, func() bool {
		log, err := os.ReadFile(e.log)
		return err == nil && bytes.Count(log, []byte("receive packet: type 82")) >= n
	})
}

// socket reaches a socket inside by a port and by a socket here.
func (d *desk) socket(path string) {
	d.t.Helper()
	port, here := freePort(d.t), filepath.Join(d.dir, "forwarded")
	cmd := d.command("ssh", "-F", d.config, "-q", "-N", "-o", "ExitOnForwardFailure=yes", "-L", fmt.Sprintf("127.0.0.1:%d:%s", port, path), "-L", here+":"+path, "desk.berth")
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	for network, address := range map[string]string{"tcp": fmt.Sprintf("127.0.0.1:%d", port), "unix": here} {
		var c net.Conn
		eventually(d.t, func() (ok bool) {
			var err error
			c, err = net.Dial(network, address)
			return err == nil
		})
		if err := echoes(c, anyBytes(1<<20)); err != nil {
			d.t.Errorf("%s: %v", network, err)
		}
	}
}

// socks connects through a SOCKS 5 proxy on a port here, by a name or an IPv4 address (RFC 1928).
func socks(proxy int, host string, port int) (net.Conn, error) {
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", proxy))
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	to := append([]byte{3, byte(len(host))}, host...) //nolint:gosec // short
	if ip := net.ParseIP(host).To4(); ip != nil {
		to = append([]byte{1}, ip...)
	}
	ask := append([]byte{5, 1, 0, 5, 1, 0}, to...)
	_, err = c.Write(append(ask, byte(port>>8), byte(port))) //nolint:gosec // the two bytes of a port
	answer := make([]byte, 2+10)
	if _, rerr := io.ReadFull(c, answer); err != nil || rerr != nil || answer[3] != 0 {
		_ = c.Close()
		return nil, fmt.Errorf("socks: %v, %v, % x", err, rerr, answer)
	}
	return c, nil
}

// echoes sends data while the same comes back, and ends the connection in both directions.
func echoes(c net.Conn, data []byte) error {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		sent <- errors.Join(err, c.(interface{ CloseWrite() error }).CloseWrite())
	}()
	got, err := io.ReadAll(c)
	if err = errors.Join(err, <-sent); err == nil && !bytes.Equal(got, data) {
		err = fmt.Errorf("of %d bytes %d came back", len(data), len(got))
	}
	return err
}
