package sandbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/runtime"
)

// purposeBuild marks sandboxes that templates are built in. They count as all do, and no caller sees them.
const purposeBuild = "build"

// BuildSandbox is a sandbox that a template is built in.
type BuildSandbox struct {
	ID, BuildID        string
	OrgID, WorkspaceID string
	By                 op.CreatedBy
	PrincipalID        string
	Image, ImageID     string
	Layer              string // a save whose disk it begins with; empty: the image's
	Resources          runtime.Resources
	Internet           bool
	For                time.Duration // after which it is deleted, whoever still wants it
}

// MakeForBuild makes one, of the organization's quotas.
func (s *Service) MakeForBuild(ctx context.Context, b BuildSandbox) error {
	now := db.Micros(s.Now())
	r := &row{
		ID: b.ID, OrgID: b.OrgID, WorkspaceID: b.WorkspaceID, State: api.StateCreating, Generation: 1, Purpose: purposeBuild, BuildID: b.BuildID,
		Image: b.Image, ImageID: b.ImageID, VCPUMilli: milli(b.Resources.VCPU), MemoryMiB: b.Resources.MemoryMiB, DiskGiB: b.Resources.DiskGiB, Internet: b.Internet,
		OnIdle: "stop", OnExpiry: "delete", GuestToken: guest.NewToken(), CreatedBy: b.By, PrincipalID: b.PrincipalID,
		CreatedAt: now, StateAt: now, ActiveAt: now, TTLSeconds: int64(b.For / time.Second),
	}
	r.ExpiresAt = now + b.For.Microseconds()
	if b.Layer != "" {
		r.SaveName, r.FromDisk = b.Layer, true
	}
	if err := s.DB.Tx(ctx, func(tx *sql.Tx) error { return s.insertTx(ctx, tx, r) }); err != nil {
		return err
	}
	s.nudge(r.ID)
	return nil
}

// AwaitForBuild waits until one runs, and gives its guest and the guest's token.
func (s *Service) AwaitForBuild(ctx context.Context, id string) (*guest.Client, string, error) {
	for {
		r, err := s.settle(ctx, id, time.Minute)
		switch {
		case err != nil:
			return nil, "", err
		case r.State == api.StateRunning:
			return s.guest(r.ID, r.BootGeneration, r.GuestToken), r.GuestToken, nil
		case r.State == api.StateFailed:
			return nil, "", errs.E(errs.Upstream, "the sandbox of the build did not start: %s", r.Error).Because("boot_failed")
		case !moving(r.State) || goes(r):
			return nil, "", errs.E(errs.Upstream, "the sandbox of the build has ended: it is %s", r.State).Because(r.StopReason)
		case ctx.Err() != nil:
			return nil, "", ctx.Err()
		}
	}
}

// SaveForBuild has the node keep one as it is now.
func (s *Service) SaveForBuild(ctx context.Context, id, name string, memory bool) (runtime.Save, error) {
	return s.save(ctx, id, name, runtime.SaveOptions{Memory: memory})
}

// ExplainBuild gives the error of a call on a guest a better one where the sandbox of a build died under it.
func (s *Service) ExplainBuild(ctx context.Context, id string, err error) error {
	r, rerr := s.store.get(ctx, s.DB, id)
	if rerr != nil || r == nil || r.State == api.StateRunning {
		return err
	}
	if r.StopReason == runtime.ReasonOutOfMemory {
		return errs.E(errs.Upstream, "the build ran out of memory").Because(r.StopReason).Suggest("Give it more with memoryMiB.")
	}
	return errs.E(errs.Upstream, "the sandbox of the build has ended: it is %s", r.State).Because(r.StopReason)
}

// EndForBuild deletes one.
func (s *Service) EndForBuild(ctx context.Context, id string) error {
	for {
		r, err := s.store.get(ctx, s.DB, id)
		if err != nil || r == nil || goes(r) {
			return err
		}
		err = s.move(ctx, r, api.StateDeleting)
		if errors.Is(err, errLostRace) {
			continue
		}
		if err == nil {
			s.interrupt(id)
		}
		return err
	}
}

// ForBuilds gives the sandboxes that templates are built in, and the build of each.
func (s *Service) ForBuilds(ctx context.Context) (map[string]string, error) {
	rows, err := collect(s.DB.QueryContext(ctx, `SELECT `+columns+` FROM sandboxes WHERE purpose = $1 AND state <> 'deleting' AND state <> 'deleted'`, purposeBuild))
	all := map[string]string{}
	for _, r := range rows {
		all[r.ID] = r.BuildID
	}
	return all, err
}

// UsingBuilds gives the ids of sandboxes that are not deleted and are of one of these builds of a template, or are to be, at most a few.
func (s *Service) UsingBuilds(ctx context.Context, tx op.Tx, builds []string) ([]string, error) {
	return usersOf(ctx, tx, `SELECT id FROM sandboxes s WHERE purpose = '' AND state <> 'deleted' AND (build_id IN (%[1]s)
		OR EXISTS (SELECT 1 FROM sandbox_switches w WHERE w.sandbox_id = s.id AND w.state = 'pending' AND w.build_id IN (%[1]s))) ORDER BY id LIMIT 10`, builds)
}

func usersOf(ctx context.Context, tx op.Tx, query string, builds []string) ([]string, error) {
	var all []string
	for len(builds) > 0 {
		part := builds[:min(len(builds), 200)]
		builds = builds[len(part):]
		args, places := make([]any, len(part)), make([]string, len(part))
		for i, b := range part {
			args[i], places[i] = b, fmt.Sprintf("$%d", i+1)
		}
		rows, err := tx.QueryContext(ctx, fmt.Sprintf(query, strings.Join(places, ", ")), args...)
		if err != nil {
			return nil, fmt.Errorf("list users of builds: %w", err)
		}
		for rows.Next() {
			var one string
			if err := rows.Scan(&one); err != nil {
				_ = rows.Close()
				return nil, fmt.Errorf("list users of builds: %w", err)
			}
			all = append(all, one)
		}
		err = rows.Err()
		_ = rows.Close()
		if err != nil {
			return nil, fmt.Errorf("list users of builds: %w", err)
		}
	}
	return all, nil
}
