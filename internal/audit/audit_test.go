package audit_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berthrun/berth/internal/audit"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
)

func TestLog(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		log := audit.New(audit.Config{DB: d, Endless: 2 * time.Second})
		c := caller.Caller{
			OrgID: "org_a", WorkspaceID: "ws_a", PrincipalID: "key_a", PersonID: "user_a", AgentID: "agent_a", AppID: "app_a", KeyID: "key_a",
			Face: caller.FaceMCP, Client: "cli\x1b[31m\nclient", SourceIP: "192.0.2.1", RequestID: "req_1",
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = log.Run(ctx) })

		begin := func(resource string, then error) (row string) {
			t.Helper()
			err := d.Tx(ctx, func(tx *sql.Tx) (err error) {
				row, err = log.Begin(ctx, tx, audit.Entry{Caller: c, Operation: "sandboxes.create", Action: "compute:sandboxes:create", ResourceKind: "sandbox", ResourceID: resource})
				return errors.Join(err, then)
			})
			if !errors.Is(err, then) {
				t.Fatal(err)
			}
			return row
		}
		log.End(begin("sbx_1", nil), audit.OK, 1500*time.Microsecond)
		begin("sbx_2", errors.New("undone"))
		begin("sbx_3", nil) // never ends: its server was killed
		const reads = 300   // more than one batch
		for range reads {
			log.Record(audit.Entry{Caller: c, Operation: "sandboxes.get", Action: "compute:sandboxes:read", ResourceKind: "sandbox", ResourceID: "sbx_1", Result: "NOT_FOUND", Duration: time.Millisecond})
		}
		other := c
		other.OrgID = "org_b"
		log.Record(audit.Entry{Caller: other, Operation: "sandboxes.get", Result: audit.OK})

		byResource := map[string][]audit.Entry{}
		var after int64
		n := 0
		err := d.Wait(ctx, "numbered:audit", func(ctx context.Context) (bool, error) {
			rows, err := log.List(ctx, "org_a", after, 1000)
			for _, e := range rows {
				after = e.Seq
				byResource[e.Operation+" "+e.ResourceID] = append(byResource[e.Operation+" "+e.ResourceID], e)
				n++
			}
			return n >= reads+2, err
		})
		cancel()
		running.Wait()
		if err != nil || n != reads+2 {
			t.Fatalf("got %d rows, %v, want %d", n, err, reads+2)
		}
		rows, err := log.List(t.Context(), "org_a", 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range rows {
			if e.ResourceID == "sbx_1" && e.Operation == "sandboxes.create" {
				want := audit.Entry{
					Caller: c, Operation: "sandboxes.create", Action: "compute:sandboxes:create", ResourceKind: "sandbox", ResourceID: "sbx_1",
					Result: audit.OK, Duration: 1500 * time.Microsecond,
				}
				want.Caller.Client = "cli [31m client"
				if diff := cmp.Diff(want, e, cmpopts.IgnoreFields(audit.Entry{}, "ID", "At", "Seq", "Hash")); diff != "" {
					t.Errorf("row (-want +got):\n%s", diff)
				}
			}
			if e.ResourceID == "sbx_3" && e.Result != "" {
				t.Errorf("the call that never ended has the result %q", e.Result)
			}
			if e.ResourceID == "sbx_2" {
				t.Error("a write that was undone is recorded")
			}
		}
		if got := len(byResource["sandboxes.get sbx_1"]); got != reads {
			t.Errorf("got %d reads, want %d", got, reads)
		}
	})
}

// What the database refuses is kept and written later.
func TestFlushAgain(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		log := audit.New(audit.Config{DB: d})
		log.Record(audit.Entry{Caller: caller.Caller{OrgID: "org_a", Client: strings.Repeat("é", 300)}, Operation: "x", Result: audit.OK})
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := log.Flush(ended); err == nil {
			t.Fatal("flushed with an ended context")
		}
		if err := log.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		var n int
		if err := d.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM audit`).Scan(&n); err != nil || n != 1 {
			t.Errorf("got %d rows, %v, want 1", n, err)
		}
	})
}
