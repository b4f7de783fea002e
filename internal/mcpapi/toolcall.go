package mcpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/call"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/errs"
)

// requestIDKey names the request in the _meta of a result.
const requestIDKey = "berth/requestId"

// callTool answers tools/call. What goes wrong with the call itself is a result with isError, so that the model sees it.
func (x *exchange) callTool(ctx context.Context) {
	x.nameClient()
	name, _ := x.msg.params.text("name")
	for _, e := range x.end.extras {
		if e.listed.Name == name {
			x.callExtra(ctx, e)
			return
		}
	}
	token, wanted := x.progressToken()
	if !wanted || !accepts(x.r.Header.Values("Accept"), "text/event-stream") {
		x.write(http.StatusOK, x.answer(x.run(ctx)))
		return
	}
	x.follow(ctx, token)
}

// run does the call and gives the text of its result.
func (x *exchange) run(ctx context.Context) (text []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
		x.logInternal(err)
	}()
	name, _ := x.msg.params.text("name")
	input := x.msg.params["arguments"]
	if string(input) == "null" {
		input = nil
	}
	c, err := x.choose(name, input)
	if err != nil {
		if p, ok := x.h.cfg.Path.(refuser); ok && c != nil {
			err = p.Refuse(ctx, c.op, err)
		}
		return nil, err
	}
	left := x.deadline()
	do := func(input json.RawMessage) (*call.Result, error) {
		start := time.Now()
		res, err := x.h.cfg.Path.Do(ctx, c.op, input, call.Options{Deadline: left, InFlight: true})
		left = max(left-time.Since(start), time.Second)
		return res, err
	}
	if text, err = fit(c.op, c.input, do); err != nil {
		return nil, c.explain(err)
	}
	return x.conceal(c.op, text), nil
}

// refuser is a Path that counts and records what is refused before it comes to it.
type refuser interface {
	Refuse(ctx context.Context, o *op.Operation, refused error) error
}

// nameClient says in the caller which program calls: what it says of itself, else its user agent.
func (x *exchange) nameClient() {
	info, _ := x.meta.object(mcp.MetaKeyClientInfo)
	name, _ := info.text("name")
	if name == "" {
		return
	}
	if version, _ := info.text("version"); version != "" {
		name += "/" + version
	}
	named := *x.caller
	named.Client = printable(name, 200)
	*x.caller = named
}

// answer builds the response from the text of a result, or from an error.
func (x *exchange) answer(text []byte, err error) []byte {
	b := make([]byte, 0, 2*len(text)+len(text)/4+512)
	b = append(b, `{"jsonrpc":"2.0","id":`...)
	b = append(b, x.msg.id...)
	b = append(b, `,"result":{"content":[{"type":"text","text":`...)
	if err != nil {
		b = appendString(b, x.errorText(errs.From(err)))
		b = append(b, `}],"isError":true`...)
	} else {
		b = appendString(b, text)
		b = append(b, `}],"structuredContent":`...)
		b = append(b, text...)
	}
	if x.modern {
		b = append(b, `,"resultType":"complete"`...)
	}
	return append(x.appendMeta(b), "}}"...)
}

// appendMeta adds what every result says of itself.
func (x *exchange) appendMeta(b []byte) []byte {
	b = append(b, `,"_meta":{"`+requestIDKey+`":`...)
	b = append(b, encode(x.requestID)...)
	if x.modern {
		b = append(append(b, `,"`+mcp.MetaKeyServerInfo+`":`...), x.h.info...)
	}
	return append(b, '}')
}

type errorBody struct {
	Code         errs.Code      `json:"code"`
	Message      string         `json:"message"`
	Suggestion   string         `json:"suggestion"`
	RequestID    string         `json:"requestId"`
	Reason       string         `json:"reason,omitempty"`
	RetryAfterMS int64          `json:"retryAfterMs,omitempty"`
	Details      map[string]any `json:"details,omitempty"`
}

// errorText is the JSON that a caller reads of an error. It stays within the budget of a result.
func (x *exchange) errorText(e *errs.Error) json.RawMessage {
	body := errorBody{
		Code: e.Code, Message: e.Message, Suggestion: x.renamed(e.Suggestion), RequestID: x.requestID,
		Reason: e.Reason, RetryAfterMS: e.RetryAfter.Milliseconds(), Details: e.Details,
	}
	text := encode(body)
	if chars(text) < budget {
		return text
	}
	body.Message, body.Suggestion, body.Details = cut(e.Message, budget/4), cut(body.Suggestion, budget/4), nil
	return encode(body)
}

func (x *exchange) logInternal(err error) {
	if errs.CodeOf(err) == errs.Internal {
		x.h.cfg.Logger.Error("call failed", "request_id", x.requestID, "error", err)
	}
}

// deadline is how long the client waits before it gives up, less some time to answer.
func (x *exchange) deadline() time.Duration {
	if impatient(x.caller) {
		return x.h.cfg.ShortDeadline
	}
	return x.h.cfg.Deadline
}

func impatient(c *caller.Caller) bool { return givesUpEarly(c.Client) }
