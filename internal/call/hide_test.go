package call

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/errs"
)

// What is never shown again is not in what a person sees, whose digest changes with it all the same.
func TestHide(t *testing.T) {
	hide := func(salt, raw string) string {
		t.Helper()
		canonical, err := canonicalInput([]byte(raw))
		if err != nil {
			t.Fatal(err)
		}
		b, err := hide(op.SchemaOf[api.SetRegistryIn](op.Closed), canonical, salt)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	a := hide("one", `{"host":"h","username":"u","password":"hunter2"}`)
	if strings.Contains(a, "hunter2") || !strings.HasPrefix(a, `{"host":"h","password":{"secret":"`) || !strings.HasSuffix(a, `"},"username":"u"}`) {
		t.Errorf("hidden: %s", a)
	}
	if again := hide("one", `{"username":"u","password":"hunter2","host":"h"}`); again != a {
		t.Errorf("the same again: %s, %s", a, again)
	}
	for _, other := range []string{
		hide("one", `{"host":"h","username":"u","password":"hunter3"}`),
		hide("two", `{"host":"h","username":"u","password":"hunter2"}`),
	} {
		if other == a {
			t.Errorf("another value or salt: the same %s", other)
		}
	}
	env := op.SchemaOf[api.ExecIn](op.Closed)
	got, err := secretsOf(env, `{"argv":["a"],"env":{"PATH":"x","TOKEN":"x"}}`)
	if err != nil {
		t.Fatal(err)
	}
	if got["PATH"]["secret"] == "" || got["TOKEN"]["secret"] == "" || got["PATH"]["secret"] == got["TOKEN"]["secret"] {
		t.Errorf("variables keep their names, and equal values are not told: %v", got)
	}
}

func secretsOf(s *op.Schema, canonical string) (map[string]map[string]string, error) {
	b, err := hide(s, []byte(canonical), "salt")
	if err != nil {
		return nil, err
	}
	var out struct {
		Env map[string]map[string]string
	}
	return out.Env, json.Unmarshal(b, &out)
}

// Every member that its own words say is never shown again is marked, as are all variables.
func TestSecretsAreMarked(t *testing.T) {
	var got []string
	var walk func(operation, path string, s *op.Schema)
	walk = func(operation, path string, s *op.Schema) {
		for _, name := range s.Order {
			p := s.Properties[name]
			at := path + "." + name
			if p.Secret {
				got = append(got, operation+at)
			} else if d := strings.ToLower(p.Description); strings.Contains(d, "never shown again") || name == "env" || strings.Contains(strings.ToLower(name), "password") {
				t.Errorf("%s%s is not marked as secret", operation, at)
			}
			walk(operation, at, p)
		}
	}
	for _, info := range api.All() {
		if info.Hints.Has(op.Write) {
			walk(info.Name, "", info.In)
		}
	}
	for _, want := range []string{"sandboxes.create.env", "sandboxes.exec.env", "templates.update.userData", "registries.set.password", "registries.set.token"} {
		if !strings.Contains(strings.Join(got, " "), want) {
			t.Errorf("%s is not secret; are: %v", want, got)
		}
	}
}

// Arguments that nobody would read are not asked for; the row that was begun for them is gone too.
func TestTooLongToApprove(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBench(t, d)
		b.exec(`INSERT INTO organizations (id, name, created_at) VALUES ('org_a', 'a', 0)`)
		p := b.heldPath()
		b.heldBack(p, `{"name":"`+strings.Repeat("n", 32000)+`"}`)
		_, err := b.do(p, "things.make", `{"name":"`+strings.Repeat("n", 33000)+`","idempotencyKey":"k"}`)
		if !errs.Is(err, errs.InvalidInput) || errs.From(err).Reason != "confirmation_size" {
			t.Errorf("got %v", err)
		}
		if diff := cmp.Diff([]int{1, 1, 0}, []int{b.count(`SELECT COUNT(*) FROM confirmations`), b.count(`SELECT COUNT(*) FROM idempotency`), b.world.acts}); diff != "" {
			t.Errorf("requests, retry keys, effects (-want +got):\n%s", diff)
		}
	})
}

// A call that was approved says so of its caller while it acts, and only then.
func TestApprovedIsSaid(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		b := newBench(t, d)
		b.exec(`INSERT INTO organizations (id, name, created_at) VALUES ('org_a', 'a', 0)`)
		p := b.heldPath()
		b.heldBack(p, `{"name":"n","idempotencyKey":"k"}`)
		b.approved()
		approved := false
		b.world.act = func(ctx context.Context, _ *makeIn, d *op.Draft) error {
			approved = caller.From(ctx).Approved && d.Confirmed
			return nil
		}
		b.made(`{"name":"n","idempotencyKey":"k"}`, p)
		if !approved {
			t.Error("an approved call does not say so")
		}
	})
}
