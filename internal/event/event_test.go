package event_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/event"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

func TestLog(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		log := event.New(event.Config{DB: d})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = log.Run(ctx) })
		defer running.Wait()
		defer cancel()

		put := func(e event.Event, then error) {
			t.Helper()
			err := d.Tx(ctx, func(tx *sql.Tx) error {
				return errors.Join(log.Emit(ctx, tx, e.Org, e.Workspace, e.Type, e.Resource, e.Data), then)
			})
			if !errors.Is(err, then) {
				t.Fatal(err)
			}
		}
		put(event.Event{Org: "org_a", Type: "sandbox.created", Resource: "sbx_1", Data: map[string]string{"name": "one"}}, nil)
		put(event.Event{Org: "org_a", Type: "sandbox.undone", Resource: "sbx_2"}, errors.New("undone"))
		put(event.Event{Org: "org_b", Type: "sandbox.created", Resource: "sbx_3"}, nil)
		put(event.Event{Org: "org_a", Workspace: "ws_1", Type: "sandbox.deleted", Resource: "sbx_1"}, nil)

		type row struct{ Type, Resource, Workspace, Data string }
		var got []row
		var after int64
		err := d.Wait(ctx, log.Topic(), func(ctx context.Context) (bool, error) {
			events, err := log.List(ctx, "org_a", after, 1)
			for _, e := range events {
				if e.Seq <= after || e.ID == "" || e.At.IsZero() {
					t.Errorf("got %+v after %d", e, after)
				}
				after = e.Seq
				got = append(got, row{e.Type, e.Resource, e.Workspace, string(e.Data.(json.RawMessage))})
			}
			return len(got) == 2, err
		})
		if err != nil {
			t.Fatal(err)
		}
		want := []row{{"sandbox.created", "sbx_1", "", `{"name":"one"}`}, {"sandbox.deleted", "sbx_1", "ws_1", `{}`}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}
