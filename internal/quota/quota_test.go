package quota_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/quota"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

func used(t *testing.T, s *quota.Service, org string) map[string]int64 {
	t.Helper()
	list, err := s.List(t.Context(), org)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for _, l := range list {
		if l.Used != 0 {
			got[l.Key] = l.Used
		}
	}
	return got
}

func TestTake(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		ctx := t.Context()
		s := quota.New(quota.Config{DB: d, Defaults: map[string]int64{quota.SandboxesRunning: 2, quota.MemoryRunning: 4096, quota.VCPURunning: quota.None}})
		set := func(org, key string, v int64) {
			t.Helper()
			if err := d.Tx(ctx, func(tx *sql.Tx) error { return s.SetLimit(ctx, tx, org, key, v) }); err != nil {
				t.Fatal(err)
			}
		}
		set("org_big", quota.SandboxesRunning, 7)
		set("org_big", quota.SandboxesRunning, 3)
		set("org_free", quota.SandboxesRunning, quota.None)

		steps := []struct {
			name    string
			org     string
			delta   map[string]int64
			want    map[string]int64 // afterwards
			refused map[string]any   // details of the refusal
		}{
			{"first", "org_a", map[string]int64{quota.SandboxesRunning: 1, quota.MemoryRunning: 1024}, map[string]int64{quota.SandboxesRunning: 1, quota.MemoryRunning: 1024}, nil},
			{
				"one over undoes all", "org_a",
				map[string]int64{quota.SandboxesRunning: 1, quota.MemoryRunning: 4096},
				map[string]int64{quota.SandboxesRunning: 1, quota.MemoryRunning: 1024},
				map[string]any{"key": quota.MemoryRunning, "limit": int64(4096), "used": int64(1024), "requested": int64(4096)},
			},
			{"to the limit", "org_a", map[string]int64{quota.SandboxesRunning: 1, quota.VCPURunning: 1 << 40}, map[string]int64{quota.SandboxesRunning: 2, quota.MemoryRunning: 1024, quota.VCPURunning: 1 << 40}, nil},
			{
				"at the limit", "org_a",
				map[string]int64{quota.SandboxesRunning: 1},
				map[string]int64{quota.SandboxesRunning: 2, quota.MemoryRunning: 1024, quota.VCPURunning: 1 << 40},
				map[string]any{"key": quota.SandboxesRunning, "limit": int64(2), "used": int64(2), "requested": int64(1)},
			},
			{"give back, never below nothing", "org_a", map[string]int64{quota.SandboxesRunning: -1, quota.VCPURunning: -1 << 41, quota.DiskTotal: -5}, map[string]int64{quota.SandboxesRunning: 1, quota.MemoryRunning: 1024}, nil},
			{
				"more than the limit at once", "org_b",
				map[string]int64{quota.SandboxesRunning: 3},
				map[string]int64{},
				map[string]any{"key": quota.SandboxesRunning, "limit": int64(2), "used": int64(0), "requested": int64(3)},
			},
			{"own limit", "org_big", map[string]int64{quota.SandboxesRunning: 3}, map[string]int64{quota.SandboxesRunning: 3}, nil},
			{
				"own limit reached", "org_big",
				map[string]int64{quota.SandboxesRunning: 1},
				map[string]int64{quota.SandboxesRunning: 3},
				map[string]any{"key": quota.SandboxesRunning, "limit": int64(3), "used": int64(3), "requested": int64(1)},
			},
			{"no limit", "org_free", map[string]int64{quota.SandboxesRunning: 1000}, map[string]int64{quota.SandboxesRunning: 1000}, nil},
		}
		for _, step := range steps {
			err := d.Tx(ctx, func(tx *sql.Tx) error { return s.Take(ctx, tx, step.org, step.delta) })
			var details map[string]any
			if e, ok := errors.AsType[*errs.Error](err); ok && e.Code == errs.LimitExceeded && strings.Contains(e.Message, e.Details["key"].(string)) {
				details = e.Details
			} else if err != nil {
				t.Errorf("%s: %v", step.name, err)
			}
			if diff := cmp.Diff(step.refused, details); diff != "" {
				t.Errorf("%s: refusal (-want +got):\n%s", step.name, diff)
			}
			if diff := cmp.Diff(step.want, used(t, s, step.org)); diff != "" {
				t.Errorf("%s: used (-want +got):\n%s", step.name, diff)
			}
		}
	})
}

func TestTakeRace(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		s := quota.New(quota.Config{DB: d, Defaults: map[string]int64{quota.SandboxesRunning: 5}})
		var won atomic.Int32
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				err := d.Tx(t.Context(), func(tx *sql.Tx) error {
					return s.Take(t.Context(), tx, "org_a", map[string]int64{quota.SandboxesRunning: 1, quota.DiskTotal: 10})
				})
				if err == nil {
					won.Add(1)
				} else if !errs.Is(err, errs.LimitExceeded) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		want := map[string]int64{quota.SandboxesRunning: 5, quota.DiskTotal: 50}
		if diff := cmp.Diff(want, used(t, s, "org_a")); diff != "" || won.Load() != 5 {
			t.Errorf("%d won; used (-want +got):\n%s", won.Load(), diff)
		}
	})
}

// A count beside takes that are under way never loses one: the table of events stands for the rows that are counted.
func TestRecount(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		ctx := t.Context()
		s := quota.New(quota.Config{DB: d})
		s.Count(func(ctx context.Context, q db.Querier, org string) (map[string]int64, error) {
			var n int64
			err := q.QueryRowContext(ctx, `SELECT COUNT(*) FROM events WHERE org_id = $1`, org).Scan(&n)
			return map[string]int64{quota.SandboxesTotal: n}, err
		})
		add := func(i string) error {
			return d.Tx(ctx, func(tx *sql.Tx) error {
				if err := s.Take(ctx, tx, "org_a", map[string]int64{quota.SandboxesTotal: 1}); err != nil {
					return err
				}
				_, err := tx.ExecContext(ctx, `INSERT INTO events (id, org_id, workspace_id, at, type, resource_id, data) VALUES ($1, 'org_a', '', 1, 't', '', '{}')`, i)
				return err
			})
		}
		if err := add("first"); err != nil {
			t.Fatal(err)
		}
		if _, err := d.ExecContext(ctx, `UPDATE usage SET used = 99`); err != nil {
			t.Fatal(err)
		}
		if _, err := d.ExecContext(ctx, `INSERT INTO organizations (id, name, created_at) VALUES ('org_new', 'new', 1)`); err != nil {
			t.Fatal(err)
		}
		if err := s.Recount(ctx); err != nil {
			t.Fatal(err)
		}
		if got := used(t, s, "org_a")[quota.SandboxesTotal]; got != 1 {
			t.Fatalf("got %d after the count, want 1", got)
		}
		var wg sync.WaitGroup
		for _, w := range []string{"a", "b", "c"} {
			wg.Go(func() {
				for i := range 20 {
					if err := add(w + string(rune('a'+i))); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for range 10 {
			if err := s.Recount(ctx); err != nil {
				t.Error(err)
			}
		}
		wg.Wait()
		if got := used(t, s, "org_a")[quota.SandboxesTotal]; got != 61 {
			t.Errorf("got %d, want 61", got)
		}
	})
}

func TestListAndDisk(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		s := quota.New(quota.Config{DB: d, Defaults: map[string]int64{quota.DiskTotal: 100, quota.CallsPerMinute: 600}})
		got, err := s.List(t.Context(), "org_a")
		if err != nil {
			t.Fatal(err)
		}
		hundred := int64(100)
		want := []api.Limit{
			{Key: "sandboxes.running", Unit: "count"},
			{Key: "sandboxes.total", Unit: "count"},
			{Key: "vcpu.running", Unit: "mCPU"},
			{Key: "memory.running", Unit: "MiB"},
			{Key: "disk.total", Unit: "GiB", Limit: &hundred},
			{Key: "volumes.total", Unit: "count"},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("limits (-want +got):\n%s", diff)
		}
		if least, most, err := s.Disk(t.Context(), "org_a"); least != 10 || most != 30 || err != nil {
			t.Errorf("disk: got %d to %d, %v", least, most, err)
		}
		if err := d.Tx(t.Context(), func(tx *sql.Tx) error { return s.SetLimit(t.Context(), tx, "org_a", quota.DiskMax, 64) }); err != nil {
			t.Fatal(err)
		}
		if least, most, err := s.Disk(t.Context(), "org_a"); least != 10 || most != 64 || err != nil {
			t.Errorf("disk of its own: got %d to %d, %v", least, most, err)
		}
		if n, err := s.Limit(t.Context(), "org_a", quota.CallsPerMinute); n != 600 || err != nil {
			t.Errorf("calls: got %d, %v", n, err)
		}
	})
}
