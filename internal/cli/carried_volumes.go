package cli

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
)

// plural is what an operation is about, as commands name it.
func plural(operation string) string {
	name, _, _ := strings.Cut(operation, ".")
	return kebab(name)
}

// copied puts how far a copy is into a stage.
func (s *stage) copied(p *api.CopyProgress) {
	if p != nil {
		s.done, s.total = int64(p.DoneMiB*mebi), int64(p.TotalMiB*mebi)
	}
}

func carriedBackup(_ context.Context, conn *client.Client, raw json.RawMessage) (func(context.Context) (stage, error), error) {
	var out api.BackupOut
	if err := json.Unmarshal(raw, &out); err != nil || out.Backup == nil {
		return nil, err // held back
	}
	return func(ctx context.Context) (stage, error) {
		got, err := client.Call(ctx, conn, api.GetBackup, api.BackupIn{BackupID: out.Backup.ID})
		if err != nil {
			return stage{}, err
		}
		b := got.Backup
		out.Backup, out.Ready = &b, b.State == api.BackupReady
		s := stage{name: b.VolumeName, ended: b.State != api.BackupCreating, done: int64(b.ContentMiB * mebi), total: int64(b.ContentMiB * mebi), out: out}
		s.copied(b.Progress)
		if b.State == api.BackupFailed {
			s.failed = &client.Error{Code: "UPSTREAM_ERROR", Message: "the backup failed: " + b.Error, Reason: b.Reason, Suggestion: "The volume and its other backups are as they were. Try again."}
		}
		return s, nil
	}, nil
}

func carriedVolume(_ context.Context, conn *client.Client, raw json.RawMessage) (func(context.Context) (stage, error), error) {
	var out api.VolumeOut
	if err := json.Unmarshal(raw, &out); err != nil || out.Volume == nil {
		return nil, err // held back
	}
	return func(ctx context.Context) (stage, error) {
		got, err := client.Call(ctx, conn, api.GetVolume, api.VolumeIn{VolumeID: out.Volume.ID})
		if err != nil {
			return stage{}, err
		}
		v := got.Volume
		out.Volume, out.Ready = &v, v.State == api.VolumeReady
		s := stage{name: v.Name, ended: v.State != api.VolumeCreating, out: out}
		s.copied(v.Progress)
		if v.State == api.VolumeFailed {
			s.failed = &client.Error{Code: "UPSTREAM_ERROR", Message: "the volume could not be made: " + v.Error, Reason: v.Reason, Suggestion: "Nothing half-made is used. Try again, or another backup."}
		}
		return s, nil
	}, nil
}
