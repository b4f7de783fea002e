package policy

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/errs"
)

// Try answers a table of cases. What a case leaves out is as of a call in the organization now.
func (s *Set) Try(cases []api.PolicyCase, org string, now time.Time) (*api.TestPoliciesOut, error) {
	out := &api.TestPoliciesOut{}
	for i := range cases {
		c := &cases[i]
		ask, err := s.schema.ask(c, org, now)
		if err != nil {
			e := errs.From(err)
			return nil, e.With("path", fmt.Sprintf("cases[%d].%v", i, e.Details["path"]))
		}
		got := s.Decide(ask)
		r := api.PolicyResult{Name: c.Name, Want: c.Want, Got: string(got.Effect), Pass: c.Want == "" || c.Want == string(got.Effect), Reasons: got.Reasons}
		if r.Name == "" {
			r.Name = fmt.Sprintf("%s %s: %s", c.Principal.Type, c.Principal.ID, c.Action)
		}
		if !r.Pass {
			out.Failed++
		}
		out.Items = append(out.Items, r)
	}
	return out, nil
}

func (s *Schema) ask(c *api.PolicyCase, org string, now time.Time) (*Ask, error) {
	invalid := func(path, format string, args ...any) error {
		return errs.E(errs.InvalidInput, format, args...).With("path", path)
	}
	a := s.actions[c.Action]
	if a == nil {
		return nil, invalid("action", "there is no action %s; berth operations lists them", c.Action)
	}
	res := op.Resource{
		Kind: c.Resource.Kind, ID: c.Resource.ID, OrgID: c.Resource.OrganizationID, WorkspaceID: c.Resource.WorkspaceID, Name: c.Resource.Name,
		CreatedBy: c.Resource.CreatedBy, Labels: c.Resource.Labels,
	}
	if res.Kind == "" {
		res.Kind = a.kinds[0]
	}
	if _, known := s.kinds[res.Kind]; !known {
		return nil, invalid("resource.kind", "there is no kind of resource %s", res.Kind)
	}
	if res.OrgID == "" {
		res.OrgID = org
	}
	if res.Kind == "organization" && res.ID == "" {
		res.ID = res.OrgID
	}
	if c.Context.SourceAddress != "" {
		if _, err := netip.ParseAddr(c.Context.SourceAddress); err != nil {
			return nil, invalid("context.sourceAddress", "%s is no IP address", c.Context.SourceAddress)
		}
	}
	p := c.Principal
	who := Principal{Type: typeOf(p.Type), ID: p.ID, Org: org, Workspace: p.WorkspaceID, Person: p.PersonID, Agent: p.AgentID, App: p.AppID}
	switch {
	case principals[who.Type] == nil:
		return nil, invalid("principal.type", "%s is nobody who acts", p.Type)
	case who.Type == typePerson:
		who.Person = p.ID
	case who.Type == typeAgent:
		who.Agent = p.ID
	case who.Type == typeApp:
		who.App = p.ID
	}
	ask := &Ask{
		Actors: who.andPerson(), Action: c.Action, Resource: res, Time: now, Source: c.Context.SourceAddress, Face: c.Context.Face,
		ReadOnly: c.Context.ReadOnly, Confirmed: c.Context.Confirmed,
	}
	if c.Context.Time != nil {
		ask.Time = *c.Context.Time
	}
	if ask.Face == "" {
		ask.Face = string(caller.FaceHTTP)
	}
	return ask, nil
}
