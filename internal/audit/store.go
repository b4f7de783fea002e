package audit

import (
	"context"
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

func insert(ctx context.Context, tx op.Tx, entries []Entry) error {
	var text strings.Builder
	var args []any
	text.WriteString(`INSERT INTO audit (` + columns + `) VALUES `)
	for i, e := range entries {
		c := e.Caller
		row := []any{
			e.ID, c.OrgID, c.WorkspaceID, db.Micros(e.At), c.PrincipalID, c.PersonID, c.AgentID, c.AppID, c.KeyID, string(c.Face), c.Client, c.SourceIP,
			c.RequestID, e.Operation, e.Action, e.ResourceKind, e.ResourceID, e.Result, e.Duration.Microseconds(),
		}
		if i > 0 {
			text.WriteByte(',')
		}
		for j := range row {
			text.WriteByte("(,"[min(j, 1)])
			text.WriteString("$" + strconv.Itoa(len(args)+j+1))
		}
		text.WriteByte(')')
		args = append(args, row...)
	}
	// A commit whose answer was lost is written again: what is there already is the same row.
	text.WriteString(` ON CONFLICT (id) DO NOTHING`)
	if _, err := tx.ExecContext(ctx, text.String(), args...); err != nil {
		return fmt.Errorf("write audit: %w", err)
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
