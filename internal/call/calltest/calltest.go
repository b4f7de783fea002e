// Package calltest owns the tests that every operation of a registry has to pass, whatever it does: bound, portable, refused without the right, with bad
// input and across organizations, and of one effect for a repeated key.
//
// It makes no system: the test that runs it gives one.
package calltest

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/call"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/errs"
)

// Setup is the system under test.
type Setup struct {
	Registry *op.Registry
	Path     *call.Path
	Want     []op.Info // what has to be bound
	// WantStreams are the streams that have to be bound.
	WantStreams []op.StreamInfo
	Admin       *caller.Caller // may do everything in its organization
	Foreign     *caller.Caller // may do everything in another one
	// Example gives an input that succeeds for Admin, a JSON object, and makes what it names. Each call of Example is used for one effect.
	Example func(t *testing.T, operation string) string
	// IDs are ids of Admin's organization by their prefix, for optional members that name one.
	IDs map[string]string
	// State describes everything that an operation may change, in a form that is equal when nothing has changed.
	State func(t *testing.T) string
	// Held may do everything too, and a person is to approve every write of it, as Approve does. Nil: nothing is held back here.
	Held    *caller.Caller
	Approve func(t *testing.T, confirmation string)
}

// Suite holds every operation of the registry to the rules.
func Suite(t *testing.T, s Setup) {
	t.Run("bound", s.bound)
	t.Run("streams", s.streams)
	for _, o := range s.Registry.All() {
		t.Run(o.Name, func(t *testing.T) {
			t.Run("definition", func(t *testing.T) {
				for _, p := range problems(o.Info) {
					t.Error(p)
				}
			})
			t.Run("without the right", func(t *testing.T) { s.withoutRight(t, o) })
			t.Run("bad input", func(t *testing.T) { s.badInput(t, o) })
			t.Run("another organization", func(t *testing.T) { s.foreign(t, o) })
			t.Run("repeated", func(t *testing.T) { s.repeated(t, o) })
			t.Run("held back", func(t *testing.T) { s.held(t, o) })
		})
	}
}

func (s Setup) bound(t *testing.T) {
	names := func(infos []op.Info) (all []string) {
		for _, i := range infos {
			all = append(all, strings.Join([]string{i.Name, i.Method, i.Path, i.Action, i.Tool}, " "))
		}
		slices.Sort(all)
		return all
	}
	var got []op.Info
	for _, o := range s.Registry.All() {
		got = append(got, o.Info)
	}
	if diff := cmp.Diff(names(s.Want), names(got)); diff != "" {
		t.Errorf("operations (-want +bound):\n%s", diff)
	}
}

func (s Setup) do(t *testing.T, c *caller.Caller, o *op.Operation, raw string) (*call.Result, error) {
	t.Helper()
	return s.Path.Do(caller.With(t.Context(), c), o, json.RawMessage(raw), call.Options{})
}

// refused checks that a call ends with the code and changes nothing.
func (s Setup) refused(t *testing.T, c *caller.Caller, o *op.Operation, raw string, want errs.Code) {
	t.Helper()
	before := s.State(t)
	res, err := s.do(t, c, o, raw)
	if err == nil {
		t.Errorf("%s: got %s, want %s", raw, res.JSON, want)
	} else if !errs.Is(err, want) {
		t.Errorf("%s: got %s (%v), want %s", raw, errs.CodeOf(err), err, want)
	}
	if diff := cmp.Diff(before, s.State(t)); diff != "" {
		t.Errorf("%s: the refused call changed something:\n%s", raw, diff)
	}
}

func (s Setup) withoutRight(t *testing.T, o *op.Operation) {
	raw := s.Example(t, o.Name)
	none := *s.Admin
	none.Scopes = nil
	s.refused(t, &none, o, raw, errs.Forbidden)
	other := *s.Admin
	other.Scopes = []string{"unrelated:*", o.Action + ":more", strings.ToUpper(o.Action)}
	s.refused(t, &other, o, raw, errs.Forbidden)
	if o.Hints.Has(op.Write) {
		readOnly := *s.Admin
		readOnly.ReadOnly = true
		s.refused(t, &readOnly, o, raw, errs.Forbidden)
	}
	_, err := s.Path.Do(t.Context(), o, json.RawMessage(raw), call.Options{})
	if !errs.Is(err, errs.Unauthenticated) {
		t.Errorf("without a caller: got %v", err)
	}
}

func (s Setup) badInput(t *testing.T, o *op.Operation) {
	for _, raw := range spoiled(t, o.In, s.Example(t, o.Name)) {
		s.refused(t, s.Admin, o, raw, errs.InvalidInput)
	}
}

func (s Setup) foreign(t *testing.T, o *op.Operation) {
	members := object(t, s.Example(t, o.Name))
	named := false
	for _, name := range o.In.Order {
		prefix, ok := idPrefix(o.In.Properties[name].Pattern)
		if !ok {
			continue
		}
		if _, given := members[name]; !given {
			id, known := s.IDs[prefix]
			if !known {
				t.Errorf("no id for %s: Setup.IDs has none of %s", name, prefix)
				continue
			}
			members[name] = quoted(t, id)
		}
		named = true
	}
	if !named {
		return // it names nothing that could be another organization's
	}
	s.refused(t, s.Foreign, o, text(t, members), errs.NotFound)
}

// repeated checks that a write with one key has one effect, and that a read changes nothing.
func (s Setup) repeated(t *testing.T, o *op.Operation) {
	members := object(t, s.Example(t, o.Name))
	if o.Hints.Has(op.Read) {
		before := s.State(t)
		for range 2 {
			if _, err := s.do(t, s.Admin, o, text(t, members)); err != nil {
				t.Error(err)
			}
		}
		if diff := cmp.Diff(before, s.State(t)); diff != "" {
			t.Errorf("the read changed something:\n%s", diff)
		}
		return
	}
	members["idempotencyKey"] = quoted(t, "calltest."+o.Name)
	raw := text(t, members)
	first, err := s.do(t, s.Admin, o, raw)
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	before := s.State(t)
	again, err := s.do(t, s.Admin, o, raw)
	if err != nil {
		t.Fatalf("%s again: %v", raw, err)
	}
	if diff := cmp.Diff(before, s.State(t)); diff != "" {
		t.Errorf("the repeated call changed something:\n%s", diff)
	}
	want, got := object(t, string(first.JSON)), object(t, string(again.JSON))
	if string(got["replayed"]) != "true" || string(got["idempotencyKey"]) != string(want["idempotencyKey"]) || !again.Replayed {
		t.Errorf("the repeated call answers %s", again.JSON)
	}
	delete(got, "replayed")
	if r, ok := first.Value.(op.Redactor); ok {
		b, err := op.Encode(r.Redacted())
		if err != nil {
			t.Fatal(err)
		}
		want = object(t, string(b))
	}
	if diff := cmp.Diff(text(t, want), text(t, got)); diff != "" {
		t.Errorf("the repeated call answers otherwise:\n%s", diff)
	}
}

func object(t *testing.T, raw string) map[string]json.RawMessage {
	t.Helper()
	members := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(raw), &members); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return members
}

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func quoted(t *testing.T, s string) json.RawMessage { return json.RawMessage(text(t, s)) }

func sorted(members map[string]json.RawMessage) []string { return slices.Sorted(maps.Keys(members)) }
