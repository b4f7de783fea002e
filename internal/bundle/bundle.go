// Package bundle owns where the programs that berth starts, berth-runtime and berth-guest, come from: out of berth itself, where it was
// built with the tag `bundle`, or from a file beside it.
//
// It does not start them, and reads no environment: the command line hands in what was named there.
package bundle

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berthrun/berth/internal/errs"
)

// The programs.
const (
	Runtime = "berth-runtime" // gVisor and its supervisor
	Guest   = "berth-guest"   // pid 1 in every sandbox
)

// Options say where to look. A named file goes before a bundled one, and a bundled one before a file beside the running program.
type Options struct {
	Dir     string // bundled programs are unpacked to Dir/bin/<hash>/<name>; needed only in a build with the tag bundle
	Runtime string // path of berth-runtime; "" is not named
	Guest   string // path of berth-guest; "" is not named
}

// Binary is a program on this machine.
type Binary struct {
	Path   string // absolute
	SHA256 string // of its content, 64 hexadecimal digits
}

// Programs are the two that a node needs.
type Programs struct {
	Runtime Binary
	Guest   Binary
}

// Locate finds both programs, and unpacks bundled ones where they are not there in full. INVALID_CONFIG where one is nowhere or cannot be run.
func Locate(opts Options) (Programs, error) {
	exe, err := os.Executable()
	if err != nil {
		return Programs{}, fmt.Errorf("locate own program: %w", err)
	}
	return locate(opts, filepath.Dir(exe), assets())
}

// locate is Locate with the folder of the running program and the bundle handed in; bundled is nil where there is none.
func locate(opts Options, beside string, bundled fs.FS) (Programs, error) {
	var m manifest
	if bundled != nil {
		var err error
		if m, err = readManifest(bundled); err != nil {
			return Programs{}, err
		}
	}
	find := func(name, named string) (Binary, error) {
		switch {
		case named != "":
			return inspect(name, named)
		case bundled != nil:
			return unpack(bundled, m, opts.Dir, name)
		}
		return inspect(name, filepath.Join(beside, name))
	}
	var p Programs
	var err error
	if p.Runtime, err = find(Runtime, opts.Runtime); err != nil {
		return Programs{}, err
	}
	p.Guest, err = find(Guest, opts.Guest)
	return p, err
}

// inspect describes a program that is a file already.
func inspect(name, path string) (Binary, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return Binary{}, fmt.Errorf("locate %s: %w", name, err)
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Binary{}, errs.E(errs.InvalidConfig, "%s is not at %s", name, path).
			Suggest("Build everything with `make build`, which puts %s into berth itself, or name its path.", name)
	case err != nil:
		return Binary{}, errs.Wrap(errs.InvalidConfig, err, "%s cannot be read at %s", name, path)
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return Binary{}, errs.E(errs.InvalidConfig, "%s at %s is not a program", name, path)
	}
	sum, err := HashFile(path)
	if err != nil {
		return Binary{}, errs.Wrap(errs.InvalidConfig, err, "%s cannot be read at %s", name, path)
	}
	return Binary{Path: path, SHA256: sum}, nil
}

// HashFile is the SHA-256 of a file in hexadecimal digits.
func HashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Hash gives the SHA-256 of one of the programs as Locate would find it, without unpacking anything; errs.InvalidConfig where it is nowhere.
func Hash(opts Options, name string) (string, error) {
	named := opts.Runtime
	if name == Guest {
		named = opts.Guest
	}
	if bundled := assets(); named == "" && bundled != nil {
		m, err := readManifest(bundled)
		return m[name].SHA256, err
	}
	if named == "" {
		exe, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("locate own program: %w", err)
		}
		named = filepath.Join(filepath.Dir(exe), name)
	}
	b, err := inspect(name, named)
	return b.SHA256, err
}
