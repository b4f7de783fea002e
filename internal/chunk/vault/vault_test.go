package vault_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/blob"
	"github.com/berthrun/berth/internal/chunk"
	"github.com/berthrun/berth/internal/chunk/vault"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/errs"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childFolder); dir != "" {
		os.Exit(child(dir))
	}
	dbtest.Main(m)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func noise(seed uint64, n int) []byte {
	var key [32]byte
	key[0], key[1], key[2] = byte(seed), byte(seed>>8), byte(seed>>16)
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(b)
	return b
}

// rig is a store on one database.
type rig struct {
	*vault.Store
	db    *db.DB
	blobs *blob.Store
	dir   string // of objects
}

func newRig(t testing.TB, d *db.DB, cfg vault.Config) *rig {
	t.Helper()
	r := &rig{db: d, dir: t.TempDir()}
	var err error
	r.blobs, err = blob.Open(context.Background(), r.dir)
	must(t, err)
	t.Cleanup(func() { must(t, r.blobs.Close()) })
	cfg.DB, cfg.Blobs, cfg.Logger = d, r.blobs, slog.New(slog.NewTextHandler(t.Output(), nil))
	r.Store = vault.New(cfg)
	return r
}

func (r *rig) put(ctx context.Context, org, name, line, dir string) (vault.Tree, error) {
	return r.Put(ctx, org, name, line, func(ctx context.Context, v chunk.Vault, parent *chunk.Root) (*chunk.Root, chunk.Stats, error) {
		return chunk.Save(ctx, v, chunk.Source{Dir: dir}, parent)
	})
}

func (r *rig) get(ctx context.Context, org, name, dir string) error {
	return r.Get(ctx, org, name, func(ctx context.Context, v chunk.Vault, root *chunk.Root) error {
		return chunk.Load(ctx, v, root, chunk.Target{Dir: dir, Relaxed: true})
	})
}

// same fails the test unless a saved tree of one file "f" holds what it should.
func (r *rig) same(t testing.TB, org, name string, want []byte) {
	t.Helper()
	to := t.TempDir()
	if err := r.get(context.Background(), org, name, to); err != nil {
		t.Errorf("Get %s: %v", name, err)
		return
	}
	if got, err := os.ReadFile(filepath.Join(to, "f")); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s holds %d bytes that are not the %d saved ones: %v", name, len(got), len(want), err)
	}
}

func (r *rig) count(t testing.TB, table string) (n int) {
	t.Helper()
	must(t, r.db.QueryRowContext(context.Background(), `SELECT count(*) FROM `+table).Scan(&n))
	return n
}

// objects is how many there are and how large.
func (r *rig) objects(t testing.TB) (n int, size int64) {
	t.Helper()
	all, err := r.blobs.List(context.Background(), "")
	must(t, err)
	for _, o := range all {
		size += o.Size
	}
	return len(all), size
}

func tree(t testing.TB, content []byte) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "f"), content, 0o644))
	return dir
}

const noGrace = -1

func TestLife(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r, ctx := newRig(t, d, vault.Config{Grace: noGrace}), t.Context()
		content := noise(1, 3<<20)
		a, err := r.put(ctx, "org_a", "snap/1", "", tree(t, content))
		must(t, err)
		if a.Stats.Stored < 3<<20 || a.Stats.Stored > 4<<20 || a.Stats.Entries != 2 {
			t.Errorf("the first tree: %+v", a.Stats)
		}
		again, err := r.put(ctx, "org_a", "snap/1", "", tree(t, []byte("another")))
		if err != nil || again.Ref != a.Ref {
			t.Errorf("a name that is there: %+v, %v; want %s", again, err, a.Ref)
		}
		b, err := r.put(ctx, "org_a", "snap/2", "", tree(t, content))
		if err != nil || b.Stats.Stored > 16<<10 {
			t.Errorf("the same content again stores %d bytes, %v", b.Stats.Stored, err)
		}
		// What one organization has is not there for another, so nothing tells that it has it.
		c, err := r.put(ctx, "org_b", "snap/1", "disk", tree(t, content))
		if err != nil || c.Stats.New != a.Stats.New || c.Stats.Stored < a.Stats.Stored-64 {
			t.Errorf("in another organization: %+v, %v; want all of %+v", c.Stats, err, a.Stats)
		}
		for _, org := range []string{"org_c", "org_b"} {
			if err := r.get(ctx, org, "snap/2", t.TempDir()); !errs.Is(err, errs.NotFound) {
				t.Errorf("Get of another's tree: %v", err)
			}
			must(t, r.Drop(ctx, org, "snap/2"))
		}
		must(t, r.Drop(ctx, "org_a", "snap/1"))
		must(t, r.Drop(ctx, "org_a", "snap/1"))
		_, err = r.Collect(ctx)
		must(t, err)
		r.same(t, "org_a", "snap/2", content)
		r.same(t, "org_b", "snap/1", content)
		must(t, r.Drop(ctx, "org_a", "snap/2"))
		must(t, r.Drop(ctx, "org_b", "snap/1"))
		got, err := r.Collect(ctx)
		must(t, err)
		if n, _ := r.objects(t); n != 0 || got.Packs == 0 {
			t.Errorf("%d objects are left, %+v", n, got)
		}
		for _, table := range []string{"chunk_leases", "chunk_packs", "chunk_places", "chunk_trees", "chunk_uses"} {
			if n := r.count(t, table); n != 0 {
				t.Errorf("%d rows are left in %s", n, table)
			}
		}
	})
}

// Names and organizations that would leave their place are refused.
func TestNames(t *testing.T) {
	r := newRig(t, dbtest.Open(t, dbtest.SQLite(t)), vault.Config{})
	for _, n := range [][2]string{{"org_a", ""}, {"../x", "n"}, {"", "n"}, {"a/b", "n"}, {"org_a", "a b"}, {"org_a", strings.Repeat("n", 201)}} {
		if _, err := r.put(t.Context(), n[0], n[1], "", tree(t, nil)); !errs.Is(err, errs.InvalidInput) {
			t.Errorf("Put %q: %v", n, err)
		}
	}
}

// failing is a vault that ends after some packs.
type failing struct {
	chunk.Vault
	left atomic.Int64
}

var errGivenUp = errors.New("given up")

func (f *failing) Add(ctx context.Context, pack []byte) error {
	if f.left.Add(-1) < 0 {
		return errGivenUp
	}
	return f.Vault.Add(ctx, pack)
}

func TestInterruptedSaveGoesOn(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r, ctx := newRig(t, d, vault.Config{}), t.Context()
		dir := tree(t, noise(2, 40<<20))
		_, err := r.Put(ctx, "org_a", "n", "", func(ctx context.Context, v chunk.Vault, parent *chunk.Root) (*chunk.Root, chunk.Stats, error) {
			f := &failing{Vault: v}
			f.left.Store(3)
			return chunk.Save(ctx, f, chunk.Source{Dir: dir}, parent)
		})
		if !errors.Is(err, errGivenUp) {
			t.Fatalf("Put = %v", err)
		}
		if _, err := r.Stat(ctx, "org_a", "n"); !errs.Is(err, errs.NotFound) {
			t.Errorf("a tree that was not saved is there: %v", err)
		}
		if _, err := r.Collect(ctx); err != nil {
			t.Fatal(err)
		}
		// Packs that were on their way when it was given up may have arrived or not.
		packs := r.count(t, "chunk_packs WHERE state = 'ready'")
		got, err := r.put(ctx, "org_a", "n", "", dir)
		if err != nil || packs == 0 || got.Stats.Stored > 41<<20-int64(packs)<<23 {
			t.Errorf("the second attempt stored %d bytes, %v; want what the %d packs of the first lack", got.Stats.Stored, err, packs)
		}
		if n := r.count(t, "chunk_leases"); n != 0 {
			t.Errorf("%d leases are left", n)
		}
	})
}

// Who has lost the lease cannot end: what it relied on may be gone.
func TestLostLease(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r, ctx := newRig(t, d, vault.Config{Grace: noGrace, Lease: time.Hour}), t.Context()
		dir := tree(t, noise(3, 1<<20))
		_, err := r.Put(ctx, "org_a", "n", "", func(ctx context.Context, v chunk.Vault, parent *chunk.Root) (*chunk.Root, chunk.Stats, error) {
			root, stats, err := chunk.Save(ctx, v, chunk.Source{Dir: dir}, parent)
			if _, err := d.ExecContext(ctx, `UPDATE chunk_leases SET expires_at = 1`); err != nil {
				t.Error(err)
			}
			if _, err := r.Collect(ctx); err != nil {
				t.Error(err)
			}
			return root, stats, err
		})
		if !errs.Is(err, errs.Unavailable) {
			t.Errorf("Put = %v, want lease_lost", err)
		}
		if n, _ := r.objects(t); n != 0 {
			t.Errorf("%d objects are left", n)
		}
		_, err = r.put(ctx, "org_a", "n", "", dir)
		must(t, err)
		r.same(t, "org_a", "n", noise(3, 1<<20))
	})
}

// What a running save was told is there stays, though its last tree is dropped and collected meanwhile; what a running read needs stays too.
func TestCollectWaitsForLeases(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r, ctx := newRig(t, d, vault.Config{Grace: noGrace}), t.Context()
		content := noise(4, 2<<20)
		_, err := r.put(ctx, "org_a", "old", "disk", tree(t, content))
		must(t, err)
		away := func() {
			must(t, r.Drop(ctx, "org_a", "old"))
			for range 2 {
				_, err := r.Collect(ctx)
				must(t, err)
			}
		}
		_, err = r.Put(ctx, "org_a", "new", "disk", func(ctx context.Context, v chunk.Vault, parent *chunk.Root) (*chunk.Root, chunk.Stats, error) {
			root, stats, err := chunk.Save(ctx, v, chunk.Source{Dir: tree(t, content)}, parent)
			away()
			if stats.New > 2 {
				t.Errorf("the content was stored again: %+v", stats)
			}
			return root, stats, err
		})
		must(t, err)
		if _, err := r.Collect(ctx); err != nil {
			t.Fatal(err)
		}
		r.same(t, "org_a", "new", content)
		err = r.Get(ctx, "org_a", "new", func(ctx context.Context, v chunk.Vault, root *chunk.Root) error {
			must(t, r.Drop(ctx, "org_a", "new"))
			_, err := r.Collect(ctx)
			must(t, err)
			return chunk.Load(ctx, v, root, chunk.Target{Dir: t.TempDir()})
		})
		if err != nil {
			t.Errorf("a read whose tree is dropped: %v", err)
		}
		if _, err := r.Collect(ctx); err != nil {
			t.Fatal(err)
		}
		if n, _ := r.objects(t); n != 0 {
			t.Errorf("%d objects are left", n)
		}
	})
}

// Saves, reads, drops and collections at once: whatever was saved and not dropped can be read, and at the end nothing is left over.
func TestRaces(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r := newRig(t, d, vault.Config{Grace: noGrace})
		g, ctx := errgroup.WithContext(t.Context())
		base := noise(5, 1<<20)
		const savers, rounds = 4, 12
		done := make(chan struct{})
		collector := make(chan error, 2)
		for range cap(collector) {
			go func() {
				for {
					select {
					case <-done:
						collector <- nil
						return
					default:
					}
					if _, err := r.Collect(t.Context()); err != nil {
						collector <- err
						return
					}
				}
			}()
		}
		for n := range savers {
			g.Go(func() error {
				parent, line := "", fmt.Sprintf("s%d", n)
				for i := range rounds {
					// All share most of their content, and so race for the same chunks.
					content := bytes.Clone(base)
					copy(content[(n*rounds+i)*8192%len(content):], noise(uint64(1000+n*rounds+i), 4096))
					name := fmt.Sprintf("s%d/%d", n, i)
					dir := tree(t, content)
					if _, err := r.put(ctx, "org_a", name, line, dir); err != nil {
						return fmt.Errorf("put %s: %w", name, err)
					}
					if parent != "" {
						if err := r.Drop(ctx, "org_a", parent); err != nil {
							return err
						}
					}
					to := t.TempDir()
					if err := r.get(ctx, "org_a", name, to); err != nil {
						return fmt.Errorf("get %s: %w", name, err)
					}
					if got, err := os.ReadFile(filepath.Join(to, "f")); err != nil || !bytes.Equal(got, content) {
						return fmt.Errorf("%s is not what was saved: %w", name, err)
					}
					parent = name
				}
				return r.Drop(ctx, "org_a", parent)
			})
		}
		err := g.Wait()
		close(done)
		for range cap(collector) {
			err = errors.Join(err, <-collector)
		}
		must(t, err)
		for range 2 { // the first one may have moved what is dropped by now
			_, err := r.Collect(t.Context())
			must(t, err)
		}
		if n, _ := r.objects(t); n != 0 {
			t.Errorf("%d objects are left", n)
		}
	})
}

// Of a lineage of which only the last tree is kept, little more is stored than that tree needs.
func TestCompact(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		r, ctx := newRig(t, d, vault.Config{Grace: noGrace}), t.Context()
		const size, blocks = 12 << 20, 12 << 20 >> 16
		content := noise(6, size)
		dir := tree(t, content)
		line, parent, moved, rnd := "disk", "", 0, rand.New(rand.NewPCG(1, 2))
		for i := range 24 {
			name := fmt.Sprintf("n/%d", i)
			_, err := r.put(ctx, "org_a", name, line, dir)
			must(t, err)
			if parent != "" {
				must(t, r.Drop(ctx, "org_a", parent))
			}
			got, err := r.Collect(ctx)
			must(t, err)
			moved += got.Moved
			parent = name
			for range blocks / 8 {
				copy(content[rnd.IntN(blocks)<<16:], noise(rnd.Uint64(), 1<<16))
			}
			must(t, os.WriteFile(filepath.Join(dir, "f"), content, 0o644))
		}
		name := "last"
		_, err := r.put(ctx, "org_a", name, line, dir)
		must(t, err)
		must(t, r.Drop(ctx, "org_a", parent))
		for range 3 {
			got, err := r.Collect(ctx)
			must(t, err)
			moved += got.Moved
		}
		r.same(t, "org_a", name, content)
		if _, stored := r.objects(t); stored > size*5/2 || moved == 0 {
			t.Errorf("%d bytes are stored for a tree of %d, %d packs were moved", stored, size, moved)
		}
	})
}

// An object that is damaged or gone is told, never given out.
func TestDamage(t *testing.T) {
	r, ctx := newRig(t, dbtest.Open(t, dbtest.SQLite(t)), vault.Config{}), t.Context()
	_, err := r.put(ctx, "org_a", "n", "", tree(t, noise(7, 1<<20)))
	must(t, err)
	all, err := r.blobs.List(ctx, "")
	must(t, err)
	path := filepath.Join(r.dir, all[0].Key)
	whole, err := os.ReadFile(path)
	must(t, err)
	for what, b := range map[string][]byte{"flipped": append(bytes.Clone(whole[:5000]), append([]byte{whole[5000] ^ 1}, whole[5001:]...)...), "cut": whole[:5000], "gone": nil} {
		must(t, os.WriteFile(path, b, 0o600))
		if b == nil {
			must(t, os.Remove(path))
		}
		if err := r.get(ctx, "org_a", "n", t.TempDir()); err == nil || errs.From(err).Reason != "damaged" {
			t.Errorf("%s: Get = %v", what, err)
		}
	}
	must(t, os.WriteFile(path, whole, 0o600))
	r.same(t, "org_a", "n", noise(7, 1<<20))
}
