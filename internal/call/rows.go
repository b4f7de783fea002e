package call

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
)

const (
	leaseFor  = 30 * time.Second
	keptFor   = 24 * time.Hour
	maxResult = 64 << 10
)

// The states of a row.
const (
	stateHeld    = "held"    // a person is to approve it
	statePending = "pending" // under its lease it is being worked on; without one the same key goes on
	stateDone    = "done"
)

// name is what a retry key belongs to.
type name struct{ org, principal, operation, key string }

// row is a recorded call: what the table idempotency holds.
type row struct {
	inputSHA256 string
	state       string
	once        string
	resourceID  string
	processID   string
	confirmed   string         // the id of the confirmation that it waits for, or was approved with
	result      sql.NullString // JSON; a done row without result and error had one that was too large to keep
	err         sql.NullString // JSON of keptError
	leaseUntil  time.Time
}

// topic is notified when the row has changed.
func (r *row) topic() string { return "call:" + r.once }

// kept reports whether the row's end can be shown again as it was.
func (r *row) kept() bool { return r.state == stateDone && (r.result.Valid || r.err.Valid) }

type rows struct {
	db    *db.DB
	lease time.Duration
}

// insert makes the row and leases it to owner, unless there is one that has not expired.
func (s rows) insert(ctx context.Context, tx op.Tx, n name, r row, owner string, now time.Time) (bool, error) {
	res, err := tx.ExecContext(ctx, `
		INSERT INTO idempotency (org_id, principal_id, operation, idem_key, input_sha256, state, once, resource_id, process_id,
			lease_owner, lease_until, created_at, expires_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
		ON CONFLICT (org_id, principal_id, operation, idem_key) DO UPDATE SET
			input_sha256 = excluded.input_sha256, state = excluded.state, once = excluded.once, resource_id = excluded.resource_id,
			process_id = excluded.process_id, confirmation_id = '', result = NULL, error = NULL, lease_owner = excluded.lease_owner,
			lease_until = excluded.lease_until, created_at = excluded.created_at, expires_at = excluded.expires_at
		WHERE idempotency.expires_at <= excluded.created_at`,
		n.org, n.principal, n.operation, n.key, r.inputSHA256, r.state, r.once, r.resourceID, r.processID,
		owner, db.Micros(now.Add(s.lease)), db.Micros(now), db.Micros(now.Add(keptFor)))
	if err != nil {
		return false, fmt.Errorf("record retry key: %w", err)
	}
	made, err := res.RowsAffected()
	return made == 1, err
}

// get reads the row; it is nil where there is none.
func (s rows) get(ctx context.Context, q db.Querier, n name) (*row, error) {
	var r row
	var lease int64
	err := q.QueryRowContext(ctx, `
		SELECT input_sha256, state, once, resource_id, process_id, confirmation_id, result, error, lease_until FROM idempotency
		WHERE org_id = $1 AND principal_id = $2 AND operation = $3 AND idem_key = $4`,
		n.org, n.principal, n.operation, n.key).Scan(&r.inputSHA256, &r.state, &r.once, &r.resourceID, &r.processID, &r.confirmed, &r.result, &r.err, &lease)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read retry key: %w", err)
	}
	r.leaseUntil = db.Time(lease)
	return &r, nil
}

// setIDs keeps ids that the intent has changed.
func (s rows) setIDs(ctx context.Context, tx op.Tx, n name, resourceID, processID string) error {
	_, err := s.change(ctx, tx, n, `TRUE`, `resource_id = $5, process_id = $6`, resourceID, processID)
	return err
}

// takeOver leases a row to owner that nobody works on: one whose lease has run out, or whose result was too large to keep.
func (s rows) takeOver(ctx context.Context, tx op.Tx, n name, owner string, now time.Time) (bool, error) {
	return s.change(ctx, tx, n, `((state = 'pending' AND lease_until <= $7) OR (state = 'done' AND result IS NULL AND error IS NULL))`,
		`state = 'pending', lease_owner = $5, lease_until = $6`, owner, db.Micros(now.Add(s.lease)), db.Micros(now))
}

// renew lengthens the lease and reports whether it still is owner's.
func (s rows) renew(ctx context.Context, n name, owner string) (ours bool, err error) {
	err = s.db.TxRelaxed(ctx, func(tx *sql.Tx) error {
		now, err := s.db.Now(ctx, tx)
		if err != nil {
			return err
		}
		ours, err = s.update(ctx, tx, n, owner, `lease_until = $6`, db.Micros(now.Add(s.lease)))
		return err
	})
	return ours, err
}

// finish keeps the end of a call: its result, or a final error. Neither gives the lease back, so that the same key goes on. It doesn't wait for the
// disk: where a loss of power takes the row's end away, the same key acts again, which is one effect.
func (s rows) finish(ctx context.Context, n name, r *row, owner string, result json.RawMessage, failed *errs.Error) error {
	err := s.db.TxRelaxed(ctx, func(tx *sql.Tx) (err error) {
		switch {
		case result == nil && failed == nil:
			_, err = s.update(ctx, tx, n, owner, `lease_until = $6`, 0)
		case failed != nil:
			_, err = s.update(ctx, tx, n, owner, `state = 'done', lease_until = 0, error = $6`, keep(failed))
		case len(result) > maxResult:
			_, err = s.update(ctx, tx, n, owner, `state = 'done', lease_until = $6`, 0)
		default:
			_, err = s.update(ctx, tx, n, owner, `state = 'done', lease_until = 0, result = $6`, string(result))
		}
		s.db.NotifyAfter(tx, r.topic())
		return err
	})
	if err != nil {
		return fmt.Errorf("keep result: %w", err)
	}
	return nil
}

// update changes a row that owner has the lease of. The value is $6.
func (s rows) update(ctx context.Context, tx op.Tx, n name, owner, set string, value any) (bool, error) {
	return s.change(ctx, tx, n, `lease_owner = $5 AND state = 'pending'`, set, owner, value)
}

// change changes a row of which a condition holds, and reports whether it did. The values are $5 and on.
func (rows) change(ctx context.Context, tx op.Tx, n name, condition, set string, values ...any) (bool, error) {
	res, err := tx.ExecContext(ctx, `UPDATE idempotency SET `+set+`
		WHERE org_id = $1 AND principal_id = $2 AND operation = $3 AND idem_key = $4 AND `+condition,
		append([]any{n.org, n.principal, n.operation, n.key}, values...)...)
	if err != nil {
		return false, fmt.Errorf("change retry key: %w", err)
	}
	changed, err := res.RowsAffected()
	return changed == 1, err
}

// giveBack ends the leases of every server but one.
func (s rows) giveBack(ctx context.Context, server string) error {
	_, err := s.db.ExecContext(ctx, `UPDATE idempotency SET lease_until = 0 WHERE state = 'pending' AND lease_owner NOT LIKE $1`, server+"/%")
	return err
}

// purge removes rows whose time is over, and buckets that are full again.
func (s rows) purge(ctx context.Context) error {
	return s.db.TxRelaxed(ctx, func(tx *sql.Tx) error {
		now, err := s.db.Now(ctx, tx)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM idempotency WHERE expires_at <= $1`, db.Micros(now))
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM buckets WHERE updated_at <= $1`, db.Micros(now.Add(-time.Hour)))
		return err
	})
}

// keptError is how a final error is kept.
type keptError struct {
	Code         errs.Code      `json:"code"`
	Message      string         `json:"message"`
	Suggestion   string         `json:"suggestion,omitempty"`
	Reason       string         `json:"reason,omitempty"`
	RetryAfterMS int64          `json:"retryAfterMs,omitempty"`
	Details      map[string]any `json:"details,omitempty"`
}

func keep(e *errs.Error) string {
	k := keptError{e.Code, e.Message, e.Suggestion, e.Reason, e.RetryAfter.Milliseconds(), e.Details}
	b, err := json.Marshal(k)
	if err != nil || len(b) > maxResult {
		k.Details = nil
		b, _ = json.Marshal(k)
	}
	return string(b)
}

func kept(s string) error {
	var k keptError
	if err := json.Unmarshal([]byte(s), &k); err != nil {
		return fmt.Errorf("read kept error: %w", err)
	}
	return &errs.Error{
		Code: k.Code, Message: k.Message, Suggestion: k.Suggestion, Reason: k.Reason,
		RetryAfter: time.Duration(k.RetryAfterMS) * time.Millisecond, Details: k.Details,
	}
}

// transient reports whether the same key may still lead to a result: such an error is not kept.
func transient(err error) bool {
	if errors.Is(err, context.Canceled) {
		return true
	}
	switch errs.CodeOf(err) {
	case errs.Busy, errs.HostUnavailable, errs.Unavailable, errs.NoCapacity, errs.RateLimited, errs.Timeout, errs.Internal:
		return true
	}
	return false
}
