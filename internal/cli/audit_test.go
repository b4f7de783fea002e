package cli_test

import (
	"context"
	"path/filepath"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/audit"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
)

// auditOf makes an audit log with three calls in a script's folder and gives what binds its operations.
func auditOf(e *testscript.Env) (func(*op.Registry), error) {
	path := filepath.Join(e.WorkDir, "audit.db")
	e.Setenv("AUDIT_DB", path)
	d, err := db.Open(context.Background(), db.Config{URL: path})
	if err != nil {
		return nil, err
	}
	e.Defer(func() { _ = d.Close() })
	log := audit.New(audit.Config{DB: d})
	for _, result := range []string{audit.OK, "NOT_FOUND", audit.OK} {
		log.Record(audit.Entry{
			Caller: caller.Caller{OrgID: "org_1", PrincipalID: "key_1", SourceIP: "192.0.2.7"}, Operation: "sandboxes.get", Action: "compute:sandboxes:read", Result: result,
		})
	}
	if err := log.Flush(context.Background()); err != nil {
		return nil, err
	}
	_, err = log.Chain(context.Background())
	return log.Register, err
}

// change changes the audit log's database behind the log's back: change SQL.
func change(ts *testscript.TestScript, neg bool, args []string) {
	d, err := db.Open(context.Background(), db.Config{URL: ts.Getenv("AUDIT_DB")})
	ts.Check(err)
	defer func() { _ = d.Close() }()
	_, err = d.ExecContext(context.Background(), args[0])
	if neg == (err == nil) {
		ts.Fatalf("%s: %v", args[0], err)
	}
}
