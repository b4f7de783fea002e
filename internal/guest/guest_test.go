//go:build linux

package guest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	testToken = "the-token"
	other     = "65534:65534" // an account that is not root
)

// rig is a real guest in this process and a client that reaches it over loopback.
type rig struct {
	*Client
	t      *testing.T
	server *Server
	root   string // a directory that everyone may write to
	addr   string
	dials  atomic.Int64
	ids    atomic.Int64
	token  atomic.Value
}

// newRig starts a guest. Tests need root, as the guest does.
func newRig(t testing.TB, change ...func(*Config)) *rig {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the guest needs root to become other users")
	}
	cfg := Config{Token: testToken, Build: "test"}
	for _, c := range change {
		c(&cfg)
	}
	r := &rig{server: NewServer(cfg), root: openDir(t)}
	r.t, _ = t.(*testing.T)
	r.token.Store(testToken)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = l.Addr().String()
	srv := &http.Server{Handler: r.server.Handler()}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(l) })
	r.Client = NewClient(func(ctx context.Context) (net.Conn, error) {
		r.dials.Add(1)
		var d net.Dialer
		return d.DialContext(ctx, "tcp", r.addr)
	}, func() string { return r.token.Load().(string) })
	t.Cleanup(func() {
		r.Client.Close()
		_ = srv.Close()
		r.server.Close()
		wg.Wait()
	})
	return r
}

// openDir makes a directory that every user reaches, unlike testing's own.
func openDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "guest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// id makes a fresh process id.
func (r *rig) id() string { return fmt.Sprintf("proc_%020d", r.ids.Add(1)) }

// exec runs a command to its end.
func (r *rig) exec(in Start) ExecResult {
	r.t.Helper()
	if in.ID == "" {
		in.ID = r.id()
	}
	if in.Cwd == "" {
		in.Cwd = r.root
	}
	res, err := r.Exec(r.t.Context(), in, time.Minute)
	if err != nil {
		r.t.Fatalf("exec %q: %v", in.Command, err)
	}
	return res
}

// start starts a process.
func (r *rig) start(in Start) Process {
	r.t.Helper()
	if in.ID == "" {
		in.ID = r.id()
	}
	if in.Cwd == "" {
		in.Cwd = r.root
	}
	p, err := r.StartProcess(r.t.Context(), in)
	if err != nil {
		r.t.Fatalf("start %q: %v", in.Command, err)
	}
	return p
}

// until reads a process's stdout until it holds text, and gives all that was read.
func (r *rig) until(id, text string) string {
	r.t.Helper()
	var all []byte
	for offset := int64(0); ; {
		o, err := r.Output(r.t.Context(), id, OutputQuery{Offset: offset, Wait: 10 * time.Second})
		if err != nil {
			r.t.Fatalf("output: %v", err)
		}
		all, offset = append(all, o.Data...), o.Next
		if bytes.Contains(all, []byte(text)) {
			return string(all)
		}
		if o.EOF || len(o.Data) == 0 {
			r.t.Fatalf("the output ended as %q, without %q", all, text)
		}
	}
}

// ended waits for a process's end.
func (r *rig) ended(id string) Process {
	r.t.Helper()
	res, err := r.Exec(r.t.Context(), Start{ID: id}, time.Minute)
	if err != nil {
		r.t.Fatalf("wait: %v", err)
	}
	if res.Process.Running {
		r.t.Fatalf("%s did not end", id)
	}
	return res.Process
}

// path is a path in the rig's directory.
func (r *rig) path(name string) string { return filepath.Join(r.root, name) }
