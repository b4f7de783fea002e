package nodeapi

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/chunk"
	"github.com/berthrun/berth/internal/errs"
)

// vault is the control plane's side of a link.
type vault struct {
	mu      sync.Mutex
	has     map[chunk.Hash][]byte
	fail    error         // of Add
	block   chan struct{} // that Add waits for
	entered chan struct{}
}

func (v *vault) Have(_ context.Context, hashes []chunk.Hash) ([]bool, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := make([]bool, len(hashes))
	for i, h := range hashes {
		_, out[i] = v.has[h]
	}
	return out, nil
}

func (v *vault) Add(ctx context.Context, pack []byte) error {
	if v.block != nil {
		v.entered <- struct{}{}
		select {
		case <-v.block:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if v.fail != nil {
		return v.fail
	}
	all, err := chunk.PackEntries(pack)
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, e := range all {
		v.has[e.Hash] = bytes.Clone(pack[e.At : e.At+e.Stored])
	}
	return err
}

func (v *vault) Read(_ context.Context, hashes []chunk.Hash) ([][]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := make([][]byte, len(hashes))
	for i, h := range hashes {
		if out[i] = v.has[h]; out[i] == nil {
			return nil, errs.E(errs.NotFound, "there is no chunk %s", h)
		}
	}
	return out, nil
}

// folders has a folder for each save.
type folders string

func (f folders) SaveTree(ctx context.Context, r TreeRequest, v chunk.Vault, parent *chunk.Root) (*chunk.Root, chunk.Stats, error) {
	if r.Save == "none" {
		return nil, chunk.Stats{}, errs.E(errs.NotFound, "no save")
	}
	return chunk.Save(ctx, v, chunk.Source{Dir: filepath.Join(string(f), r.Save)}, parent)
}

func (f folders) LoadTree(ctx context.Context, r TreeRequest, v chunk.Vault, root *chunk.Root) error {
	dir := filepath.Join(string(f), r.Save)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return chunk.Load(ctx, v, root, chunk.Target{Dir: dir, Relaxed: true})
}

func trees(t *testing.T) (*TreesClient, string) {
	t.Helper()
	dir, pipe := t.TempDir(), NewPipe()
	h := NewServer(nil, func() Info { return Info{} }, slog.New(slog.DiscardHandler))
	h.ServeTrees(folders(dir))
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(pipe)
	}()
	c := NewClient(pipe.Dial)
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), srv.Close()); err != nil {
			t.Error(err)
		}
		<-done
	})
	content := make([]byte, 20<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(content)
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "a"), 0o700), os.WriteFile(filepath.Join(dir, "a", "f"), content, 0o600)); err != nil {
		t.Fatal(err)
	}
	return c.Trees(), dir
}

func TestTreesOverAConnection(t *testing.T) {
	c, dir := trees(t)
	v := &vault{has: map[chunk.Hash][]byte{}}
	root, stats, err := c.SaveTree(t.Context(), TreeRequest{Save: "a"}, v, nil)
	if err != nil || stats.Bytes != 20<<20 || stats.New == 0 {
		t.Fatalf("SaveTree = %+v, %v", stats, err)
	}
	_, stats, err = c.SaveTree(t.Context(), TreeRequest{Save: "a"}, v, root)
	if err != nil || stats.New > 2 {
		t.Errorf("once more: %+v, %v", stats, err)
	}
	if err := c.LoadTree(t.Context(), TreeRequest{Save: "b"}, v, root); err != nil {
		t.Fatal(err)
	}
	want, err1 := os.ReadFile(filepath.Join(dir, "a", "f"))
	got, err2 := os.ReadFile(filepath.Join(dir, "b", "f"))
	if err := errors.Join(err1, err2); err != nil || !bytes.Equal(got, want) {
		t.Errorf("another content came, %v", err)
	}
	// Errors of both sides keep their codes.
	if _, _, err := c.SaveTree(t.Context(), TreeRequest{Save: "none"}, v, nil); !errs.Is(err, errs.NotFound) {
		t.Errorf("a save that is not there: %v", err)
	}
	full := &vault{has: map[chunk.Hash][]byte{}, fail: errs.E(errs.NoCapacity, "full").Because("disk_full")}
	if _, _, err := c.SaveTree(t.Context(), TreeRequest{Save: "a"}, full, nil); errs.From(err).Reason != "disk_full" {
		t.Errorf("a vault that is full: %v", err)
	}
	if err := c.LoadTree(t.Context(), TreeRequest{Save: "c"}, full, root); !errs.Is(err, errs.NotFound) {
		t.Errorf("chunks that are not there: %v", err)
	}
	if err := c.LoadTree(t.Context(), TreeRequest{Save: "d"}, v, nil); !errs.Is(err, errs.InvalidInput) {
		t.Errorf("no root: %v", err)
	}
}

// A call that is given up ends on both sides, and so does one whose node goes.
func TestTreesGivenUp(t *testing.T) {
	for _, what := range []string{"caller", "node"} {
		t.Run(what, func(t *testing.T) {
			c, _ := trees(t)
			v := &vault{has: map[chunk.Hash][]byte{}, block: make(chan struct{}), entered: make(chan struct{}, 8)}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			nodeCtx, stop := context.WithCancel(t.Context())
			defer stop()
			if what == "node" {
				c.c.dial = dropping(nodeCtx, c.c.dial)
			}
			ended := make(chan error, 1)
			go func() {
				_, _, err := c.SaveTree(ctx, TreeRequest{Save: "a"}, v, nil)
				ended <- err
			}()
			<-v.entered
			if what == "caller" {
				cancel()
				if err := <-ended; !errors.Is(err, context.Canceled) {
					t.Errorf("SaveTree = %v", err)
				}
				return
			}
			stop()
			close(v.block)
			if err := <-ended; !errs.Is(err, errs.HostUnavailable) {
				t.Errorf("SaveTree = %v", err)
			}
		})
	}
}

// dropping makes connections that break when a context ends.
func dropping(ctx context.Context, dial func(context.Context) (net.Conn, error)) func(context.Context) (net.Conn, error) {
	return func(c context.Context) (net.Conn, error) {
		conn, err := dial(c)
		if err == nil {
			context.AfterFunc(ctx, func() { _ = conn.Close() })
		}
		return conn, err
	}
}

// FuzzLink: whatever comes, reading a message ends, and what is read is written as the same bytes.
func FuzzLink(f *testing.F) {
	f.Add([]byte("h\x00\x00\x00\x01\x00\x00\x00\x02ab"))
	f.Add([]byte("h\x00\x00\x00\x01\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := readLink(bytes.NewReader(b))
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := (&linkWriter{w: &out}).write(m.kind, m.request, m.body); err != nil || !bytes.HasPrefix(b, out.Bytes()) {
			t.Fatalf("%q became %q, %v", b, out.Bytes(), err)
		}
		_, _ = unpackHashes(m.body)
	})
}
