package xtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/controlplane"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
)

// noSaves waits until the node keeps no save of a fork.
func (l *life) noSaves(t testing.TB) {
	t.Helper()
	eventually(t, func() bool {
		all, err := l.Driver.Saves(context.Background())
		for _, s := range all {
			if strings.HasPrefix(s.Name, "fork_") {
				return false
			}
		}
		return err == nil
	})
}

// removed deletes sandboxes when the test ends.
func removed(t *testing.T, l *life, all []api.Copy) {
	t.Helper()
	for _, one := range all {
		t.Cleanup(func() {
			if code := Code(t, l.Client, api.DeleteSandbox, waiting(one.SandboxID, 30)); code != "" && code != "NOT_FOUND" {
				t.Errorf("delete: %s", code)
			}
		})
	}
}

func TestFork(t *testing.T) {
	eachSleeper(t, func(c *controlplane.Config) { c.Limits = map[string]int64{"sandboxes.running": 8} }, func(t *testing.T, l *life) {
		c := l.Client
		id := Sandbox(t, c, api.CreateSandboxIn{Name: "tree", Env: map[string]string{"A": "b"}, Metadata: map[string]string{"of": "tree"}})
		Exec(t, c, id, "echo before > file")
		p := echo(t, l, id)
		t.Run("of a running one", func(t *testing.T) {
			want := api.ForkSandboxIn{WriteIn: op.WriteIn{IdempotencyKey: "three"}, SandboxIn: in(id), WaitIn: wait(30), Count: 3}
			out := Must(t, c, api.ForkSandbox, want)
			removed(t, l, out.Items)
			if !out.Ready || out.Made != 3 || len(out.Items) != 3 {
				t.Fatalf("%+v", out)
			}
			tokens := map[string]bool{}
			for i, one := range out.Items {
				if one.Name != fmt.Sprintf("tree-%d", i+1) || !one.Ready {
					t.Errorf("copy %d: %+v", i, one)
				}
				sb := l.get(t, one.SandboxID)
				if sb.ForkedFrom != id || sb.Metadata["of"] != "tree" || sb.State != api.StateRunning {
					t.Errorf("copy %d: %+v", i, sb)
				}
				if out := Exec(t, c, one.SandboxID, "cat file; echo $A; echo copy > file"); out.Stdout != "before\nb\n" || out.Woke != "" {
					t.Errorf("copy %d: %+v", i, out)
				}
				var token string
				if err := l.db.QueryRowContext(t.Context(), `SELECT guest_token FROM sandboxes WHERE id = $1`, one.SandboxID).Scan(&token); err != nil {
					t.Fatal(err)
				}
				tokens[token] = true
			}
			if len(tokens) != 3 {
				t.Errorf("the copies have %d tokens", len(tokens))
			}
			if out := Exec(t, c, id, "cat file"); out.Stdout != "before\n" {
				t.Errorf("the original: %+v", out)
			}
			l.echoes(t, id, p, "the original goes on")
			again := Must(t, c, api.ForkSandbox, want)
			if !again.Replayed || again.Items[2].SandboxID != out.Items[2].SandboxID {
				t.Errorf("again: %+v", again)
			}
			l.noSaves(t)
			if out := Must(t, c, api.DeleteSandbox, waiting(out.Items[0].SandboxID, 30)); !out.Deleted {
				t.Errorf("%+v", out)
			}
			next := Must(t, c, api.ForkSandbox, api.ForkSandboxIn{SandboxIn: in(id), WaitIn: wait(30)})
			removed(t, l, next.Items)
			if len(next.Items) != 1 || next.Items[0].Name != "tree-1" {
				t.Errorf("the next: %+v", next)
			}
		})
		t.Run("of a paused one, which sleeps on", func(t *testing.T) {
			l.pause(t, id)
			out := Must(t, c, api.ForkSandbox, api.ForkSandboxIn{SandboxIn: in(id), WaitIn: wait(30), Names: []string{"left", "right"}})
			removed(t, l, out.Items)
			if !out.Ready || len(out.Items) != 2 || out.Items[0].Name != "left" || out.Items[1].Name != "right" {
				t.Errorf("%+v", out)
			}
			if sb := l.get(t, id); sb.State != api.StatePaused || l.asleep(t, id) != runtime.OnDisk {
				t.Errorf("the original: %+v", sb)
			}
			if out := Exec(t, c, out.Items[1].SandboxID, "cat file"); out.Stdout != "before\n" {
				t.Errorf("a copy: %+v", out)
			}
			l.echoes(t, id, p, "woken")
		})
	})
	eachSleeper(t, func(c *controlplane.Config) { c.Limits = map[string]int64{"sandboxes.running": 4} }, func(t *testing.T, l *life) {
		c := l.Client
		id := Sandbox(t, c, api.CreateSandboxIn{Name: "tree"})
		t.Run("one at a time", func(t *testing.T) {
			defer l.well()
			arrive, release := l.held("save")
			first := Must(t, c, api.ForkSandbox, api.ForkSandboxIn{SandboxIn: in(id), WaitIn: wait(0)})
			removed(t, l, first.Items)
			arrive(t)
			if first.Ready || len(first.Items) != 1 {
				t.Errorf("%+v", first)
			}
			if e := refusal(t, c, api.ForkSandbox, api.ForkSandboxIn{SandboxIn: in(id)}); e.Code != "BUSY" || e.RetryAfter <= 0 {
				t.Errorf("another: %+v", e)
			}
			if e := refusal(t, c, api.SnapshotSandbox, api.SnapshotSandboxIn{SandboxIn: in(id)}); e.Code != "BUSY" {
				t.Errorf("a snapshot: %+v", e)
			}
			if sb := l.get(t, id); sb.State != api.StateRunning {
				t.Errorf("the original: %+v", sb)
			}
			release()
			l.becomes(t, first.Items[0].SandboxID, api.StateRunning)
		})
		t.Run("the original stands still only for the checkpoint", func(t *testing.T) {
			defer l.well()
			p := echo(t, l, id)
			arrive, release := l.held("clone")
			made := Must(t, c, api.ForkSandbox, api.ForkSandboxIn{SandboxIn: in(id), WaitIn: wait(0)})
			removed(t, l, made.Items)
			arrive(t)
			l.echoes(t, id, p, "while the copy is made")
			if out := Exec(t, c, id, "echo after > file; cat file"); out.Stdout != "after\n" || out.Woke != "" {
				t.Errorf("the original: %+v", out)
			}
			if sb := l.get(t, made.Items[0].SandboxID); sb.State != api.StateCreating {
				t.Errorf("the copy: %+v", sb)
			}
			release()
			l.becomes(t, made.Items[0].SandboxID, api.StateRunning)
			if out := Exec(t, c, made.Items[0].SandboxID, "cat file || echo none"); out.Stdout != "none\n" {
				t.Errorf("the copy: %+v", out)
			}
		})
		t.Run("more than may run", func(t *testing.T) {
			if e := refusal(t, c, api.ForkSandbox, api.ForkSandboxIn{SandboxIn: in(id), Count: 20}); e.Code != "LIMIT_EXCEEDED" {
				t.Errorf("%+v", e)
			}
			if all := Must(t, c, api.ListSandboxes, api.ListSandboxesIn{}).Items; len(all) != 1 {
				t.Errorf("%d sandboxes", len(all))
			}
			if e := refusal(t, c, api.ForkSandbox, api.ForkSandboxIn{SandboxIn: in(id), Names: []string{"tree"}}); e.Code != "ALREADY_EXISTS" {
				t.Errorf("a name that is taken: %+v", e)
			}
			if e := refusal(t, c, api.ForkSandbox, api.ForkSandboxIn{SandboxIn: in(id), Count: 3, Names: []string{"x"}}); e.Code != "INVALID_INPUT" {
				t.Errorf("too few names: %+v", e)
			}
		})
		t.Run("some fail", func(t *testing.T) {
			defer l.well()
			var n atomic.Int32
			l.on(func(_ context.Context, m, _ string) error {
				if m == "clone" && n.Add(1) == 1 {
					return errs.E(errs.NoCapacity, "the node is full")
				}
				return nil
			})
			out := Must(t, c, api.ForkSandbox, api.ForkSandboxIn{SandboxIn: in(id), WaitIn: wait(30), Count: 2})
			removed(t, l, out.Items)
			if out.Made != 1 || out.Ready || len(out.Items) != 2 {
				t.Fatalf("%+v", out)
			}
			said := 0
			for _, one := range out.Items {
				if one.State == api.StateFailed && one.Error == "the node is full" {
					said++
				}
			}
			if said != 1 {
				t.Errorf("%+v", out.Items)
			}
			l.noSaves(t)
		})
		t.Run("none can be made", func(t *testing.T) {
			defer l.well()
			l.failing("save", errs.E(errs.LimitExceeded, "the disk is full").Because("disk_full"))
			if e := refusal(t, c, api.ForkSandbox, api.ForkSandboxIn{SandboxIn: in(id), WaitIn: wait(30)}); e.Code != "UPSTREAM_ERROR" || e.Reason != "fork_failed" || !strings.Contains(e.Message, "the disk is full") {
				t.Errorf("%+v", e)
			}
			l.well()
			if out := Exec(t, c, id, "echo well"); out.Stdout != "well\n" {
				t.Errorf("the original: %+v", out)
			}
			// It is let go of once the copies have failed.
			e := "BUSY"
			eventually(t, func() bool {
				e = Code(t, c, api.SnapshotSandbox, api.SnapshotSandboxIn{SandboxIn: in(id)})
				return e != "BUSY"
			})
			if e != "" {
				t.Errorf("it is still held: %s", e)
			}
		})
	})
}

func TestSnapshots(t *testing.T) {
	eachSleeper(t, nil, func(t *testing.T, l *life) {
		c := l.Client
		id := Sandbox(t, c, api.CreateSandboxIn{Name: "source", Env: map[string]string{"A": "b"}, Resources: &api.ResourcesIn{MemoryMiB: 640}})
		Exec(t, c, id, "echo before > file")
		p := echo(t, l, id)
		take := func(mode, name string) *api.Snapshot {
			t.Helper()
			out := Must(t, c, api.SnapshotSandbox, api.SnapshotSandboxIn{SandboxIn: in(id), WaitIn: wait(30), Mode: mode, Name: name, Metadata: map[string]string{"n": name}})
			if !out.Ready || out.Snapshot.State != api.SnapshotReady || out.Snapshot.SandboxID != id || out.Snapshot.TakenAt == nil {
				t.Fatalf("%s: %+v", name, out.Snapshot)
			}
			return out.Snapshot
		}
		memory := take("", "running")
		if memory.Mode != api.ModeMemory || memory.Resources.MemoryMiB != 640 || memory.MemoryMiB == 0 {
			t.Errorf("%+v", memory)
		}
		disk := take(api.ModeDisk, "running.disk")
		if disk.Mode != api.ModeDisk || disk.MemoryMiB != 0 {
			t.Errorf("%+v", disk)
		}
		l.echoes(t, id, p, "it goes on")
		l.pause(t, id)
		paused := take("", "paused")
		if l.asleep(t, id) != runtime.OnDisk || paused.Mode != api.ModeMemory {
			t.Errorf("of a paused one: %+v", paused)
		}
		Exec(t, c, id, "echo after > file")
		l.stop(t, id)
		if e := refusal(t, c, api.SnapshotSandbox, api.SnapshotSandboxIn{SandboxIn: in(id), Mode: api.ModeMemory}); e.Code != "INVALID_STATE" || e.Reason != "stopped" {
			t.Errorf("memory of a stopped one: %+v", e)
		}
		stopped := take("", "stopped")
		if stopped.Mode != api.ModeDisk {
			t.Errorf("%+v", stopped)
		}
		if e := refusal(t, c, api.SnapshotSandbox, api.SnapshotSandboxIn{SandboxIn: in(id), Name: "stopped"}); e.Code != "ALREADY_EXISTS" {
			t.Errorf("a name that is taken: %+v", e)
		}
		if out := Must(t, c, api.DeleteSandbox, waiting(id, 30)); !out.Deleted {
			t.Fatalf("%+v", out)
		}

		t.Run("they outlive it", func(t *testing.T) {
			all := Must(t, c, api.ListSnapshots, api.ListSnapshotsIn{SandboxID: id}).Items
			if len(all) != 4 || all[0].ID != stopped.ID || all[3].ID != memory.ID {
				t.Errorf("%+v", all)
			}
			page := Must(t, c, api.ListSnapshots, api.ListSnapshotsIn{PageIn: op.PageIn{Limit: 3}, SandboxID: id})
			if len(page.Items) != 3 || page.NextCursor == nil {
				t.Fatalf("%+v", page)
			}
			if rest := Must(t, c, api.ListSnapshots, api.ListSnapshotsIn{PageIn: op.PageIn{Limit: 3, Cursor: *page.NextCursor}, SandboxID: id}); len(rest.Items) != 1 || rest.Items[0].ID != memory.ID {
				t.Errorf("%+v", rest)
			}
			if got := Must(t, c, api.ListSnapshots, api.ListSnapshotsIn{Metadata: map[string]string{"n": "paused"}, Mode: api.ModeMemory}).Items; len(got) != 1 || got[0].ID != paused.ID {
				t.Errorf("%+v", got)
			}
		})
		for _, tt := range []struct {
			of   *api.Snapshot
			in   api.CreateSandboxIn
			want string
		}{
			{memory, api.CreateSandboxIn{}, "before\nb\n"},
			{memory, api.CreateSandboxIn{FromDisk: true, Resources: &api.ResourcesIn{MemoryMiB: 256, VCPU: 2}}, "before\nb\n"},
			{disk, api.CreateSandboxIn{Env: map[string]string{"A": "c"}}, "before\nc\n"},
			{paused, api.CreateSandboxIn{Name: "named"}, "before\nb\n"},
			{stopped, api.CreateSandboxIn{}, "after\nb\n"},
		} {
			t.Run("a sandbox of "+tt.of.Name, func(t *testing.T) {
				tt.in.SnapshotID, tt.in.WaitIn = tt.of.ID, wait(30)
				out := Must(t, c, api.CreateSandbox, tt.in)
				removed(t, l, []api.Copy{{SandboxID: out.Sandbox.ID}})
				if !out.Ready || out.Sandbox.SnapshotID != tt.of.ID || out.Sandbox.Template != "base" {
					t.Errorf("%+v", out.Sandbox)
				}
				if tt.in.Resources == nil && out.Sandbox.Resources.MemoryMiB != 640 {
					t.Errorf("%+v", out.Sandbox.Resources)
				}
				if ran := Exec(t, c, out.Sandbox.ID, "cat file; echo $A"); ran.Stdout != tt.want {
					t.Errorf("%+v", ran)
				}
			})
		}
		t.Run("what cannot be", func(t *testing.T) {
			for name, tt := range map[string]struct {
				in   api.CreateSandboxIn
				code string
			}{
				"with a template":     {api.CreateSandboxIn{SnapshotID: disk.ID, Template: "base"}, "INVALID_INPUT"},
				"fromDisk of nothing": {api.CreateSandboxIn{FromDisk: true}, "INVALID_INPUT"},
				"other memory":        {api.CreateSandboxIn{SnapshotID: memory.ID, Resources: &api.ResourcesIn{MemoryMiB: 1024}}, "INVALID_INPUT"},
				"no such":             {api.CreateSandboxIn{SnapshotID: "snap_00000000000000000000"}, "NOT_FOUND"},
			} {
				if code := Code(t, c, api.CreateSandbox, tt.in); code != tt.code {
					t.Errorf("%s: %q", name, code)
				}
			}
		})
		t.Run("memory that cannot be restored", func(t *testing.T) {
			if err := l.Driver.Damage(paused.ID, "foreign"); err != nil {
				t.Fatal(err)
			}
			e := refusal(t, c, api.CreateSandbox, api.CreateSandboxIn{SnapshotID: paused.ID, WaitIn: wait(30)})
			if e.Code != "UPSTREAM_ERROR" || e.Reason != "memory_foreign" || !strings.Contains(e.Suggestion, "fromDisk: true") {
				t.Errorf("%+v", e)
			}
			out := Must(t, c, api.CreateSandbox, api.CreateSandboxIn{SnapshotID: paused.ID, FromDisk: true, WaitIn: wait(30)})
			removed(t, l, []api.Copy{{SandboxID: out.Sandbox.ID}})
			if ran := Exec(t, c, out.Sandbox.ID, "cat file"); ran.Stdout != "before\n" {
				t.Errorf("%+v", ran)
			}
		})
		t.Run("renamed and deleted", func(t *testing.T) {
			name := "renamed"
			out := Must(t, c, api.UpdateSnapshot, api.UpdateSnapshotIn{SnapshotIn: api.SnapshotIn{SnapshotID: disk.ID}, Name: &name, Metadata: map[string]string{}})
			if out.Snapshot.Name != "renamed" || len(out.Snapshot.Metadata) != 0 {
				t.Errorf("%+v", out.Snapshot)
			}
			taken := "stopped"
			if code := Code(t, c, api.UpdateSnapshot, api.UpdateSnapshotIn{SnapshotIn: api.SnapshotIn{SnapshotID: disk.ID}, Name: &taken}); code != "ALREADY_EXISTS" {
				t.Errorf("a name that is taken: %q", code)
			}
			arrive, release := l.held("clone")
			defer l.well()
			made := Must(t, c, api.CreateSandbox, api.CreateSandboxIn{SnapshotID: disk.ID, WaitIn: wait(0)})
			removed(t, l, []api.Copy{{SandboxID: made.Sandbox.ID}})
			arrive(t)
			drop := api.DeleteSnapshotIn{SnapshotIn: api.SnapshotIn{SnapshotID: disk.ID}, WaitIn: wait(30)}
			if e := refusal(t, c, api.DeleteSnapshot, drop); e.Code != "BUSY" || e.Reason != "in_use" {
				t.Errorf("while one is made of it: %+v", e)
			}
			release()
			l.becomes(t, made.Sandbox.ID, api.StateRunning)
			for range 2 {
				if out := Must(t, c, api.DeleteSnapshot, drop); !out.Deleted {
					t.Errorf("%+v", out)
				}
			}
			if code := Code(t, c, api.GetSnapshot, drop.SnapshotIn); code != "NOT_FOUND" {
				t.Errorf("afterwards: %q", code)
			}
			if code := Code(t, c, api.CreateSandbox, api.CreateSandboxIn{SnapshotID: disk.ID}); code != "NOT_FOUND" {
				t.Errorf("a sandbox of it: %q", code)
			}
			if out := Exec(t, c, made.Sandbox.ID, "cat file"); out.Stdout != "before\n" {
				t.Errorf("what was made of it: %+v", out)
			}
			if _, err := os.Stat(filepath.Join(l.Dir, ".saves", disk.ID)); !os.IsNotExist(err) {
				t.Errorf("it is still on the node: %v", err)
			}
		})
		t.Run("one that fails", func(t *testing.T) {
			defer l.well()
			sb := Sandbox(t, c, idling(0))
			l.failing("save", errs.E(errs.LimitExceeded, "the disk is full").Because("disk_full"))
			e := refusal(t, c, api.SnapshotSandbox, api.SnapshotSandboxIn{SandboxIn: in(sb), WaitIn: wait(30)})
			if e.Code != "UPSTREAM_ERROR" || e.Reason != "snapshot_failed" {
				t.Fatalf("%+v", e)
			}
			failed := e.Details["snapshotId"].(string)
			if got := Must(t, c, api.GetSnapshot, api.SnapshotIn{SnapshotID: failed}).Snapshot; got.State != api.SnapshotFailed || got.Error != "the disk is full" {
				t.Errorf("%+v", got)
			}
			if code := Code(t, c, api.CreateSandbox, api.CreateSandboxIn{SnapshotID: failed}); code != "INVALID_STATE" {
				t.Errorf("a sandbox of it: %q", code)
			}
		})
	})
}
