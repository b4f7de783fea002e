package identity_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/identity"
)

// heard are the events that were emitted.
type heard struct{ all []string }

func (h *heard) Emit(_ context.Context, _ op.Tx, org, workspace, kind, resource string, _ any) error {
	h.all = append(h.all, kind+" "+resource)
	if org == "" || workspace == "" {
		h.all = append(h.all, "of nobody")
	}
	return nil
}

// A key's creation and its first revocation are events.
func TestEventsOfKeys(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBench(t, d)
		h := &heard{}
		b.s = identity.New(identity.Config{DB: d, Limits: limits{}, Events: h, Now: func() time.Time { return b.now }})
		b.reg = op.NewRegistry()
		b.s.Register(b.reg)
		admin := b.who(b.first)
		made, err := do[api.CreateKeyOut](b, admin, "keys.create", `{"name":"ci","ttlSeconds":60}`)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := do[api.KeyOut](b, admin, "keys.revoke", `{"keyId":"`+made.Key.ID+`"}`); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff([]string{"key.created " + made.Key.ID, "key.revoked " + made.Key.ID}, h.all); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

// A key expires by the database's clock: a server whose own is behind does not lengthen its life.
func TestExpiryByTheDatabase(t *testing.T) {
	url := dbtest.SQLite(t)
	ahead := time.Duration(0)
	d, err := db.Open(t.Context(), db.Config{URL: url, Now: func() time.Time { return time.Now().Add(ahead) }})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	b := newBench(t, d)
	made, err := do[api.CreateKeyOut](b, b.who(b.first), "keys.create", `{"name":"short","ttlSeconds":3600}`)
	if err != nil {
		t.Fatal(err)
	}
	b.who(made.Secret)
	ahead = 2 * time.Hour // the server that is asked now is two hours behind
	late := identity.New(identity.Config{DB: d, Limits: limits{}})
	if _, err := late.Authenticate(t.Context(), made.Secret); !errs.Is(err, errs.Unauthenticated) {
		t.Errorf("expired by the database: got %v", err)
	}
	if _, err := late.Authenticate(t.Context(), b.first); err != nil {
		t.Errorf("one that never expires: got %v", err)
	}
}
