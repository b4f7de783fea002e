package xtest

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
)

// volume creates a volume.
func volume(t testing.TB, c *client.Client, in api.CreateVolumeIn) *api.Volume {
	t.Helper()
	out := Must(t, c, api.CreateVolume, in)
	if !out.Ready || out.Volume == nil {
		t.Fatalf("create volume: %+v", out)
	}
	return out.Volume
}

func vol(id string) api.VolumeIn { return api.VolumeIn{VolumeID: id} }

// backup backs a volume up, to its end.
func backup(t testing.TB, c *client.Client, volume string) *api.Backup {
	t.Helper()
	out := Must(t, c, api.CreateBackup, api.CreateBackupIn{VolumeIn: vol(volume), WaitIn: wait(0)})
	b := out.Backup
	eventuallyIn(t, 3*time.Minute, func() bool {
		now := Must(t, c, api.GetBackup, api.BackupIn{BackupID: b.ID}).Backup
		b = &now
		return b.State != api.BackupCreating
	})
	if b.State != api.BackupReady {
		t.Fatalf("backup: %+v", b)
	}
	return b
}

// said runs a command that has to succeed, and gives what it wrote.
func said(t testing.TB, c *client.Client, sandbox, command string) string {
	t.Helper()
	out := Exec(t, c, sandbox, command)
	if out.ExitCode == nil || *out.ExitCode != 0 {
		t.Fatalf("%s: exit %v\n%s%s", command, out.ExitCode, out.Stdout, out.Stderr)
	}
	return strings.TrimSpace(out.Stdout)
}

// refusedFor gives the error of a call that has to be refused.
func refusedFor(t testing.TB, err error, code, reason string) *client.Error {
	t.Helper()
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Code != code || e.Reason != reason || e.Suggestion == "" {
		t.Errorf("got %v (%+v), want %s, reason %s", err, e, code, reason)
	}
	return e
}

var small = &api.ResourcesIn{MemoryMiB: 256, VCPU: 0.5}

// TestRealVolumes: what one sandbox wrote another reads after its end; many read while nobody may write; a size is kept and grows; a copy comes up without
// the volume and says so.
func TestRealVolumes(t *testing.T) {
	t.Parallel() // it waits more than it works
	r := StartReal(t)
	c := r.Client
	v := volume(t, c, api.CreateVolumeIn{Name: "notes", SizeGiB: 1})
	writer := Sandbox(t, c, api.CreateSandboxIn{Resources: small, Volumes: []api.VolumeMount{{Volume: "notes"}}})
	said(t, c, writer, "id -u > /volumes/notes/who; echo remembered > /volumes/notes/text; mkdir /volumes/notes/d; ln /volumes/notes/text /volumes/notes/d/same")
	if got := Must(t, c, api.GetSandbox, in(writer)).Volumes; len(got) != 1 || got[0] != (api.SandboxVolume{VolumeID: v.ID, Name: "notes", Path: "/volumes/notes"}) {
		t.Errorf("the sandbox shows %+v", got)
	}
	_, err := within(c, api.DeleteVolume, api.DeleteVolumeIn{VolumeIn: vol(v.ID)})
	if e := refusedFor(t, err, "INVALID_STATE", "attached"); e != nil && !strings.Contains(e.Message, writer) {
		t.Errorf("the refusal does not name the sandbox: %v", e)
	}

	// Its size is kept.
	if out := Exec(t, c, writer, "fallocate -l 1200M /volumes/notes/big"); out.ExitCode != nil && *out.ExitCode == 0 && quotas(t, c) {
		t.Errorf("1.2 GB fit into 1 GiB: %s", said(t, c, writer, "ls -l /volumes/notes; df /volumes/notes"))
	}
	said(t, c, writer, "rm -f /volumes/notes/big")

	// A copy comes up without it and says so.
	said(t, c, writer, "echo own > /workspace/own")
	fork := Must(t, c, api.ForkSandbox, api.ForkSandboxIn{SandboxIn: in(writer)})
	if len(fork.Items) != 1 || !slices.Equal(fork.WithoutVolumes, []string{"notes"}) || !strings.Contains(fork.Message, "notes") {
		t.Fatalf("forked: %+v", fork)
	}
	cp := fork.Items[0].SandboxID
	eventually(t, func() bool { return Must(t, c, api.GetSandbox, in(cp)).Sandbox.State == api.StateRunning })
	if got := said(t, c, cp, "cat /workspace/own; ls -A /volumes/notes | wc -l"); got != "own\n0" {
		t.Errorf("the copy has %q", got)
	}
	if got := Must(t, c, api.GetSandbox, in(cp)); len(got.Volumes) > 0 || !slices.Equal(got.WithoutVolumes, []string{"notes"}) {
		t.Errorf("the copy shows %+v, without %v", got.Volumes, got.WithoutVolumes)
	}
	Must(t, c, api.DeleteSandbox, api.SandboxWaitIn{SandboxIn: in(cp)})

	// It sleeps with its volume, which stays its own.
	said(t, c, writer, "nohup sleep 1000 >/dev/null 2>&1 & echo $! > /volumes/notes/pid")
	if sb := Must(t, c, api.PauseSandbox, waiting(writer, 30)).Sandbox; sb.State != api.StatePaused {
		t.Fatalf("paused: %+v", sb)
	}
	_, err = within(c, api.CreateSandbox, api.CreateSandboxIn{Volumes: []api.VolumeMount{{Volume: v.ID, ReadOnly: true}}})
	refusedFor(t, err, "INVALID_STATE", "volume_in_use")
	if got := said(t, c, writer, "kill -0 $(cat /volumes/notes/pid) && cat /volumes/notes/text"); got != "remembered" {
		t.Errorf("after its wake it reads %q", got)
	}
	Must(t, c, api.DeleteSandbox, api.SandboxWaitIn{SandboxIn: in(writer)})

	t.Run("shared", func(t *testing.T) { sharedByTen(t, r, v) })
	t.Run("grown", func(t *testing.T) { grown(t, r, v) })
	eventually(t, func() bool {
		now := Must(t, c, api.GetVolume, vol(v.ID)).Volume
		return now.UsedMiB != nil && now.MeasuredAt != nil && now.MeasuredAt.After(v.CreatedAt)
	})
	if out := Must(t, c, api.DeleteVolume, api.DeleteVolumeIn{VolumeIn: vol(v.ID)}); !out.Deleted {
		t.Errorf("deleted: %+v", out)
	}
}

// quotas reports whether the node limits what a disk holds.
func quotas(t testing.TB, c *client.Client) bool {
	t.Helper()
	return slices.ContainsFunc(Must(t, c, api.ListCapabilities, api.None{}).Items, func(c api.Capability) bool { return c.Name == "diskQuota" && c.Enabled })
}

// sharedByTen has ten sandboxes read a volume, which an eleventh may not write to.
func sharedByTen(t *testing.T, r *Real, v *api.Volume) {
	c := r.Client
	readers := make([]string, 10)
	for i := range readers {
		readers[i] = Sandbox(t, c, api.CreateSandboxIn{Resources: &api.ResourcesIn{MemoryMiB: 128, VCPU: 0.2}, Volumes: []api.VolumeMount{{Volume: "notes", Path: "/memory", ReadOnly: true}}})
	}
	for _, id := range readers {
		if got := said(t, c, id, "cat /memory/text /memory/d/same"); got != "remembered\nremembered" {
			t.Errorf("%s reads %q", id, got)
		}
	}
	if out := Exec(t, c, readers[0], "sudo touch /memory/new"); out.ExitCode == nil || *out.ExitCode == 0 {
		t.Error("a reader wrote")
	}
	if got := Must(t, c, api.GetVolume, vol(v.ID)).Volume.Attachments; len(got) != 10 {
		t.Errorf("%d sandboxes have it", len(got))
	}
	_, err := within(c, api.CreateSandbox, api.CreateSandboxIn{Volumes: []api.VolumeMount{{Volume: "notes"}}})
	refusedFor(t, err, "INVALID_STATE", "volume_in_use")
	for _, id := range readers {
		Must(t, c, api.DeleteSandbox, api.SandboxWaitIn{SandboxIn: in(id)})
	}
}

// grown attaches a volume to a stopped sandbox, and makes it larger between two boots.
func grown(t *testing.T, r *Real, v *api.Volume) {
	c := r.Client
	id := Sandbox(t, c, api.CreateSandboxIn{Resources: small})
	_, err := within(c, api.AttachVolume, api.AttachVolumeIn{VolumeIn: vol(v.ID), SandboxIn: in(id)})
	refusedFor(t, err, "INVALID_STATE", api.StateRunning)
	Must(t, c, api.StopSandbox, api.SandboxWaitIn{SandboxIn: in(id)})
	Must(t, c, api.AttachVolume, api.AttachVolumeIn{VolumeIn: vol(v.ID), SandboxIn: in(id), Path: "/data"})
	_, err = within(c, api.ResizeVolume, api.ResizeVolumeIn{VolumeIn: vol(v.ID), SizeGiB: 0})
	if client.CodeOf(err) != "INVALID_INPUT" {
		t.Errorf("made 0: %v", err)
	}
	if got := Must(t, c, api.ResizeVolume, api.ResizeVolumeIn{VolumeIn: vol(v.ID), SizeGiB: 2}).Volume; got.SizeGiB != 2 {
		t.Errorf("resized to %d", got.SizeGiB)
	}
	_, err = within(c, api.ResizeVolume, api.ResizeVolumeIn{VolumeIn: vol(v.ID), SizeGiB: 1})
	refusedFor(t, err, "INVALID_INPUT", "shrinks")
	Must(t, c, api.StartSandbox, api.SandboxWaitIn{SandboxIn: in(id)})
	if got := said(t, c, id, "cat /data/text; fallocate -l 1200M /data/big && rm /data/big && echo fits"); got != "remembered\nfits" {
		t.Errorf("after it grew: %q", got)
	}
	Must(t, c, api.StopSandbox, api.SandboxWaitIn{SandboxIn: in(id)})
	Must(t, c, api.DetachVolume, api.DetachVolumeIn{VolumeIn: vol(v.ID), SandboxIn: in(id)})
	Must(t, c, api.StartSandbox, api.SandboxWaitIn{SandboxIn: in(id)})
	if got := said(t, c, id, "ls -A /data | wc -l"); got != "0" {
		t.Errorf("detached it still shows %s entries", got)
	}
}

// rowWriter writes rows into a database in WAL mode, and says after each which is there for good.
const rowWriter = `
import sqlite3, sys
db = sqlite3.connect("/volumes/base/rows.db", isolation_level=None)
db.execute("PRAGMA journal_mode=WAL")
db.execute("PRAGMA synchronous=FULL")
db.execute("CREATE TABLE IF NOT EXISTS rows (n INTEGER PRIMARY KEY, text TEXT)")
n = 0
while True:
    n += 1
    db.execute("INSERT INTO rows VALUES (?, ?)", (n, "x" * (n % 3000)))
    with open("/tmp/acknowledged.new", "w") as f:
        f.write(str(n))
    import os; os.rename("/tmp/acknowledged.new", "/tmp/acknowledged")
`

// rowReader checks such a database, and says how many rows it has.
const rowReader = `python3 -c '
import sqlite3
db = sqlite3.connect("/volumes/again/rows.db")
assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
n, most = db.execute("SELECT count(*), max(n) FROM rows").fetchone()
assert n == most, (n, most)
print(n)'`

// TestRealBackups: a backup taken while a database is written restores to one that is whole and has all that was acknowledged; after the first only what
// changed is stored; a server that is killed in a backup or a restore goes on with it.
func TestRealBackups(t *testing.T) {
	t.Parallel() // it waits more than it works
	r := StartReal(t)
	t.Run("during writes", func(t *testing.T) { backupDuringWrites(t, r) })
	t.Run("killed", func(t *testing.T) { backupKilled(t, r) })
}

func backupDuringWrites(t *testing.T, r *Real) {
	c := r.Client
	v := volume(t, c, api.CreateVolumeIn{Name: "base", SizeGiB: 1})
	id := Sandbox(t, c, api.CreateSandboxIn{Resources: small, Volumes: []api.VolumeMount{{Volume: "base"}}})
	Must(t, c, api.WriteFile, api.WriteFileIn{FileIn: file(id, "writer.py"), Data: rowWriter})
	start(t, c, id, "python3 writer.py")
	acknowledged := func() int {
		n, _ := strconv.Atoi(strings.TrimSpace(Exec(t, c, id, "cat /tmp/acknowledged").Stdout))
		return n
	}
	eventually(t, func() bool { return acknowledged() > 20 })
	before := acknowledged()
	b := backup(t, c, v.ID)
	after := acknowledged()
	if b.SHA256 == "" || b.Files < 3 || b.TakenAt == nil || b.ContentMiB <= 0 || b.StoredMiB <= 0 {
		t.Errorf("the backup says %+v", b)
	}
	eventually(t, func() bool { return acknowledged() > after }) // it goes on
	Must(t, c, api.DeleteSandbox, api.SandboxWaitIn{SandboxIn: in(id)})
	Must(t, c, api.DeleteVolume, api.DeleteVolumeIn{VolumeIn: vol(v.ID)})

	volume(t, c, api.CreateVolumeIn{Name: "again", FromBackup: b.ID})
	reader := Sandbox(t, c, api.CreateSandboxIn{Resources: small, Volumes: []api.VolumeMount{{Volume: "again"}}})
	n, err := strconv.Atoi(said(t, c, reader, rowReader))
	if err != nil || n < before || n > after+100000 {
		t.Errorf("%d rows are there (%v), %d were acknowledged before the backup", n, err, before)
	}
	t.Logf("%d rows were acknowledged before, %d after, %d are in the backup", before, after, n)
}

func backupKilled(t *testing.T, r *Real) {
	c := r.Client
	v := volume(t, c, api.CreateVolumeIn{Name: "large", SizeGiB: 2})
	id := Sandbox(t, c, api.CreateSandboxIn{Resources: small, Volumes: []api.VolumeMount{{Volume: "large", Path: "/data"}}})
	said(t, c, id, "head -c 400000000 /dev/urandom > /data/file; sync")
	sum := said(t, c, id, "sha256sum < /data/file")
	first := Must(t, c, api.CreateBackup, api.CreateBackupIn{VolumeIn: vol(v.ID), WaitIn: wait(0)}).Backup
	eventually(t, func() bool { // it is under way, its copy taken
		b := Must(t, c, api.GetBackup, api.BackupIn{BackupID: first.ID}).Backup
		return b.TakenAt != nil || b.State != api.BackupCreating
	})
	r.Kill()
	r.Serve()
	c = r.Client
	// Only what is ready can be used.
	if now := Must(t, c, api.GetBackup, api.BackupIn{BackupID: first.ID}).Backup; now.State == api.BackupCreating {
		if code := Code(t, c, api.CreateVolume, api.CreateVolumeIn{Name: "early", FromBackup: first.ID}); code != "BUSY" && code != "" {
			t.Errorf("a volume of a backup under way: %s", code)
		} else if code == "" {
			t.Log("the backup was ready by then")
		}
	} else {
		t.Logf("the backup is %s at once", now.State)
	}
	var one api.Backup
	eventuallyIn(t, 3*time.Minute, func() bool {
		one = Must(t, c, api.GetBackup, api.BackupIn{BackupID: first.ID}).Backup
		return one.State != api.BackupCreating
	})
	if one.State != api.BackupReady || one.ContentMiB < 381 {
		t.Fatalf("after the kill: %+v", one)
	}
	// One percent changed: little is stored, and the sandbox went on writing all the while.
	said(t, c, id, `python3 -c '
import os, random
f = open("/data/file", "r+b")
for i in range(976):
    f.seek(random.randrange(97656) * 4096)
    f.write(os.urandom(4096))
f.flush(); os.fsync(f.fileno())'`)
	changed := said(t, c, id, "sha256sum < /data/file")
	two := backup(t, c, v.ID)
	if two.StoredMiB > one.StoredMiB*0.03 {
		t.Errorf("the second backup stored %.1f MiB, the first %.1f", two.StoredMiB, one.StoredMiB)
	}
	t.Logf("stored %.1f MiB, then %.2f MiB", one.StoredMiB, two.StoredMiB)

	for name, b := range map[string]api.Backup{"before": one, "after": *two} {
		made := Must(t, c, api.CreateVolume, api.CreateVolumeIn{Name: name, FromBackup: b.ID, WaitIn: wait(0)}).Volume
		r.Kill()
		r.Serve()
		c = r.Client
		var now api.Volume
		eventuallyIn(t, 3*time.Minute, func() bool {
			now = Must(t, c, api.GetVolume, vol(made.ID)).Volume
			return now.State != api.VolumeCreating
		})
		if now.State != api.VolumeReady {
			t.Fatalf("the restore came to %+v", now)
		}
		want := map[string]string{"before": sum, "after": changed}[name]
		reader := Sandbox(t, c, api.CreateSandboxIn{Resources: small, Volumes: []api.VolumeMount{{Volume: name, Path: "/data", ReadOnly: true}}})
		if got := said(t, c, reader, "sha256sum < /data/file"); got != want {
			t.Errorf("%s: restored %s, want %s", name, got, want)
		}
	}
	Must(t, c, api.DeleteBackup, api.DeleteBackupIn{BackupIn: api.BackupIn{BackupID: one.ID}})
	if code := Code(t, c, api.CreateVolume, api.CreateVolumeIn{Name: "none", FromBackup: one.ID}); code != "NOT_FOUND" {
		t.Errorf("a volume of a deleted backup: %s", code)
	}
	if b := Must(t, c, api.GetBackup, api.BackupIn{BackupID: two.ID}).Backup; b.State != api.BackupReady {
		t.Errorf("the other backup is %+v", b)
	}
}
