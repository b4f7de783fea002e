package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/call"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/errs"
)

var goodKey = "berth_test_" + strings.Repeat("A", 49)

type size struct {
	Width  float64 `json:"width,omitempty" min:"0.5"`
	Height int64   `json:"height,omitempty"`
}

type makeIn struct {
	op.WriteIn
	Name   string            `json:"name" minlen:"1" doc:"Of the thing."`
	Labels map[string]string `json:"labels,omitempty"`
	Size   *size             `json:"size,omitempty"`
}

type thingOut struct {
	op.WriteOut
	Status string `json:"status"`
	ID     string `json:"id"`
}

type thingIn struct {
	ThingID string `json:"thingId" minlen:"1"`
}

type readOut struct {
	ID string `json:"id"`
}

type listIn struct {
	op.PageIn
	State  []string          `json:"state,omitempty" enum:"on,off"`
	Labels map[string]string `json:"labels,omitempty"`
	Size   *size             `json:"size,omitempty"`
	Big    bool              `json:"big,omitempty"`
}

type listOut struct {
	op.PageOut
	Items []readOut `json:"items"`
}

type removeIn struct {
	op.WriteIn
	thingIn2
	Force *bool `json:"force,omitempty"`
}

type thingIn2 struct {
	ThingID string `json:"thingId" minlen:"1"`
}

type changeIn struct {
	op.WriteIn
	thingIn2
	Name string `json:"name,omitempty"`
}

var (
	makeThing = op.Def[makeIn, thingOut]{
		Name: "things.create", Route: "POST /v1/things", Action: "test:things:create", Tool: "create_thing", Hints: op.Write | op.Creates,
		Toolset: "things", Title: "Make", Doc: "Makes a thing.", Status: 201,
	}
	readThing = op.Def[thingIn, readOut]{
		Name: "things.get", Route: "GET /v1/things/{thingId}", Action: "test:things:read", Hints: op.Read, Toolset: "things", Title: "Read", Doc: "Gives a thing.",
	}
	listThings = op.Def[listIn, listOut]{
		Name: "things.list", Route: "GET /v1/things", Action: "test:things:read", Hints: op.Read, Toolset: "things", Title: "List", Doc: "Lists things.",
	}
	removeThing = op.Def[removeIn, thingOut]{
		Name: "things.delete", Route: "DELETE /v1/things/{thingId}", Action: "test:things:delete", Hints: op.Write | op.Destructive, Toolset: "things",
		Title: "Remove", Doc: "Removes a thing.",
	}
	changeThing = op.Def[changeIn, thingOut]{
		Name: "things.update", Route: "PATCH /v1/things/{thingId}", Action: "test:things:update", Hints: op.Write, Toolset: "things", Title: "Change", Doc: "Changes a thing.",
	}
)

func handler[In, Out any](out func(*In) *Out) op.Handler[In, Out] {
	return op.Handler[In, Out]{
		Draft: func(context.Context, *In) (*op.Draft, error) { return &op.Draft{}, nil },
		Act:   func(_ context.Context, in *In, _ *op.Draft) (*Out, error) { return out(in), nil },
	}
}

func registry() *op.Registry {
	r := op.NewRegistry()
	op.Handle(r, makeThing, handler(func(in *makeIn) *thingOut { return &thingOut{Status: in.Labels["status"], ID: in.Name} }))
	op.Handle(r, readThing, handler(func(in *thingIn) *readOut { return &readOut{ID: in.ThingID} }))
	op.Handle(r, listThings, handler(func(*listIn) *listOut { return &listOut{} }))
	op.Handle(r, removeThing, handler(func(in *removeIn) *thingOut { return &thingOut{ID: in.ThingID} }))
	bindStreams(r)
	op.Handle(r, changeThing, handler(func(in *changeIn) *thingOut { return &thingOut{ID: in.ThingID} }))
	return r
}

// fakePath decodes, acts and remembers what it was given; fail makes it fail instead.
type fakePath struct {
	mu     sync.Mutex // of what the last call was
	fail   error
	raw    json.RawMessage
	caller *caller.Caller
	panics bool
}

func (p *fakePath) Do(ctx context.Context, o *op.Operation, raw json.RawMessage, _ call.Options) (*call.Result, error) {
	p.mu.Lock()
	p.raw, p.caller = raw, caller.From(ctx)
	p.mu.Unlock()
	if p.panics {
		panic("a bug with a secret inside")
	}
	if p.fail != nil {
		return nil, p.fail
	}
	in, err := o.Decode(raw)
	if err != nil {
		return nil, err
	}
	out, err := o.Act(ctx, in, nil)
	return &call.Result{Value: out}, err
}

type fixture struct {
	http.Handler
	path *fakePath
	logs *bytes.Buffer
}

func setup(change func(*Config)) *fixture {
	f := &fixture{path: &fakePath{}, logs: &bytes.Buffer{}}
	cfg := Config{
		Registry: registry(), Path: f.path, PublicURL: "https://berth.example/", Version: "1.2.3",
		Logger: slog.New(slog.NewTextHandler(f.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Authenticate: func(_ context.Context, token string) (*caller.Caller, error) {
			if token != goodKey {
				return nil, errs.E(errs.Unauthenticated, "the key is not known").Suggest("Use another key.")
			}
			return &caller.Caller{OrgID: "org_1", PrincipalID: "key_1"}, nil
		},
	}
	if change != nil {
		change(&cfg)
	}
	f.Handler = New(cfg)
	return f
}

func (f *fixture) send(method, target, body string, headers ...string) *httptest.ResponseRecorder {
	var r *http.Request
	if body == "" {
		r = httptest.NewRequest(method, target, nil)
	} else {
		r = httptest.NewRequest(method, target, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
	}
	r.Header.Set("Authorization", "Bearer "+goodKey)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Del(headers[i])
		if headers[i+1] != "" {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	return w
}

func failure(t *testing.T, w *httptest.ResponseRecorder) errorFields {
	t.Helper()
	var body errorBody
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
		t.Fatalf("the answer %q is not an error: %v", w.Body, err)
	}
	if got := w.Header().Get("Content-Type"); got != "application/json" {
		t.Errorf("content type is %q", got)
	}
	if got := w.Header().Get("X-Request-Id"); got != body.Error.RequestID || got == "" {
		t.Errorf("request id is %q in the header, %q in the body", got, body.Error.RequestID)
	}
	return body.Error
}
