package supervisor

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/disk"
	"github.com/berthrun/berth/internal/id"
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
	volume, name := id.New(id.Volume), id.New(id.Backup)
	for i := range paths {
		f.Add(i, []byte(`{"id":"`+volume+`","name":"`+name+`","sizeGiB":1}`))
		f.Add(i, []byte(`{"id":"`+volume+`","name":"../`+name+`","sizeGiB":-1}`))
	}
	s := &Supervisor{
		cfg: Config{Root: f.TempDir(), Now: time.Now}, log: slog.New(slog.DiscardHandler), events: newHub(), boots: make(chan struct{}), sandboxes: map[string]*sandbox{},
		slots: map[int]bool{}, copying: map[string]chan struct{}{}, copies: map[string]bool{},
	}
	var err error
	if s.disks, err = disk.Open(s.path("disks"), disk.Plain); err != nil {
		f.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(s.path("volumes"), 0o700), os.Mkdir(s.path("copies"), 0o700)); err != nil {
		f.Fatal(err)
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

// FuzzMountPoint: wherever the links of a disk lead, the folder of a volume is made in the disk, where it is said to be, and nothing is made outside.
func FuzzMountPoint(f *testing.F) {
	f.Add("/data/vol", "data", "/etc", "etc", "../..")
	f.Add("/a/b/c", "a", "../../../outside", "b", "a/../../b")
	f.Add("/a", "a", "a", "b", "/proc/self/root")
	f.Add("/x/../y", "x", "/", "y", "./././x")
	f.Fuzz(func(t *testing.T, at, name, target, name2, target2 string) {
		if runtime.CheckMountPath(at) != nil || len(at) > 200 {
			return
		}
		dir := t.TempDir()
		rootfs := filepath.Join(dir, "rootfs")
		if err := os.Mkdir(rootfs, 0o755); err != nil {
			t.Fatal(err)
		}
		for n, to := range map[string]string{name: target, name2: target2} {
			_ = os.Symlink(to, filepath.Join(rootfs, filepath.Base(n))) // what is no name or no target is no link
		}
		root, err := os.OpenRoot(rootfs)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		led, err := mountPoint(root, at)
		if entries, lerr := os.ReadDir(dir); lerr != nil || len(entries) != 1 {
			t.Errorf("%q made %v outside", at, entries)
		}
		if err != nil {
			return
		}
		real, err := filepath.EvalSymlinks(filepath.Join(rootfs, led))
		if err != nil || real != filepath.Join(rootfs, led) {
			t.Errorf("%q leads to %q, which is %q, %v", at, led, real, err)
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
	f.Fuzz(func(t *testing.T, name, image, host, token string, vcpu float64, memory, size, pids int64) {
		spec := runtime.Spec{
			ID: name, Image: image, Hostname: host, GuestToken: token, Network: runtime.NetworkNone,
			Resources: runtime.Resources{VCPU: vcpu, MemoryMiB: memory, DiskGiB: size, Pids: pids},
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
