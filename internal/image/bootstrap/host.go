package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// host is what was learnt of the machine that the image is made on.
type host struct {
	id       string // debian, ubuntu
	codename string // bookworm
	sources  []Source
}

// newHost reads the host's distribution and package sources from its file tree. INVALID_CONFIG where it is neither Debian nor Ubuntu.
func newHost(root fs.FS) (host, error) {
	data, err := fs.ReadFile(root, "etc/os-release")
	if isNotExist(err) {
		data, err = fs.ReadFile(root, "usr/lib/os-release")
	}
	if err != nil {
		return host{}, errs.Wrap(errs.InvalidConfig, err, "the distribution of this machine is unknown: it has no /etc/os-release")
	}
	h := host{}
	for line := range bytes.Lines(data) {
		key, value, _ := strings.Cut(strings.TrimSpace(string(line)), "=")
		value = strings.Trim(value, `"'`)
		switch key {
		case "ID":
			h.id = value
		case "VERSION_CODENAME":
			h.codename = value
		}
	}
	if h.id != "debian" && h.id != "ubuntu" || h.codename == "" {
		return host{}, errs.E(errs.InvalidConfig, "the base image is bootstrapped from the packages of Debian or Ubuntu, and this machine is %q", h.id).
			Suggest("Prepare the image on a Debian or Ubuntu machine and copy its folder here.")
	}
	h.sources, err = hostSources(root)
	return h, err
}

// aptSettings are the lines of `apt-config dump` on the host that decide whether its sources can be reached and believed. Those that kept
// is true for belong in the image too; proxies and credentials stay outside, since a sandbox is somebody else's.
func aptSettings(dump []byte) (during, kept []string) {
	for line := range bytes.Lines(dump) {
		text := strings.TrimSpace(string(line))
		key, value, _ := strings.Cut(text, " ")
		if value == `"";` || value == "" {
			continue
		}
		switch key := strings.ToLower(key); {
		case key == "acquire::check-valid-until", key == "acquire::check-date", key == "acquire::max-futuretime", key == "acquire::retries":
			during, kept = append(during, text), append(kept, text)
		case strings.HasPrefix(key, "acquire::http::"), strings.HasPrefix(key, "acquire::https::"), strings.HasPrefix(key, "acquire::force"):
			during = append(during, text)
		}
	}
	return during, kept
}

// hostAptSettings runs apt-config on the host.
func hostAptSettings(ctx context.Context) (during, kept []string, err error) {
	out, err := exec.CommandContext(ctx, "apt-config", "dump").Output()
	if err != nil {
		return nil, nil, errs.Wrap(errs.InvalidConfig, err, "the settings of apt on this machine cannot be read")
	}
	during, kept = aptSettings(out)
	return during, kept, nil
}

// ensureTool makes sure that mmdebstrap is there: it is installed from the host's packages where it is not. INVALID_CONFIG says what to
// install where that fails.
func ensureTool(ctx context.Context, opts Options, log io.Writer) error {
	if _, err := exec.LookPath("mmdebstrap"); err == nil {
		return nil
	}
	missing := func(cause error) error {
		return errs.Wrap(errs.InvalidConfig, cause, "mmdebstrap, which makes the base image, is not installed").Suggest("Install it: apt-get install mmdebstrap")
	}
	const stage = "installing mmdebstrap on this machine"
	opts.progress(stage, 0, 0)
	for _, args := range [][]string{{"update"}, {"install", "-y", "--no-install-recommends", "mmdebstrap"}} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(cmd.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8")
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Run(); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("install mmdebstrap: %w", context.Cause(ctx))
			}
			return missing(err)
		}
	}
	opts.progress(stage, 1, 1)
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		return missing(err)
	}
	return nil
}

// needRoot is INVALID_CONFIG for anyone else: only root can make device files, set owners and change its root folder.
func needRoot() error {
	if os.Geteuid() != 0 {
		return errs.E(errs.InvalidConfig, "preparing the base image needs root").Suggest("Run it again with sudo.")
	}
	return nil
}

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }
