package bootstrap

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// baseImage is the real image, made by the same call as everywhere else: `make test` makes it once and names its folder, so that here it is
// found. By hand, without BERTH_BASE_DIR, there is none.
func baseImage(t *testing.T) Result {
	t.Helper()
	dir := os.Getenv("BERTH_BASE_DIR")
	if dir == "" {
		t.Skip("BERTH_BASE_DIR names no folder of images: make test does")
	}
	res, err := Prepare(t.Context(), Options{Dir: dir})
	if err != nil {
		t.Fatalf("Prepare: %v", err)
	}
	return res
}

// writable is an overlay on the image, since the image itself is under other tests' sandboxes.
func writable(t *testing.T, rootfs string) string {
	t.Helper()
	dir := t.TempDir()
	mount := func(source, target, kind, data string) {
		t.Helper()
		if err := unix.Mount(source, target, kind, 0, data); err != nil {
			t.Fatalf("mount %s: %v", kind, err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
				t.Errorf("unmount %s: %v", target, err)
			}
		})
	}
	mount("tmpfs", dir, "tmpfs", "")
	for _, name := range []string{"upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	merged := filepath.Join(dir, "merged")
	mount("overlay", merged, "overlay", fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", rootfs, dir, dir))
	return merged
}

func TestBaseWorks(t *testing.T) {
	merged := writable(t, baseImage(t).Rootfs)
	for _, c := range append(checks(),
		check{"pip installs for the user", `mkdir -p p/demo; touch p/demo/__init__.py
			printf '[project]\nname="demo"\nversion="1"\n[build-system]\nrequires=["setuptools"]\nbuild-backend="setuptools.build_meta"\n' > p/pyproject.toml
			apt_setuptools=$(python3 -c 'import setuptools; print(setuptools.__version__)'); test -n "$apt_setuptools"
			pip install --no-index --no-build-isolation ./p; cd /; python3 -c 'import demo; print(demo.__file__)' | grep "$HOME/.local/"`},
		check{"npm installs for the user", `cp /home/user/.npmrc .; sed -i "s|/home/user|$HOME|" .npmrc; mkdir n; echo '{"name":"demo","version":"1.0.0","bin":{"demo":"d.js"}}' > n/package.json
			printf '#!/usr/bin/env node\nconsole.log("from npm")\n' > n/d.js; npm install --offline --global ./n; test "$("$HOME/.local/bin/demo")" = "from npm"`},
		check{"c++", `printf '#include <string>\nint main(){return std::string("ab").size()-2;}' > a.cc; c++ -o a a.cc; ./a`},
		check{"python headers", `test -e /usr/include/python3*/Python.h`},
		check{"tools", `for p in jq less ps ip rg zip unzip xz bzip2 nano vi rsync nc file ssh-keygen bash python; do command -v $p; done`},
		check{"locale", `test "$(python3 -c 'import sys; print(sys.stdout.encoding)')" = utf-8`},
		check{"apt knows its sources", `apt-get update --print-uris | grep InRelease`},
	) {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			if err := runCheck(t.Context(), Options{Log: &log}, merged, c); err != nil {
				t.Errorf("%v\n%s", err, log.Bytes())
			}
		})
	}
}

func TestCheckFails(t *testing.T) {
	merged := writable(t, baseImage(t).Rootfs)
	if err := runCheck(t.Context(), Options{}, merged, check{"nothing", "sudo -n true; false; true"}); err == nil {
		t.Error("a check whose middle fails passed")
	}
}

func TestBaseTree(t *testing.T) {
	res := baseImage(t)
	for _, f := range []struct {
		name string
		mode os.FileMode
		uid  uint32
	}{
		{"home/user", os.ModeDir | 0o755, userID},
		{"home/user/.bashrc", 0o644, userID},
		{"home/user/.local/bin", os.ModeDir | 0o755, userID},
		{"workspace", os.ModeDir | 0o755, userID},
		{"tmp", os.ModeDir | os.ModeSticky | 0o777, 0},
		{"tmp/.keep", 0o644, 0},
		{"etc/resolv.conf", 0o644, 0},
		{"etc/hosts", 0o644, 0},
		{"etc/hostname", 0o644, 0},
		{"etc/sudoers.d/user", 0o440, 0},
		{"usr/bin/sudo", os.ModeSetuid | 0o755, 0},
		{"usr/sbin/policy-rc.d", 0o755, 0},
	} {
		info, err := os.Lstat(filepath.Join(res.Rootfs, f.name))
		if err != nil {
			t.Error(err)
			continue
		}
		if st := info.Sys().(*syscall.Stat_t); info.Mode() != f.mode || st.Uid != f.uid || st.Gid != f.uid {
			t.Errorf("/%s is %v of %d:%d, want %v of %d", f.name, info.Mode(), st.Uid, st.Gid, f.mode, f.uid)
		}
	}
	for _, pattern := range []string{"usr/lib/python3*/EXTERNALLY-MANAGED", "var/lib/apt/lists/*_Packages*", "var/cache/apt/archives/*.deb", "usr/share/man/man1/*", "etc/apt/apt.conf.d/99mmdebstrap"} {
		if found, err := filepath.Glob(filepath.Join(res.Rootfs, pattern)); err != nil || len(found) > 0 {
			t.Errorf("/%s: %d found, error %v; want none", pattern, len(found), err)
		}
	}
	shadow, err := os.ReadFile(filepath.Join(res.Rootfs, "etc/shadow"))
	if err != nil || !strings.Contains(string(shadow), "\nuser:*:") {
		t.Errorf("the user's password is not one that nothing matches (%v)", err)
	}
	if res.Packages < 100 || res.Bytes < 200<<20 {
		t.Errorf("the image has %d packages and %d bytes: less than its tools need", res.Packages, res.Bytes)
	}
}
