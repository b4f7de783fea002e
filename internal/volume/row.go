package volume

import (
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
)

// row is a volume in the database. Times are microseconds UTC, 0 where there is none.
type row struct {
	ID, OrgID, WorkspaceID, Name string
	State, Error, Reason         string
	PoolID                       string
	SizeGiB, MadeGiB             int64
	UsedBytes, MeasuredAt        int64
	FromBackup                   string
	DoneBytes                    int64
	CreatedBy                    op.CreatedBy
	PrincipalID                  string
	CreatedAt, StateAt           int64
}

// backup is a backup in the database.
type backup struct {
	ID, OrgID, WorkspaceID       string
	VolumeID, VolumeName         string
	SizeGiB                      int64
	State, Error, Reason         string
	Automatic                    bool
	DoneBytes, TotalBytes, Files int64
	ContentBytes, StoredBytes    int64
	SHA256                       string
	TakenAt                      int64
	CreatedBy                    op.CreatedBy
	PrincipalID                  string
	CreatedAt, StateAt           int64
}

// policy is the rule by which a volume is backed up.
type policy struct {
	VolumeID           string
	Hour               int
	KeepDays, KeepLast int
	NextAt             int64
	CreatedBy          op.CreatedBy
	PrincipalID        string
}

// attachment is a volume's place in a sandbox.
type attachment struct {
	SandboxID, VolumeID, Name, Path string
	ReadOnly                        bool
}

// transitions says which states follow each state: of volumes and of backups alike.
var transitions = map[string][]string{
	api.VolumeCreating: {api.VolumeReady, api.VolumeFailed, api.VolumeDeleting},
	api.VolumeReady:    {api.VolumeDeleting},
	api.VolumeFailed:   {api.VolumeDeleting},
	api.VolumeDeleting: {api.VolumeDeleted},
	api.VolumeDeleted:  {},
}

func moving(state string) bool { return state == api.VolumeCreating || state == api.VolumeDeleting }

func gone(state string) bool { return state == api.VolumeDeleting || state == api.VolumeDeleted }

// usage is what a volume in a state takes from the organization's quotas: all of its size, for as long as it is there.
func (r *row) usage(state string) map[string]int64 {
	if state == "" || state == api.VolumeDeleted || state == api.VolumeFailed {
		return map[string]int64{"volumes.total": 0, "disk.total": 0}
	}
	return map[string]int64{"volumes.total": 1, "disk.total": r.SizeGiB}
}

func (r *row) resource() op.Resource {
	return op.Resource{Kind: "volume", ID: r.ID, OrgID: r.OrgID, WorkspaceID: r.WorkspaceID, Name: r.Name, CreatedBy: r.CreatedBy}
}

func (b *backup) resource() op.Resource {
	return op.Resource{Kind: "backup", ID: b.ID, OrgID: b.OrgID, WorkspaceID: b.WorkspaceID, Name: b.VolumeName, CreatedBy: b.CreatedBy}
}

func (b *backup) stored() Stored { return Stored{ID: b.ID, OrgID: b.OrgID, VolumeID: b.VolumeID} }

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

func timeOf(us int64) *time.Time {
	if us == 0 {
		return nil
	}
	t := db.Time(us)
	return &t
}

// progress says how far a copy is. What is done is never more than all.
func progress(done, total int64) *api.CopyProgress {
	p := &api.CopyProgress{DoneMiB: mib(done), TotalMiB: mib(total)}
	if total > 0 {
		done = min(done, total)
		p.DoneMiB, p.Percent = mib(done), int(done*100/total)
	}
	return p
}

// show is a volume as callers see it, without what other tables hold.
func (r *row) show() api.Volume {
	v := api.Volume{
		ID: r.ID, Name: r.Name, State: r.State, Error: r.Error, Reason: r.Reason, PoolID: r.PoolID, WorkspaceID: r.WorkspaceID, SizeGiB: r.SizeGiB,
		FromBackup: r.FromBackup, CreatedAt: db.Time(r.CreatedAt), CreatedBy: r.CreatedBy, Attachments: []api.VolumeAttachment{},
	}
	if r.MeasuredAt > 0 && r.State == api.VolumeReady {
		used := mib(r.UsedBytes)
		v.UsedMiB, v.MeasuredAt = &used, timeOf(r.MeasuredAt)
	}
	return v
}

func (b *backup) show() api.Backup {
	out := api.Backup{
		ID: b.ID, VolumeID: b.VolumeID, VolumeName: b.VolumeName, WorkspaceID: b.WorkspaceID, State: b.State, Error: b.Error, Reason: b.Reason, Automatic: b.Automatic,
		SizeGiB: b.SizeGiB, Files: b.Files, ContentMiB: mib(b.ContentBytes), StoredMiB: mib(b.StoredBytes), SHA256: b.SHA256, TakenAt: timeOf(b.TakenAt),
		CreatedAt: db.Time(b.CreatedAt), CreatedBy: b.CreatedBy,
	}
	if b.State == api.BackupCreating {
		out.Progress = progress(b.DoneBytes, b.TotalBytes)
	}
	return out
}

func (p *policy) show() *api.BackupPolicy {
	return &api.BackupPolicy{Hour: p.Hour, KeepDays: p.KeepDays, KeepLast: p.KeepLast, NextAt: timeOf(p.NextAt)}
}

// next is the first moment after now that is an hour of a day, UTC.
func (p *policy) next(now time.Time) time.Time {
	now = now.UTC()
	at := time.Date(now.Year(), now.Month(), now.Day(), p.Hour, 0, 0, 0, time.UTC)
	if !at.After(now) {
		at = at.AddDate(0, 0, 1)
	}
	return at
}

func errNotFound(id string) error {
	return errs.E(errs.NotFound, "there is no volume %s", id).Because("volume").Suggest("Check it; list_volumes with scope all shows which exist.")
}

func errNoBackup(id string) error {
	return errs.E(errs.NotFound, "there is no backup %s", id).Because("backup").Suggest("Check the id; backups.list with scope all shows which exist.")
}

func errNotReady(r *row) error {
	if r.State == api.VolumeFailed {
		return errs.E(errs.InvalidState, "the volume failed: %s", r.Error).Because(r.State).Suggest("Delete it and create another.").With("state", r.State)
	}
	return errs.E(errs.Busy, "the volume is %s", r.State).Because(r.State).After(2*time.Second).
		Suggest("Call again in a few seconds with the same idempotencyKey.").With("state", r.State).With("volumeId", r.ID)
}

func errBackupNotReady(b *backup) error {
	if b.State == api.BackupFailed {
		return errs.E(errs.InvalidState, "the backup failed: %s", b.Error).Because(b.State).Suggest("Use another one.").With("state", b.State)
	}
	return errs.E(errs.Busy, "the backup is %s", b.State).Because(b.State).After(2*time.Second).
		Suggest("Call again in a few seconds with the same idempotencyKey.").With("state", b.State).With("backupId", b.ID)
}

func errNameTaken(name string) error {
	return errs.E(errs.AlreadyExists, "a volume named %s exists in the organization", name).Suggest("Choose another name, or use the one that exists.").With("path", "name")
}

// errLostRace says that a row changed between its reading and its writing: read it again.
var errLostRace = errs.E(errs.Busy, "it changed at the same moment").Because("changed").After(200 * time.Millisecond).Suggest("Read it and call again.")

// unsupported is the answer for what this deployment cannot do.
func unsupported(what string) error {
	return errs.E(errs.Unavailable, "%s are not available in this deployment", what).Because("not_supported").
		Suggest("list_capabilities says what is on and what the rest needs.")
}
