package audit

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/draft"
	"github.com/berthrun/berth/internal/errs"
)

const (
	// lookAt bounds the rows that a page of a list looks at.
	lookAt = 20_000
	// askew is how far the times of neighbouring rows may be out of their order: rows are chained as calls end, and servers' clocks differ.
	askew = time.Hour
	// exportAtOnce is how many rows an export reads at a time.
	exportAtOnce = 1000
)

// Register binds the operations on the audit log.
func (l *Log) Register(r *op.Registry) {
	op.Handle(r, api.ListAudit, op.Handler[api.ListAuditIn, api.ListAuditOut]{Draft: draft.OnOrganization[api.ListAuditIn], Act: l.actList})
	op.HandleStream(r, api.ExportAudit, op.StreamHandler[api.ExportAuditIn]{Draft: draft.OnOrganization[api.ExportAuditIn], Serve: l.serveExport})
}

// filters are what a cursor is bound to.
func filters(in *api.ListAuditIn) any {
	f := *in
	f.PageIn = op.PageIn{}
	return f
}

func (l *Log) actList(ctx context.Context, in *api.ListAuditIn, _ *op.Draft) (*api.ListAuditOut, error) {
	org := caller.From(ctx).OrgID
	after, err := op.DecodeCursor(in.Cursor, filters(in), 1)
	if err != nil {
		return nil, err
	}
	first, last, err := l.between(ctx, org, in.Start, in.End)
	if err != nil {
		return nil, err
	}
	if after != nil {
		before, err := strconv.ParseInt(after[0], 10, 64)
		if err != nil {
			return nil, errs.E(errs.InvalidCursor, "the cursor is not valid for this call").Suggest("Call again without a cursor to begin at the first page.")
		}
		last = min(last, before-1)
	}
	limit := in.Size()
	from := max(first, last-lookAt+1)
	rows, err := l.page(ctx, org, in, from, last, limit)
	if err != nil {
		return nil, err
	}
	out := &api.ListAuditOut{Items: make([]api.AuditRow, len(rows))}
	for i := range rows {
		out.Items[i] = show(&rows[i])
	}
	if len(rows) == limit {
		from = rows[limit-1].Seq
	}
	if from > first {
		out.NextCursor = op.EncodeCursor(filters(in), strconv.FormatInt(from, 10))
	}
	return out, nil
}

// page gives the rows among some numbers that fit, the greatest number first.
func (l *Log) page(ctx context.Context, org string, in *api.ListAuditIn, from, to int64, limit int) ([]Entry, error) {
	text := `SELECT ` + columns + `, seq, hash FROM audit WHERE org_id = $1 AND seq >= $2 AND seq <= $3`
	args := []any{org, from, to}
	where := func(condition string, v any) {
		args = append(args, v)
		text += " AND " + fmt.Sprintf(condition, len(args))
	}
	if in.Start != nil {
		where(`at >= $%d`, db.Micros(*in.Start))
	}
	if in.End != nil {
		where(`at < $%d`, db.Micros(*in.End))
	}
	if in.Principal != "" {
		where(`$%[1]d IN (principal_id, person_id, agent_id, app_id, key_id)`, in.Principal)
	}
	if in.Operation != "" {
		where(`operation = $%d`, in.Operation)
	}
	if in.Result != "" {
		where(`result = $%d`, in.Result)
	}
	if in.Resource != "" {
		where(`resource_id = $%d`, in.Resource)
	}
	return query(ctx, l.cfg.DB, text+fmt.Sprintf(` ORDER BY seq DESC LIMIT %d`, limit), args...)
}

// between gives the numbers of the first and last row that may be of a time. Numbers follow the times but for a while, so they are found by halving.
func (l *Log) between(ctx context.Context, org string, start, end *time.Time) (first, last int64, err error) {
	c, err := chainOf(ctx, l.cfg.DB, org)
	if errors.Is(err, sql.ErrNoRows) {
		return 1, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	first, last = c.start.Number+1, c.end.Number
	since := func(t time.Time) int64 { // the first number from which on rows are not older
		return first + int64(sort.Search(int(last-first+1), func(i int) bool {
			var at int64
			if e := l.cfg.DB.QueryRowContext(ctx, `SELECT at FROM audit WHERE org_id = $1 AND seq = $2`, org, first+int64(i)).Scan(&at); e != nil && !errors.Is(e, sql.ErrNoRows) {
				err = e
			}
			return at >= db.Micros(t)
		}))
	}
	from, to := first, last
	if start != nil {
		from = since(start.Add(-askew))
	}
	if end != nil {
		to = since(end.Add(askew)) - 1
	}
	if err != nil {
		return 0, 0, fmt.Errorf("find a time in the audit log: %w", err)
	}
	return from, to, nil
}

// serveExport writes what is chained when it begins. Rows that retention takes away meanwhile end it: its reader has a part, and knows it.
func (l *Log) serveExport(ctx context.Context, in *api.ExportAuditIn, _ *op.Draft, s *op.Stream) error {
	org := caller.From(ctx).OrgID
	c, err := chainOf(ctx, l.cfg.DB, org)
	if errors.Is(err, sql.ErrNoRows) {
		c.start = beginning(org)
		c.end = c.start
	} else if err != nil {
		return err
	}
	at := c.start
	if in.After > 0 {
		if at, err = l.mark(ctx, org, in.After, c); err != nil {
			return err
		}
	}
	h := s.W.Header()
	h.Set("Content-Type", api.LinesType)
	h.Set("Content-Disposition", `attachment; filename="audit.jsonl"`)
	for at.Number < c.end.Number {
		rows, err := l.List(ctx, org, at.Number, exportAtOnce)
		if err != nil {
			return err
		}
		var page bytes.Buffer
		for i := range rows {
			e := &rows[i]
			if e.Seq != at.Number+1 {
				return errs.E(errs.InvalidState, "row %d is not there any more", at.Number+1).Suggest("berth audit verify, on the server, says whether it was removed by anything but its time.")
			}
			row := show(e)
			row.PreviousHash = at.Hash
			line, err := encodeLine(row)
			if err != nil {
				return err
			}
			page.Write(line)
			if at = (Mark{e.Seq, e.Hash}); at.Number == c.end.Number {
				break
			}
		}
		if len(rows) == 0 {
			return errs.E(errs.InvalidState, "row %d is not there any more", at.Number+1)
		}
		if _, err := s.W.Write(page.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// mark gives the hash of a row that an export goes on from.
func (l *Log) mark(ctx context.Context, org string, number int64, c chain) (Mark, error) {
	if number == c.start.Number {
		return c.start, nil
	}
	m := Mark{Number: number}
	err := l.cfg.DB.QueryRowContext(ctx, `SELECT hash FROM audit WHERE org_id = $1 AND seq = $2`, org, number).Scan(&m.Hash)
	if errors.Is(err, sql.ErrNoRows) {
		return m, errs.E(errs.InvalidInput, "there is no row %d", number).With("path", "after").
			Suggest("The log has the rows %d to %d. Without after it begins with the first.", c.start.Number+1, c.end.Number)
	}
	if err != nil {
		return m, fmt.Errorf("find an audit row: %w", err)
	}
	return m, nil
}

// show gives a row as callers see it.
func show(e *Entry) api.AuditRow {
	c := &e.Caller
	return api.AuditRow{
		Number: e.Seq, ID: e.ID, OrganizationID: c.OrgID, WorkspaceID: c.WorkspaceID, At: e.At.UTC(), PrincipalID: c.PrincipalID, PersonID: c.PersonID, AgentID: c.AgentID, AppID: c.AppID,
		KeyID: c.KeyID, Face: string(c.Face), Client: c.Client, SourceIP: c.SourceIP, RequestID: c.RequestID, Operation: e.Operation, Action: e.Action, ResourceKind: e.ResourceKind,
		ResourceID: e.ResourceID, Result: e.Result, DurationUS: e.Duration.Microseconds(), EndOf: e.EndOf, Hash: e.Hash,
	}
}

// entryOf is show the other way round.
func entryOf(r api.AuditRow) Entry {
	return Entry{
		ID: r.ID, At: r.At, Operation: r.Operation, Action: r.Action, ResourceKind: r.ResourceKind, ResourceID: r.ResourceID, Result: r.Result,
		Duration: time.Duration(r.DurationUS) * time.Microsecond, EndOf: r.EndOf, Seq: r.Number, Hash: r.Hash,
		Caller: caller.Caller{
			OrgID: r.OrganizationID, WorkspaceID: r.WorkspaceID, PrincipalID: r.PrincipalID, PersonID: r.PersonID, AgentID: r.AgentID, AppID: r.AppID, KeyID: r.KeyID,
			Face: caller.Face(r.Face), Client: r.Client, SourceIP: r.SourceIP, RequestID: r.RequestID,
		},
	}
}

// encodeLine writes a row as a line of an export, and decodeLine reads it.
func encodeLine(r api.AuditRow) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return nil, fmt.Errorf("write an audit row: %w", err)
	}
	return b.Bytes(), nil
}

func decodeLine(b []byte) (r api.AuditRow, err error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	return r, dec.Decode(&r)
}
