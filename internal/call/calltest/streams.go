package calltest

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/errs"
)

// streams holds every stream of the registry to the rules. What one carries is its own area's to test.
func (s Setup) streams(t *testing.T) {
	var want, got []string
	for _, i := range s.WantStreams {
		want = append(want, strings.Join([]string{i.Name, i.Method, i.Path, i.When, i.Action}, " "))
	}
	for _, o := range s.Registry.Streams() {
		got = append(got, strings.Join([]string{o.Name, o.Method, o.Path, o.Stream.When, o.Action}, " "))
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("streams (-want +bound):\n%s", diff)
	}
	for _, o := range s.Registry.Streams() {
		t.Run(o.Name, func(t *testing.T) {
			for _, p := range streamProblems(o.Stream) {
				t.Error(p)
			}
			raw := s.Example(t, o.Name)
			none, other := *s.Admin, *s.Admin
			none.Scopes, other.Scopes = nil, []string{"unrelated:*", o.Action + ":more", strings.ToUpper(o.Action)}
			s.refusedStream(t, &none, o, raw, errs.Forbidden)
			s.refusedStream(t, &other, o, raw, errs.Forbidden)
			if o.Hints.Has(op.Write) {
				readOnly := *s.Admin
				readOnly.ReadOnly = true
				s.refusedStream(t, &readOnly, o, raw, errs.Forbidden)
			}
			s.refusedStream(t, nil, o, raw, errs.Unauthenticated)
			for _, bad := range spoiled(t, o.In, raw) {
				s.refusedStream(t, s.Admin, o, bad, errs.InvalidInput)
			}
			if namesOne(o.In) { // it could be another organization's
				s.refusedStream(t, s.Foreign, o, raw, errs.NotFound)
			}
		})
	}
}

// namesOne reports whether an input has to name something by its id.
func namesOne(in *op.Schema) bool {
	for _, name := range in.Required {
		if _, ok := idPrefix(in.Properties[name].Pattern); ok {
			return true
		}
	}
	return false
}

// refusedStream checks that a stream ends with the code before its first byte and changes nothing.
func (s Setup) refusedStream(t *testing.T, c *caller.Caller, o *op.StreamOperation, raw string, want errs.Code) {
	t.Helper()
	before := s.State(t)
	ctx := t.Context()
	if c != nil {
		ctx = caller.With(ctx, c)
	}
	body := &untouched{t: t}
	r := httptest.NewRequest(o.Method, "/", nil)
	r.Body = body
	w := httptest.NewRecorder()
	w.Code = 0
	err := s.Path.Stream(ctx, o, json.RawMessage(raw), &op.Stream{W: w, R: r.WithContext(ctx)})
	if !errs.Is(err, want) {
		t.Errorf("%.200s: got %v, want %s", raw, err, want)
	}
	if w.Code != 0 || w.Body.Len() > 0 {
		t.Errorf("%.200s: the refused stream has answered %d", raw, w.Code)
	}
	if diff := cmp.Diff(before, s.State(t)); diff != "" {
		t.Errorf("%.200s: the refused stream changed something:\n%s", raw, diff)
	}
}

// untouched is a body that a refused stream must not read.
type untouched struct {
	t *testing.T
	bytes.Reader
}

// Read implements io.Reader.
func (u *untouched) Read(p []byte) (int, error) {
	u.t.Error("a refused stream has read its body")
	return u.Reader.Read(p)
}

// Close implements io.Closer.
func (u *untouched) Close() error { return nil }

// streamProblems are what is wrong with a stream's definition.
func streamProblems(i op.StreamInfo) (all []string) {
	plain := i.Info
	if plain.Out == nil {
		plain.Out = &op.Schema{Type: "object"}
	}
	for _, p := range problems(plain) {
		if i.Hints.Has(op.Write) && strings.HasPrefix(p, "a write takes") {
			continue // a stream has no keys
		}
		if i.Kind == op.Socket && strings.HasPrefix(p, http.MethodGet+" does not fit") {
			continue // a WebSocket begins with a GET
		}
		all = append(all, p)
	}
	if (i.Kind == op.Upload) != (i.Out != nil) {
		all = append(all, "an upload answers JSON, others do not")
	}
	if (i.Kind == op.Events || i.Kind == op.Socket) != (len(i.Messages) > 0) {
		all = append(all, "events and sockets have messages, others do not")
	}
	for _, m := range i.Messages {
		if m.Name == "" || !strings.HasSuffix(m.Doc, ".") {
			all = append(all, "a message has no name or documentation")
		}
		if m.Data != nil {
			all = append(all, inSchema(m.Data, "message "+m.Name, true)...)
		}
	}
	return all
}
