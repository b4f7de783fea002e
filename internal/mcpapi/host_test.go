package mcpapi

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/call"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/errs"
)

// The operations that the tests bind besides real ones.
type (
	thing struct {
		ID   string `json:"id"`
		Text string `json:"text"`
	}
	noteIn struct {
		op.WriteIn
		Text string `json:"text" maxlen:"100000" doc:"What to keep."`
	}
	noteOut struct {
		op.WriteOut
		Thing thing `json:"thing"`
	}
	listIn struct {
		op.PageIn
		Tag string `json:"tag,omitempty"`
	}
	listOut struct {
		op.PageOut
		Items []thing `json:"items"`
	}
	waitOut struct {
		Waited bool `json:"waited"`
	}
)

var (
	addNote = op.Def[noteIn, noteOut]{
		Name: "notes.create", Route: "POST /v1/notes", Action: "notes:create", Tool: "add_note", Hints: op.Write | op.Creates,
		Toolset: "notes", Title: "Add a note", Doc: "Keeps a text.",
	}
	listNotes = op.Def[listIn, listOut]{
		Name: "notes.list", Route: "GET /v1/notes", Action: "notes:read", Tool: "list_notes", Hints: op.Read | op.Idempotent,
		Toolset: "notes", Title: "List notes", Doc: "Lists what was kept.",
	}
	waitNote = op.Def[api.None, waitOut]{
		Name: "notes.wait", Route: "GET /v1/wait", Action: "notes:read", Tool: "wait_note", Hints: op.Read,
		Toolset: "notes", Title: "Wait", Doc: "Answers when it is told to.",
	}
	burnNotes = op.Def[api.None, waitOut]{
		Name: "notes.burn", Route: "DELETE /v1/notes", Action: "notes:burn", Tool: "burn_notes", Hints: op.Write | op.Destructive,
		Toolset: "notes", Title: "Burn all notes", Doc: "Removes everything.",
	}
	hiddenNotes = op.Def[api.None, waitOut]{
		Name: "notes.hidden", Route: "GET /v1/hidden", Action: "notes:hidden", Hints: op.Read, Toolset: "notes", Title: "No tool", Doc: "For people.",
	}
)

// host is a server over a small registry, and what came out at the other side of the face.
type host struct {
	t      *testing.T
	url    string
	notes  []thing
	files  map[string]string
	exec   api.ExecOut
	output api.ProcessOutputOut

	entered chan struct{} // one for each call of wait_note that has begun
	release chan error    // lets one go on
	left    chan error    // how its context ended

	mu      sync.Mutex
	calls   []call.Options
	callers []caller.Caller
	inputs  []string
}

const keyAll, keyRead = "key-all", "key-read"

func newHost(t *testing.T, change func(*Config)) *host {
	t.Helper()
	h := &host{t: t, files: map[string]string{}, entered: make(chan struct{}, 8), release: make(chan error), left: make(chan error, 8)}
	cfg := Config{
		Registry: h.registry(), Path: h, Version: "1.2.3",
		Visible: func(c *caller.Caller, info op.Info) bool {
			return c.KeyID == keyAll || (c.KeyID == keyRead && info.Hints.Has(op.Read))
		},
		Authenticate: func(_ context.Context, token string) (*caller.Caller, error) {
			switch token {
			case keyAll, keyRead:
				return &caller.Caller{OrgID: "org_1", PrincipalID: token, KeyID: token}, nil
			case "broken":
				return nil, errs.E(errs.Unavailable, "the key store is away")
			}
			return nil, errs.E(errs.Unauthenticated, "the credential is not valid")
		},
	}
	if change != nil {
		change(&cfg)
	}
	handler, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	h.url = server.URL
	return h
}

// Do is the path of a call without its rules.
func (h *host) Do(ctx context.Context, o *op.Operation, input json.RawMessage, opts call.Options) (*call.Result, error) {
	h.mu.Lock()
	h.calls, h.inputs = append(h.calls, opts), append(h.inputs, string(input))
	h.callers = append(h.callers, *caller.From(ctx))
	h.mu.Unlock()
	in, err := o.Decode(input)
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
	if s, ok := out.(op.Stamped); ok {
		s.SetWrite("key-1", false)
	}
	b, err := op.Encode(out)
	return &call.Result{Value: out, JSON: b}, err
}

func (h *host) seen() (opts []call.Options, callers []caller.Caller, inputs []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls, h.callers, h.inputs
}

func bind[In, Out any](r *op.Registry, d op.Def[In, Out], act func(ctx context.Context, in *In) (*Out, error)) {
	op.Handle(r, d, op.Handler[In, Out]{
		Draft: func(context.Context, *In) (*op.Draft, error) { return &op.Draft{}, nil },
		Act:   func(ctx context.Context, in *In, _ *op.Draft) (*Out, error) { return act(ctx, in) },
	})
}

func (h *host) registry() *op.Registry {
	r := op.NewRegistry()
	bind(r, addNote, func(_ context.Context, in *noteIn) (*noteOut, error) {
		switch in.Text {
		case "conflict":
			return nil, errs.E(errs.Busy, "the note is being written").Suggest("Wait and repeat.").Because("locked").After(1500*time.Millisecond).With("noteId", "n1")
		case "panic":
			panic("the inside of the server")
		case "plain":
			return nil, io.ErrUnexpectedEOF
		}
		return &noteOut{Thing: thing{"n1", in.Text}}, nil
	})
	bind(r, listNotes, func(_ context.Context, in *listIn) (*listOut, error) {
		at, err := op.DecodeCursor(in.Cursor, in.Tag, 1)
		if err != nil {
			return nil, err
		}
		first, limit := 0, in.Limit
		if limit == 0 {
			limit = 20
		}
		if at != nil {
			first = len(at[0])
		}
		out := &listOut{Items: h.notes[first:min(first+limit, len(h.notes))]}
		if end := first + len(out.Items); end < len(h.notes) {
			out.NextCursor = op.EncodeCursor(in.Tag, strings.Repeat("x", end))
		}
		return out, nil
	})
	bind(r, waitNote, func(ctx context.Context, _ *api.None) (*waitOut, error) {
		h.entered <- struct{}{}
		select {
		case err := <-h.release:
			return &waitOut{Waited: true}, err
		case <-ctx.Done():
			h.left <- ctx.Err()
			return nil, ctx.Err()
		}
	})
	bind(r, burnNotes, func(context.Context, *api.None) (*waitOut, error) { h.notes = nil; return &waitOut{}, nil })
	bind(r, hiddenNotes, func(context.Context, *api.None) (*waitOut, error) { return &waitOut{}, nil })
	bind(r, api.Exec, func(context.Context, *api.ExecIn) (*api.ExecOut, error) { out := h.exec; return &out, nil })
	bind(r, api.ProcessOutput, func(_ context.Context, in *api.ProcessOutputIn) (*api.ProcessOutputOut, error) {
		out := h.output
		out.Offset = in.Offset
		return &out, nil
	})
	bind(r, api.ReadFile, h.readFile)
	return r
}

// request is one POST. Headers are set in pairs.
func (h *host) request(path, body string, headers ...string) *http.Response {
	h.t.Helper()
	req, err := http.NewRequest(http.MethodPost, h.url+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+keyAll)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i < len(headers); i += 2 {
		switch {
		case headers[i] == "Host":
			req.Host = headers[i+1]
		case headers[i+1] == "":
			req.Header.Del(headers[i])
		default:
			req.Header.Set(headers[i], headers[i+1])
		}
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

// reply is a JSON-RPC answer.
type reply struct {
	ID     json.RawMessage `json:"id"`
	Result *struct {
		Content           []struct{ Type, Text string } `json:"content"`
		StructuredContent json.RawMessage               `json:"structuredContent"`
		IsError           bool                          `json:"isError"`
		ResultType        string                        `json:"resultType"`
		Meta              map[string]any                `json:"_meta"`
		ProtocolVersion   string                        `json:"protocolVersion"`
		Tools             []map[string]any              `json:"tools"`
		CacheScope        string                        `json:"cacheScope"`
		Instructions      string                        `json:"instructions"`
	} `json:"result"`
	Error *struct {
		Code    int            `json:"code"`
		Message string         `json:"message"`
		Data    map[string]any `json:"data"`
	} `json:"error"`
}

func read(t *testing.T, res *http.Response) reply {
	t.Helper()
	var r reply
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatalf("answer %d is no JSON: %v\n%s", res.StatusCode, err, b)
	}
	return r
}

// tool calls a tool in the revision 2025-11-25.
func (h *host) tool(path, name string, args any, headers ...string) reply {
	h.t.Helper()
	body := encode(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": map[string]any{"name": name, "arguments": args}})
	return read(h.t, h.request(path, string(body), append([]string{"Mcp-Protocol-Version", "2025-11-25"}, headers...)...))
}

// result checks that a reply is a success whose text and structured content say the same, and gives it.
func result[T any](t *testing.T, r reply) (T, string) {
	t.Helper()
	var v T
	if r.Result == nil || r.Result.IsError || len(r.Result.Content) != 1 {
		t.Fatalf("no success: %+v %+v", r.Result, r.Error)
	}
	text := r.Result.Content[0].Text
	if text != string(r.Result.StructuredContent) {
		t.Errorf("text and structured content differ:\n%.200s\n%.200s", text, r.Result.StructuredContent)
	}
	if n := len([]rune(text)); n >= budget {
		t.Errorf("the text has %d characters", n)
	}
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v, text
}

// toolError checks that a reply is an error as a tool gives it.
func toolError(t *testing.T, r reply) errorBody {
	t.Helper()
	if r.Result == nil || !r.Result.IsError || len(r.Result.Content) != 1 || r.Result.StructuredContent != nil {
		t.Fatalf("no tool error: %+v %+v", r.Result, r.Error)
	}
	var e errorBody
	if err := json.Unmarshal([]byte(r.Result.Content[0].Text), &e); err != nil {
		t.Fatal(err)
	}
	if e.RequestID == "" || e.RequestID != r.Result.Meta[requestIDKey] {
		t.Errorf("request id %q in the text, %v in _meta", e.RequestID, r.Result.Meta[requestIDKey])
	}
	return e
}
