package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tenSteps is a Dockerfile of ten steps that need no network. The seventh is the one that changes.
const tenSteps = `FROM %s
USER root
WORKDIR /app
COPY requirements.txt ./
RUN seq 1 200000 > numbers
RUN mkdir data && for i in $(seq 1 500); do echo $i > data/$i; done
COPY src/ src/
RUN echo %s > changed && cat src/*.py | sha256sum > sums
RUN python3 -m compileall -q src
RUN rm -r data
CMD ["python3", "src/m1.py"]
`

const (
	unchangedRounds = 7
	changedRounds   = 3
	changedCached   = 6 // the steps before the one that changes
)

// builder is one folder to build, and the two that build it.
type builder struct {
	b      *bench
	s      *server
	dir    string // the folder
	store  string // buildah's
	change int
}

// builds: a Dockerfile of ten steps again, unchanged and with one RUN changed, beside buildah, whose steps run in a chroot.
func (b *bench) builds(ctx context.Context, _ *server, rootfs string) error {
	s, err := b.serve(ctx, "--disk", "btrfs-image")
	if err != nil {
		return err
	}
	defer s.stop()
	dir, err := os.MkdirTemp("", "berth-builds-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	k := &builder{b: b, s: s, dir: filepath.Join(dir, "app"), store: filepath.Join(dir, "buildah")}
	defer func() { _, _ = k.buildah(context.WithoutCancel(ctx), "rmi", "--all", "--force") }() // which also lets go of its mounts
	if err := errors.Join(k.plant(), k.imported(ctx, rootfs)); err != nil {
		return err
	}
	first, err := k.turns(ctx, 1, func() {})
	if err != nil {
		return err
	}
	again, err := k.turns(ctx, unchangedRounds, func() {})
	if err != nil {
		return err
	}
	changed, err := k.turns(ctx, changedRounds, func() { k.change++ })
	if err != nil {
		return err
	}
	const peer = "`buildah build --layers --isolation chroot`"
	b.rows = append(b.rows,
		row{what: "build of ten steps, for the first time", ours: first.ours, peer: peer, theirs: first.theirs, must: "none", met: true},
		row{what: "the same again, unchanged", ours: again.ours, peer: peer, theirs: again.theirs, must: "≤ 1 s", met: median(again.ours) <= time.Second && again.cached == again.steps},
		row{
			what: fmt.Sprintf("the same with one RUN changed: %d of %d steps cached", changed.cached, changed.steps), ours: changed.ours, peer: peer, theirs: changed.theirs,
			must: fmt.Sprintf("only what follows runs: %d cached", changedCached), met: changed.cached == changedCached,
		})
	return nil
}

// turned is what builds in turns took, and how many steps of the last were cached.
type turned struct {
	ours, theirs  []time.Duration
	cached, steps int
}

func (k *builder) turns(ctx context.Context, rounds int, before func()) (turned, error) {
	var out turned
	for range rounds {
		before()
		var built struct {
			Status        string
			Cached, Steps int
		}
		ours, err := timed(func() error { return k.berth(ctx, &built) })
		if err != nil {
			return out, err
		}
		if built.Status != "ready" {
			return out, fmt.Errorf("the build is %q", built.Status)
		}
		theirs, err := timed(func() error { return k.peer(ctx) })
		if err != nil {
			return out, err
		}
		out.ours, out.theirs, out.cached, out.steps = append(out.ours, ours), append(out.theirs, theirs), built.Cached, built.Steps
	}
	return out, nil
}

// plant makes the folder that is built.
func (k *builder) plant() error {
	if err := os.MkdirAll(filepath.Join(k.dir, "src"), 0o755); err != nil { //nolint:gosec // a measured folder
		return err
	}
	for i := range 50 {
		if err := k.write(fmt.Sprintf("src/m%d.py", i), fmt.Sprintf("print(%d)\n", i)); err != nil {
			return err
		}
	}
	return k.write("requirements.txt", "none\n")
}

func (k *builder) write(name, text string) error {
	return os.WriteFile(filepath.Join(k.dir, name), []byte(text), 0o644) //nolint:gosec // a measured file
}

// berth builds with the command line, from the packing of the folder to the end of the log.
func (k *builder) berth(ctx context.Context, out any) error {
	if err := k.write("Dockerfile", fmt.Sprintf(tenSteps, "template://base", strconv.Itoa(k.change))); err != nil {
		return err
	}
	c := exec.CommandContext(ctx, k.b.berth, "templates", "build", "-t", "bench", "-o", "json", k.dir) //nolint:gosec // the program under test
	c.Env = append(os.Environ(), "BERTH_URL="+k.s.url, "BERTH_API_KEY="+k.s.key)
	var said bytes.Buffer
	c.Stderr = &said
	text, err := c.Output()
	if err != nil {
		return fmt.Errorf("berth templates build: %w\n%s", err, said.String())
	}
	return json.Unmarshal(text, out)
}

func (k *builder) buildah(ctx context.Context, args ...string) (string, error) {
	all := append([]string{"--root", filepath.Join(k.store, "root"), "--runroot", filepath.Join(k.store, "run"), "--storage-driver", "overlay"}, args...)
	out, err := exec.CommandContext(ctx, "buildah", all...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("buildah %s, which Debian has as a package: %w\n%s", args[0], err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// imported makes the base image one of buildah's.
func (k *builder) imported(ctx context.Context, rootfs string) error {
	box, err := k.buildah(ctx, "from", "scratch")
	if err != nil {
		return err
	}
	for _, args := range [][]string{
		{"add", "--quiet", box, rootfs, "/"}, {"commit", "--quiet", "--disable-compression", box, "localhost/base"}, {"rm", box},
	} {
		if _, err := k.buildah(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

func (k *builder) peer(ctx context.Context) error {
	file := filepath.Join(filepath.Dir(k.dir), "Dockerfile.buildah")
	if err := os.WriteFile(file, []byte(fmt.Sprintf(tenSteps, "localhost/base", strconv.Itoa(k.change))), 0o644); err != nil { //nolint:gosec // a measured file
		return err
	}
	_, err := k.buildah(ctx, "build", "--layers", "--isolation", "chroot", "--quiet", "--tag", "bench", "--file", file, k.dir)
	return err
}
