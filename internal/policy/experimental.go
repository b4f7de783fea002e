package policy

import (
	"fmt"
	"slices"
	"strings"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"
	xast "github.com/cedar-policy/cedar-go/x/exp/ast"
	"github.com/cedar-policy/cedar-go/x/exp/schema"
	sast "github.com/cedar-policy/cedar-go/x/exp/schema/ast"
	"github.com/cedar-policy/cedar-go/x/exp/schema/validate"
)

// This file holds all that uses cedar-go's experimental packages: the schema, the validator, and looking into a policy.

// checker checks policies against a schema.
type checker struct {
	text      string
	validator *validate.Validator
}

func newChecker(s *Schema) (*checker, error) {
	doc := schema.NewSchemaFromAST(schemaOf(s))
	text, err := doc.MarshalCedar()
	if err != nil {
		return nil, fmt.Errorf("write schema: %w", err)
	}
	resolved, err := doc.Resolve()
	if err != nil {
		return nil, fmt.Errorf("resolve schema: %w", err)
	}
	return &checker{text: string(text), validator: validate.New(resolved, validate.WithStrict())}, nil
}

// Text is the schema in Cedar's schema language.
func (s *Schema) Text() string { return s.checker.text }

// strict gives what the schema does not allow in a policy, in a fixed order.
func (s *Schema) strict(p *cedar.Policy) []string {
	err := s.checker.validator.Policy("", (*xast.Policy)(p.AST()))
	if err == nil {
		return nil
	}
	all := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all = joined.Unwrap()
	}
	return summary(all)
}

func schemaOf(s *Schema) *sast.Schema {
	ref := func(ts ...types.EntityType) (refs []sast.EntityTypeRef) {
		for _, t := range ts {
			refs = append(refs, sast.EntityType(t))
		}
		return refs
	}
	maybe := func(t types.EntityType) sast.Attribute {
		return sast.Attribute{Type: sast.EntityType(t), Optional: true}
	}
	created := sast.RecordType{attrPerson: maybe(typePerson), attrAgent: maybe(typeAgent), attrApp: maybe(typeApp), attrKey: maybe(typeKey)}
	entities := sast.Entities{}
	for _, t := range s.kinds {
		e := sast.Entity{
			Shape: sast.RecordType{
				attrOrg: {Type: sast.EntityType(typeOrganization)}, attrWorkspace: maybe(typeWorkspace),
				attrName: {Type: sast.String(), Optional: nameOptional(t)}, attrCreatedBy: {Type: sast.Type("Created")},
			},
			Tags: sast.String(),
		}
		switch in, acts := principals[t]; {
		case acts:
			e.ParentTypes = ref(in...)
			for _, of := range []struct {
				name types.String
				t    types.EntityType
			}{{attrPerson, typePerson}, {attrAgent, typeAgent}, {attrApp, typeApp}} {
				e.Shape[of.name] = maybe(of.t)
			}
		case t == typeOrganization:
		case t == typeWorkspace:
			e.ParentTypes = ref(typeOrganization)
		default:
			e.ParentTypes = ref(typeOrganization, typeWorkspace)
		}
		entities[sast.Ident(t)] = e
	}
	context := sast.RecordType{
		ctxTime: {Type: sast.Datetime()}, ctxSource: {Type: sast.IPAddr(), Optional: true}, ctxOrganization: {Type: sast.EntityType(typeOrganization)},
		ctxFace: {Type: sast.String()}, ctxReadOnly: {Type: sast.Bool()}, ctxConfirmed: {Type: sast.Bool()},
	}
	return &sast.Schema{
		Entities: entities, Actions: actionsOf(s, ref),
		CommonTypes: sast.CommonTypes{"Call": {Type: context}, "Created": {Type: created}},
	}
}

func actionsOf(s *Schema, ref func(...types.EntityType) []sast.EntityTypeRef) sast.Actions {
	var acting []types.EntityType
	for t := range principals {
		acting = append(acting, t)
	}
	slices.Sort(acting)
	all := sast.Actions{}
	for uid, e := range s.groups {
		a := sast.Action{}
		parents := slices.SortedFunc(e.Parents.All(), func(a, b types.EntityUID) int { return strings.Compare(string(a.ID), string(b.ID)) })
		for _, p := range parents {
			a.Parents = append(a.Parents, sast.ParentRefFromID(p.ID))
		}
		if known := s.actions[string(uid.ID)]; known != nil {
			var on []types.EntityType
			for _, kind := range known.kinds {
				on = append(on, s.kinds[kind])
			}
			a.AppliesTo = &sast.AppliesTo{Principals: ref(acting...), Resources: ref(on...), Context: sast.Type("Call")}
		}
		all[uid.ID] = a
	}
	return all
}

// scope is whom and what a policy is for, as far as the index asks.
type scope struct {
	principal types.EntityUID  // or what the principal is in; zero: anybody
	kind      types.EntityType // of the principal; empty: any
	actions   []types.EntityUID
	action    bool // actions counts
	set       bool // more than one action or group
}

func scopeOf(p *cedar.Policy) (sc scope) {
	tree := (*xast.Policy)(p.AST())
	switch of := tree.Principal.(type) {
	case xast.ScopeTypeEq:
		sc.principal = of.Entity
	case xast.ScopeTypeIn:
		sc.principal = of.Entity
	case xast.ScopeTypeIsIn:
		sc.principal = of.Entity
	case xast.ScopeTypeIs:
		sc.kind = of.Type
	}
	switch of := tree.Action.(type) {
	case xast.ScopeTypeEq:
		sc.actions, sc.action = []types.EntityUID{of.Entity}, true
	case xast.ScopeTypeIn:
		sc.actions, sc.action = []types.EntityUID{of.Entity}, true
	case xast.ScopeTypeInSet:
		sc.actions, sc.action, sc.set = of.Entities, true, true
	}
	return sc
}

// confirmedIn says whether a policy has the clause unless { context.confirmed }, and whether it reads that anywhere.
func confirmedIn(p *cedar.Policy) (lifted, read bool) {
	for _, c := range (*xast.Policy)(p.AST()).Conditions {
		if is(c.Body) && c.Condition == xast.ConditionUnless {
			lifted = true
		}
		xast.Inspect(xast.NewNode(c.Body), func(n xast.IsNode) bool {
			read = read || is(n)
			return true
		})
	}
	return lifted, read
}

// is reports whether an expression is context.confirmed.
func is(n xast.IsNode) bool {
	access, ok := n.(xast.NodeTypeAccess)
	if !ok || access.Value != ctxConfirmed {
		return false
	}
	v, ok := access.Arg.(xast.NodeTypeVariable)
	return ok && v.Name == "context"
}
