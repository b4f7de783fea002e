package audit

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
)

const columns = `id, org_id, workspace_id, at, principal_id, person_id, agent_id, app_id, key_id, face, client, source_ip, request_id,
	operation, action, resource_kind, resource_id, result, duration_us, end_of`

func values(e *Entry) []any {
	c := &e.Caller
	return []any{
		e.ID, c.OrgID, c.WorkspaceID, db.Micros(e.At), c.PrincipalID, c.PersonID, c.AgentID, c.AppID, c.KeyID, string(c.Face), c.Client, c.SourceIP,
		c.RequestID, e.Operation, e.Action, e.ResourceKind, e.ResourceID, e.Result, e.Duration.Microseconds(), e.EndOf,
	}
}

// insertion is the statement for a number of rows. A commit whose answer was lost is written again: what is there already is the same row.
func insertion(rows int) string {
	width := strings.Count(columns, ",") + 1
	var text strings.Builder
	text.WriteString(`INSERT INTO audit (` + columns + `) VALUES `)
	for n := range rows * width {
		if n > 0 && n%width == 0 {
			text.WriteString("),")
		}
		text.WriteByte("(,"[min(n%width, 1)])
		text.WriteString("$" + strconv.Itoa(n+1))
	}
	text.WriteString(`) ON CONFLICT (id) DO NOTHING`)
	return text.String()
}

// insert writes entries by one statement.
func insert(ctx context.Context, tx op.Tx, entries []Entry) error {
	var args []any
	for i := range entries {
		args = append(args, values(&entries[i])...)
	}
	if _, err := tx.ExecContext(ctx, insertion(len(entries)), args...); err != nil {
		return fmt.Errorf("write audit: %w", err)
	}
	return nil
}

// insertEach writes entries one by one by a statement that is read once. SQLite, which is in this process, takes longer to read a statement of many rows
// than to carry it out.
func insertEach(ctx context.Context, tx *sql.Tx, entries []Entry) error {
	stmt, err := tx.PrepareContext(ctx, insertion(1))
	if err != nil {
		return fmt.Errorf("write audit: %w", err)
	}
	defer stmt.Close()
	for i := range entries {
		if _, err := stmt.ExecContext(ctx, values(&entries[i])...); err != nil {
			return fmt.Errorf("write audit: %w", err)
		}
	}
	return nil
}

// end sets a result where there is none, or where the row is chained already without one adds the end as a row of its own. An end that was written before is not written again.
func end(ctx context.Context, tx *sql.Tx, e ending) error {
	res, err := tx.ExecContext(ctx, `UPDATE audit SET result = $2, duration_us = $3 WHERE id = $1 AND seq IS NULL AND result = ''`, e.id, e.result, e.duration.Microseconds())
	if err != nil {
		return fmt.Errorf("end audit row: %w", err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 1 {
		return err
	}
	_, err = tx.ExecContext(ctx, `
		INSERT INTO audit (`+columns+`)
		SELECT CAST($2 AS TEXT), org_id, workspace_id, CAST($3 AS BIGINT), principal_id, person_id, agent_id, app_id, key_id, face, client, source_ip, request_id,
			operation, action, resource_kind, resource_id, CAST($4 AS TEXT), CAST($5 AS BIGINT), id
		FROM audit WHERE id = $1 AND result = ''
		ON CONFLICT (id) DO NOTHING`, e.id, e.own, db.Micros(e.at), e.result, e.duration.Microseconds())
	if err != nil {
		return fmt.Errorf("write the late end of an audit row: %w", err)
	}
	return nil
}

// List gives the numbered rows of an organization after a number, in their order, at most limit of them.
func (l *Log) List(ctx context.Context, org string, after int64, limit int) ([]Entry, error) {
	return query(ctx, l.cfg.DB, `SELECT `+columns+`, seq, hash FROM audit WHERE org_id = $1 AND seq > $2 ORDER BY seq LIMIT $3`, org, after, limit)
}

// query gives the rows of a SELECT of columns, seq and hash.
func query(ctx context.Context, q db.Querier, text string, args ...any) (all []Entry, err error) {
	err = each(ctx, q, text, func(e Entry) error {
		all = append(all, e)
		return nil
	}, args...)
	return all, err
}

// each goes along the rows of a SELECT of columns, seq and hash. An error of fn ends it.
func each(ctx context.Context, q db.Querier, text string, fn func(e Entry) error, args ...any) error {
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return fmt.Errorf("list audit: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var e Entry
		var at, us int64
		var seq sql.NullInt64
		c, face := &e.Caller, ""
		if err := rows.Scan(&e.ID, &c.OrgID, &c.WorkspaceID, &at, &c.PrincipalID, &c.PersonID, &c.AgentID, &c.AppID, &c.KeyID, &face, &c.Client,
			&c.SourceIP, &c.RequestID, &e.Operation, &e.Action, &e.ResourceKind, &e.ResourceID, &e.Result, &us, &e.EndOf, &seq, &e.Hash); err != nil {
			return fmt.Errorf("read audit: %w", err)
		}
		e.At, e.Duration, e.Seq, c.Face = db.Time(at), time.Duration(us)*time.Microsecond, seq.Int64, caller.Face(face)
		if err := fn(e); err != nil {
			return err
		}
	}
	return rows.Err()
}

// chain is what is kept of an organization's chain besides its rows: where it ends, and what its first row goes on from.
type chain struct{ start, end Mark }

// chainOf reads it; sql.ErrNoRows where there is none.
func chainOf(ctx context.Context, q db.Querier, org string) (c chain, err error) {
	err = q.QueryRowContext(ctx, `SELECT dropped_seq, dropped_hash, seq, hash FROM audit_chains WHERE org_id = $1`, org).Scan(&c.start.Number, &c.start.Hash, &c.end.Number, &c.end.Hash)
	if err != nil {
		err = fmt.Errorf("read a chain: %w", err)
	}
	return c, err
}

// organizations gives the organizations that a query selects.
func organizations(ctx context.Context, q db.Querier, text string) (all []string, err error) {
	rows, err := q.QueryContext(ctx, text)
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var org string
		if err := rows.Scan(&org); err != nil {
			return nil, fmt.Errorf("list chains: %w", err)
		}
		all = append(all, org)
	}
	return all, rows.Err()
}
