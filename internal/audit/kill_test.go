package audit_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/audit"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
)

// killed is the variable with the database of a process that is made to be killed.
const killed = "AUDIT_TEST_KILLED"

func TestMain(m *testing.M) {
	if url := os.Getenv(killed); url != "" {
		fmt.Fprintln(os.Stderr, record(context.Background(), url))
		os.Exit(1)
	}
	dbtest.Main(m)
}

// record makes calls as fast as it can and prints the row of each once its intent is committed, until it is killed.
func record(ctx context.Context, url string) error {
	d, err := db.Open(ctx, db.Config{URL: url})
	if err != nil {
		return err
	}
	log := audit.New(audit.Config{DB: d, Endless: 50 * time.Millisecond})
	go func() { _ = log.Run(ctx) }()
	go func() {
		for {
			_, _ = log.Chain(ctx) // as often as can be, so that the end hits it
		}
	}()
	for {
		var row string
		err := d.Tx(ctx, func(tx *sql.Tx) (err error) {
			e := read("org_a", "sbx_1")
			e.Result, e.Duration = "", 0
			row, err = log.Begin(ctx, tx, e)
			return err
		})
		if err != nil {
			return err
		}
		fmt.Println(row)
		log.End(row, audit.OK, time.Millisecond)
	}
}

// TestKilled ends a server with kill -9 again and again. Every row whose commit it has told of is there, once, and the chain is whole.
func TestKilled(t *testing.T) {
	dbtest.EachURL(t, func(t *testing.T, url string) {
		d := dbtest.Open(t, url)
		var told []string
		for range 6 {
			cmd := exec.CommandContext(t.Context(), os.Args[0]) //nolint:gosec // this test
			cmd.Env = append(os.Environ(), killed+"="+url)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			for n := 0; lines.Scan(); n++ {
				told = append(told, lines.Text())
				if n == 20 {
					time.AfterFunc(rand.N(200*time.Millisecond), func() { _ = cmd.Process.Kill() }) //nolint:gosec // any moment will do
				}
			}
			if err := cmd.Wait(); err == nil {
				t.Fatal("it ended by itself")
			}
			whole(t, d)
		}
		log := audit.New(audit.Config{DB: d, Endless: time.Microsecond})
		chain(t, log)
		whole(t, d)
		rows, err := log.List(t.Context(), "org_a", 0, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		there := map[string]int{}
		for _, e := range rows {
			there[e.ID]++
		}
		lost := 0
		for _, row := range told {
			if there[row] != 1 {
				lost++
			}
		}
		if len(told) < 120 || lost > 0 {
			t.Errorf("of %d rows %d are not there, or not once", len(told), lost)
		}
	})
}
