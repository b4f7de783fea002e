package audit

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/db"
)

const (
	chainAtOnce = 500
	dropAtOnce  = 2000
	chainEvery  = 250 * time.Millisecond // at least this long between two transactions that do not find the most
	// endless is how old a row without a result is before it is chained as it is: longer than the deadline of any call and what its effect gets besides.
	endless = 3 * time.Minute
	// form is what hashes are of: another content or order of fields gets another name.
	form = "berth-audit-1"
)

// Mark is a place in an organization's chain. The number 0 is its beginning.
type Mark struct {
	Number int64
	Hash   string
}

// beginning is what the first row of an organization goes on from, so that no chain passes for another's.
func beginning(org string) Mark {
	sum := sha256.Sum256([]byte(form + "\n" + org))
	return Mark{0, hex.EncodeToString(sum[:])}
}

// hash is over the row's content, in the texts that an export shows, and the hash of the row before it: of every field its length, a colon, its bytes, a line's end.
func (e *Entry) hash(previous string) string {
	c := &e.Caller
	buf := make([]byte, 0, 1024)
	for _, field := range []string{
		form, previous, strconv.FormatInt(e.Seq, 10), e.ID, c.OrgID, c.WorkspaceID, e.At.UTC().Format(time.RFC3339Nano), c.PrincipalID, c.PersonID, c.AgentID, c.AppID, c.KeyID,
		string(c.Face), c.Client, c.SourceIP, c.RequestID, e.Operation, e.Action, e.ResourceKind, e.ResourceID, e.Result, strconv.FormatInt(e.Duration.Microseconds(), 10), e.EndOf,
	} {
		buf = append(append(append(strconv.AppendInt(buf, int64(len(field)), 10), ':'), field...), '\n')
	}
	sum := sha256.Sum256(buf)
	return hex.EncodeToString(sum[:])
}

// errOvertaken says that a row got its result while it was about to be chained without one.
var errOvertaken = errors.New("a row has changed meanwhile")

// Chain gives the next rows that nothing can change any more their numbers and hashes, and says how many there were. One server at a time does it: the row
// in sequences is its lock. It waits for the disk, because people write down what it gives.
func (l *Log) Chain(ctx context.Context) (n int, err error) {
	limit, err := l.due(ctx)
	if err != nil {
		return 0, err
	}
	var waiting int
	if err := l.cfg.DB.QueryRowContext(ctx, `SELECT COUNT(*) FROM (SELECT 1 FROM audit WHERE seq IS NULL AND (result <> '' OR at < $1) LIMIT 1) AS one`, db.Micros(limit)).Scan(&waiting); err != nil || waiting == 0 {
		return 0, err
	}
	err = l.cfg.DB.Tx(ctx, func(tx *sql.Tx) error {
		if err := lock(ctx, tx); err != nil {
			return err
		}
		rows, err := query(ctx, tx, `SELECT `+columns+`, seq, hash FROM audit WHERE seq IS NULL AND (result <> '' OR at < $1) ORDER BY at, id LIMIT $2`, db.Micros(limit), chainAtOnce)
		if err != nil {
			return err
		}
		n = len(rows)
		heads := map[string]Mark{}
		for i := range rows {
			e := &rows[i]
			head, ok := heads[e.Caller.OrgID]
			if !ok {
				if head, err = openChain(ctx, tx, e.Caller.OrgID); err != nil {
					return err
				}
			}
			e.Seq = head.Number + 1
			e.Hash = e.hash(head.Hash)
			heads[e.Caller.OrgID] = Mark{e.Seq, e.Hash}
		}
		if err := l.link(ctx, tx, rows); err != nil {
			return err
		}
		for org, head := range heads {
			if _, err := tx.ExecContext(ctx, `UPDATE audit_chains SET seq = $2, hash = $3 WHERE org_id = $1`, org, head.Number, head.Hash); err != nil {
				return fmt.Errorf("move the chain's end: %w", err)
			}
		}
		l.cfg.DB.NotifyAfter(tx, chainedTopic)
		return nil
	})
	if errors.Is(err, errOvertaken) {
		return 0, nil // the next time has it with its result
	}
	if err != nil {
		return 0, err
	}
	return n, nil
}

// due is the time before which a row without a result has none any more.
func (l *Log) due(ctx context.Context) (time.Time, error) {
	now, err := l.cfg.DB.Now(ctx, l.cfg.DB)
	return now.Add(-l.cfg.Endless), err
}

func lock(ctx context.Context, tx *sql.Tx) error {
	if _, err := tx.ExecContext(ctx, `UPDATE sequences SET value = value WHERE name = 'audit'`); err != nil {
		return fmt.Errorf("lock the chains: %w", err)
	}
	return nil
}

// openChain gives where an organization's chain ends, which it begins where there is none.
func openChain(ctx context.Context, tx *sql.Tx, org string) (Mark, error) {
	start := beginning(org)
	if _, err := tx.ExecContext(ctx, `INSERT INTO audit_chains (org_id, seq, hash, dropped_seq, dropped_hash) VALUES ($1, 0, $2, 0, $2) ON CONFLICT (org_id) DO NOTHING`, org, start.Hash); err != nil {
		return start, fmt.Errorf("begin a chain: %w", err)
	}
	c, err := chainOf(ctx, tx, org)
	return c.end, err
}

// linking is the statement for a number of rows: each gets its number and hash unless it has one, or its result is another than the hash is over.
func linking(rows int) string {
	var text strings.Builder
	text.WriteString(`WITH links (id, seq, hash, result) AS (VALUES `)
	for n := range rows {
		if n > 0 {
			text.WriteByte(',')
		}
		fmt.Fprintf(&text, "($%d,CAST($%d AS BIGINT),$%d,$%d)", 4*n+1, 4*n+2, 4*n+3, 4*n+4)
	}
	text.WriteString(`) UPDATE audit SET seq = links.seq, hash = links.hash FROM links WHERE audit.id = links.id AND audit.seq IS NULL AND audit.result = links.result`)
	return text.String()
}

func (l *Log) link(ctx context.Context, tx *sql.Tx, rows []Entry) error {
	most := 100
	if l.cfg.DB.Dialect() == db.SQLite {
		most = 1 // see insertEach
	}
	stmts := map[int]*sql.Stmt{}
	for part := range slices.Chunk(rows, most) {
		stmt := stmts[len(part)]
		if stmt == nil {
			var err error
			if stmt, err = tx.PrepareContext(ctx, linking(len(part))); err != nil {
				return fmt.Errorf("chain audit: %w", err)
			}
			defer stmt.Close()
			stmts[len(part)] = stmt
		}
		args := make([]any, 0, 4*len(part))
		for _, e := range part {
			args = append(args, e.ID, e.Seq, e.Hash, e.Result)
		}
		res, err := stmt.ExecContext(ctx, args...)
		if err != nil {
			return fmt.Errorf("chain audit: %w", err)
		}
		if n, err := res.RowsAffected(); err != nil || n != int64(len(part)) {
			return errors.Join(err, errOvertaken)
		}
	}
	return nil
}

// Drop removes the chained rows from before a time, oldest numbers first, as far as the first younger one, and says how many there were. The number and hash of
// the last one stay, so that what is left is verified as before.
func (l *Log) Drop(ctx context.Context, before time.Time) (all int64, err error) {
	orgs, err := organizations(ctx, l.cfg.DB, `SELECT org_id FROM audit_chains`)
	if err != nil {
		return 0, err
	}
	for _, org := range orgs {
		for {
			var n int64
			err := l.cfg.DB.Tx(ctx, func(tx *sql.Tx) (err error) {
				n, err = dropOf(ctx, tx, org, before)
				return err
			})
			all += n
			if err != nil {
				return all, err
			}
			if n < dropAtOnce {
				break
			}
		}
	}
	return all, nil
}

func dropOf(ctx context.Context, tx *sql.Tx, org string, before time.Time) (int64, error) {
	if err := lock(ctx, tx); err != nil {
		return 0, err
	}
	rows, err := tx.QueryContext(ctx, `SELECT seq, hash, at FROM audit WHERE org_id = $1 AND seq IS NOT NULL ORDER BY seq LIMIT $2`, org, dropAtOnce)
	if err != nil {
		return 0, fmt.Errorf("find old audit rows: %w", err)
	}
	defer rows.Close()
	var last Mark
	for rows.Next() {
		var m Mark
		var at int64
		if err := rows.Scan(&m.Number, &m.Hash, &at); err != nil {
			return 0, fmt.Errorf("find old audit rows: %w", err)
		}
		if at >= db.Micros(before) {
			break
		}
		last = m
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil || last.Number == 0 {
		return 0, err
	}
	if _, err := tx.ExecContext(ctx, `UPDATE audit_chains SET dropped_seq = $2, dropped_hash = $3 WHERE org_id = $1`, org, last.Number, last.Hash); err != nil {
		return 0, fmt.Errorf("keep the chain's beginning: %w", err)
	}
	res, err := tx.ExecContext(ctx, `DELETE FROM audit WHERE org_id = $1 AND seq <= $2`, org, last.Number)
	if err != nil {
		return 0, fmt.Errorf("drop old audit rows: %w", err)
	}
	return res.RowsAffected()
}

// runChain chains rows as they come, until the context ends.
func (l *Log) runChain(ctx context.Context) {
	signals, stop := l.cfg.DB.Subscribe(writtenTopic)
	defer stop()
	poll := time.NewTicker(time.Second)
	defer poll.Stop()
	for {
		n, err := l.Chain(ctx)
		if err != nil && ctx.Err() == nil {
			l.cfg.Logger.Error("audit rows were not chained", "error", err)
		}
		if n == chainAtOnce {
			continue
		}
		if n > 0 {
			pause(ctx, chainEvery)
		}
		select {
		case <-ctx.Done():
			return
		case <-signals:
		case <-poll.C:
		}
	}
}

// runDrop removes rows that are older than they are kept, until the context ends.
func (l *Log) runDrop(ctx context.Context) {
	tick := time.NewTicker(min(max(l.cfg.Keep/10, time.Second), time.Hour))
	defer tick.Stop()
	for {
		if _, err := l.Drop(ctx, l.cfg.Now().Add(-l.cfg.Keep)); err != nil && ctx.Err() == nil {
			l.cfg.Logger.Error("old audit rows were not dropped", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
