// Package bootstrap owns the making of `base`, the image that every sandbox starts from when nothing else is asked for: a folder tree
// bootstrapped from the host distribution's own package sources, with the user, the tools and the settings that recipe.go and finish.go state.
//
// It does not own images as callers see them (internal/image does), nor what is written for one sandbox alone: /etc/resolv.conf, /etc/hosts
// and /etc/hostname are left as plain files for the runtime to replace.
package bootstrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/disk"
	"github.com/berthrun/berth/internal/errs"
)

// marker is the file that says an image is finished. It is the last thing written.
const marker = "image.json"

// Options says which image to make and where. Only Dir is needed.
type Options struct {
	Dir           string   // images are made under Dir/<id>/rootfs; created 0700 where absent
	Suite         string   // the distribution's release; "" is the host's own
	ExtraPackages []string // packages of the distribution beside those of the recipe
	Sources       []Source // where packages come from; none is the host's own configuration
	TrustHostCA   string   // a PEM file whose certificates the image trusts too; "" adds none

	// Progress is told how far a stage is; total is 0 while that is unknown, and done equals total when the stage ends. It is called
	// from one goroutine at a time. Nil is silence.
	Progress func(stage string, done, total int64)
	// Log receives the output of the programs that are run. Nil drops it.
	Log io.Writer
}

// Result is a finished image.
type Result struct {
	ID       string `json:"id"`       // digest of the recipe: 32 hexadecimal digits
	Rootfs   string `json:"-"`        // absolute path of the tree; never to be written to
	Packages int    `json:"packages"` // packages of the distribution in it
	Bytes    int64  `json:"bytes"`    // of all its files, hard links once
	Cached   bool   `json:"-"`        // it was there already
}

// record is what image.json holds.
type record struct {
	Result
	Recipe recipe `json:"recipe"`
}

// Prepare gives the finished image that opts describe, and makes it first where it is not there. It needs root and a Debian or Ubuntu host.
//
// Two that prepare the same image at once, in one process or two, are safe: the second waits for the first and takes its result. What an
// interrupted one left is removed and begun again. Errors: INVALID_CONFIG where the host lacks something, UPSTREAM_ERROR where packages
// could not be had or installed, TIMEOUT or the context's cause where ctx ended.
func Prepare(ctx context.Context, opts Options) (Result, error) {
	h, err := newHost(os.DirFS("/"))
	if err != nil {
		return Result{}, err
	}
	r, err := newRecipe(h, opts)
	if err != nil {
		return Result{}, err
	}
	return prepare(ctx, opts, r, func(ctx context.Context, lock *os.File, rootfs string) error {
		return build(ctx, opts, h, r, lock, rootfs)
	})
}

// ID gives the id of the image that Prepare would give. INVALID_CONFIG where the host is none that images can be made on.
func ID(opts Options) (string, error) {
	h, err := newHost(os.DirFS("/"))
	if err != nil {
		return "", err
	}
	r, err := newRecipe(h, opts)
	if err != nil {
		return "", err
	}
	return r.id(), nil
}

// Load gives the finished image of that id under dir, or NOT_FOUND.
func Load(dir, id string) (Result, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Result{}, fmt.Errorf("locate image folder: %w", err)
	}
	if id == "" || id != filepath.Base(id) {
		return Result{}, errs.E(errs.NotFound, "there is no image %q", id)
	}
	data, err := os.ReadFile(filepath.Join(dir, id, marker))
	if errors.Is(err, fs.ErrNotExist) {
		return Result{}, errs.E(errs.NotFound, "there is no image %q", id)
	}
	if err != nil {
		return Result{}, fmt.Errorf("read image record: %w", err)
	}
	var rec record
	if err := json.Unmarshal(data, &rec); err != nil {
		return Result{}, fmt.Errorf("read image record %s: %w", id, err)
	}
	rec.Rootfs = filepath.Join(dir, id, "rootfs")
	rec.Cached = true
	return rec.Result, nil
}

// prepare is Prepare with the work itself handed in: make fills rootfs, whose parent exists and which does not, while lock is held.
func prepare(ctx context.Context, opts Options, r recipe, make func(ctx context.Context, lock *os.File, rootfs string) error) (Result, error) {
	if opts.Dir == "" {
		return Result{}, errs.E(errs.InvalidConfig, "no folder for images was given")
	}
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return Result{}, fmt.Errorf("locate image folder: %w", err)
	}
	id := r.id()
	if res, err := Load(dir, id); errs.CodeOf(err) != errs.NotFound {
		return res, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Result{}, fmt.Errorf("make image folder: %w", err)
	}
	// Mounts are listed by their real paths, and what is mounted below must be found before anything is removed.
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return Result{}, fmt.Errorf("locate image folder: %w", err)
	}
	lock, err := acquire(ctx, filepath.Join(dir, id+".lock"), func() { opts.progress("waiting for another that prepares this image", 0, 0) })
	if err != nil {
		return Result{}, err
	}
	defer lock.Close()
	if res, err := Load(dir, id); errs.CodeOf(err) != errs.NotFound {
		return res, err
	}
	home := filepath.Join(dir, id)
	if err := disk.RemoveTree(home); err != nil {
		return Result{}, fmt.Errorf("remove unfinished image: %w", err)
	}
	// The tree holds setuid programs that nobody updates: only root may reach it on the host.
	if err := os.Mkdir(home, 0o700); err != nil {
		return Result{}, fmt.Errorf("make image folder: %w", err)
	}
	rootfs := filepath.Join(home, "rootfs")
	if err := make(ctx, lock, rootfs); err != nil {
		if rmErr := disk.RemoveTree(home); rmErr != nil {
			err = errors.Join(err, fmt.Errorf("remove unfinished image: %w", rmErr))
		}
		return Result{}, err
	}
	return seal(home, r)
}

// seal measures the finished tree under home and writes its marker, after everything else is on disk.
func seal(home string, r recipe) (Result, error) {
	rootfs := filepath.Join(home, "rootfs")
	res := Result{ID: r.id(), Rootfs: rootfs}
	var err error
	if res.Packages, err = countPackages(rootfs); err != nil {
		return Result{}, err
	}
	if res.Bytes, err = treeSize(rootfs); err != nil {
		return Result{}, err
	}
	data, err := json.MarshalIndent(record{Result: res, Recipe: r}, "", "  ")
	if err != nil {
		return Result{}, fmt.Errorf("encode image record: %w", err)
	}
	d, err := os.Open(home)
	if err != nil {
		return Result{}, fmt.Errorf("open image folder: %w", err)
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return Result{}, fmt.Errorf("sync image: %w", err)
	}
	tmp := filepath.Join(home, marker+".tmp")
	if err := writeSynced(tmp, append(data, '\n')); err != nil {
		return Result{}, fmt.Errorf("write image record: %w", err)
	}
	if err := os.Rename(tmp, filepath.Join(home, marker)); err != nil {
		return Result{}, fmt.Errorf("write image record: %w", err)
	}
	if err := d.Sync(); err != nil {
		return Result{}, fmt.Errorf("sync image folder: %w", err)
	}
	return res, nil
}

// progress calls Progress where there is one.
func (o Options) progress(stage string, done, total int64) {
	if o.Progress != nil {
		o.Progress(stage, done, total)
	}
}

// log is where output goes, never nil.
func (o Options) log() io.Writer {
	if o.Log == nil {
		return io.Discard
	}
	return o.Log
}
