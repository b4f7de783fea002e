package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// raw is one container of gVisor's own program, on the same image by the same kind of mount.
type raw struct {
	b    *bench
	dir  string
	id   string
	root string
}

// spec is as little as a container needs; the program is what keeps it alive.
func spec(rootfs string) map[string]any {
	return map[string]any{
		"ociVersion": "1.1.0",
		"process": map[string]any{
			"user": map[string]any{"uid": 0, "gid": 0}, "args": []string{"sleep", "infinity"}, "cwd": "/",
			"env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		},
		"root":     map[string]any{"path": rootfs},
		"hostname": "raw",
		"mounts": []map[string]any{
			{"destination": "/proc", "type": "proc", "source": "proc"},
			{"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
			{"destination": "/sys", "type": "sysfs", "source": "sysfs"},
		},
		"linux": map[string]any{"namespaces": []map[string]any{{"type": "pid"}, {"type": "network"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}}},
	}
}

func (b *bench) newRaw(rootfs string, n int) (*raw, error) {
	dir, err := os.MkdirTemp("", "berth-raw-")
	if err != nil {
		return nil, err
	}
	r := &raw{b: b, dir: dir, id: "raw-" + strconv.Itoa(os.Getpid()) + "-" + strconv.Itoa(n), root: filepath.Join(dir, "state")}
	for _, d := range []string{"upper", "work", "rootfs"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil { //nolint:gosec // a root folder is readable
			return nil, err
		}
	}
	merged := filepath.Join(dir, "rootfs")
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", rootfs, filepath.Join(dir, "upper"), filepath.Join(dir, "work"))
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		return nil, fmt.Errorf("mount overlay: %w", err)
	}
	config, err := json.Marshal(spec(merged))
	if err != nil {
		return nil, err
	}
	return r, os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600)
}

func (r *raw) command(ctx context.Context, args ...string) *exec.Cmd {
	all := append([]string{"--root", r.root, "--platform=systrap", "--network=sandbox", "--overlay2=none", "--ignore-cgroups"}, args...)
	return exec.CommandContext(ctx, r.b.runsc, all...) //nolint:gosec // the peer
}

// run starts the container, detached.
func (r *raw) run(ctx context.Context) error {
	c := r.command(ctx, "run", "--detach", "--bundle", r.dir, r.id)
	if err := c.Run(); err != nil {
		return fmt.Errorf("runsc run: %w", err)
	}
	return nil
}

// true runs one command in it.
func (r *raw) true(ctx context.Context) error {
	if out, err := r.command(ctx, "exec", r.id, "true").CombinedOutput(); err != nil {
		return fmt.Errorf("runsc exec: %w: %s", err, out)
	}
	return nil
}

// end removes it and all that it had.
func (r *raw) end() {
	_ = r.command(context.Background(), "delete", "--force", r.id).Run()
	for _, mount := range []string{"rootfs", "state/null-netns"} {
		_ = unix.Unmount(filepath.Join(r.dir, mount), unix.MNT_DETACH)
	}
	_ = os.RemoveAll(r.dir)
}
