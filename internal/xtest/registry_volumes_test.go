package xtest

import (
	"testing"

	"github.com/berthrun/berth/api"
)

// volume makes one.
func (g *registry) volume(t *testing.T, name string) string {
	t.Helper()
	v := Must(t, g.s.Client, api.CreateVolume, api.CreateVolumeIn{Name: name, SizeGiB: 1}).Volume
	if v == nil || v.State != api.VolumeReady {
		t.Fatalf("made %+v", v)
	}
	return v.ID
}

// backup makes one of a volume.
func (g *registry) backup(t *testing.T, volume string) string {
	t.Helper()
	b := Must(t, g.s.Client, api.CreateBackup, api.CreateBackupIn{VolumeIn: api.VolumeIn{VolumeID: volume}}).Backup
	if b == nil || b.State != api.BackupReady {
		t.Fatalf("made %+v", b)
	}
	return b.ID
}
