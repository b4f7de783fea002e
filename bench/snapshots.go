package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/berthrun/berth/internal/blob"
	"github.com/berthrun/berth/internal/chunk"
	"github.com/berthrun/berth/internal/chunk/vault"
	"github.com/berthrun/berth/internal/db"
)

const (
	treeBytes  = 1 << 30 // of the tree, which does not compress
	treePage   = 4 << 10
	treeRounds = 3
	mostStored = 0.03 // of the tree, where 1 % changed
)

// kept is a tree and the two places that it is kept in.
type kept struct {
	dir, tree, repo, blobs string
	store                  *vault.Store
	rnd                    *rand.Rand
	saved                  int
}

// snapshots: a tree of 1 GiB is kept, then again after 1 % of it has changed, beside restic.
func (b *bench) snapshots(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "berth-snapshots-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	d, err := db.Open(ctx, db.Config{URL: filepath.Join(dir, "db")})
	if err != nil {
		return err
	}
	defer d.Close()
	k := &kept{dir: dir, tree: filepath.Join(dir, "tree"), repo: filepath.Join(dir, "restic"), blobs: filepath.Join(dir, "blobs"), rnd: rand.New(rand.NewPCG(1, 2))}
	objects, err := blob.Open(ctx, k.blobs)
	if err != nil {
		return err
	}
	defer objects.Close()
	k.store = vault.New(vault.Config{DB: d, Blobs: objects})
	if err := errors.Join(k.plant(), k.restic(ctx, "init")); err != nil {
		return err
	}
	if err := b.keep(ctx, k, "of 1 GiB for the first time", 1, 1.05, func() error { return nil }); err != nil {
		return err
	}
	for _, c := range []struct {
		what   string
		change func() error
	}{
		{"nothing changed", func() error { return nil }},
		{"1 % changed, whole files", k.files},
		{"1 % changed, pages of 4 KiB anywhere in a file of 512 MiB", k.pages},
		{"1 % appended to a file", k.append},
	} {
		if err := b.keep(ctx, k, "of 1 GiB, "+c.what, treeRounds, mostStored, c.change); err != nil {
			return err
		}
	}
	return nil
}

// keep measures changes of one kind: how long keeping takes, and how much is stored.
func (b *bench) keep(ctx context.Context, k *kept, what string, rounds int, most float64, change func() error) error {
	var ours, theirs []time.Duration
	var stored, peer int64
	for range rounds {
		if err := change(); err != nil {
			return err
		}
		for i, fn := range []func() error{func() error { return k.save(ctx) }, func() error { return k.restic(ctx, "backup", "--quiet", k.tree) }} {
			folder, took, grown := []string{k.blobs, k.repo}[i], []*[]time.Duration{&ours, &theirs}[i], []*int64{&stored, &peer}[i]
			before, err := size(folder)
			if err != nil {
				return err
			}
			t, err := timed(fn)
			if err != nil {
				return err
			}
			after, err := size(folder)
			if err != nil {
				return err
			}
			*took, *grown = append(*took, t), max(*grown, after-before)
		}
	}
	share := func(n int64) float64 { return float64(n) / treeBytes }
	b.rows = append(b.rows, row{
		what: "stored by a disk snapshot " + what, figure: fmt.Sprintf("%.2f %%", 100*share(stored)), peer: fmt.Sprintf("restic: %.2f %%", 100*share(peer)),
		must: fmt.Sprintf("≤ %.0f %%", 100*most), met: share(stored) <= most,
	})
	b.add("disk snapshot "+what, ours, "`restic backup`", theirs, 1.0)
	return nil
}

func (k *kept) save(ctx context.Context) error {
	k.saved++
	_, err := k.store.Put(ctx, "org_bench", fmt.Sprintf("snapshot/%d", k.saved), "disk", func(ctx context.Context, v chunk.Vault, parent *chunk.Root) (*chunk.Root, chunk.Stats, error) {
		return chunk.Save(ctx, v, chunk.Source{Dir: k.tree, Trust: true}, parent)
	})
	return err
}

func (k *kept) restic(ctx context.Context, args ...string) error {
	c := exec.CommandContext(ctx, "restic", append([]string{"--repo", k.repo, "--no-cache"}, args...)...)
	c.Env = append(os.Environ(), "RESTIC_PASSWORD=bench")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("restic, which Debian has as a package: %w\n%s", err, out)
	}
	return nil
}

// noise writes what does not compress into a file at a place.
func (k *kept) noise(name string, at, n int64) error {
	f, err := os.OpenFile(filepath.Join(k.tree, name), os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // a measured file
	if err != nil {
		return err
	}
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(k.rnd.Uint32())
	}
	src, buf := rand.NewChaCha8(seed), make([]byte, 1<<20)
	for n > 0 && err == nil {
		part := buf[:min(n, int64(len(buf)))]
		_, _ = src.Read(part)
		_, err = f.WriteAt(part, at)
		at, n = at+int64(len(part)), n-int64(len(part))
	}
	return errors.Join(err, f.Close())
}

const (
	smallFiles = 2048
	smallBytes = 128 << 10
	largeBytes = 512 << 20
	logBytes   = treeBytes - largeBytes - smallFiles*smallBytes
)

func (k *kept) plant() error {
	if err := os.MkdirAll(filepath.Join(k.tree, "files"), 0o755); err != nil { //nolint:gosec // a measured folder
		return err
	}
	for i := range smallFiles {
		if err := k.noise(fmt.Sprintf("files/%d", i), 0, smallBytes); err != nil {
			return err
		}
	}
	return errors.Join(k.noise("database", 0, largeBytes), k.noise("log", 0, logBytes))
}

func (k *kept) files() error {
	for range treeBytes / 100 / smallBytes {
		if err := k.noise(fmt.Sprintf("files/%d", k.rnd.IntN(smallFiles)), 0, smallBytes); err != nil {
			return err
		}
	}
	return nil
}

func (k *kept) pages() error {
	for range treeBytes / 100 / treePage {
		if err := k.noise("database", k.rnd.Int64N(largeBytes/treePage)*treePage, treePage); err != nil {
			return err
		}
	}
	return nil
}

func (k *kept) append() error {
	info, err := os.Stat(filepath.Join(k.tree, "log"))
	if err != nil {
		return err
	}
	return k.noise("log", info.Size(), treeBytes/100)
}

// size is the sum of a folder's files.
func size(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Mode().IsRegular() {
			n += info.Size()
		}
		return err
	})
	return n, err
}
