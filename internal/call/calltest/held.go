package calltest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
)

// held checks that a write which a person is to approve first does nothing before, and is carried out once afterwards.
func (s Setup) held(t *testing.T, o *op.Operation) {
	if s.Held == nil || !o.Hints.Has(op.Write) {
		return
	}
	members := object(t, s.Example(t, o.Name))
	if o.Action == api.ApproveConfirmation.Action {
		s.refused(t, s.Held, o, text(t, members), errs.Forbidden) // whoever is held back decides on nothing
		return
	}
	members["idempotencyKey"] = quoted(t, "held."+o.Name)
	raw := text(t, members)
	var ids [2]string
	for i := range ids {
		before := s.State(t)
		ids[i] = s.waits(t, o, raw)
		changed(t, before, s.State(t))
	}
	if ids[0] == "" || ids[0] != ids[1] {
		t.Fatalf("%s waits as %q", raw, ids)
	}
	s.Approve(t, ids[0])
	first, err := s.do(t, s.Held, o, raw)
	if err != nil {
		t.Fatalf("%s, approved: %v", raw, err)
	}
	before := s.State(t)
	again, err := s.do(t, s.Held, o, raw)
	if err != nil || first.Replayed || !again.Replayed {
		t.Errorf("%s, approved: replayed %v, then %v, %v", raw, first.Replayed, again != nil && again.Replayed, err)
	}
	if after := s.State(t); before != after {
		t.Errorf("an approved call that is repeated changed something:\n%s\n%s", before, after)
	}
}

// waits makes a call that is held back, and gives what it waits for.
func (s Setup) waits(t *testing.T, o *op.Operation, raw string) string {
	t.Helper()
	res, err := s.do(t, s.Held, o, raw)
	said := map[string]any{}
	if err != nil {
		e := errs.From(err)
		if e.Code != errs.ConfirmationRequired || e.Reason != "held" {
			t.Fatalf("%s: got %v, want that it is held back", raw, err)
		}
		said = e.Details
	} else if err := json.Unmarshal(res.JSON, &said); err != nil || said["status"] != "confirmation-required" {
		t.Fatalf("%s: got %s, want that it is held back", raw, res.JSON)
	}
	id, _ := said["confirmationId"].(string)
	return id
}

// changed checks that nothing but the request to the person is new.
func changed(t *testing.T, before, after string) {
	t.Helper()
	was := map[string]int{}
	for line := range strings.Lines(before) {
		was[line]++
	}
	for line := range strings.Lines(after) {
		if was[line]--; was[line] < 0 && !strings.Contains(line, `"confirmation.requested"`) && !strings.Contains(line, `"held"`) {
			t.Errorf("a call that is held back left %s", line)
		}
	}
	for line, n := range was {
		if n > 0 {
			t.Errorf("a call that is held back took away %s", line)
		}
	}
}
