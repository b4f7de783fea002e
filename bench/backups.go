package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/client"
)

const (
	backupRounds = 3
	backupMiB    = 1024
	mostBackup   = 0.2 // of the first one's time, where 1 % changed
)

// fillVolume writes 1 GiB that does not compress: half in one file, as a database, and half in files of 128 KiB.
const fillVolume = `
import os
os.makedirs("/data/files")
with open("/data/database", "wb") as f:
    for i in range(512):
        f.write(os.urandom(1 << 20))
for i in range(4096):
    with open("/data/files/%d" % i, "wb") as f:
        f.write(os.urandom(128 << 10))
os.sync()
`

// changeVolume changes 1 % of that: pages anywhere in the large file.
const changeVolume = `
import os, random
f = os.open("/data/database", os.O_RDWR)
for page in random.sample(range(131072), 2621):
    os.pwrite(f, os.urandom(4096), page * 4096)
os.fsync(f)
`

// backups: a volume of 1 GiB is backed up, and again after 1 % of it has changed.
func (b *bench) backups(ctx context.Context, _ *server, _ string) error {
	s, err := b.serve(ctx, "--disk", "btrfs-image")
	if err != nil {
		return err
	}
	defer s.stop()
	conn, err := client.New(s.url, s.key)
	if err != nil {
		return err
	}
	var first, second []time.Duration
	var most float64
	for i := range backupRounds {
		stored, err := b.backTwice(ctx, conn, fmt.Sprintf("volume-%d", i), &first, &second)
		if err != nil {
			return err
		}
		most = max(most, stored)
	}
	b.rows = append(b.rows, row{
		what: "stored by the second backup of a volume of 1 GiB, 1 % changed", figure: fmt.Sprintf("%.2f %%", most/backupMiB*100), peer: "",
		must: fmt.Sprintf("≤ %.0f %%", 100*mostStored), met: most <= mostStored*backupMiB,
	})
	b.add("second backup of a volume of 1 GiB, 1 % changed", second, "the first", first, mostBackup)
	return nil
}

// backTwice gives the MiB that the second backup stored.
func (b *bench) backTwice(ctx context.Context, conn *client.Client, name string, first, second *[]time.Duration) (stored float64, err error) {
	made, err := client.Call(ctx, conn, api.CreateVolume, api.CreateVolumeIn{Name: name, SizeGiB: 2})
	if err != nil {
		return 0, err
	}
	sb, err := client.Call(ctx, conn, api.CreateSandbox, api.CreateSandboxIn{
		Resources: &api.ResourcesIn{MemoryMiB: 1024}, Volumes: []api.VolumeMount{{Volume: name, Path: "/data"}},
	})
	if err != nil {
		return 0, err
	}
	in := api.SandboxIn{SandboxID: sb.Sandbox.ID}
	for _, step := range []struct {
		script string
		took   *[]time.Duration
	}{{fillVolume, first}, {changeVolume, second}} {
		out, err := client.Call(ctx, conn, api.Exec, api.ExecIn{SandboxIn: in, CommandIn: api.CommandIn{Argv: []string{"python3", "-c", step.script}}, TimeoutSeconds: 600})
		if err != nil {
			return 0, err
		}
		if out.ExitCode == nil || *out.ExitCode != 0 {
			return 0, fmt.Errorf("write to the volume: exit %v: %s", out.ExitCode, out.Stderr)
		}
		var kept api.Backup
		t, err := timed(func() (err error) {
			kept, err = backUp(ctx, conn, made.Volume.ID)
			return err
		})
		if err != nil {
			return 0, err
		}
		*step.took, stored = append(*step.took, t), kept.StoredMiB
	}
	_, err = client.Call(ctx, conn, api.DeleteSandbox, api.SandboxWaitIn{SandboxIn: in})
	_, derr := client.Call(ctx, conn, api.DeleteVolume, api.DeleteVolumeIn{VolumeIn: api.VolumeIn{VolumeID: made.Volume.ID}})
	return stored, errors.Join(err, derr)
}

// backUp makes a backup to its end.
func backUp(ctx context.Context, conn *client.Client, volume string) (api.Backup, error) {
	wait := 30
	out, err := client.Call(ctx, conn, api.CreateBackup, api.CreateBackupIn{VolumeIn: api.VolumeIn{VolumeID: volume}, WaitIn: op.WaitIn{WaitSeconds: &wait}})
	if err != nil {
		return api.Backup{}, err
	}
	b := *out.Backup
	for b.State == api.BackupCreating {
		time.Sleep(20 * time.Millisecond)
		got, err := client.Call(ctx, conn, api.GetBackup, api.BackupIn{BackupID: b.ID})
		if err != nil {
			return b, err
		}
		b = got.Backup
	}
	if b.State != api.BackupReady {
		return b, fmt.Errorf("the backup failed: %s", b.Error)
	}
	return b, nil
}
