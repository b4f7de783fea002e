package audit_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/audit"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
)

func who(org string) caller.Caller {
	return caller.Caller{
		OrgID: org, WorkspaceID: "ws_a", PrincipalID: "key_a", PersonID: "user_a", AgentID: "agent_a", AppID: "app_a", KeyID: "key_a",
		Face: caller.FaceMCP, Client: "client <&> é", SourceIP: "192.0.2.1", RequestID: "req_1",
	}
}

func read(org, resource string) audit.Entry {
	return audit.Entry{
		Caller: who(org), Operation: "sandboxes.get", Action: "compute:sandboxes:read", ResourceKind: "sandbox", ResourceID: resource, Result: audit.OK, Duration: 1500 * time.Microsecond,
	}
}

func begin(t *testing.T, d *db.DB, log *audit.Log, org, resource string) (row string) {
	t.Helper()
	e := read(org, resource)
	e.Operation, e.Result, e.Duration = "sandboxes.create", "", 0
	err := d.Tx(t.Context(), func(tx *sql.Tx) (err error) {
		row, err = log.Begin(t.Context(), tx, e)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return row
}

// chain writes what is gathered and chains all that can be.
func chain(t *testing.T, log *audit.Log) (all int) {
	t.Helper()
	if err := log.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for {
		n, err := log.Chain(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if all += n; n == 0 {
			return all
		}
	}
}

func verify(t *testing.T, d *db.DB, expect audit.Mark) []audit.Verdict {
	t.Helper()
	all, err := audit.Verify(t.Context(), d, "", expect)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// whole checks that every chain is whole and gives how many rows they have.
func whole(t *testing.T, d *db.DB) (rows int64) {
	t.Helper()
	for _, v := range verify(t, d, audit.Mark{}) {
		if v.Wrong != nil {
			t.Errorf("%s: %v", v.Organization, v.Wrong)
		}
		rows += v.Rows
	}
	return rows
}

func change(t *testing.T, d *db.DB, text string, args ...any) {
	t.Helper()
	if _, err := d.ExecContext(t.Context(), text, args...); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// Each organization has a chain of its own, and what does not have its end yet is chained when it has.
func TestChain(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		log := audit.New(audit.Config{DB: d})
		for i := range 1200 { // more than are chained at once
			log.Record(read([]string{"org_a", "org_b", "org_b"}[i%3], "sbx_1"))
		}
		open := begin(t, d, log, "org_a", "sbx_2")
		if n := chain(t, log); n != 1200 {
			t.Errorf("%d rows are chained, want all but the one that goes on", n)
		}
		all := verify(t, d, audit.Mark{})
		if len(all) != 2 || all[0].Rows != 400 || all[1].Rows != 800 || all[0].First.Number != 1 || all[0].Last.Number != 400 || all[1].Last.Number != 800 || all[0].Waiting != 1 {
			t.Fatalf("chains: %+v", all)
		}
		log.End(open, "NOT_FOUND", time.Second)
		chain(t, log)
		rows, err := log.List(t.Context(), "org_a", 400, 10)
		if err != nil || len(rows) != 1 || rows[0].Result != "NOT_FOUND" || rows[0].ID != open {
			t.Errorf("the row that ended: %+v, %v", rows, err)
		}
		if n := whole(t, d); n != 1201 {
			t.Errorf("%d rows", n)
		}
		// A row that was noted is found again in its own organization's chain, and another's hash in none.
		for _, tt := range []struct {
			m    audit.Mark
			seen int
		}{{all[1].Last, 1}, {audit.Mark{Number: 400, Hash: all[1].Last.Hash}, 0}, {audit.Mark{Number: 5000, Hash: all[1].Last.Hash}, 0}} {
			seen := 0
			for _, v := range verify(t, d, tt.m) {
				if v.Seen {
					seen++
				}
			}
			if seen != tt.seen {
				t.Errorf("%v is seen in %d chains", tt.m, seen)
			}
		}
	})
}

// TestEveryEdit changes every column of a chained row in turn, and the record of the chain, and removes, adds and exchanges rows. Each is found.
func TestEveryEdit(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		log := audit.New(audit.Config{DB: d})
		for range 5 {
			log.Record(read("org_a", "sbx_1"))
			log.Record(read("org_b", "sbx_1"))
		}
		chain(t, log)
		if n := whole(t, d); n != 10 {
			t.Fatalf("%d rows", n)
		}
		for _, table := range []string{"audit", "audit_chains"} {
			change(t, d, `CREATE TABLE kept_`+table+` AS SELECT * FROM `+table)
		}
		found := func(name string, first int64, edits ...string) {
			t.Helper()
			for _, edit := range edits {
				change(t, d, edit)
			}
			var wrong *audit.Wrong
			for _, v := range verify(t, d, audit.Mark{}) {
				if v.Organization == "org_a" {
					wrong = v.Wrong
				}
			}
			if wrong == nil {
				t.Errorf("%s is not found", name)
			} else if first > 0 && wrong.Number != first {
				t.Errorf("%s: %v, want row %d", name, wrong, first)
			}
			for _, table := range []string{"audit", "audit_chains"} {
				change(t, d, `DELETE FROM `+table)
				change(t, d, `INSERT INTO `+table+` SELECT * FROM kept_`+table)
			}
		}
		const row = ` WHERE org_id = 'org_a' AND seq = 3`
		for _, column := range columns(t, d, "audit") {
			first := int64(3)
			edit := column + ` || 'x'`
			switch column {
			case "at", "duration_us":
				edit = column + ` + 1`
			case "seq":
				edit = `100`
			}
			found(column, first, `UPDATE audit SET `+column+` = `+edit+row)
			switch column {
			case "at", "duration_us":
				edit = `0`
			case "seq":
				edit = `NULL`
			default:
				edit = `''`
			}
			if column == "end_of" {
				continue // it is empty
			}
			found(column+" emptied", 3, `UPDATE audit SET `+column+` = `+edit+row)
		}
		for _, column := range columns(t, d, "audit_chains") {
			edit := column + ` || 'x'`
			if strings.HasSuffix(column, "seq") {
				edit = column + ` - 1`
			}
			if column == "org_id" {
				edit = `'org_c'`
			}
			found("chain's "+column, 0, `UPDATE audit_chains SET `+column+` = `+edit+` WHERE org_id = 'org_a'`)
		}
		found("no chain", 0, `DELETE FROM audit_chains WHERE org_id = 'org_a'`)
		found("the first removed", 1, `DELETE FROM audit WHERE org_id = 'org_a' AND seq = 1`)
		found("one removed", 3, `DELETE FROM audit`+row)
		found("the last removed", 5, `DELETE FROM audit WHERE org_id = 'org_a' AND seq = 5`)
		found("all removed", 1, `DELETE FROM audit WHERE org_id = 'org_a'`)
		found("one removed and the others moved up", 3, `DELETE FROM audit`+row, `UPDATE audit SET seq = 3 WHERE org_id = 'org_a' AND seq = 4`, `UPDATE audit SET seq = 4 WHERE org_id = 'org_a' AND seq = 5`,
			`UPDATE audit_chains SET seq = 4 WHERE org_id = 'org_a'`)
		found("two exchanged", 3, `UPDATE audit SET seq = 100`+row, `UPDATE audit SET seq = 3 WHERE org_id = 'org_a' AND seq = 4`, `UPDATE audit SET seq = 4 WHERE org_id = 'org_a' AND seq = 100`)
		found("fields that run together", 3, `UPDATE audit SET operation = 'sandboxes.getc', action = 'ompute:sandboxes:read'`+row)
		list := strings.Join(columns(t, d, "audit"), ", ")
		for _, seq := range []string{"0", "6", "100"} {
			text := `INSERT INTO audit (` + list + `) SELECT ` + strings.Join(with(columns(t, d, "audit"), map[string]string{"id": "'aud_new'", "seq": seq}), ", ") + ` FROM audit` + row
			found("a copy as row "+seq, 0, text)
		}
		found("the beginning cut off", 0, `DELETE FROM audit WHERE org_id = 'org_a' AND seq <= 2`, `UPDATE audit_chains SET dropped_seq = 2 WHERE org_id = 'org_a'`)
		if n := whole(t, d); n != 10 {
			t.Errorf("%d rows are whole at the end", n)
		}
	})
}

func with(columns []string, other map[string]string) []string {
	out := make([]string, len(columns))
	for i, c := range columns {
		if out[i] = c; other[c] != "" {
			out[i] = other[c]
		}
	}
	return out
}

func columns(t *testing.T, d *db.DB, table string) []string {
	t.Helper()
	rows, err := d.QueryContext(t.Context(), `SELECT * FROM `+table)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// Servers that chain at the same time, with calls that end meanwhile, make one chain.
func TestChainTogether(t *testing.T) {
	dbtest.EachURL(t, func(t *testing.T, url string) {
		const servers, calls = 4, 150
		var running, working sync.WaitGroup
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		for i := range servers {
			d := dbtest.Open(t, url)
			log := audit.New(audit.Config{DB: d, Endless: 5 * time.Millisecond})
			running.Go(func() { _ = log.Run(ctx) })
			for range 2 { // more of them than one for each server
				running.Go(func() {
					for ctx.Err() == nil {
						if _, err := log.Chain(ctx); err != nil && ctx.Err() == nil {
							t.Error(err)
						}
					}
				})
			}
			working.Go(func() {
				for n := range calls {
					row := begin(t, d, log, "org_a", fmt.Sprintf("sbx_%d_%d", i, n))
					log.Record(read("org_b", "sbx_1"))
					log.End(row, audit.OK, time.Millisecond)
				}
			})
		}
		working.Wait()
		d := dbtest.Open(t, url)
		err := d.Wait(ctx, "numbered:audit", func(ctx context.Context) (bool, error) {
			var open, ended int
			err := d.QueryRowContext(ctx, `SELECT (SELECT COUNT(*) FROM audit WHERE seq IS NULL), (SELECT COUNT(*) FROM audit WHERE org_id = 'org_a' AND result = 'ok')`).Scan(&open, &ended)
			return open == 0 && ended == servers*calls, err
		})
		stop()
		running.Wait()
		if err != nil {
			t.Fatal(err)
		}
		if n := whole(t, d); n < 2*servers*calls {
			t.Errorf("%d rows", n)
		}
		// Every call has its end once: in its row, or late in one of its own.
		var late, twice int
		if err := d.QueryRowContext(t.Context(), `SELECT COUNT(*), COUNT(*) - COUNT(DISTINCT end_of) FROM audit WHERE end_of <> ''`).Scan(&late, &twice); err != nil || twice != 0 {
			t.Errorf("%d late ends, %d of them twice, %v", late, twice, err)
		}
		var begun int
		if err := d.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM audit WHERE org_id = 'org_a' AND end_of = ''`).Scan(&begun); err != nil || begun != servers*calls {
			t.Errorf("%d calls, %v", begun, err)
		}
		t.Logf("%d of %d ends came late", late, servers*calls)
	})
}

// A call of a server that was killed is chained without a result, and an end that comes after all is a row of its own, once.
func TestLateEnd(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		killed := audit.New(audit.Config{DB: d})
		row := begin(t, d, killed, "org_a", "sbx_1")
		if n := chain(t, audit.New(audit.Config{DB: d})); n != 0 {
			t.Fatal("a call that may still end is chained")
		}
		next := audit.New(audit.Config{DB: d, Endless: time.Microsecond})
		if n := chain(t, next); n != 1 {
			t.Fatalf("%d rows are chained", n)
		}
		killed.End(row, "TIMEOUT", time.Hour)
		chain(t, killed)
		killed.End(row, audit.OK, time.Hour) // another server carried the call on
		chain(t, killed)
		rows, err := next.List(t.Context(), "org_a", 0, 10)
		if err != nil || len(rows) != 3 {
			t.Fatalf("%+v, %v", rows, err)
		}
		first, late := rows[0], rows[1]
		if first.Result != "" || late.Result != "TIMEOUT" || late.EndOf != first.ID || late.Duration != time.Hour || late.Operation != first.Operation || late.Caller.KeyID != first.Caller.KeyID || late.Caller.OrgID != first.Caller.OrgID || !late.At.After(first.At) {
			t.Errorf("the call %+v has the late end %+v", first, late)
		}
		whole(t, d)
	})
}

// What is not kept any more leaves the place from which the rest is verified.
func TestDrop(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		log := audit.New(audit.Config{DB: d})
		now := time.Now()
		for i := range 10 {
			e := read("org_a", "sbx_1")
			e.At = now.Add(time.Duration(i-10) * time.Hour)
			log.Record(e)
		}
		log.Record(read("org_b", "sbx_1"))
		chain(t, log)
		noted := verify(t, d, audit.Mark{})[0].Last
		drop := func(before time.Time, want int64) audit.Verdict {
			t.Helper()
			n, err := log.Drop(t.Context(), before)
			if err != nil || n != want {
				t.Fatalf("dropped %d, %v, want %d", n, err, want)
			}
			whole(t, d)
			return verify(t, d, noted)[0]
		}
		if v := drop(now.Add(-6*time.Hour), 4); v.Rows != 6 || v.First.Number != 5 || v.Dropped != 4 || !v.Seen {
			t.Errorf("the rest: %+v", v)
		}
		change(t, d, `DELETE FROM audit WHERE org_id = 'org_a' AND seq = 5`)
		if v := verify(t, d, audit.Mark{})[0]; v.Wrong == nil || v.Wrong.Number != 5 {
			t.Errorf("the first of the rest is removed: %+v", v)
		}
		if n, err := log.Drop(t.Context(), now.Add(-6*time.Hour)); n != 0 || err != nil {
			t.Errorf("dropped %d, %v", n, err)
		}
		drop2, err := log.Drop(t.Context(), now.Add(time.Hour))
		if err != nil || drop2 != 6 {
			t.Errorf("dropped %d, %v", drop2, err)
		}
		if v := verify(t, d, noted)[0]; v.Wrong != nil || v.Rows != 0 || !v.Seen {
			t.Errorf("nothing is left: %+v", v)
		}
		log.Record(read("org_a", "sbx_2"))
		chain(t, log)
		if v := verify(t, d, noted)[0]; v.Wrong != nil || v.First.Number != 11 || !v.Seen {
			t.Errorf("it goes on: %+v", v)
		}
	})
}

// TestBefore takes a database of before the chains: its rows are chained by the first server, in the order in which they came.
func TestBefore(t *testing.T) {
	dbtest.EachURL(t, func(t *testing.T, url string) {
		text, err := os.ReadFile("../db/migrations/0014_audit_chain.sql")
		if err != nil {
			t.Fatal(err)
		}
		up, down, _ := strings.Cut(string(text), "-- +goose Down")
		d := dbtest.Open(t, url)
		migrate := func(part string) {
			for statement := range strings.SplitSeq(part, ";\n") {
				if strings.TrimSpace(statement) != "" {
					change(t, d, statement)
				}
			}
		}
		migrate(down)
		for i, org := range []string{"org_a", "org_b", "org_a"} {
			change(t, d, `INSERT INTO audit (id, org_id, workspace_id, at, principal_id, person_id, agent_id, app_id, key_id, face, client, source_ip, request_id,
				operation, action, resource_kind, resource_id, result, duration_us, seq)
				VALUES ($1, $2, '', $3, 'key_a', '', '', '', '', 'http', '', '', '', 'sandboxes.get', 'x', '', '', $4, 5, $5)`,
				fmt.Sprintf("aud_%d", 9-i), org, 1000*i+1, []string{"ok", "ok", ""}[i], i+1)
		}
		migrate(up)
		log := audit.New(audit.Config{DB: d})
		log.Record(read("org_a", "sbx_1"))
		chain(t, log)
		if n := whole(t, d); n != 4 {
			t.Errorf("%d rows", n)
		}
		rows, err := log.List(t.Context(), "org_a", 0, 10)
		if err != nil || len(rows) != 3 || rows[0].ID != "aud_9" || rows[1].ID != "aud_7" || rows[2].ResourceID != "sbx_1" {
			t.Errorf("%+v, %v", rows, err)
		}
	})
}

func BenchmarkChain(b *testing.B) {
	d, log := filled(b, b.N)
	b.ResetTimer()
	for {
		n, err := log.Chain(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if n == 0 {
			break
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
	_ = d
}

func BenchmarkVerify(b *testing.B) {
	const rows = 20_000
	d, log := filled(b, rows)
	for {
		if n, err := log.Chain(b.Context()); err != nil || n == 0 {
			break
		}
	}
	for b.Loop() {
		all, err := audit.Verify(b.Context(), d, "", audit.Mark{})
		if err != nil || len(all) != 1 || all[0].Rows != rows || all[0].Wrong != nil {
			b.Fatalf("%+v, %v", all, err)
		}
	}
	b.ReportMetric(float64(b.N)*rows/b.Elapsed().Seconds(), "rows/s")
}

// filled gives a SQLite database with rows that are not chained.
func filled(b *testing.B, rows int) (*db.DB, *audit.Log) {
	b.Helper()
	d, err := db.Open(b.Context(), db.Config{URL: b.TempDir() + "/berth.db"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = d.Close() })
	log := audit.New(audit.Config{DB: d})
	for range rows {
		log.Record(read("org_a", "sbx_1"))
	}
	if err := log.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	return d, log
}
