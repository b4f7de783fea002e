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
	operation, action, resource_kind, resource_id, result, duration_us`

func values(e *Entry) []any {
	c := &e.Caller
	return []any{
		e.ID, c.OrgID, c.WorkspaceID, db.Micros(e.At), c.PrincipalID, c.PersonID, c.AgentID, c.AppID, c.KeyID, string(c.Face), c.Client, c.SourceIP,
		c.RequestID, e.Operation, e.Action, e.ResourceKind, e.ResourceID, e.Result, e.Duration.Microseconds(),
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

// List gives the numbered rows of an organization after a number, in their order, at most limit of them.
func (l *Log) List(ctx context.Context, org string, after int64, limit int) ([]Entry, error) {
	rows, err := l.cfg.DB.QueryContext(ctx, `SELECT `+columns+`, seq FROM audit WHERE org_id = $1 AND seq > $2 ORDER BY seq LIMIT $3`, org, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list audit: %w", err)
	}
	defer rows.Close()
	var all []Entry
	for rows.Next() {
		var e Entry
		var at, us int64
		c, face := &e.Caller, ""
		if err := rows.Scan(&e.ID, &c.OrgID, &c.WorkspaceID, &at, &c.PrincipalID, &c.PersonID, &c.AgentID, &c.AppID, &c.KeyID, &face, &c.Client,
			&c.SourceIP, &c.RequestID, &e.Operation, &e.Action, &e.ResourceKind, &e.ResourceID, &e.Result, &us, &e.Seq); err != nil {
			return nil, fmt.Errorf("read audit: %w", err)
		}
		e.At, e.Duration, c.Face = db.Time(at), time.Duration(us)*time.Microsecond, caller.Face(face)
		all = append(all, e)
	}
	return all, rows.Err()
}
