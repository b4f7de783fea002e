package docsapi

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/call"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/errs"
)

// Instructions are what a client of the public MCP endpoint reads when it connects.
const Instructions = `This endpoint has Berth's documentation and nothing else: it needs no sign-in and runs nothing.
search_docs finds sections by a question or keywords; read_doc reads a page, or one section of it; list_docs names every page.
A long page comes in parts: go on with nextOffset as offset.
To use sandboxes connect /mcp of the same server with a key: read the page connect.`

// How often one address may call: tools, and everything else that a client sends.
const (
	toolsPerMinute    = 120
	requestsPerMinute = 600
)

// Public lets anybody call the operations of a registry that only reads what everybody may see. It stands in for the path of a call: there is no
// credential to authorize and nothing to audit, only addresses that call too often.
type Public struct {
	source   func(r *http.Request) string
	requests *limiter
	tools    *limiter
}

// NewPublic makes a Public. source gives the address of a request; now may be nil.
func NewPublic(source func(r *http.Request) string, now func() time.Time) *Public {
	return &Public{source: source, requests: newLimiter(requestsPerMinute, now), tools: newLimiter(toolsPerMinute, now)}
}

// Anonymous gives the caller of a request, or errs.RateLimited.
func (p *Public) Anonymous(r *http.Request) (*caller.Caller, error) {
	source := p.source(r)
	if err := p.requests.allow(source); err != nil {
		return nil, err
	}
	return &caller.Caller{PrincipalID: "anonymous", SourceIP: source, ReadOnly: true}, nil
}

// Visible reports whether an operation is shown: all that read.
func (p *Public) Visible(_ *caller.Caller, info op.Info) bool { return info.Hints.Has(op.Read) }

// Do carries out an operation.
func (p *Public) Do(ctx context.Context, o *op.Operation, raw json.RawMessage, _ call.Options) (*call.Result, error) {
	c := caller.From(ctx)
	if c == nil || !o.Hints.Has(op.Read) {
		return nil, errs.E(errs.Forbidden, "only reading is public").Because("read_only")
	}
	if err := p.tools.allow(c.SourceIP); err != nil {
		return nil, err
	}
	in, err := o.Decode(raw)
	if err != nil {
		return nil, err
	}
	d, err := o.Draft(ctx, in)
	if err != nil {
		return nil, err
	}
	out, err := o.Act(ctx, in, d)
	if err != nil {
		return nil, err
	}
	b, err := op.Encode(out)
	return &call.Result{Value: out, JSON: b}, err
}
