package policy

import (
	"slices"
	"strings"

	"github.com/cedar-policy/cedar-go/types"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
)

// The entity types that are no kind of resource alone.
const (
	typeAction       types.EntityType = "Action"
	typeOrganization types.EntityType = "Organization"
	typeWorkspace    types.EntityType = "Workspace"
	typeKey          types.EntityType = "Key"
	typePerson       types.EntityType = "Person"
	typeAgent        types.EntityType = "Agent"
	typeService      types.EntityType = "ServiceAccount"
	typeApp          types.EntityType = "App"
)

// The attributes, the same on every entity and required where nothing else is said.
const (
	attrOrg       = "org"
	attrWorkspace = "workspace" // optional
	attrName      = "name"      // optional on principals, organizations and workspaces
	attrCreatedBy = "createdBy"
	attrPerson    = "person" // optional, of principals: for whom it acts
	attrAgent     = "agent"
	attrApp       = "app"
	attrKey       = "key"
)

// The context.
const (
	ctxTime         = "time"
	ctxSource       = "sourceAddress" // optional
	ctxOrganization = "organization"
	ctxFace         = "face"
	ctxReadOnly     = "readOnly"
	ctxConfirmed    = "confirmed"
)

// The named sets of actions, as the scopes of keys have them: each holds the one before.
const (
	groupRead  = "read"
	groupWrite = "write"
	groupAdmin = "admin"
)

// principals are the types that act, with the types that each may be in.
var principals = map[types.EntityType][]types.EntityType{
	typeKey:     {typeOrganization, typeWorkspace, typePerson, typeAgent, typeApp, typeService},
	typeApp:     {typeOrganization, typeWorkspace, typePerson, typeAgent},
	typeAgent:   {typeOrganization, typeWorkspace, typePerson},
	typeService: {typeOrganization, typeWorkspace},
	typePerson:  {typeOrganization},
}

// actsOn names the kinds of resources that actions with a noun act on, where it is not the noun's own.
var actsOn = map[string][]string{
	"account": {"organization"}, "docs": {"organization"}, "pools": {"organization"}, "log": {"organization"}, "policies": {"organization"},
	"files": {"sandbox"}, "processes": {"sandbox"}, "keys": {"key", "organization"}, "backups": {"backup", "volume"},
	"people": {"person"},
}

// Schema is what policies are checked against.
type Schema struct {
	actions map[string]*action
	kinds   map[string]types.EntityType
	groups  map[types.EntityUID]types.Entity // actions and their groups, with the groups that each is in
	above   map[types.EntityUID][]types.EntityUID
	guarded []types.EntityUID // what no agent and no app may do
	checker *checker
}

// action is what the schema knows of one action.
type action struct {
	uid   types.EntityUID
	kinds []string
	read  bool // some operation with it only reads
	write bool
}

// NewSchema makes the schema of operations and streams.
func NewSchema(infos []op.Info, streams []op.StreamInfo) (*Schema, error) {
	s := &Schema{actions: map[string]*action{}, kinds: map[string]types.EntityType{}, groups: map[types.EntityUID]types.Entity{}}
	infos = slices.Clone(infos)
	for _, i := range streams {
		infos = append(infos, i.Info)
	}
	for _, kind := range []string{"organization", "workspace", "key", "person", "agent", "serviceAccount", "app"} {
		s.kinds[kind] = typeOf(kind)
	}
	for _, i := range infos {
		a := s.actions[i.Action]
		if a == nil {
			a = &action{uid: actionUID(i.Action), kinds: kindsOf(i.Action)}
			s.actions[i.Action] = a
			for _, kind := range a.kinds {
				s.kinds[kind] = typeOf(kind)
			}
		}
		a.read = a.read || i.Hints.Has(op.Read)
		a.write = a.write || i.Hints.Has(op.Write)
	}
	s.nest()
	var err error
	s.checker, err = newChecker(s)
	return s, err
}

// Registered makes the schema of all that the api package defines.
func Registered() (*Schema, error) { return NewSchema(api.All(), api.AllStreams()) }

// nest puts actions into their groups: the named sets, and one for each beginning of their names, as patterns of scopes are written.
func (s *Schema) nest() {
	s.above = map[types.EntityUID][]types.EntityUID{}
	put := func(uid types.EntityUID, parents ...types.EntityUID) {
		s.groups[uid] = types.Entity{UID: uid, Parents: types.NewEntityUIDSet(parents...)}
	}
	read, write, admin := actionUID(groupRead), actionUID(groupWrite), actionUID(groupAdmin)
	put(admin)
	put(write, admin)
	put(read, write)
	for name, a := range s.actions {
		area, rest, _ := strings.Cut(name, ":")
		parents := []types.EntityUID{admin}
		switch {
		case area == "identity":
			if a.write {
				s.guarded = append(s.guarded, a.uid)
			}
		case a.write: // what also reads is a write
			parents = []types.EntityUID{write}
		default:
			parents = []types.EntityUID{read}
		}
		whole := actionUID(area + ":*")
		if _, there := s.groups[whole]; !there {
			put(whole)
		}
		if noun, _, more := strings.Cut(rest, ":"); more {
			part := actionUID(area + ":" + noun + ":*")
			put(part, whole)
			whole = part
		}
		put(a.uid, append(parents, whole)...)
	}
	slices.SortFunc(s.guarded, func(a, b types.EntityUID) int { return strings.Compare(string(a.ID), string(b.ID)) })
	for uid := range s.groups {
		s.above[uid] = s.ancestors(uid)
	}
}

// ancestors are all groups that an action or a group is in.
func (s *Schema) ancestors(uid types.EntityUID) (all []types.EntityUID) {
	for p := range s.groups[uid].Parents.All() {
		for _, up := range append([]types.EntityUID{p}, s.ancestors(p)...) {
			if !slices.Contains(all, up) {
				all = append(all, up)
			}
		}
	}
	return all
}

// Covers reports whether policies for an action are checked with a kind of resource in mind.
func (s *Schema) Covers(name, kind string) bool {
	a := s.actions[name]
	return a != nil && slices.Contains(a.kinds, kind)
}

// nameOptional reports whether not every entity of a type has its name told.
func nameOptional(t types.EntityType) bool {
	return principals[t] != nil || t == typeOrganization || t == typeWorkspace
}

func actionUID(name string) types.EntityUID {
	return types.NewEntityUID(typeAction, types.String(name))
}

// kindsOf gives the kinds of resources that an action acts on: what its noun names.
func kindsOf(name string) []string {
	parts := strings.Split(name, ":")
	noun := parts[0]
	if len(parts) > 2 {
		noun = parts[1]
	}
	if kinds, ok := actsOn[noun]; ok {
		return kinds
	}
	kind := singular(noun)
	if parts[0] == "identity" {
		return []string{kind, "organization"}
	}
	return []string{kind}
}

func singular(noun string) string {
	for _, end := range []struct{ many, one string }{{"ies", "y"}, {"xes", "x"}, {"ches", "ch"}, {"sses", "ss"}, {"s", ""}} {
		if stem, ok := strings.CutSuffix(noun, end.many); ok {
			return stem + end.one
		}
	}
	return noun
}

// typeOf gives the entity type of a kind of resource: ServiceAccount of serviceAccount.
func typeOf(kind string) types.EntityType {
	for _, c := range kind {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return "Unknown"
		}
	}
	if kind == "" {
		return "Unknown"
	}
	return types.EntityType(strings.ToUpper(kind[:1]) + kind[1:])
}
