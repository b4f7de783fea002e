package xtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDebianPackage builds the package of the program under test. It has what it should, lintian finds no fault with it, and it is installed, configured,
// removed and purged in a Debian of its own; then under a systemd of its own, where it serves.
func TestDebianPackage(t *testing.T) {
	t.Parallel() // it waits more than it works
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("dpkg-deb is not installed")
		}
		t.Skip("dpkg-deb is not installed")
	}
	bin, rootfs := need(t, "BERTH_BIN"), need(t, "BERTH_TEST_ROOTFS")
	out := t.TempDir()
	build := exec.Command("../../scripts/deb", out) //nolint:gosec // of this repository
	build.Env = append(os.Environ(), "BERTH_BIN="+bin)
	built := ranOK(t, build)
	deb := strings.TrimSpace(built)

	t.Run("content", func(t *testing.T) { packageContent(t, deb) })
	t.Run("lintian", func(t *testing.T) { lintian(t, deb) })
	t.Run("life", func(t *testing.T) { packageLife(t, deb, rootfs) })
	t.Run("systemd", func(t *testing.T) { underSystemd(t, deb) })
}

func packageContent(t *testing.T, deb string) {
	list := ranOK(t, exec.Command("dpkg-deb", "-c", deb))
	for _, file := range []string{
		"./usr/bin/berth", "./lib/systemd/system/berth.service", "./etc/berth/berth.yaml", "./usr/share/man/man1/berth.1.gz", "./usr/share/man/man5/berth.yaml.5.gz",
		"./usr/share/bash-completion/completions/berth", "./usr/share/zsh/vendor-completions/_berth", "./usr/share/fish/vendor_completions.d/berth.fish",
		"./usr/share/lintian/overrides/berth", "./usr/share/doc/berth/copyright", "./usr/share/doc/berth/changelog.gz",
	} {
		if !strings.Contains(list, " "+file+"\n") {
			t.Errorf("%s is not in the package:\n%s", file, list)
		}
	}
	if strings.Contains(list, "/root/") || !strings.Contains(list, "root/root") {
		t.Errorf("owners of files:\n%.500s", list)
	}
	if conf := ranOK(t, exec.Command("dpkg-deb", "-I", deb, "conffiles")); conf != "/etc/berth/berth.yaml\n" {
		t.Errorf("conffiles: %q", conf)
	}
}

// lintian has Debian's own judge of packages read it: no error, no warning, and no override that overrides nothing.
func lintian(t *testing.T, deb string) {
	for _, program := range []string{"lintian", "lexgrog"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatalf("%s is not installed", program)
			}
			t.Skipf("%s is not installed", program)
		}
	}
	// Two of its checks take minutes: of the program's words, which gives notes only, and of the manual, which starts two programs a page. Those are
	// what TestManual does with groff and what follows here.
	cmd := exec.Command("lintian", "--allow-root", "--no-cfg", "--fail-on", "error,warning", "--dont-check-part", "documentation/manual,binaries/spelling", //nolint:gosec // a file of the test's
		"--display-level", "=info", "--display-level", ">=warning", deb)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Contains(string(out), "mismatched-override") || strings.Contains(string(out), "unused-override") {
		t.Errorf("lintian: %v\n%s", err, out)
	}
	pages := filepath.Join(t.TempDir(), "pages")
	ranOK(t, exec.Command("dpkg-deb", "-x", deb, pages))
	files, err := filepath.Glob(filepath.Join(pages, "usr/share/man/man*/*"))
	if err != nil || len(files) < 30 {
		t.Fatalf("%d pages, %v", len(files), err)
	}
	if out, err := exec.Command("lexgrog", files...).CombinedOutput(); err != nil { //nolint:gosec // as above
		t.Errorf("man finds no name in a page: %v\n%s", err, out)
	}
}

// packageLife installs it in a tree that no systemd runs in.
func packageLife(t *testing.T, deb, rootfs string) {
	root := overlay(t, rootfs)
	dpkg := func(args ...string) string {
		return ranOK(t, exec.Command("dpkg", append([]string{"--root=" + root, "--force-depends"}, args...)...)) //nolint:gosec // a machine of the test's
	}
	dpkg("-i", deb)
	chroot := func(args ...string) string {
		return ranOK(t, exec.Command("chroot", append([]string{root}, args...)...))
	} //nolint:gosec // as above
	chroot("berth", "--version")
	chroot("berth", "config", "check", "/etc/berth/berth.yaml")
	if got := chroot("berth", "config"); !strings.Contains(got, "data: /var/lib/berth\n") {
		t.Errorf("the configuration is %s", got)
	}
	if st, err := os.Stat(filepath.Join(root, "var/lib/berth")); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the data folder: %v, %v", st, err)
	}
	// A person's changes and data outlive an upgrade and a removal.
	conf, data := filepath.Join(root, "etc/berth/berth.yaml"), filepath.Join(root, "var/lib/berth/berth.db")
	if err := os.WriteFile(conf, []byte("listen: {port: 7171}\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(data, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	dpkg("-i", deb)
	if got := chroot("berth", "config"); !strings.Contains(got, "port: 7171") {
		t.Errorf("after an upgrade: %s", got)
	}
	dpkg("-r", "berth")
	for _, path := range []string{conf, data} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("a removal took %s", path)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "usr/bin/berth")); err == nil {
		t.Error("a removal left the program")
	}
	dpkg("-P", "berth")
	for _, path := range []string{"var/lib/berth", "etc/berth"} {
		if _, err := os.Stat(filepath.Join(root, path)); err == nil {
			t.Errorf("a purge left %s", path)
		}
	}
}

// TestUnitIsGood has systemd read the unit.
func TestUnitIsGood(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("systemd is not installed")
		}
		t.Skip("systemd is not installed: it is asked where it is")
	}
	unit, err := os.ReadFile("../../packaging/berth.service")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "berth.service") // its program is not installed here
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(unit), "/usr/bin/berth", "/bin/true")), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("systemd-analyze", "verify", "--man=no", file).CombinedOutput() //nolint:gosec // a file of ours
	if err != nil || strings.Contains(string(out), "berth.service") {
		t.Errorf("%v\n%s", err, out)
	}
}

func ranOK(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var errOut strings.Builder
	cmd.Stderr = &errOut
	cmd.Env = append(cmd.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", cmd.Args, err, out, errOut.String())
	}
	return string(out)
}

// overlay gives a tree that can be changed over one that must not be, until the test ends.
func overlay(t *testing.T, lower string) string {
	t.Helper()
	base := t.TempDir()
	if err := unix.Mount("tmpfs", base, "tmpfs", 0, "size=512m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(base, 0) })
	for _, dir := range []string{"upper", "work", "root"} {
		if err := os.Mkdir(filepath.Join(base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root := filepath.Join(base, "root")
	if err := unix.Mount("overlay", root, "overlay", 0, "lowerdir="+lower+",upperdir="+base+"/upper,workdir="+base+"/work"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(root, 0) })
	return root
}
