package call

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/audit"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
)

// entries remembers what is audited.
type entries struct {
	begun, ended, recorded []string
}

func (a *entries) Begin(_ context.Context, _ op.Tx, e audit.Entry) (string, error) {
	a.begun = append(a.begun, e.Operation+" "+e.ResourceID)
	return fmt.Sprint("row", len(a.begun)), nil
}

func (a *entries) End(row, result string, _ time.Duration) { a.ended = append(a.ended, row+" "+result) }

func (a *entries) Record(e audit.Entry) {
	a.recorded = append(a.recorded, e.Operation+" "+e.ResourceID+" "+e.Result)
}

type streamIn struct {
	Name string `json:"name" minlen:"1"`
}

func TestStream(t *testing.T) {
	d, err := db.Open(t.Context(), db.Config{URL: t.TempDir() + "/berth.db"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var serve func(ctx context.Context, s *op.Stream) error
	reg := op.NewRegistry()
	bind := func(kind op.Kind, hints op.Hints) *op.StreamOperation {
		def := op.StreamDef[streamIn]{
			Name: "things." + string(kind), Route: "GET /v1/things/{name}/" + string(kind), Action: "test:things:read", Kind: kind, Hints: hints, Doc: "Streams.",
		}
		op.HandleStream(reg, def, op.StreamHandler[streamIn]{
			Draft: func(_ context.Context, in *streamIn) (*op.Draft, error) {
				if in.Name == "missing" {
					return nil, errs.E(errs.NotFound, "there is no such thing")
				}
				return &op.Draft{Resource: op.Resource{Kind: "thing", ID: in.Name, OrgID: "org_a"}}, nil
			},
			Serve: func(ctx context.Context, _ *streamIn, _ *op.Draft, s *op.Stream) error { return serve(ctx, s) },
		})
		return reg.Stream(def.Name)
	}
	download, upload, events := bind(op.Download, op.Read), bind(op.Upload, op.Write), bind(op.Events, op.Read)
	log := &entries{}
	p := New(Config{DB: d, Authorizer: rule{}, Limiter: noLimit{}, Auditor: log, Streams: 2})
	who := caller.With(t.Context(), &caller.Caller{OrgID: "org_a", PrincipalID: "key_a"})
	do := func(ctx context.Context, o *op.StreamOperation, raw string) error {
		return p.Stream(ctx, o, json.RawMessage(raw), &op.Stream{W: httptest.NewRecorder(), R: httptest.NewRequest("GET", "/", nil)})
	}
	is := func(err error, want errs.Code) {
		t.Helper()
		if got := errs.CodeOf(err); err == nil || got != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}

	serve = func(context.Context, *op.Stream) error { t.Error("it was served"); return nil }
	is(do(t.Context(), download, `{"name":"a"}`), errs.Unauthenticated)
	is(do(who, download, `{}`), errs.InvalidInput)
	is(do(who, download, `{"name":"missing"}`), errs.NotFound)
	is(do(caller.With(t.Context(), &caller.Caller{OrgID: "org_a", PrincipalID: "key_a", ReadOnly: true}), upload, `{"name":"a"}`), errs.Forbidden)

	serve = func(context.Context, *op.Stream) error {
		if len(log.begun) != 1 {
			t.Error("a write is served without its audit row")
		}
		return nil
	}
	if err := do(who, upload, `{"name":"a"}`); err != nil {
		t.Error(err)
	}
	serve = func(context.Context, *op.Stream) error { panic("a bug") }
	is(do(who, upload, `{"name":"a"}`), errs.Internal)
	serve = func(context.Context, *op.Stream) error { return nil }
	if err := do(who, download, `{"name":"a"}`); err != nil {
		t.Error(err)
	}
	// A follower that goes away has come to its end; a download has not.
	gone, leave := context.WithCancel(who)
	leave()
	serve = func(ctx context.Context, _ *op.Stream) error { return ctx.Err() }
	is(do(gone, events, `{"name":"b"}`), errs.Timeout)
	is(do(gone, download, `{"name":"b"}`), errs.Timeout)
	want := "[things.upload a things.upload a] [row1 ok row2 INTERNAL_ERROR] " +
		"[things.download  INVALID_INPUT things.download  NOT_FOUND things.upload  FORBIDDEN things.download a ok things.events b ok things.download b TIMEOUT]"
	if got := fmt.Sprint(log.begun, log.ended, log.recorded); got != want {
		t.Errorf("audit:\n%s\nwant\n%s", got, want)
	}

	// Only so many at a time; at the end events end at once, and bytes when time is up.
	opened, ended := make(chan bool), make(chan error, 2)
	serve = func(ctx context.Context, _ *op.Stream) error {
		opened <- true
		<-ctx.Done()
		return ctx.Err()
	}
	go func() { ended <- do(who, events, `{"name":"c"}`) }()
	<-opened
	go func() { ended <- do(who, download, `{"name":"c"}`) }()
	<-opened
	is(do(who, events, `{"name":"c"}`), errs.RateLimited)
	p.EndStreams()
	is(<-ended, errs.Unavailable)
	is(do(who, events, `{"name":"c"}`), errs.Unavailable)
	late, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Close(late); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close: %v", err)
	}
	is(<-ended, errs.Unavailable)
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
