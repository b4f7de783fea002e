package runtime_test

import (
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

func TestCheckMountPath(t *testing.T) {
	for path, ok := range map[string]bool{
		"/data": true, "/home/user/my data": true, "/procs": true, "/.berths": true, "/tmp": true, "/var/lib/ä": true,
		"": false, "/": false, "data": false, "./data": false, "/data/": false, "/a/../b": false, "//a": false, "/a//b": false, "/..": false,
		"/proc": false, "/proc/1": false, "/sys/fs": false, "/dev": false, "/dev/shm": false, "/.berth": false, "/.berth/guest": false,
		"/a\nb": false, "/a\x00": false, "/\xff": false, "/a\x7f": false, "/" + strings.Repeat("a", 1024): false,
	} {
		err := runtime.CheckMountPath(path)
		if (err == nil) != ok || err != nil && !errs.Is(err, errs.InvalidInput) {
			t.Errorf("CheckMountPath(%q) = %v, want ok: %v", path, err, ok)
		}
	}
}

func TestCheckMounts(t *testing.T) {
	a, b := id.New(id.Volume), id.New(id.Volume)
	many := make([]runtime.Mount, runtime.MaxMounts+1)
	for i := range many {
		many[i] = runtime.Mount{Volume: id.New(id.Volume), Path: "/m" + strings.Repeat("x", i)}
	}
	for name, tt := range map[string]struct {
		mounts []runtime.Mount
		reason string
	}{
		"none":         {nil, ""},
		"two":          {[]runtime.Mount{{a, "/data", false}, {b, "/data2", true}}, ""},
		"most":         {many[:runtime.MaxMounts], ""},
		"too many":     {many, "volume"},
		"no volume":    {[]runtime.Mount{{id.New(id.Sandbox), "/data", false}}, "volume"},
		"a path":       {[]runtime.Mount{{"../../etc", "/data", false}}, "volume"},
		"twice":        {[]runtime.Mount{{a, "/data", false}, {a, "/other", true}}, "volume"},
		"same path":    {[]runtime.Mount{{a, "/data", false}, {b, "/data", false}}, "mount_path"},
		"nested":       {[]runtime.Mount{{a, "/data/in", false}, {b, "/data", false}}, "mount_path"},
		"nested after": {[]runtime.Mount{{a, "/data", false}, {b, "/data/in", false}}, "mount_path"},
		"bad path":     {[]runtime.Mount{{a, "/proc", false}}, "mount_path"},
	} {
		err := runtime.CheckMounts(tt.mounts)
		if reason := errs.From(err); (err == nil) != (tt.reason == "") || err != nil && (reason.Reason != tt.reason || reason.Code != errs.InvalidInput) {
			t.Errorf("%s: %v, want the reason %q", name, err, tt.reason)
		}
	}
}
