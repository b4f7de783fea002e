package policy

import (
	"strings"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/ast"
	"github.com/cedar-policy/cedar-go/types"
)

// shippedPrefix begins the ids of the policies that hold in every organization and that nobody can remove.
const shippedPrefix = "berth:"

// shipped are the forbids of every set.
func (s *Schema) shipped() []*entry {
	// Another organization's resource is never allowed, whatever else permits it.
	wall := ast.Annotation(annotationID, shippedPrefix+"tenant-wall").Forbid().
		Unless(ast.Resource().Access(attrOrg).Equal(ast.Principal().Access(attrOrg)))
	// An agent or an app, and a key of one, never changes who may do what.
	agent := ast.Principal().Is(typeAgent).Or(ast.Principal().Is(typeApp)).Or(ast.Principal().Has(attrAgent)).Or(ast.Principal().Has(attrApp))
	guardrails := ast.Annotation(annotationID, shippedPrefix+"agent-guardrails").Forbid().ActionInSet(s.guarded...).When(agent)
	var all []*entry
	for i, tree := range []*ast.Policy{wall, guardrails} {
		p := cedar.NewPolicyFromAST(tree)
		all = append(all, &entry{id: types.PolicyID(p.Annotations()[annotationID]), policy: p, number: i - 2, shipped: true})
	}
	return all
}

// Shipped is the text of the policies that hold in every organization.
func (s *Schema) Shipped() string {
	var b strings.Builder
	for _, e := range s.shipped() {
		b.Write(e.policy.MarshalCedar())
		b.WriteString("\n")
	}
	return b.String()
}
