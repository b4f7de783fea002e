package fake_test

import (
	"context"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/nodeapi"
	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/runtime/fake"
	"github.com/berthrun/berth/internal/runtime/runtimetest"
)

func TestConformance(t *testing.T) {
	for name, can := range map[string]runtime.Capabilities{"everything": fake.Everything(), "nothing": {}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			d := fake.New(fake.Config{Dir: dir, Images: []string{"base"}, Can: can})
			defer d.Close()
			runtimetest.Run(t, harness(d, d, dir))
		})
	}
}

// The same suite holds for a driver that is reached over a node's connection.
func TestConformanceOverANode(t *testing.T) {
	dir := t.TempDir()
	d := fake.New(fake.Config{Dir: dir, Images: []string{"base"}, Can: fake.Everything()})
	defer d.Close()
	pipe := nodeapi.NewPipe()
	info := func() nodeapi.Info { return nodeapi.Info{Driver: d.Name(), Capabilities: d.Capabilities()} }
	srv := &http.Server{Handler: nodeapi.NewServer(d, info, slog.New(slog.DiscardHandler)), ReadHeaderTimeout: time.Second}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(pipe)
	}()
	defer func() { <-served }()
	defer srv.Close()
	client := nodeapi.NewClient(pipe.Dial)
	defer client.Close()
	if _, err := client.Info(context.Background()); err != nil {
		t.Fatal(err)
	}
	runtimetest.Run(t, harness(client, d, dir))
}

// program counts, or writes random bytes.
const program = `case $1 in
count) i=0; while :; do i=$((i+1)); echo $i >> $2; sleep 0.02; done;;
pair) i=0; while :; do i=$((i+1)); echo $i >> $2.a; echo $i >> $2.b; sleep 0.01; done;;
some) head -c 33554432 /dev/zero > $2;;
random) head -c 16 /dev/urandom | base64 > $2;;
esac`

func harness(d runtime.Driver, f *fake.Driver, dir string) runtimetest.Harness {
	return runtimetest.Harness{
		Driver: d, Image: "base", Patience: 10 * time.Second, Program: []string{"sh", "-c", program, "program"},
		Kill: func(_ *testing.T, id string) { f.Kill(id, runtime.ReasonKilled) },
		Damage: func(t *testing.T, what, how string) {
			if err := f.Damage(what, how); err != nil {
				t.Fatal(err)
			}
		},
		Folder: func(_ *testing.T, name string) string { return f.VolumeFolder(name) },
		Left: func(t *testing.T) []string {
			var left []string
			for _, pattern := range []string{"*", ".memory/*", ".undo/*", ".saves/*", ".volumes/*", ".copies/*", ".under/*"} {
				found, err := filepath.Glob(filepath.Join(dir, pattern))
				if err != nil {
					t.Fatal(err)
				}
				for _, path := range found {
					if name := filepath.Base(path); !slices.Contains([]string{".memory", ".undo", ".saves", ".volumes", ".copies", ".under"}, name) {
						left = append(left, path)
					}
				}
			}
			return left
		},
	}
}
