package identity

import (
	"context"
	"slices"
	"strings"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/errs"
)

// The named sets of actions.
const (
	scopeRead  = "read"  // what changes nothing, but for identity and the audit log
	scopeWrite = "write" // read, and every write but for identity
	scopeAdmin = "admin" // everything
)

// guarded reports whether an action, or a pattern of actions, is of an area that read and write leave out: who may what, and who did what.
func guarded(action string) bool {
	return strings.HasPrefix(action, "identity:") || strings.HasPrefix(action, "audit:")
}

// grants reports whether one scope allows an operation.
func grants(scope string, info op.Info) bool {
	own := guarded(info.Action)
	switch scope {
	case scopeAdmin:
		return true
	case scopeWrite:
		return !own
	case scopeRead:
		return !own && info.Hints.Has(op.Read)
	}
	return matches(scope, info.Action)
}

// matches compares an action with a pattern segment by segment; a * at the end stands for all that follows.
func matches(pattern, action string) bool {
	p, a := strings.Split(pattern, ":"), strings.Split(action, ":")
	for i, seg := range p {
		if seg == "*" && i == len(p)-1 {
			return len(a) >= len(p)
		}
		if i >= len(a) || seg != "*" && seg != a[i] {
			return false
		}
	}
	return len(p) == len(a)
}

// Visible reports whether a caller's scopes allow an operation.
func (s *Service) Visible(c *caller.Caller, info op.Info) bool {
	if c == nil || c.ReadOnly && !info.Hints.Has(op.Read) {
		return false
	}
	return slices.ContainsFunc(c.Scopes, func(scope string) bool { return grants(scope, info) })
}

// Authorize decides on a draft: the caller's scopes have to allow the operation, and the resource has to be of the caller's organization; another's is not
// found.
func (s *Service) Authorize(_ context.Context, c *caller.Caller, o *op.Operation, d *op.Draft) (op.Decision, error) {
	if !s.Visible(c, o.Info) {
		return op.Decision{Message: "this credential does not allow " + o.Action}, nil
	}
	if d.Resource.OrgID != c.OrgID {
		return op.Decision{}, errs.E(errs.NotFound, "there is no such %s", d.Resource.Kind).Suggest("Check the id; the list shows which exist.")
	}
	if Holds(c, o.Info) {
		return op.Decision{Confirm: []string{"this key's " + o.Action + " is held back for a person"}, Message: o.Action + " is held back for a person with this credential, and cannot wait for one here"}, nil
	}
	return op.Decision{Allowed: true}, nil
}

// Holds reports whether a person is to approve a caller's calls of an operation first.
func Holds(c *caller.Caller, info op.Info) bool {
	return slices.ContainsFunc(c.Confirm, func(pattern string) bool { return holds(pattern, info) })
}

// holds is grants for confirm lists: write is every write there, those on identity too, and reads are never held back.
func holds(pattern string, info op.Info) bool {
	return info.Hints.Has(op.Write) && (pattern == scopeWrite || grants(pattern, info))
}

// holdsAny reports whether a pattern holds anything back.
func holdsAny(pattern string) bool {
	return slices.ContainsFunc(api.All(), func(info op.Info) bool { return holds(pattern, info) }) ||
		slices.ContainsFunc(api.AllStreams(), func(info op.StreamInfo) bool { return holds(pattern, info.Info) })
}

// covers reports whether the scopes of a creator allow all that a new key's scope would: every operation of today, and for patterns and named sets, which
// may match an operation of a later version, an own scope that is as wide.
func covers(have []string, want string) bool {
	if slices.Contains(have, scopeAdmin) || slices.Contains(have, want) {
		return true
	}
	switch want {
	case scopeAdmin, scopeWrite:
		return false
	case scopeRead:
		return slices.Contains(have, scopeWrite)
	}
	if strings.Contains(want, "*") && !slices.ContainsFunc(have, func(h string) bool { return wider(h, want) }) {
		return false
	}
	granted := false
	all := api.All()
	for _, stream := range api.AllStreams() {
		all = append(all, stream.Info)
	}
	for _, info := range all {
		if !grants(want, info) {
			continue
		}
		granted = true
		if !slices.ContainsFunc(have, func(scope string) bool { return grants(scope, info) }) {
			return false
		}
	}
	return granted
}

// wider reports whether all that a pattern can ever match is allowed by another scope.
func wider(scope, pattern string) bool {
	if scope == scopeWrite {
		return !strings.HasPrefix(pattern, "*") && !guarded(pattern)
	}
	return matches(scope, strings.ReplaceAll(pattern, "*", "\x00"))
}
