package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/bundle"
	"github.com/berthrun/berth/internal/runtime/gvisor/cgroup"
	"github.com/berthrun/berth/internal/runtime/gvisor/netns"
	"github.com/berthrun/berth/internal/runtime/gvisor/proc"
	"github.com/berthrun/berth/internal/runtime/gvisor/wire"
)

const (
	clearPatience = 30 * time.Second // for a killed process to be gone
	busyPatience  = 5 * time.Second  // for a mount to be let go of by processes that have just ended
)

// answerPatience is how long a berth-runtime gets to say that it is there.
const answerPatience = 10 * time.Second

// Answers reports whether a berth-runtime serves on a socket. One that hangs does not.
func Answers(ctx context.Context, socket string) bool {
	ctx, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	d := &Driver{cfg: Config{Socket: socket}}
	d.http = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d.connect(ctx) }, DisableKeepAlives: true,
	}}
	var hello wire.Hello
	return d.try(ctx, http.MethodGet, wire.PathHello, nil, &hello) == nil
}

// Clear takes off the machine what a root folder has put into it, whether or not its berth-runtime still answers or is there at all: processes, networks,
// control groups, mounts, loop devices. It names everything that it could not remove, and leaves the folder itself. Where nothing is left it does nothing.
func Clear(ctx context.Context, c Config) error {
	root, err := filepath.Abs(c.Root)
	if err == nil {
		root, err = filepath.EvalSymlinks(root)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("locate the folder of the runtime: %w", err)
	}
	failed := clearProcesses(root, c.Root)
	if err := netns.Clear(netns.Config{Dir: filepath.Join(root, "netns"), Instance: wire.Instance(root)}); err != nil {
		failed = errors.Join(failed, fmt.Errorf("remove networks: %w", err))
	}
	return errors.Join(failed, clearGroups(c, root), clearMounts(ctx, root), clearLoops(ctx, root))
}

// clearProcesses ends the runtime, so that nothing is started again, and then everything of its sandboxes: what names the folder, and what the records do.
func clearProcesses(root, asGiven string) error {
	var failed error
	for _, r := range []string{root, asGiven} {
		runtimes, err := proc.Serving(bundle.Runtime, "--root", r)
		failed = errors.Join(failed, err)
		for _, p := range runtimes {
			failed = errors.Join(failed, p.Kill(clearPatience))
		}
	}
	for _, p := range recorded(root) {
		failed = errors.Join(failed, p.Kill(clearPatience))
	}
	// Once more as long as there are any: a boot that was under way may have started one after the first look.
	for range 3 {
		found, err := proc.Scan(filepath.Join(root, "gvisor"))
		failed = errors.Join(failed, err)
		if len(found) == 0 {
			return failed
		}
		for _, p := range found {
			failed = errors.Join(failed, p.Kill(clearPatience))
		}
	}
	if found, _ := proc.Scan(filepath.Join(root, "gvisor")); len(found) > 0 {
		failed = errors.Join(failed, fmt.Errorf("%d processes of sandboxes still run", len(found)))
	}
	return failed
}

// recorded gives the processes that the records of sandboxes name, of this start of the machine. One that cannot be read names none.
func recorded(root string) []proc.Process {
	files, _ := filepath.Glob(filepath.Join(root, "sandboxes", "*", "record.json"))
	boot := proc.BootID()
	var all []proc.Process
	for _, file := range files {
		var r struct {
			BootID string       `json:"bootId"`
			Boot   proc.Process `json:"boot"`
			Gofer  proc.Process `json:"gofer"`
		}
		b, err := os.ReadFile(file) //nolint:gosec // below the folder of the runtime
		if err != nil || json.Unmarshal(b, &r) != nil || r.BootID != boot {
			continue
		}
		all = append(all, r.Boot, r.Gofer)
	}
	return all
}

// clearGroups ends what is in the control groups of the folder and removes them.
func clearGroups(c Config, root string) error {
	mount, parent := c.CgroupMount, c.CgroupParent
	if mount == "" {
		mount = cgroup.Mount
	}
	if parent == "" {
		parent = "berth"
	}
	m, err := cgroup.Open(mount, filepath.Join(parent, wire.Instance(root)))
	if err != nil {
		return fmt.Errorf("look for control groups: %w", err)
	}
	defer m.Close()
	ids, failed := m.List()
	for _, id := range ids {
		for _, pid := range m.Members(id) {
			if p, err := proc.Identify(pid); err == nil {
				failed = errors.Join(failed, p.Kill(clearPatience))
			}
		}
		failed = errors.Join(failed, m.Remove(id))
	}
	return failed
}

// clearMounts unmounts everything below the folder, the innermost first, and names what is in use.
func clearMounts(ctx context.Context, root string) error {
	mounts, err := mountsBelow(root)
	if err != nil {
		return err
	}
	var failed error
	for i := len(mounts) - 1; i >= 0; i-- {
		at := mounts[i]
		err := patiently(ctx, func() error {
			if err := unix.Unmount(at, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
				return err
			}
			return nil
		})
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s is still mounted: %w", at, err))
		}
	}
	return failed
}

// mountsBelow lists what is mounted below a folder in the order in which it was mounted.
func mountsBelow(root string) ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var all []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		if at := unescape.Replace(f[4]); strings.HasPrefix(at, root+"/") {
			all = append(all, at)
		}
	}
	return all, nil
}

// clearLoops detaches loop devices of files below the folder, which do so by themselves when their mount goes, and names what is in use.
func clearLoops(ctx context.Context, root string) error {
	devices, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return err
	}
	var failed error
	for _, file := range devices {
		back := func() string {
			b, _ := os.ReadFile(file) //nolint:gosec // of the kernel
			if text := strings.TrimSpace(string(b)); strings.HasPrefix(text, root+"/") {
				return text
			}
			return ""
		}
		if back() == "" {
			continue
		}
		dev := filepath.Join("/dev", filepath.Base(filepath.Dir(filepath.Dir(file))))
		err := patiently(ctx, func() error {
			if back() == "" {
				return nil
			}
			f, err := os.OpenFile(dev, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			// Of a device in use it only says that it shall go later.
			if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
				return err
			}
			return unix.EBUSY // unless it is seen to be gone
		})
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s still holds %s: %w", dev, back(), err))
		}
	}
	return failed
}

// patiently tries again while the kernel says that something is busy: there is no event for its end.
func patiently(ctx context.Context, try func() error) error {
	until := time.Now().Add(busyPatience)
	for {
		err := try()
		if !errors.Is(err, unix.EBUSY) || time.Now().After(until) || ctx.Err() != nil {
			return err
		}
		waitFor(ctx, 20*time.Millisecond)
	}
}
