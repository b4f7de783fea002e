package identity_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/identity"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

type limits struct{}

func (limits) List(context.Context, string) ([]api.Limit, error) {
	return []api.Limit{{Key: "sandboxes.running", Used: 3, Unit: "count"}}, nil
}

type bench struct {
	t     *testing.T
	db    *db.DB
	s     *identity.Service
	reg   *op.Registry
	first string   // the first administrator's key
	root  *api.Key // the same as it is listed
	org   string
	now   time.Time
}

func newBench(t *testing.T, d *db.DB) *bench {
	t.Helper()
	b := &bench{t: t, db: d, reg: op.NewRegistry(), now: time.Now().UTC().Truncate(time.Second)}
	b.s = identity.New(identity.Config{
		DB: d, Limits: limits{}, CallsPerMinute: func(context.Context, string) (int64, error) { return 600, nil }, CallsInFlight: 4, Now: func() time.Time { return b.now },
	})
	b.s.Register(b.reg)
	created, secret, err := b.s.EnsureRoot(t.Context())
	if err != nil || !created {
		t.Fatalf("got %v, %v", created, err)
	}
	b.first, b.org = secret, b.who(secret).OrgID
	list, err := do[api.ListKeysOut](b, b.who(secret), "keys.list", `{}`)
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("got %+v, %v", list, err)
	}
	b.root = &list.Items[0]
	return b
}

func (b *bench) who(secret string) *caller.Caller {
	b.t.Helper()
	c, err := b.s.Authenticate(b.t.Context(), secret)
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

// do takes an operation through its steps as a call does.
func do[Out any](b *bench, c *caller.Caller, operation, raw string) (*Out, error) {
	b.t.Helper()
	ctx := caller.With(b.t.Context(), c)
	o := b.reg.Get(operation)
	in, err := o.Decode(json.RawMessage(raw))
	if err != nil {
		return nil, err
	}
	d, err := o.Draft(ctx, in)
	if err != nil {
		return nil, err
	}
	decision, err := b.s.Authorize(ctx, c, o, d)
	if err != nil {
		return nil, err
	}
	if !decision.Allowed {
		return nil, errs.E(errs.Forbidden, "%s", decision.Message)
	}
	if err := b.db.Tx(ctx, func(tx *sql.Tx) error { return o.Intent(ctx, tx, in, d) }); err != nil {
		return nil, err
	}
	out, err := o.Act(ctx, in, d)
	if err != nil {
		return nil, err
	}
	return out.(*Out), nil
}

func TestEnsureRoot(t *testing.T) {
	dbtest.EachURL(t, func(t *testing.T, url string) {
		var wg sync.WaitGroup
		secrets := make(chan string, 4)
		var servers []*identity.Service
		for range 4 {
			s := identity.New(identity.Config{DB: dbtest.Open(t, url)})
			servers = append(servers, s)
			wg.Go(func() {
				created, secret, err := s.EnsureRoot(t.Context())
				if err != nil || created != (secret != "") {
					t.Errorf("got %v, %d characters, %v", created, len(secret), err)
				}
				if created {
					secrets <- secret
				}
			})
		}
		wg.Wait()
		close(secrets)
		var all []string
		for secret := range secrets {
			all = append(all, secret)
		}
		if len(all) != 1 {
			t.Fatalf("%d servers made a root organization", len(all))
		}
		for _, s := range servers {
			if _, err := s.Authenticate(t.Context(), all[0]); err != nil {
				t.Error(err)
			}
		}
		// Another organization is apart.
		secret, err := servers[0].Found(t.Context(), "other")
		if err != nil {
			t.Fatal(err)
		}
		first, err1 := servers[1].Authenticate(t.Context(), all[0])
		other, err2 := servers[1].Authenticate(t.Context(), secret)
		if err1 != nil || err2 != nil || first.OrgID == other.OrgID || first.WorkspaceID == other.WorkspaceID {
			t.Errorf("got %+v, %v and %+v, %v", first, err1, other, err2)
		}
	})
}

func TestAuthenticate(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBench(t, d)
		secret := b.first
		if !regexp.MustCompile(`^berth_sk_[0-9A-Za-z]{43}[0-9A-Za-z]{6}$`).MatchString(secret) {
			t.Fatalf("the key has the form of %d characters that begin with %.9s", len(secret), secret)
		}
		want := &caller.Caller{OrgID: b.org, WorkspaceID: b.root.Workspace, PrincipalID: b.root.ID, KeyID: b.root.ID, Scopes: []string{"admin"}}
		for range 2 { // from the database, from the cache
			if diff := cmp.Diff(want, b.who(secret)); diff != "" {
				t.Errorf("caller (-want +got):\n%s", diff)
			}
		}
		flipped := "1"
		if secret[20] == '1' {
			flipped = "2"
		}
		for _, bad := range []string{"", "berth_sk_", secret + "x", secret[:len(secret)-1], secret[:20] + flipped + secret[21:], strings.ToUpper(secret), "Bearer " + secret} {
			if c, err := b.s.Authenticate(t.Context(), bad); !errs.Is(err, errs.Unauthenticated) {
				t.Errorf("%q: got %v, %v", bad, c, err)
			}
		}
		stranger := newBench(t, dbtest.Open(t, dbtest.SQLite(t)))
		if c, err := b.s.Authenticate(t.Context(), stranger.first); !errs.Is(err, errs.Unauthenticated) {
			t.Errorf("a key of another deployment: got %v, %v", c, err)
		}
		// A malformed token never reaches the database; a well-formed one does.
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := b.s.Authenticate(ended, secret[:len(secret)-1]+"!"); !errs.Is(err, errs.Unauthenticated) {
			t.Errorf("malformed, without a database: got %v", err)
		}
		if _, err := b.s.Authenticate(ended, stranger.first); err == nil || errs.Is(err, errs.Unauthenticated) {
			t.Errorf("well-formed, without a database: got %v", err)
		}
		// Neither the key nor its parts are stored.
		var rows int
		if err := d.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM keys WHERE hash LIKE $1 OR name LIKE $1 OR created_by LIKE $1`, "%"+secret[9:30]+"%").Scan(&rows); err != nil || rows != 0 {
			t.Errorf("the key is stored: %d, %v", rows, err)
		}
	})
}

func TestKeys(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBench(t, d)
		admin := b.who(b.first)
		made, err := do[api.CreateKeyOut](b, admin, "keys.create", `{"name":"ci","scopes":["read","compute:sandboxes:*"],"ttlSeconds":3600}`)
		if err != nil {
			t.Fatal(err)
		}
		later := b.now.Add(time.Hour)
		want := api.Key{
			ID: made.Key.ID, Name: "ci", Last4: made.Secret[len(made.Secret)-4:], Scopes: []string{"read", "compute:sandboxes:*"}, CreatedAt: b.now, ExpiresAt: &later,
			CreatedBy: op.CreatedBy{Key: b.root.ID}, Workspace: b.root.Workspace,
		}
		if diff := cmp.Diff(want, made.Key); diff != "" {
			t.Errorf("key (-want +got):\n%s", diff)
		}
		if out := made.Redacted().(api.CreateKeyOut); out.Secret != "" || out.Key.ID != made.Key.ID {
			t.Errorf("redacted: got %+v", out)
		}
		ci := b.who(made.Secret)
		account, err := do[api.AccountOut](b, ci, "account.get", `{}`)
		if err != nil {
			t.Fatal(err)
		}
		wantAccount := &api.AccountOut{
			OrganizationID: b.org, OrganizationName: "root", WorkspaceID: b.root.Workspace, WorkspaceName: "default", PrincipalID: made.Key.ID,
			KeyID: made.Key.ID, KeyName: "ci", Scopes: want.Scopes,
		}
		if diff := cmp.Diff(wantAccount, account); diff != "" {
			t.Errorf("account (-want +got):\n%s", diff)
		}
		for _, o := range []string{"keys.create", "keys.list", "keys.revoke"} {
			raw := map[string]string{"keys.create": `{"name":"x","scopes":["read"]}`, "keys.list": `{}`, "keys.revoke": `{"keyId":"` + b.root.ID + `"}`}[o]
			if _, err := do[api.KeyOut](b, ci, o, raw); !errs.Is(err, errs.Forbidden) {
				t.Errorf("%s by a key that may only read: got %v", o, err)
			}
		}
		// It expires, without anyone doing anything.
		b.now = later.Add(-time.Nanosecond)
		b.who(made.Secret)
		b.now = later
		if _, err := b.s.Authenticate(t.Context(), made.Secret); !errs.Is(err, errs.Unauthenticated) {
			t.Errorf("expired: got %v", err)
		}

		// Revoked at once, though it is remembered, and twice with success.
		b.now = later.Add(-time.Minute)
		b.who(made.Secret)
		for range 2 {
			out, err := do[api.KeyOut](b, admin, "keys.revoke", `{"keyId":"`+made.Key.ID+`"}`)
			if err != nil || out.Key.RevokedAt == nil || !out.Key.RevokedAt.Equal(b.now) {
				t.Fatalf("revoke: got %+v, %v", out, err)
			}
			if _, err := b.s.Authenticate(t.Context(), made.Secret); !errs.Is(err, errs.Unauthenticated) {
				t.Errorf("revoked: got %v", err)
			}
		}
		if _, err := do[api.KeyOut](b, admin, "keys.revoke", `{"keyId":"key_aaaaaaaaaaaaaaaaaaaa"}`); !errs.Is(err, errs.NotFound) {
			t.Errorf("unknown key: got %v", err)
		}
		foreign := *admin
		foreign.OrgID = "org_other"
		if _, err := do[api.KeyOut](b, &foreign, "keys.revoke", `{"keyId":"`+b.root.ID+`"}`); !errs.Is(err, errs.NotFound) {
			t.Errorf("a key of another organization: got %v", err)
		}
		b.who(b.first)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_ = b.s.Run(ended) // which stores at its end when keys were used
		list, err := do[api.ListKeysOut](b, admin, "keys.list", `{}`)
		if err != nil || len(list.Items) != 1 || list.Items[0].LastUsed == nil || !list.Items[0].LastUsed.Equal(b.now.Truncate(time.Minute)) {
			t.Errorf("list: got %+v, %v", list, err)
		}
	})
}

// A repeated act, whose first answer was lost, gives a working secret and leaves one key.
func TestCreateKeyAgain(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBench(t, d)
		ctx := caller.With(t.Context(), b.who(b.first))
		o := b.reg.Get("keys.create")
		in, err := o.Decode([]byte(`{"name":"ci"}`))
		if err != nil {
			t.Fatal(err)
		}
		first, err := o.Draft(ctx, in)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Tx(ctx, func(tx *sql.Tx) error { return o.Intent(ctx, tx, in, first) }); err != nil {
			t.Fatal(err)
		}
		lost, err := o.Act(ctx, in, first)
		if err != nil {
			t.Fatal(err)
		}
		again, err := o.Draft(ctx, in)
		if err != nil {
			t.Fatal(err)
		}
		again.Resource.ID = first.Resource.ID // as the path of a call does
		out, err := o.Act(ctx, in, again)
		if err != nil {
			t.Fatal(err)
		}
		if c := b.who(out.(*api.CreateKeyOut).Secret); c.KeyID != first.Resource.ID {
			t.Errorf("the second secret is of %s, want %s", c.KeyID, first.Resource.ID)
		}
		if _, err := b.s.Authenticate(t.Context(), lost.(*api.CreateKeyOut).Secret); !errs.Is(err, errs.Unauthenticated) {
			t.Errorf("the lost secret: got %v", err)
		}
	})
}

func TestRevokedOnAnotherServer(t *testing.T) {
	url := dbtest.Postgres(t)
	b := newBench(t, dbtest.Open(t, url))
	other := identity.New(identity.Config{DB: dbtest.Open(t, url), Now: func() time.Time { return b.now }}) // whose time stands still: only the signal counts
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = other.Run(ctx) })
	defer running.Wait()
	defer cancel()
	made, err := do[api.CreateKeyOut](b, b.who(b.first), "keys.create", `{"name":"ci"}`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Authenticate(ctx, made.Secret); err != nil {
		t.Fatal(err)
	}
	if _, err := do[api.KeyOut](b, b.who(b.first), "keys.revoke", `{"keyId":"`+made.Key.ID+`"}`); err != nil {
		t.Fatal(err)
	}
	err = b.db.Wait(ctx, "nothing", func(ctx context.Context) (bool, error) {
		_, err := other.Authenticate(ctx, made.Secret)
		return errs.Is(err, errs.Unauthenticated), nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestPages(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBench(t, d)
		admin := b.who(b.first)
		want := []string{b.root.ID}
		for i := range 4 {
			b.now = b.now.Add(time.Duration(i%2) * time.Second) // some at the same time
			k, err := do[api.CreateKeyOut](b, admin, "keys.create", `{"name":"k"}`)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, k.Key.ID)
			if _, err := d.ExecContext(t.Context(), `INSERT INTO workspaces (id, org_id, name, created_at) VALUES ($1, $2, $1, 1)`, fmt.Sprint("ws_", i), b.org); err != nil {
				t.Fatal(err)
			}
		}
		got, cursor := []string{}, ""
		for pages := 0; pages == 0 || cursor != ""; pages++ {
			out, err := do[api.ListKeysOut](b, admin, "keys.list", fmt.Sprintf(`{"limit":2,"cursor":%q}`, cursor))
			if err != nil {
				t.Fatal(err)
			}
			if len(out.Items) > 2 {
				t.Errorf("got %d items, want 2 at most", len(out.Items))
			}
			for _, k := range out.Items {
				got = append(got, k.ID)
			}
			cursor = ""
			if out.NextCursor != nil {
				cursor = *out.NextCursor
				if _, err := do[api.ListKeysOut](b, admin, "keys.list", fmt.Sprintf(`{"includeRevoked":true,"cursor":%q}`, cursor)); !errs.Is(err, errs.InvalidCursor) {
					t.Errorf("a cursor of other filters: got %v", err)
				}
			}
		}
		if diff := cmp.Diff(want, got, cmpopts.SortSlices(func(a, b string) bool { return a < b })); diff != "" {
			t.Errorf("keys (-want +got):\n%s", diff)
		}
		first, err := do[api.ListWorkspacesOut](b, admin, "workspaces.list", `{"limit":3}`)
		if err != nil || first.NextCursor == nil {
			t.Fatalf("got %+v, %v", first, err)
		}
		second, err := do[api.ListWorkspacesOut](b, admin, "workspaces.list", fmt.Sprintf(`{"limit":3,"cursor":%q}`, *first.NextCursor))
		if err != nil || second.NextCursor != nil {
			t.Fatalf("got %+v, %v", second, err)
		}
		current := 0
		for _, w := range append(first.Items, second.Items...) {
			if w.Current {
				current++
			}
		}
		if n := len(first.Items) + len(second.Items); n != 5 || current != 1 {
			t.Errorf("got %d workspaces, %d of them current", n, current)
		}
		got2, err := do[api.LimitsOut](b, admin, "account.limits", ``)
		want2 := &api.LimitsOut{Items: []api.Limit{{Key: "sandboxes.running", Used: 3, Unit: "count"}}, CallsPerMinute: 600, CallsInFlight: 4}
		if diff := cmp.Diff(want2, got2); diff != "" || err != nil {
			t.Errorf("limits: %v (-want +got):\n%s", err, diff)
		}
	})
}
