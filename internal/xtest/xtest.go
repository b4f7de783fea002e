// Package xtest owns tests of the whole system: in one process on the fake driver, and as the real program with real sandboxes.
//
// It is linked by nothing that is shipped.
package xtest

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/controlplane"
	"github.com/berthrun/berth/internal/httpapi"
	ociregistry "github.com/berthrun/berth/internal/image/registry"
	"github.com/berthrun/berth/internal/image/store"
	"github.com/berthrun/berth/internal/nodeagent"
	"github.com/berthrun/berth/internal/nodeapi"
	"github.com/berthrun/berth/internal/runtime/fake"
)

// System is a Berth that a test can call.
type System struct {
	URL    string
	Key    string
	Client *client.Client
}

// With gives a client with another key.
func (s *System) With(t testing.TB, key string) *client.Client {
	t.Helper()
	c, err := client.New(s.URL, key, client.Attempts(1))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// InProcess is a whole system in this process, on the fake driver.
type InProcess struct {
	System
	Plane  *controlplane.Plane
	Driver *fake.Driver
	Dir    string // holds a folder for each sandbox

	cfg  controlplane.Config
	kill func()
}

// Options say how a system in this process behaves.
type Options struct {
	Database string                     // a URL; a SQLite file of its own where empty
	Change   func(*controlplane.Config) // before it starts; may be nil
	Fake     fake.Config                // Dir is set
	Backups  bool                       // the node hands out the files of what it keeps, so that it is kept elsewhere too
	Registry string                     // hosts of registries without TLS, with commas between them
}

// Start runs a whole system in this process until the test ends.
func Start(t testing.TB, o Options) *InProcess {
	t.Helper()
	dir := t.TempDir()
	log := slog.New(slog.NewTextHandler(newTestWriter(t), &slog.HandlerOptions{Level: slog.LevelWarn}))
	o.Fake.Dir = dir + "/sandboxes"
	d := fake.New(o.Fake)
	t.Cleanup(func() { _ = d.Close() })

	reg := ociregistry.New(ociregistry.Policy{Insecure: strings.Split(o.Registry, ",")})
	t.Cleanup(reg.Close)
	pulled, err := store.Open(store.Config{Dir: dir + "/oci", Registry: reg, Arch: runtime.GOARCH, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	pipe := nodeapi.NewPipe()
	var trees nodeapi.Trees
	if o.Backups {
		trees = fakeTrees{d, o.Fake.Dir}
	}
	info := func() nodeapi.Info {
		return nodeapi.Info{Driver: d.Name(), Capabilities: d.Capabilities(), Images: map[string]string{"base": "base"}, Version: "test", CPUs: 16, MemoryMiB: 64 << 10, Trees: o.Backups}
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = nodeagent.Serve(ctx, pipe, d, info, pulled, trees, log)
	}()
	t.Cleanup(func() {
		stop()
		_ = pipe.Close()
		<-served
	})

	s := &InProcess{Driver: d, Dir: o.Fake.Dir, cfg: controlplane.Config{
		Database: o.Database, Blobs: dir + "/blobs", KeyFile: dir + "/secrets.key", Node: pipe.Dial, CallsPerMinute: -1, Version: "test", Logger: log, Tick: 50 * time.Millisecond,
	}}
	if s.cfg.Database == "" {
		s.cfg.Database = dir + "/berth.db"
	}
	if o.Change != nil {
		o.Change(&s.cfg)
	}
	s.Plane, s.URL, s.kill = serve(t, s.cfg)
	secret, err := s.Plane.EnsureRoot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s.Key = secret
	s.Client = s.With(t, secret)
	return s
}

// DatabaseURL is where its state is.
func (s *InProcess) DatabaseURL() string { return s.cfg.Database }

// Peer runs another control plane on the same database and node until the test ends.
func (s *InProcess) Peer(t testing.TB) *InProcess {
	t.Helper()
	p := &InProcess{Driver: s.Driver, Dir: s.Dir, cfg: s.cfg}
	p.Plane, p.URL, p.kill = serve(t, s.cfg)
	p.Key = s.Key
	p.Client = p.With(t, s.Key)
	return p
}

// Kill ends the control plane where it stands: nothing is waited for that it has begun.
func (s *InProcess) Kill() { s.kill() }

// Serve runs another control plane in the place of one that was killed.
func (s *InProcess) Serve(t testing.TB) {
	t.Helper()
	s.Plane, s.URL, s.kill = serve(t, s.cfg)
	s.Client = s.With(t, s.Key)
}

// serve runs a control plane until the test ends, or it is killed.
func serve(t testing.TB, cfg controlplane.Config) (plane *controlplane.Plane, url string, kill func()) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	plane, err := controlplane.Open(ctx, cfg)
	if err != nil {
		stop()
		t.Fatal(err)
	}
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		if err := plane.Run(ctx); err != nil && ctx.Err() == nil {
			t.Errorf("run: %v", err)
		}
	}()
	srv := httptest.NewUnstartedServer(plane.Handler())
	srv.Config.ConnState = httpapi.Fresh
	srv.Start()
	killed := false
	kill = func() {
		killed = true
		plane.Path().EndStreams()
		stop()
		<-ran
		_ = plane.Close(context.Background())
		srv.CloseClientConnections()
		srv.Close()
	}
	t.Cleanup(func() {
		if killed {
			return
		}
		plane.Path().EndStreams()
		srv.Close()
		dctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		plane.Drain(dctx)
		stop()
		<-ran
		if err := plane.Close(dctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return plane, srv.URL, kill
}

// testWriter shows logs with the test that caused them. What a server that was left to itself still has to say after the test goes to standard error.
type testWriter struct {
	t     testing.TB
	mu    sync.Mutex
	ended bool
}

func newTestWriter(t testing.TB) *testWriter {
	w := &testWriter{t: t}
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ended = true
	})
	return w
}

// Write implements io.Writer.
func (w *testWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return os.Stderr.Write(p)
	}
	w.t.Logf("%s", p)
	return len(p), nil
}
