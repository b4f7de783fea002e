package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// slimming are dpkg's settings while the image is made and in it afterwards: documentation and translations are left out, writes are not
// forced to disk one by one (a sandbox's disk is as durable as the sandbox), and Python's marker against pip is not unpacked.
//
// The marker (PEP 668) makes `pip install` refuse outside a virtual environment, so that pip cannot break the distribution's own Python
// programs. A sandbox is made to be changed and thrown away, and agents type `pip install`: so it is left out, by dpkg, which keeps it out
// through upgrades and serves every installer alike. pip puts what a user installs into ~/.local, not over the distribution's files.
func slimming() []string {
	return []string{
		"path-exclude=/usr/share/man/*",
		"path-exclude=/usr/share/info/*",
		"path-exclude=/usr/share/doc/*",
		"path-include=/usr/share/doc/*/copyright",
		"path-exclude=/usr/share/locale/*",
		"path-include=/usr/share/locale/locale.alias",
		"path-exclude=/usr/lib/python3*/EXTERNALLY-MANAGED",
		"force-unsafe-io",
	}
}

// build fills rootfs by the recipe. lock is handed to the programs that write there, so that it is held as long as any of them lives.
func build(ctx context.Context, opts Options, h host, r recipe, lock *os.File, rootfs string) error {
	if err := needRoot(); err != nil {
		return err
	}
	sources := opts.Sources
	if len(sources) == 0 {
		var err error
		if sources, err = selectSources(h.sources, h.id, r.Suite); err != nil {
			return err
		}
	}
	if err := ensureTool(ctx, opts, opts.log()); err != nil {
		return err
	}
	during, kept, err := hostAptSettings(ctx)
	if err != nil {
		return err
	}
	npm, err := fetchNPM(ctx, opts, r.NPM)
	if err != nil {
		return err
	}
	defer npm.remove()
	packages := r.Packages
	if npm.tarball == "" {
		packages = append(packages[:len(packages):len(packages)], "npm")
	}
	if err := runMmdebstrap(ctx, opts, mmdebstrapArgs(r.Suite, rootfs, packages, during), sources, lock); err != nil {
		return err
	}
	if err := finish(ctx, opts, rootfs, kept, npm); err != nil {
		return err
	}
	return verify(ctx, opts, rootfs)
}

// mmdebstrapArgs is its command line: the sources are read from its standard input.
func mmdebstrapArgs(suite, rootfs string, packages, apt []string) []string {
	args := []string{
		"--mode=root", "--variant=apt", "--format=directory", "--verbose",
		"--include=" + strings.Join(packages, ","),
		`--aptopt=APT::Install-Recommends "false";`, `--aptopt=Acquire::Languages "none";`, `--aptopt=Dpkg::Use-Pty "false";`,
	}
	for _, a := range apt {
		args = append(args, "--aptopt="+a)
	}
	for _, d := range slimming() {
		args = append(args, "--dpkgopt="+d)
	}
	return append(args, suite, rootfs, "-")
}

// runMmdebstrap runs it in a mount namespace of its own, so that what it mounts in the tree goes with it however it ends.
func runMmdebstrap(ctx context.Context, opts Options, args []string, sources []Source, lock *os.File) error {
	var list strings.Builder
	for _, s := range sources {
		list.WriteString(s.String() + "\n")
	}
	// The files' modes follow the umask, and apt closes every descriptor that there could be before each of the hundreds of programs it
	// runs, which is slow where a million are allowed. A process can change both only for itself.
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", `umask 022 && ulimit -n 1024 && exec mmdebstrap "$@"`, "mmdebstrap"}, args...)...)
	cmd.Env = append(cmd.Environ(), "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")
	cmd.Stdin = strings.NewReader(list.String())
	cmd.ExtraFiles = []*os.File{lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Unshareflags: syscall.CLONE_NEWNS}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	w := newWatcher(opts)
	cmd.Stdout, cmd.Stderr = w, w
	err := cmd.Run()
	w.end(err == nil)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("bootstrap image: %w", context.Cause(ctx))
	}
	return errs.Wrap(errs.Upstream, errors.Join(err, errors.New(w.tail())), "the base image could not be bootstrapped: %s", w.reason()).
		Suggest("Look at the log of the preparation; check that apt-get update works on this machine.").Because("bootstrap_failed")
}

// inside makes a command that runs in the image as a user, in a mount namespace of its own and with a clean environment. Output goes to out.
func inside(ctx context.Context, rootfs string, uid uint32, home, script string, out io.Writer) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/bin/bash", "-euc", script)
	cmd.Dir = "/"
	cmd.Env = []string{"HOME=" + home, "LANG=C.UTF-8", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive"}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Chroot: rootfs, Credential: &syscall.Credential{Uid: uid, Gid: uid}, Setpgid: true, Unshareflags: syscall.CLONE_NEWNS,
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}
