package sandbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
)

// row is a sandbox in the database. Times are microseconds UTC, 0 where there is none.
type row struct {
	ID, OrgID, WorkspaceID, Name    string
	State                           string
	Generation, BootGeneration      int64
	NodeID, Template, Image         string
	VCPUMilli, MemoryMiB, DiskGiB   int64
	Internet                        bool
	Env, Metadata                   map[string]string
	IdleSeconds                     int64
	OnIdle, OnExpiry                string
	AutoWake, WakeOnTimers          bool
	Persist                         bool
	GuestToken                      string
	CreatedBy                       op.CreatedBy
	PrincipalID                     string
	CreatedAt, StateAt              int64
	StartedAt, EndedAt              int64
	TTLSeconds, ExpiresAt, ActiveAt int64
	StopReason, Error               string
	ImageRef, ImageID               string // of one made from an image: as it was named, and the version once that is known
	RetentionSeconds                int64  // of a stopped or paused one; 0: for ever
	Depth, PauseReason, WakeError   string // of a paused one; see wakeFailure
	TimerAt                         int64  // when a timer inside is due
	Unsettled                       bool   // the node keeps what its last wake would be undone with
	OpID                            string // of the fork or snapshot under way
	Purpose                         string // build: one that a template is built in, which no caller sees
	BuildID                         string // of the template's build that it is made of
	Origin

	WithoutVolumes []string          // names of those that the sandbox had which it is a copy of
	mounted        bool              // it is made with volumes; not stored
	asked          []api.VolumeMount // these; not stored
	uses           map[string]string // what its create's names mean; not stored
	cause          string            // of the transition under way, for its event; not stored
}

// Origin is the save that a sandbox is made of; all empty where it is made of an image.
type Origin struct {
	ForkedFrom, SnapshotID string
	SaveName, SaveToken    string // on the node, and of the guest in it
	FromDisk               bool   // it boots on the save's disk
}

const columns = `id, org_id, workspace_id, name, state, generation, boot_generation, node_id, template, image, vcpu_milli, memory_mib, disk_gib,
	internet, env, metadata, idle_seconds, on_idle, on_expiry, auto_wake, wake_on_timers, persist, guest_token, created_by, principal_id,
	created_at, state_at, started_at, ended_at, ttl_seconds, expires_at, active_at, stop_reason, error, retention_seconds, image_ref, image_id,
	depth, pause_reason, wake_error, timer_at, unsettled, op_id, forked_from, snapshot_id, save_name, save_token, from_disk, without_volumes, purpose, build_id`

type store struct{}

func scan(s interface{ Scan(...any) error }) (*row, error) {
	var r row
	var env, metadata, by, without string
	err := s.Scan(&r.ID, &r.OrgID, &r.WorkspaceID, &r.Name, &r.State, &r.Generation, &r.BootGeneration, &r.NodeID, &r.Template, &r.Image,
		&r.VCPUMilli, &r.MemoryMiB, &r.DiskGiB, &r.Internet, &env, &metadata, &r.IdleSeconds, &r.OnIdle, &r.OnExpiry, &r.AutoWake,
		&r.WakeOnTimers, &r.Persist, &r.GuestToken, &by, &r.PrincipalID, &r.CreatedAt, &r.StateAt, &r.StartedAt, &r.EndedAt, &r.TTLSeconds, &r.ExpiresAt,
		&r.ActiveAt, &r.StopReason, &r.Error, &r.RetentionSeconds, &r.ImageRef, &r.ImageID,
		&r.Depth, &r.PauseReason, &r.WakeError, &r.TimerAt, &r.Unsettled, &r.OpID, &r.ForkedFrom, &r.SnapshotID, &r.SaveName, &r.SaveToken, &r.FromDisk, &without, &r.Purpose, &r.BuildID)
	if err != nil {
		return nil, err
	}
	for into, text := range map[any]string{&r.Env: env, &r.Metadata: metadata, &r.CreatedBy: by, &r.WithoutVolumes: without} { // by where it goes: two may hold the same
		if err := json.Unmarshal([]byte(text), into); err != nil {
			return nil, fmt.Errorf("read sandbox %s: %w", r.ID, err)
		}
	}
	return &r, nil
}

// get finds a sandbox by id, deleted ones too; nil where there is none.
func (s store) get(ctx context.Context, q op.Tx, id string) (*row, error) {
	r, err := scan(q.QueryRowContext(ctx, `SELECT `+columns+` FROM sandboxes WHERE id = $1`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read sandbox: %w", err)
	}
	return r, nil
}

// named finds the living sandbox of a name, nil where there is none.
func (s store) named(ctx context.Context, q op.Tx, workspaceID, name string) (*row, error) {
	r, err := scan(q.QueryRowContext(ctx, `SELECT `+columns+` FROM sandboxes
		WHERE workspace_id = $1 AND name = $2 AND state <> 'deleting' AND state <> 'deleted'`, workspaceID, name))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find sandbox by name: %w", err)
	}
	return r, nil
}

// insert makes a row. It is errLostRace where another one has the name.
func (s store) insert(ctx context.Context, tx op.Tx, r *row) error {
	env, metadata, by, err := r.texts()
	if err != nil {
		return err
	}
	without, err := namesText(r.WithoutVolumes)
	if err != nil {
		return err
	}
	res, err := insertInto(ctx, tx, r.ID, r.OrgID, r.WorkspaceID, r.Name, r.State, r.Generation, r.BootGeneration, r.NodeID, r.Template, r.Image, r.VCPUMilli, r.MemoryMiB,
		r.DiskGiB, db.Flag(r.Internet), env, metadata, r.IdleSeconds, r.OnIdle, r.OnExpiry, db.Flag(r.AutoWake), db.Flag(r.WakeOnTimers), db.Flag(r.Persist),
		r.GuestToken, by, r.PrincipalID, r.CreatedAt, r.StateAt, r.StartedAt, r.EndedAt, r.TTLSeconds, r.ExpiresAt, r.ActiveAt, r.StopReason, r.Error, r.RetentionSeconds, r.ImageRef, r.ImageID,
		r.Depth, r.PauseReason, r.WakeError, r.TimerAt, db.Flag(r.Unsettled), r.OpID, r.ForkedFrom, r.SnapshotID, r.SaveName, r.SaveToken, db.Flag(r.FromDisk), without, r.Purpose, r.BuildID)
	if err != nil {
		return fmt.Errorf("insert sandbox: %w", err)
	}
	if n, _ := res.RowsAffected(); n == 0 {
		return errLostRace
	}
	return s.label(ctx, tx, r)
}

func insertInto(ctx context.Context, tx op.Tx, values ...any) (sql.Result, error) {
	places := make([]string, len(values))
	for i := range values {
		places[i] = fmt.Sprintf("$%d", i+1)
	}
	return tx.ExecContext(ctx, `INSERT INTO sandboxes (`+columns+`) VALUES (`+strings.Join(places, ", ")+`) ON CONFLICT DO NOTHING`, values...)
}

func (s store) label(ctx context.Context, tx op.Tx, r *row) error {
	if _, err := tx.ExecContext(ctx, `DELETE FROM sandbox_labels WHERE sandbox_id = $1`, r.ID); err != nil {
		return fmt.Errorf("clear labels: %w", err)
	}
	for k, v := range r.Metadata {
		if _, err := tx.ExecContext(ctx, `INSERT INTO sandbox_labels (sandbox_id, key, value) VALUES ($1, $2, $3)`, r.ID, k, v); err != nil {
			return fmt.Errorf("insert label: %w", err)
		}
	}
	return nil
}

// save writes what callers may change of a sandbox, on the condition that nobody changed its state since r was read.
func (s store) save(ctx context.Context, tx op.Tx, r *row) error {
	env, metadata, _, err := r.texts()
	if err != nil {
		return err
	}
	res, err := tx.ExecContext(ctx, `UPDATE sandboxes SET name = $1, env = $2, metadata = $3, idle_seconds = $4, auto_wake = $5, wake_on_timers = $6,
		persist = $7, expires_at = $8, active_at = $9, retention_seconds = $10 WHERE id = $11 AND generation = $12`,
		r.Name, env, metadata, r.IdleSeconds, db.Flag(r.AutoWake), db.Flag(r.WakeOnTimers), db.Flag(r.Persist), r.ExpiresAt, r.ActiveAt, r.RetentionSeconds, r.ID, r.Generation)
	if err != nil {
		return fmt.Errorf("save sandbox: %w", err)
	}
	if n, _ := res.RowsAffected(); n == 0 {
		return errLostRace
	}
	return s.label(ctx, tx, r)
}

// errLostRace says that a row changed between its reading and its writing: read it again.
var errLostRace = errs.E(errs.Busy, "the sandbox changed at the same moment").Because("changed").After(200 * time.Millisecond).
	Suggest("Read it and call again.")

// move writes a transition. It is errLostRace when state or generation are no longer what r says.
func (s store) move(ctx context.Context, tx op.Tx, r *row, to string) error {
	if !allowed(r.State, to) {
		return fmt.Errorf("sandbox %s cannot go from %s to %s", r.ID, r.State, to)
	}
	res, err := tx.ExecContext(ctx, `UPDATE sandboxes SET state = $1, generation = generation + 1, boot_generation = $2, state_at = $3, started_at = $4,
		ended_at = $5, active_at = $6, stop_reason = $7, error = $8, guest_token = $9, expires_at = $10, depth = $11, pause_reason = $12, wake_error = $13,
		timer_at = $14, unsettled = $15 WHERE id = $16 AND state = $17 AND generation = $18`,
		to, r.BootGeneration, r.StateAt, r.StartedAt, r.EndedAt, r.ActiveAt, r.StopReason, r.Error, r.GuestToken, r.ExpiresAt, r.Depth, r.PauseReason, r.WakeError,
		r.TimerAt, db.Flag(r.Unsettled), r.ID, r.State, r.Generation)
	if err != nil {
		return fmt.Errorf("move sandbox: %w", err)
	}
	if n, _ := res.RowsAffected(); n == 0 {
		return errLostRace
	}
	r.State = to
	r.Generation++
	return nil
}

// filter is what a list asks for.
type filter struct {
	OrgID, WorkspaceID, PrincipalID string
	States                          []string
	Template, Name                  string
	Metadata                        map[string]string
	StartedAfter                    int64
	Oldest                          bool
	AfterTime                       int64
	AfterID                         string
	Limit                           int
}

// list gives the page that a filter asks for.
func (s store) list(ctx context.Context, q op.Tx, f filter) ([]*row, error) {
	var where []string
	var args []any
	add := func(cond string, values ...any) {
		for _, v := range values {
			args = append(args, v)
			cond = strings.Replace(cond, "?", fmt.Sprintf("$%d", len(args)), 1)
		}
		where = append(where, cond)
	}
	add("org_id = ?", f.OrgID)
	add("state <> ?", api.StateDeleted)
	add("purpose = ?", "")
	if f.PrincipalID != "" {
		add("principal_id = ?", f.PrincipalID)
	}
	if len(f.States) > 0 {
		values := make([]any, len(f.States))
		for i, st := range f.States {
			values[i] = st
		}
		add("state IN (?"+strings.Repeat(", ?", len(values)-1)+")", values...)
	}
	if f.Template != "" {
		add("template = ?", f.Template)
	}
	if f.Name != "" {
		add("name = ?", f.Name)
	}
	if f.StartedAfter > 0 {
		add("started_at > ?", f.StartedAfter)
	}
	for k, v := range f.Metadata {
		add("EXISTS (SELECT 1 FROM sandbox_labels l WHERE l.sandbox_id = sandboxes.id AND l.key = ? AND l.value = ?)", k, v)
	}
	order, than := "DESC", "<"
	if f.Oldest {
		order, than = "ASC", ">"
	}
	if f.AfterID != "" {
		add("(created_at "+than+" ? OR (created_at = ? AND id "+than+" ?))", f.AfterTime, f.AfterTime, f.AfterID)
	}
	rows, err := q.QueryContext(ctx, fmt.Sprintf(`SELECT %s FROM sandboxes WHERE %s ORDER BY created_at %s, id %s LIMIT %d`,
		columns, strings.Join(where, " AND "), order, order, f.Limit), args...)
	return collect(rows, err)
}

// countRunning counts the running sandboxes of an organization, of one principal where it is given.
func (s store) countRunning(ctx context.Context, q op.Tx, orgID, principalID string) (n int, err error) {
	err = q.QueryRowContext(ctx, `SELECT COUNT(*) FROM sandboxes WHERE org_id = $1 AND state = 'running' AND purpose = '' AND (principal_id = $2 OR $2 = '')`,
		orgID, principalID).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count running sandboxes: %w", err)
	}
	return n, nil
}

// used counts what an organization's sandboxes take from its quotas, by the rules of usage.
func (s store) used(ctx context.Context, q db.Querier, orgID string) (map[string]int64, error) {
	total := map[string]int64{}
	for _, st := range []string{api.StateCreating, api.StateStopped} {
		for k := range (&row{}).usage(st) {
			total[k] = 0
		}
	}
	rows, err := collect(q.QueryContext(ctx, `SELECT `+columns+` FROM sandboxes WHERE org_id = $1 AND state <> 'deleted'`, orgID))
	for _, r := range rows {
		for k, v := range r.usage(r.State) {
			total[k] += v
		}
	}
	return total, err
}

// living gives every sandbox that is not deleted, of all organizations.
func (s store) living(ctx context.Context, q op.Tx) ([]*row, error) {
	return collect(q.QueryContext(ctx, `SELECT `+columns+` FROM sandboxes WHERE state <> 'deleted'`))
}

// due gives sandboxes that a rule of time concerns at now: expiry, idling, the end of a retention, a timer inside, frozen for longer than a moment, failed
// or deleted for long enough.
func (s store) due(ctx context.Context, q op.Tx, now, frozenBefore, failedBefore, deletedBefore, wokenBefore int64) ([]*row, error) {
	return collect(q.QueryContext(ctx, `SELECT `+columns+` FROM sandboxes WHERE
		(state = 'running' AND op_id = '' AND ((expires_at > 0 AND expires_at <= $1) OR (idle_seconds > 0 AND persist = 0 AND active_at + idle_seconds * 1000000 <= $1)))
		OR (state IN ('stopped', 'paused') AND on_expiry = 'delete' AND expires_at > 0 AND expires_at <= $1)
		OR (state IN ('stopped', 'paused') AND retention_seconds > 0 AND state_at + retention_seconds * 1000000 <= $1)
		OR (state = 'paused' AND wake_on_timers = 1 AND pause_reason = 'idle' AND timer_at > 0 AND timer_at <= $1)
		OR (state = 'paused' AND depth = 'frozen' AND state_at <= $2)
		OR (state = 'running' AND unsettled = 1 AND state_at <= $5)
		OR (state = 'failed' AND state_at <= $3) OR (state = 'deleted' AND state_at <= $4) LIMIT 200`, now, frozenBefore, failedBefore, deletedBefore, wokenBefore))
}

// touch records that a sandbox was in use.
func (s store) touch(ctx context.Context, q op.Tx, id string, at int64) error {
	if _, err := q.ExecContext(ctx, `UPDATE sandboxes SET active_at = $1 WHERE id = $2 AND active_at < $1`, at, id); err != nil {
		return fmt.Errorf("touch sandbox: %w", err)
	}
	return nil
}

// purge removes the tombstone of a deleted sandbox.
func (s store) purge(ctx context.Context, q op.Tx, id string) error {
	if _, err := q.ExecContext(ctx, `DELETE FROM sandboxes WHERE id = $1 AND state = 'deleted'`, id); err != nil {
		return fmt.Errorf("purge sandbox: %w", err)
	}
	return nil
}

var collect = db.Collect("list sandboxes", scan)

func (r *row) texts() (env, metadata, by string, err error) {
	for into, v := range map[*string]any{&env: orEmpty(r.Env), &metadata: orEmpty(r.Metadata), &by: r.CreatedBy} {
		b, err := json.Marshal(v)
		if err != nil {
			return "", "", "", fmt.Errorf("encode sandbox: %w", err)
		}
		*into = string(b)
	}
	return env, metadata, by, nil
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

func timeOf(us int64) *time.Time {
	if us == 0 {
		return nil
	}
	t := db.Time(us)
	return &t
}
