package xtest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
)

// serviceConfig is the file of a machine's server.
const serviceConfig = "images: {dir: /mnt/base}\n"

// underSystemd installs the package on machines whose first process is systemd, and does to the service what a machine's owner does: it is started, restarted,
// stopped, killed, hung, upgraded, removed and purged. The sandbox that it has made goes on until the purge.
func underSystemd(t *testing.T, deb string) {
	for _, program := range []string{"/lib/systemd/systemd", "nsenter", "unshare", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatalf("%s is not installed", program)
			}
			t.Skipf("%s is not installed", program)
		}
	}
	shared := t.TempDir()
	b, err := os.ReadFile(deb) //nolint:gosec // of this test
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(shared, "berth.deb"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, layout := range layouts() {
		t.Run(layout, func(t *testing.T) {
			s := &service{machine: boot(t, layout, shared), t: t}
			s.installed()
			s.prepares()
			s.begins()
			s.goesOn("systemctl restart", func() { s.run("systemctl", "restart", "berth") })
			s.goesOn("systemctl stop and start", s.stopAndStart)
			s.goesOn("kill -9 of the server", s.killed)
			if layout == "unified" { // what does not depend on control groups is looked at once
				s.goesOn("systemctl reload", s.reloaded)
				s.goesOn("a configuration that is wrong", s.misconfigured)
				s.goesOn("an end that takes longer than the unit says", s.endsSlowly)
				s.goesOn("a server that hangs", s.hung)
				s.goesOn("an upgrade", func() { s.dpkg("-i", "/mnt/shared/berth.deb") })
				s.goesOn("a removal and a new installation", s.removedAndInstalled)
			}
			s.purged()
		})
	}
}

// service is the berth.service of a machine, and what it began with.
type service struct {
	*machine
	t       *testing.T
	main    string   // the process id of the server
	keeps   []string // berth-runtime and the processes of the sandbox
	process string   // a process in the sandbox
}

func (s *service) dpkg(args ...string) string {
	s.t.Helper()
	return s.run(append([]string{"dpkg", "--force-depends", "--force-unsafe-io"}, args...)...)
}

// installed: the service is enabled, and not started.
func (s *service) installed() {
	s.t.Helper()
	out := s.dpkg("-i", "/mnt/shared/berth.deb")
	if !strings.Contains(out, "systemctl start berth") {
		s.t.Errorf("the installation says %s", out)
	}
	s.enabled()
	if got := s.show("ActiveState"); got != "inactive" {
		s.t.Errorf("after the installation the service is %s", got)
	}
	s.write("/etc/berth/berth.yaml", serviceConfig)
}

func (s *service) enabled() {
	s.t.Helper()
	if got := s.run("systemctl", "is-enabled", "berth"); got != "enabled" {
		s.t.Errorf("the service is %s", got)
	}
}

// prepares: what the first start does to make the base image works under the unit's settings. The whole takes minutes and the network; this is the part of it
// that they can forbid: to become a user of the image there, and to become root again by sudo.
func (s *service) prepares() {
	s.t.Helper()
	image, err := filepath.Rel(need(s.t, "BERTH_BASE_DIR"), need(s.t, "BERTH_TEST_ROOTFS"))
	if err != nil {
		s.t.Fatal(err)
	}
	unit, err := os.ReadFile(s.path("/lib/systemd/system/berth.service"))
	if err != nil {
		s.t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(unit)) {
		switch key, _, _ := strings.Cut(line, "="); key {
		case "Type", "NotifyAccess", "WatchdogSec", "Restart", "ExecReload":
		case "ExecStart":
			lines = append(lines, "Type=oneshot\n", `ExecStart=/usr/sbin/chroot --userspec=user /run/image sh -c 'test "$(id -u) $(sudo -n id -u)" = "1000 0"'`+"\n")
		default:
			lines = append(lines, line)
		}
	}
	s.write("/run/systemd/system/prepares.service", strings.Join(lines, ""))
	s.run("mkdir", "/run/image", "/run/upper", "/run/work")
	s.run("mount", "-t", "overlay", "-o", "lowerdir=/mnt/base/"+image+",upperdir=/run/upper,workdir=/run/work", "overlay", "/run/image")
	s.run("systemctl", "daemon-reload")
	if out, err := s.command("systemctl", "start", "prepares").CombinedOutput(); err != nil {
		s.t.Errorf("what prepares the image does not work under the unit: %s\n%s", out, s.output("journalctl", "--no-pager", "-u", "prepares"))
	}
	s.run("umount", "/run/image")
}

// begins: it counts as started when it is ready, and no sooner. It makes a sandbox in which something runs.
func (s *service) begins() {
	s.t.Helper()
	// Nothing is waited for between the two: the first answer counts.
	const readyz = `exec 3<>/dev/tcp/127.0.0.1/7070 && printf 'GET /readyz HTTP/1.0\r\n\r\n' >&3 && head -n 1 <&3`
	if got := s.run("bash", "-c", "systemctl start berth && "+readyz); !strings.Contains(got, " 200 ") {
		s.t.Fatalf("started, it answers %q", got)
	}
	if got := s.show("ActiveState") + ", " + s.show("StatusText"); got != "active, Serving on 127.0.0.1:7070" {
		s.t.Errorf("the service is %s", got)
	}
	// The command line of root needs no key, and the journal, which others may read, has none.
	journal := s.run("journalctl", "--no-pager", "-u", "berth")
	if !strings.Contains(journal, "Berth is ready at") || strings.Contains(journal, "berth_sk_") {
		s.t.Errorf("the journal has no greeting, or a key:\n%s", journal)
	}
	s.run("berth", "sandboxes", "create", "--name", "one", "--resources.memory-mib", "256", "--wait-seconds", "30")
	s.process = s.inside("sleep 100000 > /dev/null 2>&1 & echo $!")
	if got := s.inside("echo $((6 * 7)); umask; id -u"); got != "42\n0022\n1000" {
		s.t.Errorf("in the sandbox: %q", got)
	}
	s.run("berth", "doctor")

	s.main = s.show("MainPID")
	runtime, sandbox := s.started("berth-runtime"), s.started("runsc-")
	if len(runtime) != 1 || len(sandbox) < 2 {
		s.t.Fatalf("of the runtime there are %v, of the sandbox %v", runtime, sandbox)
	}
	s.keeps = runtime
	for _, p := range sandbox {
		if s.isOf(pid(p), s.id("one")) { // not of one that is booted before anybody asks
			s.keeps = append(s.keeps, p)
			s.unlikeTheServer(pid(p))
		}
	}
	if len(s.keeps) != 3 {
		s.t.Fatalf("of the sandbox there are %v", s.keeps)
	}
	environ, err := os.ReadFile(s.path("proc/" + pid(runtime[0]) + "/environ"))
	if err != nil || strings.Contains(string(environ), "NOTIFY_SOCKET") || strings.Contains(string(environ), "WATCHDOG") {
		s.t.Errorf("berth-runtime hears of what the server shall tell the service manager: %q, %v", environ, err)
	}
}

// id gives a sandbox's id.
func (s *service) id(name string) string {
	s.t.Helper()
	var out struct{ Sandbox struct{ ID string } }
	if text := s.run("berth", "sandboxes", "get", name, "-o", "json"); json.Unmarshal([]byte(text), &out) != nil || out.Sandbox.ID == "" {
		s.t.Fatalf("the sandbox is %s", text)
	}
	return out.Sandbox.ID
}

func (s *service) isOf(pid, id string) bool {
	b, _ := os.ReadFile(s.path("proc/" + pid + "/cmdline")) //nolint:gosec // of the kernel
	return strings.Contains(string(b), id)
}

// unlikeTheServer: a process of a sandbox is in groups of its own, and not what the machine spares when its memory is used up.
func (s *service) unlikeTheServer(pid string) {
	s.t.Helper()
	b, err := os.ReadFile(s.path("proc/" + pid + "/cgroup")) //nolint:gosec // of the kernel
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if _, file, found := strings.Cut(line, ":memory:"); found && strings.Contains(file, "berth.service") {
			s.t.Errorf("process %s of the sandbox is in %s", pid, line)
		}
	}
	if !strings.Contains(string(b), "/berth/") {
		s.t.Errorf("process %s of the sandbox is in no group of its own:\n%s", pid, b)
	}
	score, err := os.ReadFile(s.path("proc/" + pid + "/oom_score_adj")) //nolint:gosec // of the kernel
	if n, nerr := strconv.Atoi(strings.TrimSpace(string(score))); err != nil || nerr != nil || n < 0 {
		s.t.Errorf("process %s of the sandbox has the score %q (%v)", pid, score, err)
	}
}

// inside runs a line of shell in the sandbox.
func (s *service) inside(line string) string {
	s.t.Helper()
	return s.run("berth", "sandboxes", "exec", "one", "--", "sh", "-c", line)
}

// goesOn does something to the service, and then it serves again, as another process, beside the same berth-runtime and the same sandbox.
func (s *service) goesOn(what string, do func()) {
	s.t.Helper()
	began := time.Now()
	do()
	s.keptAll(what)
	if got := s.show("ActiveState"); got != "active" {
		s.t.Fatalf("%s: the service is %s", what, got)
	}
	main := s.show("MainPID")
	if again := main != s.main; again == (what == "systemctl reload") {
		s.t.Errorf("%s: the server was %s and is %s", what, s.main, main)
	}
	s.main = main
	s.inside("kill -0 " + s.process)
	s.keptAll(what)
	s.t.Logf("%s: %v", what, time.Since(began).Round(10*time.Millisecond))
}

// keptAll: the runtime and the sandbox are the processes that they were.
func (s *service) keptAll(what string) {
	s.t.Helper()
	has := s.started("berth-runtime", "runsc-")
	for _, p := range s.keeps {
		if !slices.Contains(has, p) {
			s.t.Fatalf("%s: %s is gone, there are %v", what, p, has)
		}
	}
}

// comesBack waits until systemd has started the server again by itself, and it is ready.
func (s *service) comesBack() {
	s.t.Helper()
	eventuallyIn(s.t, 2*time.Minute, func() bool {
		pid := s.show("MainPID") // 0 for a moment after the death
		return s.show("ActiveState") == "active" && pid != s.main && pid != "0"
	})
}

func (s *service) stopAndStart() {
	s.run("systemctl", "stop", "berth")
	if got := s.show("ActiveState") + ", " + s.show("Result"); got != "inactive, success" {
		s.t.Errorf("stopped, it is %s", got)
	}
	if left := s.started("berth"); len(left) != 1 {
		s.t.Errorf("stopped, there are %v", left)
	}
	s.run("systemctl", "daemon-reload") // a moment when systemd tidies control groups up
	s.keptAll("systemctl stop")
	s.run("systemctl", "start", "berth")
}

func (s *service) killed() {
	s.run("kill", "-KILL", s.main)
	s.comesBack()
	if got := s.show("NRestarts"); got != "1" {
		s.t.Errorf("systemd has started it again %s times", got)
	}
}

func (s *service) reloaded() {
	s.write("/etc/berth/berth.yaml", serviceConfig+"log: {level: info}\n")
	s.run("systemctl", "reload", "berth")
	eventuallyIn(s.t, time.Minute, func() bool {
		return strings.Contains(s.output("journalctl", "--no-pager", "-u", "berth"), "the log level was read again")
	})
	s.write("/etc/berth/berth.yaml", serviceConfig)
}

// misconfigured: the start fails and says why, and goes well once the file is right.
func (s *service) misconfigured() {
	s.write("/etc/berth/berth.yaml", serviceConfig+"lissten: {port: 1}\n")
	if err := s.command("systemctl", "restart", "berth").Run(); err == nil {
		s.t.Error("a server with a wrong configuration starts")
	}
	if journal := s.output("journalctl", "--no-pager", "-u", "berth"); !strings.Contains(journal, "lissten") {
		s.t.Errorf("the journal does not say what is wrong:\n%s", journal)
	}
	s.write("/etc/berth/berth.yaml", serviceConfig)
	s.comesBack()
}

// endsSlowly: a call under way is finished, which the server asks systemd to wait for.
func (s *service) endsSlowly() {
	undo := s.drop("TimeoutStopSec=1")
	defer undo()
	call := s.command("berth", "sandboxes", "exec", "one", "--", "sh", "-c", "touch /tmp/begun; sleep 4; echo finished")
	var out strings.Builder
	call.Stdout, call.Stderr = &out, &out
	if err := call.Start(); err != nil {
		s.t.Fatal(err)
	}
	eventuallyIn(s.t, time.Minute, func() bool { return strings.Contains(s.inside("ls /tmp"), "begun") })
	s.run("systemctl", "stop", "berth")
	if got := s.show("Result"); got != "success" {
		s.t.Errorf("systemd says of the end: %s", got)
	}
	if err := call.Wait(); err != nil || !strings.Contains(out.String(), "finished") {
		s.t.Errorf("the call under way: %v, %s", err, out.String())
	}
	s.run("systemctl", "start", "berth")
}

// drop gives the unit another setting until it is undone.
func (s *service) drop(setting string) (undo func()) {
	s.t.Helper()
	s.write("/run/systemd/system/berth.service.d/test.conf", "[Service]\n"+setting+"\n")
	s.run("systemctl", "daemon-reload")
	return func() {
		if err := os.RemoveAll(s.path("/run/systemd/system/berth.service.d")); err != nil {
			s.t.Fatal(err)
		}
		s.run("systemctl", "daemon-reload")
	}
}

// hung: a server that gives no sign of life is ended and started again. That it does give them, everything before has shown: the time is up soon.
func (s *service) hung() {
	undo := s.drop("WatchdogSec=5")
	defer undo()
	s.run("systemctl", "restart", "berth")
	s.main = s.show("MainPID")
	before := s.show("WatchdogTimestampMonotonic")
	eventuallyIn(s.t, time.Minute, func() bool { return s.show("WatchdogTimestampMonotonic") != before })
	s.run("kill", "-STOP", s.main)
	s.comesBack()
	if journal := s.output("journalctl", "--no-pager", "_PID=1"); !strings.Contains(journal, "Watchdog timeout") {
		s.t.Errorf("the watchdog was not what ended it:\n%s", journal)
	}
}

// removedAndInstalled: a removal leaves the configuration, the data and what runs.
func (s *service) removedAndInstalled() {
	s.dpkg("-r", "berth")
	if got := s.output("systemctl", "is-active", "berth"); strings.HasPrefix(got, "active") {
		s.t.Errorf("removed, the service is %s", got)
	}
	s.keptAll("a removal")
	if b, err := os.ReadFile(s.path("/etc/berth/berth.yaml")); err != nil || string(b) != serviceConfig {
		s.t.Errorf("a removal left the configuration %q (%v)", b, err)
	}
	s.dpkg("-i", "/mnt/shared/berth.deb")
	s.enabled()
	s.run("systemctl", "start", "berth")
	if _, err := os.Lstat(s.path("/var/lib/berth/berth-removed")); err == nil {
		s.t.Error("the copy of the program that is kept for a purge is left after an installation")
	}
}

// purged: nothing is left.
func (s *service) purged() {
	s.t.Helper()
	if out := s.dpkg("-P", "berth"); !strings.Contains(out, "Removed.") {
		s.t.Errorf("the purge says %s", out)
	}
	var left []string
	for _, name := range []string{
		"/usr/bin/berth", "/etc/berth", "/var/lib/berth", "/lib/systemd/system/berth.service", "/etc/systemd/system/multi-user.target.wants/berth.service",
		"/var/lib/systemd/deb-systemd-helper-enabled/berth.service.dsh-also",
	} {
		if _, err := os.Lstat(s.path(name)); err == nil {
			left = append(left, name)
		}
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", s.first))
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "/var/lib/berth/") {
			left = append(left, line)
		}
	}
	for _, dir := range s.dirs {
		if _, err := os.Stat(filepath.Join(dir, "berth")); err == nil {
			left = append(left, filepath.Join(dir, "berth"))
		}
	}
	if links := s.run("ip", "-o", "link"); strings.Count(links, "\n") > 0 {
		left = append(left, links)
	}
	left = append(left, tables(s.t, s.first)...)
	left = append(left, s.started("berth", "runsc-")...)
	if len(left) > 0 {
		s.t.Errorf("a purge left:\n%s", strings.Join(left, "\n"))
	}
}

// tables names the tables of packet filters in a process's network.
func tables(t *testing.T, pid int) []string {
	t.Helper()
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	conn, err := nftables.New(nftables.WithNetNSFd(int(ns.Fd())))
	if err != nil {
		t.Fatal(err)
	}
	all, err := conn.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, table := range all {
		names = append(names, "the table "+table.Name)
	}
	return names
}
