package calltest

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/audit"
	"github.com/berthrun/berth/internal/call"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/identity"
	"github.com/berthrun/berth/internal/quota"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// The kit on the operations that need no node: those of the account and its keys.
func TestIdentity(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		limiter := call.NewBuckets(call.BucketsConfig{DB: d, PerMinute: -1})
		ids := identity.New(identity.Config{DB: d, Limits: quota.New(quota.Config{DB: d}), CallsPerMinute: limiter.PerMinute, CallsInFlight: 4})
		reg := op.NewRegistry()
		ids.Register(reg)
		path := call.New(call.Config{DB: d, Authorizer: ids, Limiter: limiter, Auditor: audit.New(audit.Config{DB: d})})
		who := func(secret string, err error) *caller.Caller {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			c, err := ids.Authenticate(t.Context(), secret)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		_, secret, err := ids.EnsureRoot(t.Context())
		admin := who(secret, err)
		foreign := who(ids.Found(t.Context(), "other"))
		Suite(t, Setup{
			Registry: reg, Path: path, Admin: admin, Foreign: foreign,
			Want: []op.Info{api.GetAccount.Info(), api.ListWorkspaces.Info(), api.GetLimits.Info(), api.CreateKey.Info(), api.ListKeys.Info(), api.RevokeKey.Info()},
			Example: func(t *testing.T, operation string) string {
				switch operation {
				case "keys.create":
					return `{"name":"one","scopes":["read"]}`
				case "keys.revoke":
					res, err := path.Do(caller.With(t.Context(), admin), reg.Get("keys.create"), json.RawMessage(`{"name":"revoked"}`), call.Options{})
					if err != nil {
						t.Fatal(err)
					}
					return fmt.Sprintf(`{"keyId":%q}`, res.Value.(*api.CreateKeyOut).Key.ID)
				case "keys.list", "workspaces.list":
					return `{"limit":3}`
				}
				return `{}`
			},
			State: func(t *testing.T) string {
				return dump(t, d, `SELECT id || ' ' || COALESCE(hash, '') || ' ' || CAST(revoked_at AS TEXT) FROM keys ORDER BY id`) +
					dump(t, d, `SELECT id || ' ' || name FROM workspaces ORDER BY id`)
			},
		})
	})
}

func dump(t *testing.T, d *db.DB, query string) string {
	t.Helper()
	rows, err := d.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var all strings.Builder
	for rows.Next() {
		var s sql.NullString
		if err := rows.Scan(&s); err != nil {
			t.Fatal(err)
		}
		all.WriteString(s.String + "\n")
	}
	return all.String()
}

type badIn struct {
	Open any               `json:"open" doc:"Anything."`
	Map  map[string]string `json:"map,omitempty" doc:"A map."`
}

type badOut struct {
	Inner struct {
		Any any `json:"any"`
	} `json:"inner"`
}

// The kit finds what it is there to find.
func TestProblems(t *testing.T) {
	good := api.CreateKey.Info()
	if got := problems(good); len(got) != 0 {
		t.Errorf("a good definition: %q", got)
	}
	bad := op.Def[badIn, badOut]{Name: "Bad", Route: "POST /v1/{open}/{none}", Action: "bad", Tool: "Bad", Hints: op.Read, Doc: "no stop"}.Info()
	got := strings.Join(problems(bad), "\n")
	for _, want := range []string{"malformed", "documentation is missing", "POST does not fit", "{none}", "input.open: has no type", "output.inner.any: has no type"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not found; got\n%s", want, got)
		}
	}
	closed := api.CreateKey.Info()
	closed.Out.AdditionalProperties = false
	closed.Out.Properties["secret"].Enum = []string{"a"}
	closed.In.AdditionalProperties = nil
	closed.In.Properties["idempotencyKey"].Nullable = true
	delete(closed.Out.Properties, "replayed")
	got = strings.Join(problems(closed), "\n")
	for _, want := range []string{"an output is closed", "an output has an enum", "an input is open", "may be null", "gives it back with replayed", "are declared"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not found; got\n%s", want, got)
		}
	}
}

// Every spoiled input is refused by the schema that it was made for, and the good one is not.
func TestSpoiled(t *testing.T) {
	s := api.CreateSandbox.Info().In
	good := `{"name":"a","ttlSeconds":60,"onIdle":"stop","metadata":{"a":"b"}}`
	if err := op.Check(s, []byte(good)); err != nil {
		t.Fatal(err)
	}
	all := spoiled(t, s, good)
	for _, raw := range all {
		if err := op.Check(s, []byte(raw)); err == nil {
			t.Errorf("%s is taken", raw)
		}
	}
	if len(all) < 60 {
		t.Errorf("only %d ways to spoil it", len(all))
	}
}
