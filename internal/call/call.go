// Package call owns the path of a call, the same for every face: limits, decoding, draft, authorization, idempotency, intent, act, result, audit.
//
// Faces authenticate and put the caller into the context; what they get back they only write in their own form. The package owns no operation
// and no product table: it declares the Authorizer, Limiter, Store and Auditor that it needs.
package call

import (
	"context"
	"encoding/json"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/audit"
	"github.com/berthrun/berth/internal/caller"
)

// Options are what a face knows about one call.
type Options struct {
	// Deadline is how long the call may take before what is still going becomes a handle: everything that waits shares it. 0 is the default.
	Deadline time.Duration
	// InFlight counts the call against the caller's calls in flight (MCP).
	InFlight bool
}

// Result is what a call led to.
type Result struct {
	Value    any             // the typed output
	JSON     json.RawMessage // the same, encoded
	Replayed bool
}

// Decision is what authorization says.
type Decision = op.Decision

// Authorizer decides. Key scopes fill it now, Cedar later.
type Authorizer interface {
	// Authorize decides on a draft. An error is a refusal.
	Authorize(ctx context.Context, c *caller.Caller, o *op.Operation, d *op.Draft) (Decision, error)
	// Visible reports whether the caller may be shown the operation at all. It never decides about doing it.
	Visible(c *caller.Caller, info op.Info) bool
}

// Limiter holds back callers that call too often.
type Limiter interface {
	// Allow counts one call. One too many is errs.RateLimited with the time after which the next one is allowed.
	Allow(ctx context.Context, c *caller.Caller) error
}

// Auditor records calls.
type Auditor interface {
	// Begin records a write in the transaction of its intent; End follows with its result.
	Begin(ctx context.Context, tx op.Tx, e audit.Entry) (row string, err error)
	End(row, result string, took time.Duration)
	// Record records any other call at its end.
	Record(e audit.Entry)
}

// Observer is told of every call that an identified caller makes: for metrics. Its methods must not wait.
type Observer interface {
	// Begun is told when a call begins, Ended when its caller gets the result: audit.OK or the error's code, with the reason where there is one.
	Begun(operation string, face caller.Face)
	Ended(operation string, face caller.Face, result, reason string, took time.Duration)
}

// nobody is an Observer.
type nobody struct{}

func (nobody) Begun(string, caller.Face)                                {}
func (nobody) Ended(string, caller.Face, string, string, time.Duration) {}
