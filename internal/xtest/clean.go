package xtest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/runtime/gvisor"
)

// cleanRuntime deletes every sandbox of a node's folder and ends its runtime.
func cleanRuntime(t testing.TB, dir string) {
	t.Helper()
	if _, err := os.Stat(dir); err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	d, err := gvisor.Open(ctx, gvisor.Config{
		Binary: need(t, "BERTH_RUNTIME_BIN"), Guest: need(t, "BERTH_GUEST_BIN"), Root: dir, Socket: filepath.Join(dir, "runtime.sock"),
	})
	if err != nil {
		t.Errorf("open runtime to clean up: %v", err)
		return
	}
	if err := d.Shutdown(ctx, true); err != nil {
		t.Errorf("end runtime: %v", err)
	}
	_ = d.Close()
}
