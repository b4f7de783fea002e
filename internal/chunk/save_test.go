package chunk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

func (m *memory) save(t testing.TB, src Source, parent *Root) (*Root, Stats) {
	t.Helper()
	root, stats, err := Save(t.Context(), m, src, parent)
	must(t, err)
	return root, stats
}

// same loads a tree and compares one of its files.
func (m *memory) same(t testing.TB, root *Root, name string, want []byte) {
	t.Helper()
	to := t.TempDir()
	must(t, Load(t.Context(), m, root, Target{Dir: to, Relaxed: true}))
	if got, err := os.ReadFile(filepath.Join(to, name)); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not what was saved: %d of %d bytes, %v", name, len(got), len(want), err)
	}
}

// What changed is stored, and little more: content that does not compress, 1 % of it changed in each of the ways in which trees change.
func TestOnlyChangesAreStored(t *testing.T) {
	needRoot(t)
	const size, pages = 24 << 20, 24 << 20 / page
	rnd := rand.New(rand.NewPCG(3, 4))
	for _, c := range []struct {
		name   string
		cut    Cut
		change func(t *testing.T, dir string, content []byte) []byte
		most   float64 // of the size
	}{
		{"nothing", ByPlace, func(_ *testing.T, _ string, c []byte) []byte { return c }, 0.002},
		{"files", ByPlace, func(t *testing.T, dir string, c []byte) []byte {
			for n := range 8 {
				must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("d/%03d", n*10)), noise(uint64(9000+n), 32<<10), 0o644))
			}
			return c
		}, 0.015},
		{"pages here and there", ByPlace, func(_ *testing.T, _ string, c []byte) []byte {
			for range pages / 100 {
				copy(c[rnd.IntN(pages)*page:], noise(rnd.Uint64(), page))
			}
			return c
		}, 0.02},
		{"pages in a row", ByPlace, func(_ *testing.T, _ string, c []byte) []byte {
			copy(c[10<<20+8192:], noise(77, size/100))
			return c
		}, 0.02},
		{"appended", ByPlace, func(_ *testing.T, _ string, c []byte) []byte { return append(c, noise(78, size/100)...) }, 0.02},
		{"pages that came between", ByPages, func(_ *testing.T, _ string, c []byte) []byte {
			for range 3 {
				at := rnd.IntN(pages) * page
				c = append(c[:at:at], append(noise(rnd.Uint64(), 3*page), c[at:]...)...)
			}
			return c
		}, 0.03},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, v := t.TempDir(), newMemory()
			content := noise(100, size)
			must(t, os.Mkdir(filepath.Join(dir, "d"), 0o755))
			for n := range 300 {
				must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("d/%03d", n)), noise(uint64(200+n), 2000), 0o644))
			}
			must(t, os.WriteFile(filepath.Join(dir, "f"), content, 0o644))
			first, stats := v.save(t, Source{Dir: dir, Cut: c.cut}, nil)
			if stats.Stored < size {
				t.Fatalf("the first one stored %d bytes", stats.Stored)
			}
			for round := range 3 { // the third one changes what is kept as a patch already
				content = c.change(t, dir, content)
				must(t, os.WriteFile(filepath.Join(dir, "f"), content, 0o644))
				next, stats := v.save(t, Source{Dir: dir, Cut: c.cut}, first)
				t.Logf("round %d: %.2f %% stored, %+v", round, 100*float64(stats.Stored)/size, stats)
				if float64(stats.Stored) > c.most*size {
					t.Errorf("%.2f %% are stored, want at most %.2f", 100*float64(stats.Stored)/size, 100*c.most)
				}
				v.same(t, next, "f", content)
				first = next
			}
		})
	}
}

// A file whose change time says that it is unchanged is not read; every other one is, though its size and modification time are the same.
func TestTrust(t *testing.T) {
	needRoot(t)
	dir, v := t.TempDir(), newMemory()
	path := filepath.Join(dir, "f")
	must(t, os.WriteFile(path, noise(1, 1<<20), 0o644))
	old := time.Now().Add(-time.Hour)
	must(t, os.Chtimes(path, old, old))
	later := time.Now().Add(time.Minute) // as if the file had been there for long
	first, stats := v.save(t, Source{Dir: dir, At: later}, nil)
	if stats.Read != 1<<20 {
		t.Errorf("the first one read %d", stats.Read)
	}
	second, stats := v.save(t, Source{Dir: dir, At: later, Trust: true}, first)
	if stats.Read != 0 || stats.Stored != 0 || second.Ref() != first.Ref() {
		t.Errorf("unchanged, but %+v", stats)
	}
	if _, stats = v.save(t, Source{Dir: dir, At: later}, first); stats.Read != 1<<20 {
		t.Errorf("not trusted, but only %d bytes were read", stats.Read)
	}
	// A change within the coarseness of clocks of the saving is not seen in the ctime.
	fresh, _ := v.save(t, Source{Dir: dir, At: time.Now()}, nil)
	if _, stats = v.save(t, Source{Dir: dir, Trust: true}, fresh); stats.Read != 1<<20 {
		t.Errorf("changed when the parent was made, but only %d bytes were read", stats.Read)
	}
	// Other content, the same size, the modification time set back: the ctime tells.
	must(t, os.WriteFile(path, noise(2, 1<<20), 0o644))
	must(t, os.Chtimes(path, old, old))
	third, _ := v.save(t, Source{Dir: dir, At: later, Trust: true}, first)
	v.same(t, third, "f", noise(2, 1<<20))
	// Chunks that are gone are read and stored again.
	v.mu.Lock()
	for h := range v.has {
		delete(v.has, h)
	}
	v.mu.Unlock()
	if _, _, err := Save(t.Context(), v, Source{Dir: dir, Trust: true}, third); err == nil {
		t.Error("a parent whose manifest is gone was read")
	}
}

// forgetful has no chunk that it is asked for the first time.
type forgetful struct {
	*memory
	asked map[Hash]bool
}

func (f *forgetful) Have(ctx context.Context, hashes []Hash) ([]bool, error) {
	out, err := f.memory.Have(ctx, hashes)
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, h := range hashes {
		out[i], f.asked[h] = out[i] && f.asked[h], true
	}
	return out, err
}

// A trusted file of which a chunk is gone is read after all.
func TestTrustedChunkGone(t *testing.T) {
	needRoot(t)
	dir, v := t.TempDir(), newMemory()
	must(t, os.WriteFile(filepath.Join(dir, "f"), noise(1, 1<<20), 0o644))
	later := time.Now().Add(time.Minute)
	first, _ := v.save(t, Source{Dir: dir, At: later}, nil)
	next, stats, err := Save(t.Context(), &forgetful{v, map[Hash]bool{}}, Source{Dir: dir, At: later, Trust: true}, first)
	if err != nil || stats.Read != 1<<20 {
		t.Fatalf("%+v, %v", stats, err)
	}
	v.same(t, next, "f", noise(1, 1<<20))
}

// writing changes a file while it is saved.
type writing struct {
	*memory
	path string
}

func (w *writing) Have(ctx context.Context, hashes []Hash) ([]bool, error) {
	f, err := os.OpenFile(w.path, os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = f.Write([]byte("x"))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return nil, err
	}
	return w.memory.Have(ctx, hashes)
}

func TestChangedMeanwhile(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	must(t, os.WriteFile(path, noise(1, 32<<20), 0o644))
	_, _, err := Save(t.Context(), &writing{newMemory(), path}, Source{Dir: dir}, nil)
	if errs.From(err).Reason != "changed" {
		t.Errorf("Save = %v, want changed", err)
	}
}

// A context that ends, ends a Save and a Load.
func TestCancel(t *testing.T) {
	needRoot(t)
	dir, v := t.TempDir(), newMemory()
	must(t, os.WriteFile(filepath.Join(dir, "f"), noise(1, 32<<20), 0o644))
	root, _ := v.save(t, Source{Dir: dir}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Save(ctx, v, Source{Dir: dir}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Save = %v", err)
	}
	if err := Load(ctx, v, root, Target{Dir: t.TempDir()}); !errors.Is(err, context.Canceled) {
		t.Errorf("Load = %v", err)
	}
	if err := Load(t.Context(), v, root, Target{Dir: t.TempDir(), MaxBytes: 1 << 20}); !errs.Is(err, errs.LimitExceeded) {
		t.Errorf("Load of too much = %v", err)
	}
	if _, _, err := Save(t.Context(), v, Source{Dir: filepath.Join(dir, "none")}, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Save of nothing = %v", err)
	}
	must(t, os.Symlink(dir, filepath.Join(dir, "link")))
	if _, _, err := Save(t.Context(), v, Source{Dir: filepath.Join(dir, "link")}, nil); err == nil {
		t.Error("a link was followed to the tree")
	}
}
