package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
)

// joinFile is in a bundle and says what a re-executed process does before it becomes a sandbox.
const joinFile = "join.json"

// join is the content of joinFile.
type join struct {
	Procs       []string `json:"procs"`       // the files to write 0 to
	TotalMemory int64    `json:"totalMemory"` // bytes that the sandbox is told it has; 0 leaves the host's
	CPUs        int      `json:"cpus"`        // that it is told it has; 0 leaves the host's
}

// Reexec runs what gVisor executes this program again for: the sandbox (boot), its file server (gofer) and the helper that unmounts /proc.
// It reports false where the arguments are none of those; otherwise it does not return.
//
// Before gVisor's code runs, it closes the descriptors that leaked in from creates at the same time, and joins the control groups of its own
// sandbox, so that it never has a moment outside of them.
func Reexec(args []string) bool {
	name, at := subcommand(args)
	if name == "" {
		return false
	}
	if err := prepare(name, args, at); err != nil {
		fmt.Fprintln(os.Stderr, "berth-runtime:", err)
		os.Exit(70)
	}
	relax()
	cli.Run(nil, map[util.SubCommand]string{
		new(sentrycmd.Boot):   "internal",
		new(cmd.Gofer):        "internal",
		new(sentrycmd.Umount): "internal",
	}, nil)
	return true
}

// relax lets a process that becomes a sandbox boot without collecting garbage: it makes little, and each of the collections of a heap that small costs
// milliseconds of a start. Then it is collected, and collected as always.
func relax() {
	usual := debug.SetGCPercent(-1)
	time.AfterFunc(bootTime, func() {
		debug.SetGCPercent(usual)
		debug.FreeOSMemory()
	})
}

// subcommand finds the first argument that is no flag. gVisor writes flags before it as --name=value only.
func subcommand(args []string) (string, int) {
	for i, a := range args[min(1, len(args)):] {
		if strings.HasPrefix(a, "-") {
			continue
		}
		switch a {
		case "boot", "gofer", "umount":
			return a, i + 1
		}
		return "", 0
	}
	return "", 0
}

func prepare(name string, args []string, at int) error {
	if err := closeLeaked(highestDonated(args)); err != nil {
		return fmt.Errorf("close leaked descriptors: %w", err)
	}
	if name == "umount" || flagValue(args[at:], "setup-root") == "false" {
		return nil // a second execution, inside of what the first has set up
	}
	bundle := flagValue(args[at:], "bundle")
	b, err := os.ReadFile(filepath.Join(bundle, joinFile))
	if err != nil {
		return fmt.Errorf("read what to join: %w", err)
	}
	var j join
	if err := json.Unmarshal(b, &j); err != nil {
		return fmt.Errorf("read what to join: %w", err)
	}
	for _, path := range j.Procs {
		if err := os.WriteFile(path, []byte("0"), 0); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	if err := unprotect("/proc/self/oom_score_adj"); err != nil {
		return fmt.Errorf("give up the server's protection from the killer of memory: %w", err)
	}
	if name == "boot" {
		os.Args = withMachine(os.Args, at, j)
	}
	return nil
}

// unprotect gives a score that spares its process where the machine runs out of memory the usual value: the server's is inherited, but the sandboxes are
// what may go first. One that does not spare stays as it is.
func unprotect(file string) error {
	b, err := os.ReadFile(file) //nolint:gosec // of the kernel
	if err != nil {
		return err
	}
	if score, err := strconv.Atoi(strings.TrimSpace(string(b))); err != nil || score >= 0 {
		return err
	}
	return os.WriteFile(file, []byte("0"), 0)
}

// withMachine tells the sandbox the memory and the CPUs it may use. gVisor reads them from cgroups that it has made itself; ours it does
// not know.
func withMachine(args []string, at int, j join) []string {
	out := append([]string{}, args[:at+1]...)
	if j.TotalMemory > 0 {
		out = append(out, "--total-memory="+strconv.FormatInt(j.TotalMemory, 10))
	}
	if j.CPUs > 0 {
		out = append(out, "--cpu-num="+strconv.Itoa(j.CPUs))
	}
	rest := args[at+1:]
	for i := 0; i < len(rest); i++ {
		if rest[i] == "--total-memory" && j.TotalMemory > 0 {
			i++ // with its value
			continue
		}
		out = append(out, rest[i])
	}
	return out
}

// flagValue finds --name=value or --name value.
func flagValue(args []string, name string) string {
	for i, a := range args {
		if v, ok := strings.CutPrefix(a, "--"+name+"="); ok {
			return v
		}
		if a == "--"+name && i+1 < len(args) {
			return args[i+1]
		}
	}
	return ""
}

// highestDonated is the largest descriptor that the arguments name. gVisor donates an unbroken row that begins at 3.
func highestDonated(args []string) int {
	highest := 2
	for _, a := range args {
		name, value, ok := strings.Cut(a, "=")
		if !ok || !strings.HasPrefix(name, "--") || !(strings.HasSuffix(name, "-fd") || strings.HasSuffix(name, "-fds")) {
			continue
		}
		for _, part := range strings.Split(value, ",") {
			host, _, _ := strings.Cut(part, ":") // --pass-fd=host:guest
			if n, err := strconv.Atoi(host); err == nil && n > highest {
				highest = n
			}
		}
	}
	return highest
}

// closeLeaked closes the descriptors above the highest that survived an execution without being meant to. What this process opened itself
// has FD_CLOEXEC.
func closeLeaked(highest int) error {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return err
	}
	names, err := dir.Readdirnames(-1)
	if err := errors.Join(err, dir.Close()); err != nil {
		return err
	}
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil || fd <= highest {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd)
		}
	}
	return nil
}
