package volume

import (
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
)

func (b *bed) attach(sandbox string, asked ...api.VolumeMount) error {
	return b.DB.Tx(b.ctx, func(tx *sql.Tx) error { return b.Attach(b.ctx, tx, "org_a", sandbox, asked) })
}

// TestWhoMayHaveAVolume: one writes or any number read, whether they run or not, and each volume has a folder of its own.
func TestWhoMayHaveAVolume(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBed(t, d)
		b.run()
		one, two := b.made("one"), b.made("two")
		reads := func(v string) api.VolumeMount { return api.VolumeMount{Volume: v, ReadOnly: true} }
		writes := func(v string) api.VolumeMount { return api.VolumeMount{Volume: v} }
		many := make([]api.VolumeMount, runtime.MaxMounts)
		for i := range many {
			many[i] = writes(b.made(fmt.Sprintf("m%d", i)).Name)
		}
		for _, tt := range []struct {
			name    string
			sandbox string
			asked   []api.VolumeMount
			code    errs.Code
			reason  string
			path    string
		}{
			{name: "the first writes", sandbox: "sbx_1", asked: []api.VolumeMount{writes("one")}},
			{"a second writes", "sbx_2", []api.VolumeMount{writes("one")}, errs.InvalidState, "volume_in_use", "volumes[0].path"},
			{"a second reads", "sbx_2", []api.VolumeMount{reads(one.ID)}, errs.InvalidState, "volume_in_use", "volumes[0].path"},
			{name: "one reads", sandbox: "sbx_3", asked: []api.VolumeMount{reads("two")}},
			{name: "another reads", sandbox: "sbx_4", asked: []api.VolumeMount{reads(two.ID)}},
			{"a third writes", "sbx_5", []api.VolumeMount{writes("two")}, errs.InvalidState, "volume_in_use", "volumes[0].path"},
			{"one that is not there", "sbx_6", []api.VolumeMount{writes("none")}, errs.NotFound, "volume", "volumes[0].volume"},
			{"no name at all", "sbx_6", []api.VolumeMount{writes("NO NAME")}, errs.NotFound, "volume", "volumes[0].volume"},
			{"a relative path", "sbx_6", []api.VolumeMount{{Volume: "m0", Path: "data"}}, errs.InvalidInput, "mount_path", "volumes[0].path"},
			{"below /proc", "sbx_6", []api.VolumeMount{{Volume: "m0", Path: "/proc/x"}}, errs.InvalidInput, "mount_path", "volumes[0].path"},
			{"one in another", "sbx_6", []api.VolumeMount{{Volume: "m0", Path: "/a"}, {Volume: "m1", Path: "/a/b"}}, errs.InvalidInput, "mount_path", ""},
			{"one twice", "sbx_6", []api.VolumeMount{{Volume: "m0", Path: "/a"}, {Volume: "m0", Path: "/b"}}, errs.InvalidState, "attached", ""},
			{name: "as many as there may be", sandbox: "sbx_7", asked: many},
			{"one more", "sbx_7", []api.VolumeMount{reads("two")}, errs.LimitExceeded, "mounts", "volumes[0].path"},
		} {
			err := b.attach(tt.sandbox, tt.asked...)
			if tt.code == "" {
				if err != nil {
					t.Errorf("%s: %v", tt.name, err)
				}
				continue
			}
			e := errs.From(err)
			if err == nil || e.Code != tt.code || e.Reason != tt.reason || e.Suggestion == "" || tt.path != "" && e.Details["path"] != tt.path {
				t.Errorf("%s: got %v (%v)", tt.name, err, e.Details)
			}
			if mounts, _, err := b.Of(b.ctx, b.DB, "sbx_6"); err != nil || len(mounts) > 0 {
				t.Errorf("%s: what was refused left %v, %v", tt.name, mounts, err)
			}
		}
		mounts, names, err := b.Of(b.ctx, b.DB, "sbx_1")
		if err != nil || len(mounts) != 1 || mounts[0] != (runtime.Mount{Volume: one.ID, Path: "/volumes/one"}) || names[0] != "one" {
			t.Errorf("it mounts %v, %v, %v", mounts, names, err)
		}
		// Another organization's is not found by anything.
		err = b.DB.Tx(b.ctx, func(tx *sql.Tx) error {
			return b.Attach(b.ctx, tx, "org_b", "sbx_9", []api.VolumeMount{{Volume: two.ID, ReadOnly: true}})
		})
		wants(t, err, errs.NotFound, "volume")
		// What is attached is not deleted, and the refusal says to whom.
		_, err = do(b, api.DeleteVolume, api.DeleteVolumeIn{VolumeIn: api.VolumeIn{VolumeID: two.ID}})
		wants(t, err, errs.InvalidState, "attached")
		if err != nil && (!strings.Contains(err.Error(), "sbx_3") || !strings.Contains(err.Error(), "sbx_4")) {
			t.Errorf("it does not name who has it: %v", err)
		}
		for _, sandbox := range []string{"sbx_3", "sbx_4"} {
			if err := b.DB.Tx(b.ctx, func(tx *sql.Tx) error { return b.Release(b.ctx, tx, sandbox) }); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.attach("sbx_5", writes("two")); err != nil {
			t.Errorf("once nobody reads it: %v", err)
		}
	})
}

// TestOneWriterWins: of many that want to write at the same moment one does.
func TestOneWriterWins(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBed(t, d)
		b.run()
		v := b.made("one")
		var all sync.WaitGroup
		results := make([]error, 8)
		for i := range results {
			all.Go(func() {
				results[i] = b.attach(fmt.Sprintf("sbx_%d", i), api.VolumeMount{Volume: v.Name, ReadOnly: i%4 == 3})
			})
		}
		all.Wait()
		writers, readers := 0, 0
		for i, err := range results {
			switch {
			case err == nil && i%4 == 3:
				readers++
			case err == nil:
				writers++
			case errs.From(err).Reason != "volume_in_use":
				t.Errorf("%d: %v", i, err)
			}
		}
		if writers > 1 || writers == 1 && readers > 0 || writers+readers == 0 {
			t.Errorf("%d write and %d read", writers, readers)
		}
		if got := len(b.volume(v.ID).Attachments); got != writers+readers {
			t.Errorf("%d have it, %d were told so", got, writers+readers)
		}
	})
}

// TestStoppedSandboxes: only of a stopped one it is changed what it has, and both ways may be repeated.
func TestStoppedSandboxes(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBed(t, d)
		b.run()
		v := b.made("one")
		sandbox := "sbx_aaaaaaaaaaaaaaaaaaaa"
		in := api.AttachVolumeIn{VolumeIn: api.VolumeIn{VolumeID: v.ID}, SandboxIn: api.SandboxIn{SandboxID: sandbox}, Path: "/data", ReadOnly: true}
		_, err := do(b, api.AttachVolume, in)
		wants(t, err, errs.NotFound, "")
		b.sandboxes.stopped[sandbox] = false
		_, err = do(b, api.AttachVolume, in)
		wants(t, err, errs.InvalidState, api.StateRunning)
		b.sandboxes.stopped[sandbox] = true
		for range 2 {
			got := must(b, api.AttachVolume, in).Volume.Attachments
			if len(got) != 1 || got[0] != (api.VolumeAttachment{SandboxID: sandbox, Path: "/data", ReadOnly: true}) {
				t.Errorf("attached: %+v", got)
			}
		}
		in.ReadOnly = false
		_, err = do(b, api.AttachVolume, in)
		wants(t, err, errs.InvalidState, "attached")
		for range 2 {
			if got := must(b, api.DetachVolume, api.DetachVolumeIn{VolumeIn: in.VolumeIn, SandboxIn: in.SandboxIn}).Volume.Attachments; len(got) != 0 {
				t.Errorf("detached: %+v", got)
			}
		}
	})
}
