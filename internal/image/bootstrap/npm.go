package bootstrap

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// npmHome is where npm lies in the image.
const npmHome = "usr/local/lib/node_modules/npm"

// npmPackage is an npm that was fetched on the host. Its tarball is "" where the host has no npm: then the distribution's package is taken,
// which brings hundreds of others with it.
type npmPackage struct {
	dir     string // of our own, to be removed
	tarball string
}

// fetchNPM lets the host's npm fetch spec from the registry that it is configured with, and check it against the registry's digest.
func fetchNPM(ctx context.Context, opts Options, spec string) (npmPackage, error) {
	bin, err := exec.LookPath("npm")
	if err != nil {
		return npmPackage{}, nil
	}
	const stage = "fetching npm"
	opts.progress(stage, 0, 1)
	dir, err := os.MkdirTemp("", "berth-npm-")
	if err != nil {
		return npmPackage{}, fmt.Errorf("make folder for npm: %w", err)
	}
	p := npmPackage{dir: dir}
	cmd := exec.CommandContext(ctx, bin, "pack", spec, "--ignore-scripts", "--silent", "--pack-destination", dir)
	cmd.Dir = dir // not in a folder whose .npmrc would count
	cmd.Env = append(cmd.Environ(), "npm_config_cache="+filepath.Join(dir, "cache"), "npm_config_logs_max=0")
	cmd.Stdout, cmd.Stderr = opts.log(), opts.log()
	if err := cmd.Run(); err != nil {
		p.remove()
		if ctx.Err() != nil {
			return npmPackage{}, fmt.Errorf("fetch npm: %w", context.Cause(ctx))
		}
		return npmPackage{}, errs.Wrap(errs.Upstream, err, "npm could not be fetched from its registry").
			Suggest("Check that `npm pack %s` works on this machine.", spec)
	}
	found, err := filepath.Glob(filepath.Join(dir, "npm-*.tgz"))
	if err != nil || len(found) != 1 {
		p.remove()
		return npmPackage{}, errs.E(errs.Upstream, "`npm pack %s` left %d packages where one was expected", spec, len(found))
	}
	p.tarball = found[0]
	opts.progress(stage, 1, 1)
	return p, nil
}

// remove deletes what was fetched.
func (p npmPackage) remove() {
	if p.dir != "" {
		_ = os.RemoveAll(p.dir) // in the host's temporary folder; nothing depends on its going
	}
}

// install unpacks npm into the image and links its commands.
func (p npmPackage) install(root *os.Root) error {
	f, err := os.Open(p.tarball)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := makeDirs(root, npmHome); err != nil {
		return err
	}
	if err := unpackNPM(root, f); err != nil {
		return err
	}
	for _, name := range []string{"npm", "npx"} {
		if err := root.Symlink("../lib/node_modules/npm/bin/"+name+"-cli.js", "usr/local/bin/"+name); err != nil {
			return err
		}
	}
	return nil
}

// unpackNPM writes the files of an npm package below npmHome. Files only: npm packages hold no links.
func unpackNPM(root *os.Root, r io.Reader) error {
	zr, err := gzip.NewReader(r)
	if err != nil {
		return fmt.Errorf("open npm's package: %w", err)
	}
	tr := tar.NewReader(zr)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read npm's package: %w", err)
		}
		top, rel, ok := strings.Cut(path.Clean(h.Name), "/")
		if h.Typeflag != tar.TypeReg || !ok || top == ".." || !filepath.IsLocal(rel) {
			continue
		}
		name := path.Join(npmHome, rel)
		if err := makeDirs(root, path.Dir(name)); err != nil {
			return err
		}
		mode := os.FileMode(0o644)
		if h.Mode&0o111 != 0 || strings.HasPrefix(rel, "bin/") {
			mode = 0o755
		}
		if err := writeStream(root, name, mode, tr); err != nil {
			return err
		}
	}
}

// writeStream makes a file of the image from a stream.
func writeStream(root *os.Root, name string, mode os.FileMode, r io.Reader) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if err == nil {
		err = f.Chmod(mode) // whatever the umask is
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}
