package gvisor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/bundle"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime/gvisor/proc"
	"github.com/berthrun/berth/internal/runtime/gvisor/wire"
)

// takeOver gets a process of our version to answer: the one there is, or a new one in its place.
func (d *Driver) takeOver(ctx context.Context) (wire.Hello, error) {
	var err error
	if d.binary, err = bundle.HashFile(d.cfg.Binary); err != nil {
		return wire.Hello{}, errs.Wrap(errs.InvalidConfig, err, "the program berth-runtime cannot be read")
	}
	if d.guest, err = bundle.HashFile(d.cfg.Guest); err != nil {
		return wire.Hello{}, errs.Wrap(errs.InvalidConfig, err, "the guest program cannot be read")
	}
	hello, err := d.Hello(ctx)
	if err != nil {
		return wire.Hello{}, err
	}
	if hello.Protocol == wire.Protocol && hello.RuntimeSHA256 == d.binary && hello.GuestSHA256 == d.guest {
		return hello, nil
	}
	d.log.Info("replacing berth-runtime", "pid", hello.PID, "stamp", hello.Stamp)
	if err := d.Shutdown(ctx, false); err != nil {
		return wire.Hello{}, err
	}
	return d.Hello(ctx)
}

// Shutdown ends the process and waits until it has; with sandboxes it deletes every one of them first. A driver that is used again
// afterwards starts it again.
func (d *Driver) Shutdown(ctx context.Context, sandboxes bool) error {
	select {
	case d.start <- struct{}{}: // nobody starts it meanwhile
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-d.start }()
	var hello wire.Hello
	err := d.try(ctx, http.MethodGet, wire.PathHello, nil, &hello)
	if errors.Is(err, errNoProcess) && !sandboxes {
		return nil
	}
	if errors.Is(err, errNoProcess) {
		if err = d.launch(ctx); err == nil {
			err = d.try(ctx, http.MethodGet, wire.PathHello, nil, &hello)
		}
	}
	if err != nil {
		return err
	}
	p, err := proc.Identify(hello.PID)
	if err != nil {
		return nil // it has ended just now
	}
	pidfd, err := p.Open()
	if err != nil {
		return nil
	}
	defer pidfd.Close()
	d.park()
	path := wire.PathShutdown
	if sandboxes {
		path += "?sandboxes=delete"
	}
	if err := d.try(ctx, http.MethodPost, path, nil, nil); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = pidfd.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := proc.Wait(pidfd); err != nil {
		return errs.Wrap(errs.Timeout, err, "berth-runtime does not end")
	}
	d.http.CloseIdleConnections()
	return nil
}

// park keeps the process from being started by itself, until a call needs it.
func (d *Driver) park() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.parked == nil {
		d.parked = make(chan struct{})
	}
}

func (d *Driver) unpark() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.parked != nil {
		close(d.parked)
		d.parked = nil
	}
}

// revive gets a process that ended by itself to answer again. One that was shut down is left alone until somebody makes a call.
func (d *Driver) revive(ctx context.Context) error {
	d.mu.Lock()
	parked := d.parked
	d.mu.Unlock()
	if parked == nil {
		return d.ensure(ctx)
	}
	select {
	case <-parked:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ensure gets the process to answer, starting it where it does not. Several callers start it once.
func (d *Driver) ensure(ctx context.Context) error {
	select {
	case d.start <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-d.start }()
	if c, err := d.connect(ctx); err == nil {
		return c.Close()
	}
	return d.launch(ctx)
}

// launch gets a process to serve. Where another one has the data folder, which may be just coming up or just ending, whichever answers will do. The token is
// held.
func (d *Driver) launch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.StartTimeout)
	defer cancel()
	for {
		err := d.launchOne(ctx)
		if e, ok := errors.AsType[*errs.Error](err); !ok || e.Reason != rootInUse {
			return err
		}
		if d.awaitOther(ctx) {
			return nil
		}
		if ctx.Err() != nil || d.ctx.Err() != nil {
			return errs.Wrap(errs.HostUnavailable, err, "another berth-runtime has the data folder and does not answer").Because("runtime_down")
		}
	}
}

// rootInUse is the reason by which a process says that another one has its folder.
const rootInUse = "root_in_use"

// launchOne starts the process in a session of its own, so that it survives this one, and waits for its word. Whatever it fails of, other than what it was
// told, is the node's trouble and may pass: it is HOST_UNAVAILABLE.
func (d *Driver) launchOne(ctx context.Context) error {
	if err := d.ctx.Err(); err != nil {
		return unavailable(err)
	}
	logFile := d.cfg.LogFile
	if logFile == "" {
		logFile = filepath.Join(d.cfg.Root, "log", "runtime.log")
	}
	if err := errors.Join(os.MkdirAll(d.cfg.Root, 0o700), os.MkdirAll(filepath.Dir(logFile), 0o700)); err != nil {
		return errs.Wrap(errs.HostUnavailable, err, "the data folder of the runtime cannot be made")
	}
	r, w, err := os.Pipe()
	if err != nil {
		return unavailable(err)
	}
	defer r.Close()
	cmd := exec.Command(d.cfg.Binary, d.arguments(logFile)...)
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return errs.Wrap(errs.HostUnavailable, err, "berth-runtime cannot be started").Because("runtime_down")
	}
	d.log.Info("started berth-runtime", "pid", cmd.Process.Pid)
	d.work.Add(1)
	go d.reap(cmd)
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		return errs.Wrap(errs.HostUnavailable, err, "berth-runtime does not come up: see %s", logFile).Because("runtime_down")
	}
	if line == "\n" {
		d.unpark()
		return nil
	}
	var e wire.Error
	if err := json.Unmarshal([]byte(line), &e); err != nil {
		return unavailable(fmt.Errorf("unknown word %q", line))
	}
	if e.Reason == rootInUse || e.Code == errs.InvalidConfig {
		return e.Err()
	}
	return errs.Wrap(errs.HostUnavailable, e.Err(), "berth-runtime does not come up: see %s", logFile).Because("runtime_down").After(time.Second)
}

func (d *Driver) arguments(logFile string) []string {
	args := []string{"serve", "--root", d.cfg.Root, "--socket", d.cfg.Socket, "--guest", d.cfg.Guest, "--log", logFile, "--ready-fd", "3"}
	for _, f := range [][2]string{{"--cgroup-mount", d.cfg.CgroupMount}, {"--cgroup-parent", d.cfg.CgroupParent}, {"--subnet", d.cfg.Subnet}, {"--disk", d.cfg.Disk}} {
		if f[1] != "" {
			args = append(args, f[0], f[1])
		}
	}
	return args
}

// otherTime is how long a process that somebody else started is waited for until another one is started: it may have been ending.
const otherTime = 500 * time.Millisecond

// awaitOther waits a while for a process that somebody else started a moment ago, and tells whether it answers.
func (d *Driver) awaitOther(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, otherTime)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if c, err := d.connect(ctx); err == nil {
			_ = c.Close()
			return true
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		case <-d.ctx.Done():
			return false
		}
	}
}

// reap collects a process that we started, so that it does not stay a zombie while we live.
func (d *Driver) reap(cmd *exec.Cmd) {
	defer d.work.Done()
	p, err := proc.Identify(cmd.Process.Pid)
	if err == nil {
		if pidfd, err := p.Open(); err == nil {
			defer pidfd.Close()
			stop := context.AfterFunc(d.ctx, func() { _ = pidfd.SetReadDeadline(time.Unix(1, 0)) })
			defer stop()
			if proc.Wait(pidfd) != nil {
				_ = cmd.Process.Release() // it outlives this driver
				return
			}
		}
	}
	_ = cmd.Wait() // how it ended is in its log
}

// supervise starts the process again whenever it has ended, until Close. It learns of it from a watch that breaks.
func (d *Driver) supervise() {
	defer d.work.Done()
	for d.ctx.Err() == nil {
		began := time.Now()
		_ = d.stream(d.ctx, func(wire.Event) {}) // how it broke does not matter
		err := d.revive(d.ctx)
		if d.ctx.Err() != nil {
			return
		}
		if err != nil {
			d.log.Error("start berth-runtime again", "error", err)
		} else if time.Since(began) > time.Second {
			continue
		}
		// It ends at once, or cannot be started: again in a while, rather than as fast as can be.
		waitFor(d.ctx, time.Second)
	}
}
