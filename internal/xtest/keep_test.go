package xtest

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/controlplane"
)

// TestKeep lets the time pass for which a deleted sandbox, events and the audit log are kept, and looks for what is left of them.
func TestKeep(t *testing.T) {
	change := func(c *controlplane.Config) {
		c.KeepDeleted, c.KeepEvents, c.KeepAudit = time.Hour, 10*time.Second, 10*time.Second
	}
	eachLife(t, change, func(t *testing.T, l *life) {
		c, ctx := l.Client, context.Background()
		id := Sandbox(t, c, idling(0))
		p := Must(t, c, api.StartProcess, api.StartProcessIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "echo kept"}}).Process.ID
		read(t, c, id, p, 15)
		l.stop(t, id)
		Must(t, c, api.DeleteSandbox, api.SandboxWaitIn{SandboxIn: in(id), WaitIn: wait(30)})
		count := func(query string) (n int) {
			t.Helper()
			if err := l.db.QueryRowContext(ctx, query, id).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		tables := []string{"sandboxes WHERE id", "processes WHERE sandbox_id", "events WHERE resource_id", "audit WHERE resource_id"}
		packs := filepath.Join(l.cfg.Blobs, "processes", id)
		eventually(t, func() bool { return count(`SELECT COUNT(*) FROM audit WHERE result = 'ok' AND resource_id = $1`) > 3 })
		for _, table := range tables {
			if count(`SELECT COUNT(*) FROM `+table+` = $1`) == 0 {
				t.Errorf("nothing in %s to begin with", table)
			}
		}
		if _, err := os.Stat(packs); err != nil {
			t.Error(err)
		}
		l.pass(time.Minute)
		for _, table := range tables[2:] {
			eventually(t, func() bool { return count(`SELECT COUNT(*) FROM `+table+` = $1`) == 0 })
		}
		if lines := logs(t, c, api.SandboxLogsIn{SandboxIn: in(id)}); len(lines) != 1 || lines[0].Message != "kept" {
			t.Errorf("within its time, the log is %+v", lines)
		}
		l.pass(time.Hour)
		for _, table := range tables[:2] {
			eventually(t, func() bool { return count(`SELECT COUNT(*) FROM `+table+` = $1`) == 0 })
		}
		eventually(t, func() bool { _, err := os.Stat(packs); return os.IsNotExist(err) })
	})
}

// TestProcessesOfALongLife starts processes in a sandbox that has had more than are remembered since its start.
func TestProcessesOfALongLife(t *testing.T) {
	eachLife(t, nil, func(t *testing.T, l *life) {
		c, ctx := l.Client, context.Background()
		id := Sandbox(t, c, idling(0))
		const remembered = 2000 + 1024
		err := l.db.TxRelaxed(ctx, func(tx *sql.Tx) error {
			for i := range remembered + 50 {
				_, err := tx.ExecContext(ctx, `INSERT INTO processes (id, org_id, sandbox_id, state, info, started_at) VALUES ($1, '', $2, 'running', '{}', $3)`,
					fmt.Sprintf("proc_old%d", i), id, i+1)
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		p := Must(t, c, api.StartProcess, api.StartProcessIn{SandboxIn: in(id), CommandIn: api.CommandIn{Command: "echo newest"}}).Process.ID
		var rows, oldest int
		if err := l.db.QueryRowContext(ctx, `SELECT COUNT(*), MIN(started_at) FROM processes WHERE sandbox_id = $1`, id).Scan(&rows, &oldest); err != nil {
			t.Fatal(err)
		}
		if rows != remembered || oldest != 52 {
			t.Errorf("%d rows are left, the oldest from %d", rows, oldest)
		}
		if got := read(t, c, id, p, 15); got != "newest\n" {
			t.Errorf("the newest wrote %q", got)
		}
	})
}
