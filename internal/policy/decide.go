package policy

import (
	"cmp"
	"fmt"
	"slices"

	cedar "github.com/cedar-policy/cedar-go"
)

// Effect is what a question comes to.
type Effect string

// The effects.
const (
	Allow   Effect = "allow"
	Deny    Effect = "deny"
	Confirm Effect = "confirm" // a person is to approve, then it is allowed
)

// Outcome is the answer to a question.
type Outcome struct {
	Effect Effect
	// Reasons are, of a Confirm, why a person is to approve, in the order of the policies; of a Deny what forbids it.
	Reasons []string
}

// Decide answers a question. Everybody who acts has to be allowed; an error in any policy that was looked at is a Deny.
func (s *Set) Decide(a *Ask) Outcome {
	out := Outcome{Effect: Allow}
	for _, p := range a.Actors {
		one := s.decide(a, p)
		switch {
		case one.Effect == Deny:
			return one
		case one.Effect == Confirm:
			out.Effect = Confirm
			for _, why := range one.Reasons {
				if !slices.Contains(out.Reasons, why) {
					out.Reasons = append(out.Reasons, why)
				}
			}
		}
	}
	if len(a.Actors) == 0 {
		return Outcome{Effect: Deny, Reasons: []string{"nobody acts"}}
	}
	return out
}

func (s *Set) decide(a *Ask, p Principal) Outcome {
	r := s.schema.request(a, p)
	policies := s.index.find(s.schema, r)
	decision, said := cedar.Authorize(policies, r, r.Request)
	if len(said.Errors) > 0 {
		return s.failed(said)
	}
	if decision == cedar.Allow {
		return Outcome{Effect: Allow}
	}
	because := s.entries(said)
	if !a.Confirmed && len(because) > 0 && !slices.ContainsFunc(because, func(e *entry) bool { return e.confirm == "" }) {
		approved := *a
		approved.Confirmed = true
		r := s.schema.request(&approved, p)
		decision, said := cedar.Authorize(policies, r, r.Request)
		if len(said.Errors) > 0 {
			return s.failed(said)
		}
		if decision == cedar.Allow {
			out := Outcome{Effect: Confirm}
			for _, e := range because {
				out.Reasons = append(out.Reasons, e.confirm)
			}
			out.Reasons = slices.Compact(out.Reasons)
			return out
		}
		if others := s.entries(said); len(others) > 0 {
			because = others // what no approval lifts
		}
	}
	return s.denied(because, a.Action)
}

// entries are the policies behind a decision, in the order of the text.
func (s *Set) entries(said cedar.Diagnostic) []*entry {
	all := make([]*entry, 0, len(said.Reasons))
	for _, r := range said.Reasons {
		all = append(all, s.index.byID[r.PolicyID])
	}
	slices.SortFunc(all, func(a, b *entry) int { return cmp.Compare(a.number, b.number) })
	return all
}

func (s *Set) denied(because []*entry, action string) Outcome {
	out := Outcome{Effect: Deny}
	for _, e := range because {
		if e.shipped {
			out.Reasons = append(out.Reasons, fmt.Sprintf("the rule %s, which holds in every organization, forbids it", e.id))
			continue
		}
		out.Reasons = append(out.Reasons, fmt.Sprintf("the policy %s in line %d forbids it", e.id, e.policy.Position().Line))
	}
	if len(because) == 0 {
		out.Reasons = []string{"no policy permits " + action}
	}
	return out
}

// failed is the answer where a policy could not be evaluated: a forbid that fails would else forbid nothing.
func (s *Set) failed(said cedar.Diagnostic) Outcome {
	out := Outcome{Effect: Deny}
	for _, e := range said.Errors {
		out.Reasons = append(out.Reasons, fmt.Sprintf("the policy %s in line %d could not be evaluated: %s", e.PolicyID, e.Position.Line, e.Message))
	}
	slices.Sort(out.Reasons)
	return out
}
