package supervisor

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/runtime/gvisor/wire"
)

// FuzzRequests: whatever arrives on the socket, the answer is one of the protocol and nothing is begun for a sandbox that may not be.
func FuzzRequests(f *testing.F) {
	paths := []string{
		wire.PathCreate, wire.PathStart, wire.PathStop, wire.PathDelete, wire.PathGet, wire.PathStats, wire.PathUpdate, wire.PathPause, wire.PathResume, wire.PathDial, wire.PathRebase,
		wire.PathMakeVolume, wire.PathRemoveVolume, wire.PathCopyVolume, wire.PathForgetCopy,
	}
	for i := range paths {
		f.Add(i, []byte(`{"id":"sbx_a","generation":3,"graceMs":5,"port":80}`))
		f.Add(i, []byte(`{"ID":"../../x","Image":"..","Resources":{"VCPU":1e309}}`))
	}
	f.Add(0, []byte(`{`))
	s := &Supervisor{
		cfg: Config{Root: f.TempDir()}, log: slog.New(slog.DiscardHandler), events: newHub(), boots: make(chan struct{}), sandboxes: map[string]*sandbox{}, slots: map[int]bool{},
	}
	h := s.handler(func(error) {})
	f.Fuzz(func(t *testing.T, n int, body []byte) {
		path := paths[((n%len(paths))+len(paths))%len(paths)]
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(string(body)))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusOK && w.Code < 400 || w.Code >= 500 && w.Code != 503 {
			b, _ := io.ReadAll(w.Body)
			t.Errorf("%s %q: status %d, %s", path, body, w.Code, b)
		}
		if len(s.sandboxes) != 0 {
			t.Errorf("%s %q began something", path, body)
		}
	})
}

// FuzzSpec: what passes the check is fit to be a path, an address and a size.
func FuzzSpec(f *testing.F) {
	root := f.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "images", "tiny", "rootfs"), 0o700); err != nil {
		f.Fatal(err)
	}
	s := &Supervisor{cfg: Config{Root: root}, log: slog.New(slog.DiscardHandler)}
	f.Add("sbx_a", "tiny", "box", "token", 1.0, int64(256), int64(1), int64(0))
	f.Add("../x", "../tiny", "a\nb", "a\x00b", -1.0, int64(-1), int64(-1), int64(-1))
	f.Fuzz(func(t *testing.T, id, image, host, token string, vcpu float64, memory, disk, pids int64) {
		spec := runtime.Spec{
			ID: id, Image: image, Hostname: host, GuestToken: token, Network: runtime.NetworkNone,
			Resources: runtime.Resources{VCPU: vcpu, MemoryMiB: memory, DiskGiB: disk, Pids: pids},
		}
		if s.check(&spec) != nil {
			return
		}
		if filepath.Base(spec.ID) != spec.ID || filepath.Base(image) != image || strings.ContainsAny(spec.Hostname+token, "\x00\n/ ") && !strings.ContainsAny(token, "/ ") {
			t.Errorf("passed: %+v", spec)
		}
		if l := limits(spec.Resources); l.MemoryBytes <= 0 || l.Pids <= 0 || !(l.VCPU > 0) {
			t.Errorf("passed with limits %+v: %+v", l, spec)
		}
	})
}
