package audit

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/berthrun/berth/internal/db"
)

// Verdict is what came of following a chain.
type Verdict struct {
	Organization string
	Rows         int64
	First, Last  Mark  // of the rows that are there; both are 0 where there are none
	Dropped      int64 // how many rows are not kept any more, or are not in the export
	Waiting      int64 // of a database: rows that are not chained yet
	Wrong        *Wrong
	Seen         bool // the row that was expected is there as it was
}

// Wrong is the first row that is not as it was.
type Wrong struct {
	Number int64
	How    string
}

// Error implements error.
func (w *Wrong) Error() string { return fmt.Sprintf("row %d: %s", w.Number, w.How) }

// follower goes along a chain.
type follower struct {
	Verdict
	at     Mark
	expect Mark
}

func follow(org string, start, expect Mark) *follower {
	f := &follower{Verdict: Verdict{Organization: org, Dropped: start.Number}, at: start, expect: expect}
	f.Seen = expect.Number > 0 && start == expect
	return f
}

// next takes the next row. What is wrong with it is a *Wrong.
func (f *follower) next(e *Entry) error {
	wrong := func(format string, args ...any) error { return &Wrong{e.Seq, fmt.Sprintf(format, args...)} }
	switch {
	case e.Caller.OrgID != f.Organization:
		return wrong("it is of the organization %q, the row before it of %q", e.Caller.OrgID, f.Organization)
	case e.Seq <= f.at.Number:
		return wrong("it stands behind row %d", f.at.Number)
	case e.Seq == f.at.Number+2:
		return &Wrong{f.at.Number + 1, "it is missing"}
	case e.Seq > f.at.Number+1:
		return &Wrong{f.at.Number + 1, fmt.Sprintf("it is missing, and so are all to row %d", e.Seq-1)}
	case e.Hash != e.hash(f.at.Hash):
		return wrong("its content does not fit its hash and that of the row before it; it says that %s was called at %s (%s)", e.Operation, e.At.UTC().Format(time.RFC3339), e.ID)
	}
	f.at = Mark{e.Seq, e.Hash}
	f.Rows++
	if f.Rows == 1 {
		f.First = f.at
	}
	f.Last = f.at
	f.Seen = f.Seen || f.at == f.expect
	return nil
}

// judge puts what was found into the verdict; what is no *Wrong stays an error.
func (f *follower) judge(err error) error {
	if w, ok := errors.AsType[*Wrong](err); ok {
		f.Wrong = w
		return nil
	}
	return err
}

// Verify follows the chains of a database, one an organization, or only that of one, as they are at one moment. expect is a row that somebody has noted; it is of
// one organization, so that at most one of the verdicts has Seen.
func Verify(ctx context.Context, d *db.DB, organization string, expect Mark) (all []Verdict, err error) {
	err = d.Snapshot(ctx, func(q db.Querier) error {
		orgs := []string{organization}
		if organization == "" {
			if orgs, err = organizations(ctx, q, `SELECT org_id FROM audit_chains UNION SELECT org_id FROM audit WHERE seq IS NOT NULL ORDER BY org_id`); err != nil {
				return err
			}
		}
		for _, org := range orgs {
			v, err := verify(ctx, q, org, expect)
			if err != nil {
				return err
			}
			all = append(all, v)
		}
		return nil
	})
	return all, err
}

func verify(ctx context.Context, q db.Querier, org string, expect Mark) (Verdict, error) {
	c, err := chainOf(ctx, q, org)
	if errors.Is(err, sql.ErrNoRows) {
		var rows int64
		if err := q.QueryRowContext(ctx, `SELECT COUNT(*) FROM audit WHERE org_id = $1 AND seq IS NOT NULL`, org).Scan(&rows); err != nil {
			return Verdict{}, fmt.Errorf("count audit rows: %w", err)
		}
		v := Verdict{Organization: org, Rows: rows}
		if rows > 0 {
			v.Wrong = &Wrong{1, "the record of where the chain begins and ends is missing"}
		}
		return v, nil
	}
	if err != nil {
		return Verdict{}, err
	}
	f := follow(org, c.start, expect)
	if c.start.Number == 0 && c.start != beginning(org) {
		f.Wrong = &Wrong{1, "the record of where the chain begins was changed"}
		return f.Verdict, nil
	}
	err = each(ctx, q, `SELECT `+columns+`, seq, hash FROM audit WHERE org_id = $1 AND seq IS NOT NULL ORDER BY seq`, func(e Entry) error {
		if e.Seq > c.end.Number {
			return &Wrong{e.Seq, fmt.Sprintf("it stands behind the end of the chain, row %d", c.end.Number)}
		}
		return f.next(&e)
	}, org)
	if err == nil && f.at != c.end {
		err = &Wrong{f.at.Number + 1, fmt.Sprintf("it is missing: the chain ends with row %d", c.end.Number)}
		if f.at.Number == c.end.Number {
			err = &Wrong{c.end.Number, "it is not the row with which the chain ends"}
		}
	}
	if err := f.judge(err); err != nil {
		return f.Verdict, err
	}
	if err := q.QueryRowContext(ctx, `SELECT COUNT(*) FROM audit WHERE org_id = $1 AND seq IS NULL`, org).Scan(&f.Waiting); err != nil {
		return f.Verdict, fmt.Errorf("count audit rows: %w", err)
	}
	return f.Verdict, nil
}

// maxLine bounds a line of an export.
const maxLine = 1 << 20

// VerifyExport follows the chain in an export, or in several of them one behind the other. The first row that it has is believed; expect tells whether it is the chain
// that somebody has noted. An error says that it is no export or cannot be read.
func VerifyExport(r io.Reader, expect Mark) (Verdict, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), maxLine)
	var f *follower
	n := 0
	for lines.Scan() {
		n++
		e, previous, err := parseLine(lines.Bytes())
		if err != nil {
			if f == nil {
				return Verdict{}, fmt.Errorf("line %d: %w", n, err)
			}
			f.Wrong = &Wrong{f.at.Number + 1, fmt.Sprintf("line %d is not as an export has it: %v", n, err)}
			return f.Verdict, nil
		}
		if f == nil {
			start := Mark{e.Seq - 1, previous}
			if start.Number == 0 && start != beginning(e.Caller.OrgID) {
				return Verdict{Organization: e.Caller.OrgID, Wrong: &Wrong{1, "the chain does not begin as its organization's does"}}, nil
			}
			f = follow(e.Caller.OrgID, start, expect)
		}
		if previous != f.at.Hash && e.Seq == f.at.Number+1 {
			f.Wrong = &Wrong{e.Seq, "it names another hash than that of the row before it"}
			return f.Verdict, nil
		}
		if err := f.next(&e); err != nil {
			return f.Verdict, f.judge(err)
		}
	}
	if err := lines.Err(); err != nil {
		return Verdict{}, fmt.Errorf("read the export: %w", err)
	}
	if f == nil {
		return Verdict{}, nil
	}
	return f.Verdict, nil
}

// parseLine reads a line of an export. One that an export would write otherwise, by a byte, is refused: nothing in it is outside of the hash.
func parseLine(b []byte) (e Entry, previous string, err error) {
	row, err := decodeLine(b)
	if err != nil {
		return e, "", err
	}
	again, err := encodeLine(row)
	if err != nil {
		return e, "", err
	}
	if !bytes.Equal(bytes.TrimSuffix(again, []byte("\n")), b) {
		return e, "", errors.New("it has members or spaces that an export does not have")
	}
	return entryOf(row), row.PreviousHash, nil
}
