package policy

import (
	"iter"
	"slices"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"
)

// index finds the policies that may say something about a request: by the action and its groups, and by the principal and what it is in. Every policy is in
// one list of one bucket, or, where it names a set of actions, in one of each action's, so that no request finds it twice.
type index struct {
	all     []*entry
	byID    map[types.PolicyID]*entry
	buckets map[types.EntityUID]*bucket
	any     bucket // of every action
}

// bucket are policies of one action or group.
type bucket struct {
	anybody []*entry
	byType  map[types.EntityType][]*entry
	byUID   map[types.EntityUID][]*entry
}

func (x *index) add(s *Schema, e *entry) {
	if x.byID == nil {
		x.byID, x.buckets = map[types.PolicyID]*entry{}, map[types.EntityUID]*bucket{}
	}
	for x.byID[e.id] != nil { // a second one of the same @id, which only a text that was never checked has
		e.id += "'"
	}
	x.all = append(x.all, e)
	x.byID[e.id] = e
	sc := scopeOf(e.policy)
	if !sc.action {
		x.any.add(sc, e)
		return
	}
	if sc.set {
		sc.actions = s.members(sc.actions)
	}
	for _, uid := range sc.actions {
		b := x.buckets[uid]
		if b == nil {
			b = &bucket{}
			x.buckets[uid] = b
		}
		b.add(sc, e)
	}
}

// members are the actions of a set of actions and groups, each once.
func (s *Schema) members(of []types.EntityUID) (all []types.EntityUID) {
	for _, a := range s.actions {
		if slices.Contains(of, a.uid) || slices.ContainsFunc(s.above[a.uid], func(g types.EntityUID) bool { return slices.Contains(of, g) }) {
			all = append(all, a.uid)
		}
	}
	return all
}

func (b *bucket) add(sc scope, e *entry) {
	switch {
	case !sc.principal.IsZero():
		if b.byUID == nil {
			b.byUID = map[types.EntityUID][]*entry{}
		}
		b.byUID[sc.principal] = append(b.byUID[sc.principal], e)
	case sc.kind != "":
		if b.byType == nil {
			b.byType = map[types.EntityType][]*entry{}
		}
		b.byType[sc.kind] = append(b.byType[sc.kind], e)
	default:
		b.anybody = append(b.anybody, e)
	}
}

// found are the policies for one request. It is a cedar.PolicyIterator.
type found struct {
	lists [][]*entry
}

func (x *index) find(s *Schema, r *request) *found {
	f := &found{}
	f.from(&x.any, r)
	if b := x.buckets[r.Action]; b != nil {
		f.from(b, r)
	}
	for _, group := range s.above[r.Action] {
		if b := x.buckets[group]; b != nil {
			f.from(b, r)
		}
	}
	return f
}

func (f *found) from(b *bucket, r *request) {
	add := func(list []*entry) {
		if len(list) > 0 {
			f.lists = append(f.lists, list)
		}
	}
	add(b.anybody)
	add(b.byType[r.Principal.Type])
	if b.byUID == nil {
		return
	}
	add(b.byUID[r.Principal])
	for _, up := range r.above {
		add(b.byUID[up])
	}
}

// All implements cedar.PolicyIterator.
func (f *found) All() iter.Seq2[types.PolicyID, *cedar.Policy] {
	return func(yield func(types.PolicyID, *cedar.Policy) bool) {
		for _, list := range f.lists {
			for _, e := range list {
				if !yield(e.id, e.policy) {
					return
				}
			}
		}
	}
}
