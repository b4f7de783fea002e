package volume

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
)

// TestLife of a volume: made, measured, grown, deleted; its name, its quota and its bytes come and go with it.
func TestLife(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBed(t, d)
		b.run()
		v := b.made("one")
		b.write(v.ID, "twelve bytes")
		if diff := cmp.Diff(map[string]int64{"volumes.total": 1, "disk.total": 2}, b.used.now); diff != "" {
			t.Errorf("taken (-want +got):\n%s", diff)
		}
		if counted, err := b.Count(b.ctx, b.DB, "org_a"); err != nil || cmp.Diff(b.used.now, counted) != "" {
			t.Errorf("counted %v, %v", counted, err)
		}
		_, err := do(b, api.CreateVolume, api.CreateVolumeIn{Name: "one", SizeGiB: 1})
		wants(t, err, errs.AlreadyExists, "")
		b.becomes("measured", func() bool {
			now := b.volume(v.ID)
			return now.UsedMiB != nil && *now.UsedMiB > 0 && now.MeasuredAt != nil
		})

		_, err = do(b, api.ResizeVolume, api.ResizeVolumeIn{VolumeIn: api.VolumeIn{VolumeID: v.ID}, SizeGiB: 1})
		wants(t, err, errs.InvalidInput, "shrinks")
		b.used.limit = 4
		_, err = do(b, api.ResizeVolume, api.ResizeVolumeIn{VolumeIn: api.VolumeIn{VolumeID: v.ID}, SizeGiB: 5})
		wants(t, err, errs.LimitExceeded, "")
		if got := must(b, api.ResizeVolume, api.ResizeVolumeIn{VolumeIn: api.VolumeIn{VolumeID: v.ID}, SizeGiB: 4}).Volume.SizeGiB; got != 4 {
			t.Errorf("grown to %d", got)
		}
		all, err := b.node.Volumes(b.ctx)
		if err != nil || len(all) != 1 || all[0].SizeGiB != 4 {
			t.Errorf("the node has %+v, %v", all, err)
		}
		for range 2 {
			if out := must(b, api.DeleteVolume, api.DeleteVolumeIn{VolumeIn: api.VolumeIn{VolumeID: v.ID}}); !out.Deleted {
				t.Error("not deleted at once")
			}
		}
		if b.onNode(v.ID) {
			t.Error("its bytes are still there")
		}
		if b.used.now["volumes.total"] != 0 || b.used.now["disk.total"] != 0 {
			t.Errorf("left of the quota: %v", b.used.now)
		}
		_, err = do(b, api.GetVolume, api.VolumeIn{VolumeID: v.ID})
		wants(t, err, errs.NotFound, "volume")
		again := b.made("one")
		if again.ID == v.ID {
			t.Error("the same id")
		}
		// The tombstone goes after a day.
		b.after(25 * time.Hour)
		b.becomes("purged", func() bool { r, err := b.store.get(b.ctx, b.DB, v.ID); return err == nil && r == nil })
	})
}

// TestNotMade: what the node cannot make fails, gives its quota back and leaves nothing; a node that is away is waited for.
func TestNotMade(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBed(t, d)
		b.run()
		b.does(func(_ context.Context, method, _ string) error {
			if method == "makeVolume" {
				return errs.E(errs.LimitExceeded, "the disk is full").Because("disk_full")
			}
			return nil
		})
		_, err := do(b, api.CreateVolume, api.CreateVolumeIn{Name: "one", SizeGiB: 2})
		wants(t, err, errs.Upstream, "disk_full")
		if b.used.now["volumes.total"] != 0 || b.used.now["disk.total"] != 0 {
			t.Errorf("left of the quota: %v", b.used.now)
		}
		list := must(b, api.ListVolumes, api.ListVolumesIn{Scope: "all"}).Items
		if len(list) != 1 || list[0].State != api.VolumeFailed || list[0].Reason != "disk_full" {
			t.Errorf("listed: %+v", list)
		}
		wants(t, b.attach("sbx_1", api.VolumeMount{Volume: "one"}), errs.InvalidState, api.VolumeFailed)
		b.after(2 * time.Hour) // it is collected, and its name with it
		b.becomes("collected", func() bool { return len(must(b, api.ListVolumes, api.ListVolumesIn{Scope: "all"}).Items) == 0 })

		away := make(chan struct{}, 1)
		b.does(func(_ context.Context, method, _ string) error {
			if method == "makeVolume" {
				select {
				case away <- struct{}{}:
				default:
				}
				return errs.E(errs.HostUnavailable, "the node is away")
			}
			return nil
		})
		no := 0
		made := must(b, api.CreateVolume, api.CreateVolumeIn{Name: "one", SizeGiB: 2, WaitIn: waitIn(no)}).Volume
		<-away
		wants(t, b.attach("sbx_1", api.VolumeMount{Volume: "one"}), errs.Busy, api.VolumeCreating)
		b.does(nil)
		b.becomes("made", func() bool { return b.volume(made.ID).State == api.VolumeReady })
	})
}

// TestNobodyHasThem: a volume on the node that was deleted or failed is removed, and a copy that no backup wants; one that no row tells of is kept, since only a
// database that was brought back from a copy does not know it.
func TestNobodyHasThem(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBed(t, d)
		var said sayings
		b.Logger = slog.New(slog.NewTextHandler(&said, nil))
		unknown, copied := id.New(id.Volume), id.New(id.Backup)
		for _, err := range []error{b.node.MakeVolume(t.Context(), unknown, 1), b.node.CopyVolume(t.Context(), unknown, copied)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		b.write(unknown, "all that is left")
		b.run()
		v := b.made("one")
		deleted := b.made("two")
		must(b, api.DeleteVolume, api.DeleteVolumeIn{VolumeIn: api.VolumeIn{VolumeID: deleted.ID}})
		if err := b.node.MakeVolume(t.Context(), deleted.ID, 1); err != nil { // by a call that came late
			t.Fatal(err)
		}
		for range 2 {
			if err := b.audit(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if b.onNode(deleted.ID) || b.onNode(copied) {
			t.Error("what was deleted, or a copy of no backup, is still there")
		}
		if !b.onNode(v.ID) {
			t.Error("one that has a row was removed")
		}
		if !b.onNode(unknown) || b.read(unknown) != "all that is left" {
			t.Error("one that the database does not know was removed")
		}
		if n := strings.Count(said.String(), unknown); n != 1 {
			t.Errorf("told %d times of it:\n%s", n, said.String())
		}
	})
}

// sayings is a log in memory.
type sayings struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *sayings) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *sayings) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestBackup: a backup is what was on the volume, is told of while it is made, and makes a volume; one of another organization is not found.
func TestBackup(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBed(t, d)
		b.run()
		v := b.made("one")
		b.write(v.ID, "first")
		for sandbox, m := range map[string]api.VolumeMount{"sbx_writer": {Volume: "one"}} {
			if err := b.attach(sandbox, m); err != nil {
				t.Fatal(err)
			}
		}
		bak := must(b, api.CreateBackup, api.CreateBackupIn{VolumeIn: api.VolumeIn{VolumeID: v.ID}}).Backup
		if bak.State != api.BackupReady || bak.SHA256 != "sum of first" || bak.Files != 1 || bak.TakenAt == nil || bak.SizeGiB != 2 || bak.Automatic {
			t.Errorf("the backup: %+v", bak)
		}
		if diff := cmp.Diff([]string{"sbx_writer"}, b.sandboxes.flushed); diff != "" {
			t.Errorf("flushed (-want +got):\n%s", diff)
		}
		b.becomes("no copy is left", func() bool { copies, err := b.node.Copies(b.ctx); return err == nil && len(copies) == 0 })
		b.write(v.ID, "second")
		_, err := do(b, api.CreateVolume, api.CreateVolumeIn{Name: "less", SizeGiB: 1, FromBackup: bak.ID})
		wants(t, err, errs.InvalidInput, "too_small")
		back := must(b, api.CreateVolume, api.CreateVolumeIn{Name: "back", FromBackup: bak.ID}).Volume
		if back.State != api.VolumeReady || back.SizeGiB != 2 || back.FromBackup != bak.ID || b.read(back.ID) != "first" {
			t.Errorf("restored: %+v, %q", back, b.read(back.ID))
		}
		ctx := b.ctx
		b.ctx = caller.With(t.Context(), &caller.Caller{OrgID: "org_b", PrincipalID: "key_b"})
		for _, err := range []error{
			failing(b, api.GetBackup, api.BackupIn{BackupID: bak.ID}), failing(b, api.CreateVolume, api.CreateVolumeIn{Name: "theirs", FromBackup: bak.ID}),
			failing(b, api.CreateBackup, api.CreateBackupIn{VolumeIn: api.VolumeIn{VolumeID: v.ID}}), failing(b, api.ListBackups, api.ListBackupsIn{VolumeID: v.ID}),
		} {
			if errs.CodeOf(err) != errs.NotFound {
				t.Errorf("another organization: %v", err)
			}
		}
		b.ctx = ctx
		for range 2 {
			if out := must(b, api.DeleteBackup, api.DeleteBackupIn{BackupIn: api.BackupIn{BackupID: bak.ID}}); !out.Deleted {
				t.Error("not deleted at once")
			}
		}
		_, err = do(b, api.CreateVolume, api.CreateVolumeIn{Name: "none", FromBackup: bak.ID})
		wants(t, err, errs.NotFound, "backup")
		if len(b.shelf.kept) > 0 {
			t.Errorf("kept: %v", b.shelf.kept)
		}
	})
}

// TestNotKept: what cannot be kept or brought back fails with its reason, and nothing half-made is used.
func TestNotKept(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBed(t, d)
		b.run()
		v := b.made("one")
		b.write(v.ID, "text")
		good := must(b, api.CreateBackup, api.CreateBackupIn{VolumeIn: api.VolumeIn{VolumeID: v.ID}}).Backup
		b.shelf.set(func(_ context.Context, method, _ string) error {
			if method == "keep" {
				return errs.E(errs.NoCapacity, "the disk is full").Because("disk_full")
			}
			return errs.E(errs.Unavailable, "the saved tree is damaged").Because("damaged")
		})
		_, err := do(b, api.CreateBackup, api.CreateBackupIn{VolumeIn: api.VolumeIn{VolumeID: v.ID}})
		wants(t, err, errs.Upstream, "disk_full")
		_, err = do(b, api.CreateVolume, api.CreateVolumeIn{Name: "back", FromBackup: good.ID})
		wants(t, err, errs.Upstream, "damaged")
		states := map[string]int{}
		for _, x := range b.backups(v.ID) {
			states[x.State+" "+x.Reason]++
			if x.State == api.BackupFailed {
				_, err := do(b, api.CreateVolume, api.CreateVolumeIn{Name: "half", FromBackup: x.ID})
				wants(t, err, errs.InvalidState, api.BackupFailed)
			}
		}
		if diff := cmp.Diff(map[string]int{"ready ": 1, "failed disk_full": 1}, states); diff != "" {
			t.Errorf("backups (-want +got):\n%s", diff)
		}
		if all, err := b.node.Volumes(b.ctx); err != nil || len(all) != 1 {
			t.Errorf("the node has %+v, %v", all, err)
		}
		b.shelf.set(nil)
		if back := must(b, api.CreateVolume, api.CreateVolumeIn{Name: "again", FromBackup: good.ID}).Volume; b.read(back.ID) != "text" {
			t.Errorf("restored %q", b.read(back.ID))
		}
	})
}

// TestCarriedOn: a server that ends in the middle of a backup or a restore is followed by one that goes on with it.
func TestCarriedOn(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBed(t, d)
		stop := b.run()
		v := b.made("one")
		b.write(v.ID, "text")
		reached := make(chan string, 8)
		stuck := func(ctx context.Context, method, _ string) error {
			reached <- method
			<-ctx.Done()
			return ctx.Err()
		}
		cut := func(begin func()) {
			t.Helper()
			b.shelf.set(stuck)
			begin()
			<-reached
			stop()
			b.shelf.set(nil)
			stop = b.run()
		}
		var bak *api.Backup
		cut(func() {
			bak = must(b, api.CreateBackup, api.CreateBackupIn{VolumeIn: api.VolumeIn{VolumeID: v.ID}, WaitIn: waitIn(0)}).Backup
			_, err := do(b, api.CreateVolume, api.CreateVolumeIn{Name: "early", FromBackup: bak.ID})
			wants(t, err, errs.Busy, api.BackupCreating)
			_, err = do(b, api.CreateBackup, api.CreateBackupIn{VolumeIn: api.VolumeIn{VolumeID: v.ID}})
			wants(t, err, errs.Busy, "backing_up")
			_, err = do(b, api.DeleteVolume, api.DeleteVolumeIn{VolumeIn: api.VolumeIn{VolumeID: v.ID}})
			wants(t, err, errs.Busy, "backing_up")
		})
		b.becomes("backed up", func() bool { return b.backups(v.ID)[0].State == api.BackupReady })
		var back *api.Volume
		cut(func() {
			back = must(b, api.CreateVolume, api.CreateVolumeIn{Name: "back", FromBackup: bak.ID, WaitIn: waitIn(0)}).Volume
			_, err := do(b, api.DeleteBackup, api.DeleteBackupIn{BackupIn: api.BackupIn{BackupID: bak.ID}})
			wants(t, err, errs.Busy, "in_use")
		})
		b.becomes("restored", func() bool { return b.volume(back.ID).State == api.VolumeReady })
		if got := b.read(back.ID); got != "text" {
			t.Errorf("restored %q", got)
		}
		// A copy that the node has lost is made again.
		b.shelf.set(stuck)
		lost := must(b, api.CreateBackup, api.CreateBackupIn{VolumeIn: api.VolumeIn{VolumeID: v.ID}, WaitIn: waitIn(0)}).Backup
		<-reached
		stop()
		if err := b.node.ForgetCopy(t.Context(), lost.ID); err != nil {
			t.Fatal(err)
		}
		b.shelf.set(nil)
		b.rests = map[string]time.Time{}
		stop = b.run()
		b.becomes("backed up all the same", func() bool { return b.backups(v.ID)[0].State == api.BackupReady })
		// A restore that is deleted in the middle ends at once.
		b.shelf.set(stuck)
		begun := must(b, api.CreateVolume, api.CreateVolumeIn{Name: "gone", FromBackup: bak.ID, WaitIn: waitIn(0)}).Volume
		<-reached
		if out := must(b, api.DeleteVolume, api.DeleteVolumeIn{VolumeIn: api.VolumeIn{VolumeID: begun.ID}}); !out.Deleted {
			t.Error("a restore under way was not deleted")
		}
	})
}

// TestTwoServers: two servers on one database make each thing once.
func TestTwoServers(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBed(t, d)
		b.run()
		other := New(b.Config)
		ctx, cancel := context.WithCancel(context.Background())
		var ran sync.WaitGroup
		ran.Go(func() { _ = other.Run(ctx) })
		defer ran.Wait()
		defer cancel()
		for i := range 5 {
			v := b.made(fmt.Sprintf("v%d", i))
			b.write(v.ID, v.Name)
			bak := must(b, api.CreateBackup, api.CreateBackupIn{VolumeIn: api.VolumeIn{VolumeID: v.ID}}).Backup
			back := must(b, api.CreateVolume, api.CreateVolumeIn{Name: v.Name + ".back", FromBackup: bak.ID}).Volume
			if got := b.read(back.ID); got != v.Name {
				t.Errorf("restored %q of %q", got, v.Name)
			}
		}
		if b.used.now["volumes.total"] != 10 {
			t.Errorf("taken: %v", b.used.now)
		}
	})
}

// TestPolicy: a backup a day at its hour, made up for once where no server ran, and old ones deleted by the rule.
func TestPolicy(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBed(t, d) // it is 05:06
		stop := b.run()
		v := b.made("one")
		own := must(b, api.CreateBackup, api.CreateBackupIn{VolumeIn: api.VolumeIn{VolumeID: v.ID}}).Backup
		p := must(b, api.SetBackupPolicy, api.BackupPolicyIn{VolumeIn: api.VolumeIn{VolumeID: v.ID}, Hour: 4, KeepLast: 2}).Policy
		if p == nil || p.NextAt == nil || !p.NextAt.Equal(time.Date(2026, 3, 5, 4, 0, 0, 0, time.UTC)) {
			t.Fatalf("policy: %+v", p)
		}
		if got := b.volume(v.ID).Backups; got == nil || got.Hour != 4 || got.KeepLast != 2 {
			t.Errorf("the volume shows %+v", got)
		}
		automatic := func() (ready int) {
			for _, x := range b.backups(v.ID) {
				if x.Automatic && x.State == api.BackupReady {
					ready++
				}
			}
			return ready
		}
		if n := automatic(); n != 0 {
			t.Errorf("%d before the hour", n)
		}
		b.after(23 * time.Hour)
		b.becomes("one", func() bool { return automatic() == 1 })
		stop()
		b.after(72 * time.Hour) // three hours of the kind pass without a server
		b.run()
		b.becomes("two", func() bool { return automatic() == 2 })
		first := b.backups(v.ID)
		b.after(24 * time.Hour)
		b.becomes("the newest two", func() bool {
			now := b.backups(v.ID)
			return automatic() == 2 && now[0].ID != first[0].ID && len(now) == 3
		})
		if now := b.backups(v.ID); now[2].ID != own.ID || now[2].Automatic {
			t.Errorf("what a caller made is not the policy's to delete: %+v", now)
		}
		off := false
		if p := must(b, api.SetBackupPolicy, api.BackupPolicyIn{VolumeIn: api.VolumeIn{VolumeID: v.ID}, Enabled: &off}).Policy; p != nil {
			t.Errorf("off: %+v", p)
		}
		b.after(48 * time.Hour)
		if err := b.keepPolicies(b.ctx); err != nil || len(b.backups(v.ID)) != 3 {
			t.Errorf("after its end: %d, %v", len(b.backups(v.ID)), err)
		}
		// It ends with its volume.
		must(b, api.SetBackupPolicy, api.BackupPolicyIn{VolumeIn: api.VolumeIn{VolumeID: v.ID}})
		must(b, api.DeleteVolume, api.DeleteVolumeIn{VolumeIn: api.VolumeIn{VolumeID: v.ID}})
		var left int
		if err := b.DB.QueryRowContext(b.ctx, `SELECT COUNT(*) FROM backup_policies`).Scan(&left); err != nil || left != 0 {
			t.Errorf("%d policies are left, %v", left, err)
		}
		if got := b.backups(v.ID); len(got) != 3 {
			t.Errorf("backups of a deleted volume: %+v", got)
		}
	})
}

func TestOverdue(t *testing.T) {
	now := time.Date(2026, 3, 20, 12, 0, 0, 0, time.UTC)
	var all []*backup
	for days := range 10 { // newest first
		all = append(all, &backup{ID: fmt.Sprint(days), CreatedAt: db.Micros(now.AddDate(0, 0, -days).Add(-time.Hour))})
	}
	for name, tt := range map[string]struct {
		policy policy
		want   string
	}{
		"by age":            {policy{KeepDays: 7}, "789"},
		"by number":         {policy{KeepLast: 3}, "3456789"},
		"either keeps":      {policy{KeepDays: 2, KeepLast: 8}, "89"},
		"the other way":     {policy{KeepDays: 9, KeepLast: 1}, "9"},
		"more than are":     {policy{KeepLast: 100}, ""},
		"the newest always": {policy{KeepLast: 1}, "123456789"},
	} {
		got := ""
		for _, b := range overdue(all, &tt.policy, now) {
			got += b.ID
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	if old := overdue(all[9:], &policy{KeepDays: 1}, now); len(old) != 0 {
		t.Error("the only one, though old, is not kept")
	}
}

func TestNext(t *testing.T) {
	p := policy{Hour: 3}
	for at, want := range map[string]string{
		"2026-01-02T02:59:59Z": "2026-01-02T03:00:00Z", "2026-01-02T03:00:00Z": "2026-01-03T03:00:00Z", "2026-01-02T03:30:00+01:00": "2026-01-02T03:00:00Z",
		"2026-12-31T23:00:00Z": "2027-01-01T03:00:00Z",
	} {
		now, err := time.Parse(time.RFC3339, at)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.next(now).Format(time.RFC3339); got != want {
			t.Errorf("after %s: %s, want %s", at, got, want)
		}
	}
}
