package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// raw is one container of gVisor's own program, on the same image by the same kind of mount.
type raw struct {
	b    *bench
	dir  string
	id   string
	root string
	net  string // none: loopback alone; else sandbox, which has nothing at all in a namespace of its own
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
	network := "sandbox"
	if r.net != "" {
		network = r.net
	}
	all := append([]string{"--root", r.root, "--platform=systrap", "--network=" + network, "--overlay2=none", "--ignore-cgroups"}, args...)
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

// rawTimes are those of gVisor's two ways to read the pages of a checkpoint: through the page cache, and past it.
type rawTimes [2][]time.Duration

func (t *rawTimes) add(counts bool, restore func(direct bool) (time.Duration, error)) error {
	for way, direct := range []bool{false, true} {
		d, err := restore(direct)
		if err != nil {
			return err
		}
		if counts {
			t[way] = append(t[way], d)
		}
	}
	return nil
}

// best gives the times of the faster way, and its name.
func (t *rawTimes) best(then string) ([]time.Duration, string) {
	if median(t[1]) < median(t[0]) {
		return t[1], "`runsc restore --background --direct` " + then
	}
	return t[0], "`runsc restore --background` " + then
}

// restored brings a container back, runs a command in it and kills it.
func (r *raw) restored(ctx context.Context, image string, direct bool) (time.Duration, error) {
	defer r.kill(ctx)
	return timed(func() error {
		if err := r.restore(ctx, image, direct); err != nil {
			return err
		}
		return r.true(ctx)
	})
}

// rawCopies restores one checkpoint many times, each on a disk of its own, and times it.
func (b *bench) rawCopies(ctx context.Context, rootfs, image string, direct bool, n, first int) (time.Duration, error) {
	all := make([]*raw, n)
	for i := range all {
		r, err := b.newRaw(rootfs, first+i)
		if err != nil {
			return 0, err
		}
		defer r.end()
		if err := r.holds(150); err != nil {
			return 0, err
		}
		all[i] = r
	}
	return timed(func() error {
		return each(n, func(i int) error {
			if err := all[i].restore(ctx, image, direct); err != nil {
				return err
			}
			return all[i].true(ctx)
		})
	})
}

// heldRaw is a container of gVisor's own program whose one process holds memory.
func (b *bench) heldRaw(ctx context.Context, rootfs string, n, mib int) (*raw, error) {
	r, err := b.newRaw(rootfs, n)
	if err != nil {
		return nil, err
	}
	if err := r.holds(mib); err != nil {
		r.end()
		return nil, err
	}
	if err := r.run(ctx); err != nil {
		r.end()
		return nil, err
	}
	for ctx.Err() == nil {
		if _, err := os.Stat(filepath.Join(r.dir, "upper", "held")); err == nil {
			return r, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	r.end()
	return nil, ctx.Err()
}

// holds has the container's process hold memory, and write a file once it does.
func (r *raw) holds(mib int) error {
	sp := spec(filepath.Join(r.dir, "rootfs"))
	program := strings.Replace(holder, `print("held", flush=True)`, `open("/held", "w").close()`, 1)
	sp["process"].(map[string]any)["args"] = []string{"python3", "-c", program, strconv.Itoa(mib)}
	config, err := json.Marshal(sp)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.dir, "config.json"), config, 0o600)
}

// checkpoint writes the container's kernel to a folder and ends it.
func (r *raw) checkpoint(ctx context.Context, image string, direct bool) error {
	if err := os.Mkdir(image, 0o700); err != nil {
		return err
	}
	out, err := r.command(ctx, "checkpoint", "--image-path", image, "--direct="+strconv.FormatBool(direct), "--compression=none", r.id).CombinedOutput()
	if err != nil {
		return fmt.Errorf("runsc checkpoint: %w: %s", err, out)
	}
	r.kill(ctx)
	return nil
}

// restore brings it back; its pages are read when they are needed.
func (r *raw) restore(ctx context.Context, image string, direct bool) error {
	c := r.command(ctx, "restore", "--detach", "--background", "--direct="+strconv.FormatBool(direct), "--image-path", image, "--bundle", r.dir, r.id)
	if err := c.Run(); err != nil {
		return fmt.Errorf("runsc restore: %w", err)
	}
	return nil
}

// kill ends the container and keeps its disk.
func (r *raw) kill(ctx context.Context) { _ = r.command(ctx, "delete", "--force", r.id).Run() }
