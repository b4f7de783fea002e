package doctor

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The oldest kernel that gVisor runs on, and the oldest on which Berth is tested.
var oldest, tested = [2]int{4, 15}, [2]int{5, 10}

func (d *doctor) kernel() {
	release := d.line("proc/sys/kernel/osrelease")
	v, ok := version(release)
	switch {
	case runtime.GOARCH != "amd64":
		d.add("host.kernel", Error, "the machine is "+runtime.GOARCH, "Use an x86-64 machine.")
		return
	case !ok:
		d.add("host.kernel", Skipped, "the kernel's release cannot be read", "")
		return
	case less(v, oldest):
		d.add("host.kernel", Error, "Linux "+release, "gVisor needs Linux 4.15 or later.")
	case less(v, tested):
		d.add("host.kernel", Warn, "Linux "+release, "It may work; Berth is tested on 5.10 and later.")
	default:
		d.add("host.kernel", OK, "Linux "+release+" on x86-64", "")
	}
	actions := strings.Fields(d.line("proc/sys/kernel/seccomp/actions_avail"))
	if slices.Contains(actions, "trap") {
		d.add("host.seccomp", OK, "filters are available", "")
	} else {
		d.add("host.seccomp", Error, "the kernel has no seccomp filters", "gVisor confines itself by them: use a kernel with CONFIG_SECCOMP_FILTER.")
	}
}

func version(release string) (v [2]int, ok bool) {
	parts := strings.FieldsFunc(release, func(r rune) bool { return r == '.' || r == '-' || r == '+' })
	if len(parts) < 2 {
		return v, false
	}
	var err1, err2 error
	v[0], err1 = strconv.Atoi(parts[0])
	v[1], err2 = strconv.Atoi(parts[1])
	return v, err1 == nil && err2 == nil
}

func less(a, b [2]int) bool { return a[0] < b[0] || a[0] == b[0] && a[1] < b[1] }

func (d *doctor) namespaces() {
	var missing []string
	for _, kind := range []string{"net", "mnt", "pid", "uts", "ipc", "user"} {
		if _, err := os.Lstat(d.rooted("proc/self/ns/" + kind)); err != nil {
			missing = append(missing, kind)
		}
		if n := d.line("proc/sys/user/max_" + kind + "_namespaces"); n == "0" {
			missing = append(missing, kind+" (max_"+kind+"_namespaces is 0)")
		}
	}
	if len(missing) > 0 {
		d.add("host.namespaces", Error, "missing: "+strings.Join(missing, ", "), "Each sandbox has namespaces of its own: use a kernel that has them, and raise the sysctl user.max_…_namespaces.")
		return
	}
	d.add("host.namespaces", OK, "net, mnt, pid, uts, ipc and user", "")
}

// wanted are the controllers that hold a sandbox to its limits.
var wanted = []string{"cpu", "memory", "pids"}

func (d *doctor) cgroups() {
	const fix = "Sandboxes run without these limits. Boot with them, for memory often cgroup_enable=memory."
	if list, err := os.ReadFile(d.rooted("sys/fs/cgroup/cgroup.controllers")); err == nil { // it may be empty
		d.controllers("version 2", strings.Fields(string(list)), fix)
		return
	}
	mounts, err := os.ReadFile(d.rooted("proc/self/mounts"))
	if err != nil {
		d.add("host.cgroups", Skipped, "mounts cannot be read", "")
		return
	}
	var have []string
	for line := range strings.SplitSeq(string(mounts), "\n") {
		f := strings.Fields(line)
		if len(f) >= 4 && f[2] == "cgroup" {
			have = append(have, strings.Split(f[3], ",")...)
		}
	}
	if len(have) == 0 {
		d.add("host.cgroups", Error, "no control groups are mounted at /sys/fs/cgroup", "Mount cgroup2 there, or use a machine on which they are.")
		return
	}
	d.controllers("version 1", have, fix)
}

func (d *doctor) controllers(version string, have []string, fix string) {
	var missing []string
	for _, c := range wanted {
		if !slices.Contains(have, c) {
			missing = append(missing, c)
		}
	}
	if len(missing) > 0 {
		d.add("host.cgroups", Warn, version+" without "+strings.Join(missing, ", "), fix)
		return
	}
	d.add("host.cgroups", OK, version+" with cpu, memory and pids", "")
}

func (d *doctor) nftables() {
	if !d.isRoot() {
		d.add("host.nftables", Skipped, "only root can ask the kernel for it", "Run it again with sudo.")
		return
	}
	if err := askNftables(); err != nil {
		d.add("host.nftables", Error, "the kernel has no nf_tables: "+err.Error(), "Sandboxes are kept from each other and from the host by it: load the module nf_tables.")
		return
	}
	d.add("host.nftables", OK, "the kernel answers", "")
}

// askNftables asks the kernel's nf_tables for its generation.
func askNftables() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2})
	// A header of netlink (length, type, flags, sequence, port), then one of nfnetlink (family, version, resource).
	const nftables, getGeneration = 10, 16
	msg := []byte{20, 0, 0, 0, getGeneration, nftables, unix.NLM_F_REQUEST, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	if err := unix.Sendto(fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return err
	}
	if n >= 20 && answer[4] == unix.NLMSG_ERROR && answer[5] == 0 {
		errno := int32(uint32(answer[16]) | uint32(answer[17])<<8 | uint32(answer[18])<<16 | uint32(answer[19])<<24) //nolint:gosec // as the kernel packs it
		if errno != 0 {
			return unix.Errno(-errno)
		}
	}
	return nil
}

// notBefore is a time that has passed: a clock that says otherwise is wrong.
func notBefore() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

func (d *doctor) clock() {
	if now := d.Now(); now.Before(notBefore()) {
		d.add("host.clock", Error, "it is "+now.UTC().Format(time.RFC3339), "Set the clock: leases, expiry and TLS depend on it.")
		return
	}
	var mono, boot unix.Timespec
	if err := errors.Join(unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono), unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot)); err != nil || boot.Nano() < mono.Nano()-int64(time.Second) {
		d.add("host.clock", Error, "the monotonic clocks contradict each other", "Use a kernel with a working clock source.")
		return
	}
	var tx unix.Timex
	state, err := unix.Adjtimex(&tx)
	switch {
	case err != nil:
		d.add("host.clock", Skipped, "whether it is synchronized cannot be read: "+err.Error(), "")
	case state == unix.TIME_ERROR || tx.Status&unix.STA_UNSYNC != 0:
		d.add("host.clock", Warn, "nothing keeps it in step with others", "Run an NTP client such as systemd-timesyncd or chrony.")
	default:
		d.add("host.clock", OK, fmt.Sprintf("synchronized, at most %d ms off", tx.Maxerror/1000), "")
	}
}
