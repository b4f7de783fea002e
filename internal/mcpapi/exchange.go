package mcpapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/catalog"
	"github.com/berthrun/berth/internal/errs"
)

// exchange is one HTTP request and its answer.
type exchange struct {
	h         *Handler
	list      catalog.List
	end       *endpoint
	w         *bounded
	r         *http.Request
	requestID string
	caller    *caller.Caller
	msg       *message
	meta      members // the _meta of the params
	streaming bool    // the answer is a stream of events
	modern    bool    // 2026-07-28 and later: no session, everything in each request
}

func (x *exchange) serve() {
	head := x.w.Header()
	head.Set("X-Accel-Buffering", "no")
	head.Set("Cache-Control", "no-store")
	if err := x.checkSource(); err != nil {
		x.fail(err)
		return
	}
	switch x.r.Method {
	case http.MethodPost:
	case http.MethodOptions:
		x.preflight()
		return
	default:
		head.Set("Allow", "POST, OPTIONS")
		x.fail(problem(http.StatusMethodNotAllowed, codeInvalidRequest, "only POST: the server is stateless and opens no stream of its own"))
		return
	}
	if err := x.authenticate(); err != nil {
		x.fail(err)
		return
	}
	var missing error
	if x.end, missing = x.h.endpoint(x.list); missing != nil {
		x.refuse(missing)
		return
	}
	body, err := x.body()
	if err == nil {
		x.msg, err = parse(body)
	}
	if err == nil {
		err = x.check()
	}
	if err != nil {
		x.fail(err)
		return
	}
	x.dispatch()
}

func (x *exchange) dispatch() {
	ctx := caller.With(x.r.Context(), x.caller)
	if x.h.cfg.Allow != nil && x.msg.method != "tools/call" {
		if err := x.h.cfg.Allow(ctx, x.caller); err != nil {
			x.refuse(err)
			return
		}
	}
	switch {
	case x.msg.method == "" || x.msg.id == nil:
		x.w.Header().Set("Content-Length", "0")
		x.w.WriteHeader(http.StatusAccepted) // nothing here waits for a notification or for an answer of the client
	case x.msg.method == "tools/call":
		x.callTool(ctx)
	case x.msg.method == "tools/list":
		x.listTools()
	case x.msg.method == "ping":
		x.write(http.StatusOK, append(append([]byte(`{"jsonrpc":"2.0","id":`), x.msg.id...), `,"result":{}}`...))
	default:
		x.protocol(ctx)
	}
}

// protocol hands a message that is no tool call to the SDK.
func (x *exchange) protocol(ctx context.Context) {
	r := x.r.Clone(ctx)
	r.Body = io.NopCloser(bytes.NewReader(x.msg.raw))
	r.ContentLength = int64(len(x.msg.raw))
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Content-Type", "application/json")
	x.end.protocol.ServeHTTP(x.w, r)
}

func (x *exchange) body() ([]byte, *rpcError) {
	kind, _, err := mime.ParseMediaType(x.r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return nil, problem(http.StatusUnsupportedMediaType, codeParse, "Content-Type must be application/json")
	}
	if accept := x.r.Header.Values("Accept"); len(accept) > 0 && !accepts(accept, "application/json") && !accepts(accept, "text/event-stream") {
		return nil, problem(http.StatusNotAcceptable, codeInvalidRequest, "Accept must allow application/json and text/event-stream")
	}
	body, err := x.w.readAll(http.MaxBytesReader(x.w.ResponseWriter, x.r.Body, x.h.cfg.MaxBody))
	if _, over := errors.AsType[*http.MaxBytesError](err); over {
		return nil, problem(http.StatusRequestEntityTooLarge, codeInvalidRequest, "the body is larger than "+strconv.FormatInt(x.h.cfg.MaxBody, 10)+" bytes")
	}
	if err != nil {
		return nil, problem(http.StatusBadRequest, codeParse, "the body ended early")
	}
	return body, nil
}

// accepts reports whether one of the Accept headers allows a media type.
func accepts(headers []string, kind string) bool {
	major, _, _ := strings.Cut(kind, "/")
	for _, h := range headers {
		for part := range strings.SplitSeq(h, ",") {
			switch got, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(part)), ";"); strings.TrimSpace(got) {
			case kind, major + "/*", "*/*":
				return true
			}
		}
	}
	return false
}

// fail answers with a JSON-RPC error under the id of the message, null where it is not known.
func (x *exchange) fail(e *rpcError) {
	var idRaw any
	if x.msg != nil && x.msg.id != nil {
		idRaw = x.msg.id
	}
	x.write(e.status, encode(struct {
		JSONRPC string    `json:"jsonrpc"`
		ID      any       `json:"id"`
		Error   *rpcError `json:"error"`
	}{"2.0", idRaw, e}))
}

// refuse answers with an error that has a code of its own, as a JSON-RPC error whose data is what a tool would say.
func (x *exchange) refuse(err error) {
	x.logInternal(err)
	e := errs.From(err)
	if e.RetryAfter > 0 {
		x.w.Header().Set("Retry-After", strconv.Itoa(int((e.RetryAfter+time.Second-1)/time.Second)))
	}
	answer := problem(e.Code.Status(), codeRefused, e.Message)
	if e.Code == errs.NotFound || e.Code == errs.InvalidInput {
		answer.Code = codeInvalidRequest
	}
	answer.Data = x.errorText(e)
	x.fail(answer)
}

func (x *exchange) write(status int, body []byte) {
	head := x.w.Header()
	head.Set("Content-Type", "application/json")
	head.Set("Content-Length", strconv.Itoa(len(body)))
	x.w.WriteHeader(status)
	_, _ = x.w.Write(body) // a client that is gone is noticed by its context
}
