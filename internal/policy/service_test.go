package policy_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/policy"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

const all = "permit(principal, action, resource);\n"

// happened collects events.
type happened struct {
	mu   sync.Mutex
	list []string
}

func (h *happened) Emit(_ context.Context, _ op.Tx, org, _, kind, resource string, _ any) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list = append(h.list, org+" "+kind+" "+resource)
	return nil
}

// server is one of the servers of a deployment.
type server struct {
	t      *testing.T
	db     *db.DB
	s      *policy.Service
	reg    *op.Registry
	events happened
}

func newServer(t *testing.T, d *db.DB) *server {
	t.Helper()
	sv := &server{t: t, db: d, reg: op.NewRegistry()}
	var err error
	if sv.s, err = policy.New(policy.Config{DB: d, Events: &sv.events}); err != nil {
		t.Fatal(err)
	}
	sv.s.Register(sv.reg)
	return sv
}

// run lets the server hear of changes until the test ends.
func (sv *server) run() {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = sv.s.Run(ctx) })
	sv.t.Cleanup(func() { cancel(); wg.Wait() })
}

func organization(t *testing.T, d *db.DB, id string) *caller.Caller {
	t.Helper()
	if _, err := d.ExecContext(t.Context(), `INSERT INTO organizations (id, name, root, created_at) VALUES ($1, $1, 0, 1)`, id); err != nil {
		t.Fatal(err)
	}
	return &caller.Caller{OrgID: id, PrincipalID: "key_" + id, KeyID: "key_" + id, Face: caller.FaceHTTP}
}

// do takes an operation through its steps as the path of a call does.
func do[Out any](sv *server, c *caller.Caller, operation string, in any) (*Out, error) {
	sv.t.Helper()
	ctx := caller.With(sv.t.Context(), c)
	raw, err := json.Marshal(in)
	if err != nil {
		sv.t.Fatal(err)
	}
	o := sv.reg.Get(operation)
	typed, err := o.Decode(raw)
	if err != nil {
		return nil, err
	}
	d, err := o.Draft(ctx, typed)
	if err != nil {
		return nil, err
	}
	decision, err := sv.s.Authorize(ctx, c, o, d)
	if err != nil {
		return nil, err
	}
	if !decision.Allowed {
		return nil, errs.E(errs.Forbidden, "%s", decision.Message)
	}
	if err := sv.db.Tx(ctx, func(tx *sql.Tx) error { return o.Intent(ctx, tx, typed, d) }); err != nil {
		return nil, err
	}
	out, err := o.Act(ctx, typed, d)
	if err != nil {
		return nil, err
	}
	return out.(*Out), nil
}

func (sv *server) put(c *caller.Caller, in api.PutPoliciesIn) (*api.PutPoliciesOut, error) {
	return do[api.PutPoliciesOut](sv, c, api.PutPolicies.Name, in)
}

// may asks whether the caller may do something to its organization's sandbox.
func (sv *server) may(c *caller.Caller, action string, confirmed bool) op.Decision {
	sv.t.Helper()
	o := &op.Operation{Info: op.Info{Action: action}}
	d, err := sv.s.Authorize(sv.t.Context(), c, o, &op.Draft{Resource: op.Resource{Kind: "sandbox", ID: "sbx_1", OrgID: c.OrgID, Name: "one"}, Confirmed: confirmed})
	if err != nil {
		sv.t.Fatal(err)
	}
	return d
}

const (
	del      = "compute:sandboxes:delete"
	noDelete = all + `forbid(principal, action == Action::"compute:sandboxes:delete", resource);`
)

func TestPut(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		sv := newServer(t, d)
		a, b := organization(t, d, "org_a"), organization(t, d, "org_b")
		got, err := do[api.GetPoliciesOut](sv, a, api.GetPolicies.Name, api.GetPoliciesIn{Schema: true})
		if err != nil || got.Policies.Version != 0 || got.Policies.Text != policy.Default() || len(got.History) != 0 || !strings.Contains(got.Policies.Shipped, "tenant-wall") || !strings.Contains(got.Schema, "entity Sandbox") {
			t.Fatalf("got %+v, %v", got, err)
		}
		if d := sv.may(a, del, false); !d.Allowed {
			t.Errorf("by default: got %+v", d)
		}
		first, err := sv.put(a, api.PutPoliciesIn{Text: noDelete})
		if err != nil || first.Policies.Version != 1 || first.Policies.CreatedBy.Key != a.KeyID || first.Policies.CreatedAt == nil {
			t.Fatalf("got %+v, %v", first, err)
		}
		if d := sv.may(a, del, false); d.Allowed || !strings.Contains(d.Message, "policy1 in line 2") || d.Confirm != nil {
			t.Errorf("got %+v", d)
		}
		if d := sv.may(b, del, false); !d.Allowed {
			t.Errorf("another organization: got %+v", d)
		}
		// What was read before is not what is replaced.
		zero, one := int64(0), int64(1)
		if _, err := sv.put(a, api.PutPoliciesIn{Text: all, ExpectedVersion: &zero}); !errs.Is(err, errs.InvalidState) || errs.From(err).Reason != "version" {
			t.Errorf("got %v", err)
		}
		if _, err := sv.put(a, api.PutPoliciesIn{Text: all, ExpectedVersion: &one}); err != nil {
			t.Error(err)
		}
		if d := sv.may(a, del, false); !d.Allowed {
			t.Errorf("got %+v", d)
		}
		got, err = do[api.GetPoliciesOut](sv, a, api.GetPolicies.Name, api.GetPoliciesIn{Version: 1})
		if err != nil || got.Policies.Text != noDelete || len(got.History) != 2 || got.History[0].Version != 2 || got.History[1].CreatedBy.Key != a.KeyID {
			t.Errorf("got %+v, %v", got, err)
		}
		if _, err := do[api.GetPoliciesOut](sv, b, api.GetPolicies.Name, api.GetPoliciesIn{Version: 1}); !errs.Is(err, errs.NotFound) {
			t.Errorf("another organization's version: got %v", err)
		}
		if diff := cmp.Diff([]string{"org_a policies.changed org_a", "org_a policies.changed org_a"}, sv.events.list); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

// TestPutProblems: what is wrong is not put, and every place is told.
func TestPutProblems(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		sv := newServer(t, d)
		a := organization(t, d, "org_a")
		text := all + "  permit(principal is User, action, resource);\n" + `permit(principal, action, resource) when { resource.nam == "x" };`
		_, err := sv.put(a, api.PutPoliciesIn{Text: text})
		e := errs.From(err)
		problems, _ := e.Details["problems"].([]api.PolicyProblem)
		if e.Code != errs.InvalidInput || e.Reason != "policies" || len(problems) != 2 || problems[0].Line != 2 || problems[0].Column != 3 || problems[1].Line != 3 || !strings.Contains(e.Message, "line 2, column 3: unrecognized entity type `User` (and 1 more)") {
			t.Errorf("got %v with %+v", err, problems)
		}
		checked, err := do[api.ValidatePoliciesOut](sv, a, api.ValidatePolicies.Name, api.ValidatePoliciesIn{Text: text})
		if err != nil || checked.Valid {
			t.Errorf("got %+v, %v", checked, err)
		}
		if diff := cmp.Diff(problems, checked.Problems); diff != "" {
			t.Errorf("put and validate say otherwise:\n%s", diff)
		}
		if checked, err = do[api.ValidatePoliciesOut](sv, a, api.ValidatePolicies.Name, api.ValidatePoliciesIn{Text: noDelete}); err != nil || !checked.Valid {
			t.Errorf("got %+v, %v", checked, err)
		}
		got, err := do[api.GetPoliciesOut](sv, a, api.GetPolicies.Name, api.GetPoliciesIn{})
		if err != nil || got.Policies.Version != 0 {
			t.Errorf("something was put: %+v, %v", got, err)
		}
	})
}

// TestLockOut: nobody puts by mistake what takes from them the right to put.
func TestLockOut(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		sv := newServer(t, d)
		a := organization(t, d, "org_a")
		for name, text := range map[string]string{
			"nothing":                           "",
			"read":                              `permit(principal, action in Action::"read", resource);`,
			"others":                            `permit(principal == Key::"key_other", action, resource);`,
			"forbidden":                         all + `@id("no-identity") forbid(principal, action in Action::"identity:*", resource);`,
			"approvals that wait for approvals": all + `@confirm("all") forbid(principal, action, resource) unless { context.confirmed };`,
			"nobody approves": all + `@confirm("policies") forbid(principal, action == Action::"identity:policies:write", resource) unless { context.confirmed };` +
				`forbid(principal, action in Action::"identity:confirmations:*", resource);`,
			"from nearby": all + `forbid(principal, action, resource) unless { context has sourceAddress && context.sourceAddress.isInRange(ip("10.0.0.0/8")) };`,
		} {
			_, err := sv.put(a, api.PutPoliciesIn{Text: text})
			if e := errs.From(err); e.Code != errs.InvalidInput || e.Reason != "lock_out" || e.Details["forbids"] == nil {
				t.Errorf("%s: got %v", name, err)
			}
			if name == "forbidden" && !strings.Contains(err.Error(), "no-identity in line 2") {
				t.Errorf("got %v", err)
			}
		}
		// What a person may approve locks nobody out.
		if _, err := sv.put(a, api.PutPoliciesIn{Text: all + `@confirm("two pairs of eyes") forbid(principal, action in [Action::"identity:keys:*", Action::"identity:policies:*"], resource) unless { context.confirmed };`}); err != nil {
			t.Error(err)
		}
		if _, err := sv.put(a, api.PutPoliciesIn{Text: all}); !errs.Is(err, errs.Forbidden) || !strings.Contains(err.Error(), "two pairs of eyes") {
			t.Errorf("got %v", err)
		}
		sv, a = newServer(t, d), organization(t, d, "org_b") // where nothing was put
		if _, err := sv.put(a, api.PutPoliciesIn{Text: `permit(principal == Key::"key_other", action, resource);`, Force: true}); err != nil {
			t.Error(err)
		}
		if _, err := sv.put(a, api.PutPoliciesIn{Text: all}); !errs.Is(err, errs.Forbidden) {
			t.Errorf("got %v", err)
		}
		other := *a
		other.KeyID = "key_other"
		defer func() { // what is documented for when nobody is left
			if _, err := d.ExecContext(t.Context(), `DELETE FROM policy_sets WHERE org_id = 'org_b'`); err != nil {
				t.Error(err)
			}
			for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
				out, err := do[api.GetPoliciesOut](sv, a, api.GetPolicies.Name, api.GetPoliciesIn{})
				if err == nil && out.Policies.Version == 0 {
					return
				}
				if time.Since(began) > 5*time.Second {
					t.Errorf("got %+v, %v", out, err)
					return
				}
			}
		}()
		if _, err := sv.put(&other, api.PutPoliciesIn{Text: `permit(principal == Key::"key_other", action, resource);`}); err != nil {
			t.Error(err)
		}
	})
}

// TestConfirm: the decision tells why a person is to approve, and an approval that the call path has consumed lifts that and nothing else.
func TestConfirm(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		sv := newServer(t, d)
		a := organization(t, d, "org_a")
		text := all + `@confirm("deletes are approved") forbid(principal, action == Action::"compute:sandboxes:delete", resource) unless { context.confirmed };` +
			`forbid(principal, action == Action::"compute:sandboxes:exec", resource);`
		if _, err := sv.put(a, api.PutPoliciesIn{Text: text}); err != nil {
			t.Fatal(err)
		}
		if d := sv.may(a, del, false); d.Allowed || !cmp.Equal(d.Confirm, []string{"deletes are approved"}) || !strings.Contains(d.Message, "a person is to approve") {
			t.Errorf("got %+v", d)
		}
		if d := sv.may(a, del, true); !d.Allowed || d.Confirm != nil {
			t.Errorf("approved: got %+v", d)
		}
		for _, approved := range []bool{false, true} {
			if d := sv.may(a, "compute:sandboxes:exec", approved); d.Allowed || d.Confirm != nil {
				t.Errorf("forbidden, approved %v: got %+v", approved, d)
			}
		}
	})
}

// TestTwoServers: a change by one server holds on another within a second, also where nobody told of it.
func TestTwoServers(t *testing.T) {
	dbtest.EachURL(t, func(t *testing.T, url string) {
		d := dbtest.Open(t, url)
		one, two, deaf := newServer(t, d), newServer(t, dbtest.Open(t, url)), newServer(t, dbtest.Open(t, url))
		one.run()
		two.run()
		a := organization(t, d, "org_a")
		for _, text := range []string{noDelete, all, noDelete} {
			for _, sv := range []*server{one, two, deaf} {
				sv.may(a, del, false) // each remembers what held until now
			}
			if _, err := one.put(a, api.PutPoliciesIn{Text: text}); err != nil {
				t.Fatal(err)
			}
			put := time.Now()
			if one.may(a, del, false).Allowed != (text == all) {
				t.Error("the server itself does not know at once")
			}
			for name, sv := range map[string]*server{"two": two, "deaf": deaf} {
				for sv.may(a, del, false).Allowed != (text == all) {
					if time.Since(put) > 5*time.Second { // a second, and what a busy machine takes
						t.Fatalf("server %s does not see the change", name)
					}
					time.Sleep(time.Millisecond)
				}
			}
		}
	})
}

// TestPutsAtOnce: of changes to the same version one is put.
func TestPutsAtOnce(t *testing.T) {
	dbtest.EachURL(t, func(t *testing.T, url string) {
		d := dbtest.Open(t, url)
		a := organization(t, d, "org_a")
		zero := int64(0)
		var wg sync.WaitGroup
		errors := make(chan error, 8)
		for range 8 {
			sv := newServer(t, d)
			wg.Go(func() {
				_, err := sv.put(a, api.PutPoliciesIn{Text: noDelete, ExpectedVersion: &zero})
				errors <- err
			})
		}
		wg.Wait()
		close(errors)
		won := 0
		for err := range errors {
			if err == nil {
				won++
			} else if e := errs.From(err); e.Code != errs.InvalidState || e.Reason != "version" {
				t.Errorf("got %v", err)
			}
		}
		if won != 1 {
			t.Errorf("%d of 8 were put", won)
		}
	})
}

// TestUnreadable: policies that cannot be read allow nothing.
func TestUnreadable(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		sv := newServer(t, d)
		a := organization(t, d, "org_a")
		if _, err := d.ExecContext(t.Context(), `INSERT INTO policy_sets (org_id, version, text, created_by, created_at) VALUES ('org_a', 1, 'permit all', '{}', 1)`); err != nil {
			t.Fatal(err)
		}
		got, err := sv.s.Authorize(t.Context(), a, &op.Operation{Info: op.Info{Action: del}}, &op.Draft{Resource: op.Resource{Kind: "sandbox", OrgID: "org_a"}})
		if err == nil || got.Allowed {
			t.Errorf("got %+v, %v", got, err)
		}
	})
}

func TestCases(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		sv := newServer(t, d)
		a := organization(t, d, "org_a")
		if _, err := sv.put(a, api.PutPoliciesIn{Text: noDelete}); err != nil {
			t.Fatal(err)
		}
		at := time.Date(2026, 11, 30, 3, 0, 0, 0, time.UTC)
		cases := []api.PolicyCase{
			{Name: "by key", Principal: api.PolicyPrincipal{Type: "key", ID: "key_1"}, Action: del, Want: "deny"},
			{Name: "wrongly wanted", Principal: api.PolicyPrincipal{Type: "key", ID: "key_1"}, Action: del, Want: "allow"},
			{Principal: api.PolicyPrincipal{Type: "person", ID: "user_1"}, Action: "identity:keys:create"},
			{Name: "an agent", Principal: api.PolicyPrincipal{Type: "agent", ID: "agent_1"}, Action: "identity:keys:create", Want: "deny"},
			{Name: "another organization", Principal: api.PolicyPrincipal{Type: "key", ID: "key_1"}, Action: "compute:sandboxes:read", Resource: api.PolicyResource{OrganizationID: "org_b"}, Want: "deny"},
		}
		got, err := do[api.TestPoliciesOut](sv, a, api.TestPolicies.Name, api.TestPoliciesIn{Cases: cases})
		if err != nil {
			t.Fatal(err)
		}
		want := &api.TestPoliciesOut{Failed: 1, Items: []api.PolicyResult{
			{Name: "by key", Want: "deny", Got: "deny", Pass: true, Reasons: []string{"the policy policy1 in line 2 forbids it"}},
			{Name: "wrongly wanted", Want: "allow", Got: "deny", Reasons: []string{"the policy policy1 in line 2 forbids it"}},
			{Name: "person user_1: identity:keys:create", Got: "allow", Pass: true},
			{Name: "an agent", Want: "deny", Got: "deny", Pass: true, Reasons: []string{"the rule berth:agent-guardrails, which holds in every organization, forbids it"}},
			{Name: "another organization", Want: "deny", Got: "deny", Pass: true, Reasons: []string{"the rule berth:tenant-wall, which holds in every organization, forbids it"}},
		}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		// Other policies than those that hold, at another time.
		got, err = do[api.TestPoliciesOut](sv, a, api.TestPolicies.Name, api.TestPoliciesIn{
			Text: all + `@confirm("at night") forbid(principal, action, resource) when { context.time.toTime() < duration("6h") } unless { context.confirmed };`,
			Cases: []api.PolicyCase{
				{Name: "night", Principal: cases[0].Principal, Action: del, Context: api.PolicyContext{Time: &at}, Want: "confirm"},
				{Name: "approved", Principal: cases[0].Principal, Action: del, Context: api.PolicyContext{Time: &at, Confirmed: true}, Want: "allow"},
			},
		})
		if err != nil || got.Failed != 0 || !cmp.Equal(got.Items[0].Reasons, []string{"at night"}) {
			t.Errorf("got %+v, %v", got, err)
		}
		for path, bad := range map[string]api.PolicyCase{
			"cases[0].action":                {Principal: cases[0].Principal, Action: "compute:sandboxes:destroy"},
			"cases[0].resource.kind":         {Principal: cases[0].Principal, Action: del, Resource: api.PolicyResource{Kind: "thing"}},
			"cases[0].context.sourceAddress": {Principal: cases[0].Principal, Action: del, Context: api.PolicyContext{SourceAddress: "here"}},
		} {
			_, err := do[api.TestPoliciesOut](sv, a, api.TestPolicies.Name, api.TestPoliciesIn{Cases: []api.PolicyCase{bad}})
			if e := errs.From(err); e.Code != errs.InvalidInput || e.Details["path"] != path {
				t.Errorf("%s: got %v with %v", path, err, e.Details)
			}
		}
	})
}
