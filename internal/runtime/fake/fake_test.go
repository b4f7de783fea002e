package fake_test

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/nodeapi"
	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/runtime/fake"
	"github.com/berthrun/berth/internal/runtime/runtimetest"
)

func TestConformance(t *testing.T) {
	d := fake.New(fake.Config{Dir: t.TempDir(), Images: []string{"base"}})
	defer d.Close()
	runtimetest.Run(t, harness(d, d))
}

// The same suite holds for a driver that is reached over a node's connection.
func TestConformanceOverANode(t *testing.T) {
	d := fake.New(fake.Config{Dir: t.TempDir(), Images: []string{"base"}})
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
	runtimetest.Run(t, harness(client, d))
}

func harness(d runtime.Driver, f *fake.Driver) runtimetest.Harness {
	return runtimetest.Harness{
		Driver: d, Image: "base", Patience: 10 * time.Second,
		Kill: func(_ *testing.T, id string) { f.Kill(id, runtime.ReasonKilled) },
	}
}
