package policy

import (
	"slices"
	"time"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
)

// Principal is who acts. Type and ID name it; the others may be empty.
type Principal struct {
	Type               types.EntityType
	ID                 string
	Org, Workspace     string
	Person, Agent, App string // for whom and of what it acts
}

// Ask is one question: may these do this?
type Ask struct {
	Actors    []Principal // who acts, and for whom: all of them have to be allowed
	Action    string
	Resource  op.Resource
	Time      time.Time
	Source    string // an IP address
	Face      string
	ReadOnly  bool
	Confirmed bool
}

// actors are the caller as the one who acts, and the person for whom it does: neither a key nor an app may do what that person may not.
func actors(c *caller.Caller) []Principal {
	p := Principal{Org: c.OrgID, Workspace: c.WorkspaceID, Person: c.PersonID, Agent: c.AgentID, App: c.AppID}
	switch {
	case c.KeyID != "":
		p.Type, p.ID = typeKey, c.KeyID
	case c.AppID != "":
		p.Type, p.ID = typeApp, c.AppID
	case c.AgentID != "":
		p.Type, p.ID = typeAgent, c.AgentID
	case c.PersonID != "":
		p.Type, p.ID = typePerson, c.PersonID
	default:
		p.Type, p.ID = typeKey, c.PrincipalID
	}
	return p.andPerson()
}

// andPerson adds the person for whom a principal acts.
func (p Principal) andPerson() []Principal {
	if p.Person == "" || p.Type == typePerson {
		return []Principal{p}
	}
	return []Principal{p, {Type: typePerson, ID: p.Person, Org: p.Org, Workspace: p.Workspace, Person: p.Person}}
}

// request is what Cedar is asked, with the entities that it needs.
type request struct {
	cedar.Request
	schema    *Schema
	principal types.Entity
	resource  types.Entity
	above     []types.EntityUID // what the principal is in
	org       types.EntityUID   // of the principal
	of        types.EntityUID   // the organization of the resource
	owned     []types.EntityUID // what the resource refers to, of its organization
}

func (s *Schema) request(a *Ask, p Principal) *request {
	r := &request{schema: s, org: orgUID(p.Org), of: orgUID(a.Resource.OrgID)}
	r.setPrincipal(p)
	r.setResource(&a.Resource)
	context := types.RecordMap{
		ctxTime: types.NewDatetime(a.Time), ctxOrganization: r.org, ctxFace: types.String(a.Face),
		ctxReadOnly: types.Boolean(a.ReadOnly), ctxConfirmed: types.Boolean(a.Confirmed),
	}
	if ip, err := types.ParseIPAddr(a.Source); err == nil {
		context[ctxSource] = ip
	}
	r.Action, r.Context = actionUID(a.Action), types.NewRecord(context)
	return r
}

func (r *request) setPrincipal(p Principal) {
	r.Principal = types.NewEntityUID(p.Type, types.String(p.ID))
	attrs := types.RecordMap{attrOrg: r.org, attrCreatedBy: types.Record{}}
	r.above = append(make([]types.EntityUID, 0, 6), r.org)
	add := func(name types.String, t types.EntityType, id string) {
		if id == "" {
			return
		}
		uid := types.NewEntityUID(t, types.String(id))
		attrs[name] = uid
		if uid != r.Principal && mayBeIn(p.Type, t) {
			r.above = append(r.above, uid)
		}
	}
	add(attrWorkspace, typeWorkspace, p.Workspace)
	add(attrPerson, typePerson, p.Person)
	add(attrAgent, typeAgent, p.Agent)
	add(attrApp, typeApp, p.App)
	r.principal = types.Entity{UID: r.Principal, Parents: types.NewEntityUIDSet(r.above...), Attributes: types.NewRecord(attrs)}
}

func mayBeIn(t, parent types.EntityType) bool {
	return slices.Contains(principals[t], parent)
}

func (r *request) setResource(res *op.Resource) {
	t, known := r.schema.kinds[res.Kind]
	if !known {
		t = typeOf(res.Kind)
	}
	r.Resource = types.NewEntityUID(t, types.String(res.ID))
	attrs := types.RecordMap{attrOrg: r.of}
	var parents []types.EntityUID
	if r.Resource != r.of {
		parents = append(parents, r.of)
	}
	if res.WorkspaceID != "" && t != typeOrganization && t != typeWorkspace {
		ws := types.NewEntityUID(typeWorkspace, types.String(res.WorkspaceID))
		attrs[attrWorkspace] = ws
		parents = append(parents, ws)
		r.owned = append(r.owned, ws)
	}
	if res.Name != "" || !nameOptional(t) {
		attrs[attrName] = types.String(res.Name)
	}
	by := types.RecordMap{}
	for _, of := range [...]struct {
		name types.String
		t    types.EntityType
		id   string
	}{{attrPerson, typePerson, res.CreatedBy.Person}, {attrAgent, typeAgent, res.CreatedBy.Agent}, {attrApp, typeApp, res.CreatedBy.App}, {attrKey, typeKey, res.CreatedBy.Key}} {
		if of.id != "" {
			uid := types.NewEntityUID(of.t, types.String(of.id))
			by[of.name] = uid
			r.owned = append(r.owned, uid)
		}
	}
	attrs[attrCreatedBy] = types.NewRecord(by)
	r.resource = types.Entity{UID: r.Resource, Parents: types.NewEntityUIDSet(parents...), Attributes: types.NewRecord(attrs)}
	if len(res.Labels) > 0 {
		tags := make(types.RecordMap, len(res.Labels))
		for k, v := range res.Labels {
			tags[types.String(k)] = types.String(v)
		}
		r.resource.Tags = types.NewRecord(tags)
	}
	if r.Resource == r.Principal { // a key that revokes itself: one entity with what both roles tell of it
		r.merge(attrs)
	}
}

// merge makes one entity of the resource and the principal where they are the same.
func (r *request) merge(attrs types.RecordMap) {
	both := r.principal.Attributes.Map()
	for k, v := range attrs {
		both[k] = v
	}
	r.principal.Attributes, r.principal.Tags = types.NewRecord(both), r.resource.Tags
	r.resource = r.principal
}

// Get implements types.EntityGetter.
func (r *request) Get(uid types.EntityUID) (types.Entity, bool) {
	switch {
	case uid == r.Principal:
		return r.principal, true
	case uid == r.Resource:
		return r.resource, true
	case uid.Type == typeAction:
		e, ok := r.schema.groups[uid]
		return e, ok
	case uid == r.of:
		return plain(uid, r.of), true
	}
	for _, o := range r.owned {
		if o == uid {
			return plain(uid, r.of), true
		}
	}
	for _, o := range r.above {
		if o == uid {
			return plain(uid, r.org), true
		}
	}
	return types.Entity{}, false
}

// plain is an entity of which only the organization is known.
func plain(uid, org types.EntityUID) types.Entity {
	e := types.Entity{UID: uid, Attributes: types.NewRecord(types.RecordMap{attrOrg: org, attrCreatedBy: types.Record{}})}
	if uid != org {
		e.Parents = types.NewEntityUIDSet(org)
	}
	return e
}

func orgUID(id string) types.EntityUID { return types.NewEntityUID(typeOrganization, types.String(id)) }
