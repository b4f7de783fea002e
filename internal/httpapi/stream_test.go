package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
)

type bytesIn struct {
	ThingID string `json:"thingId" minlen:"1"`
	Size    int64  `json:"size,omitempty" min:"0" doc:"How many bytes."`
	Fail    int64  `json:"fail,omitempty" doc:"After so many bytes."`
}

type takenOut struct {
	Bytes int64 `json:"bytes"`
}

type tick struct {
	N int `json:"n"`
}

var (
	giveBytes = op.StreamDef[bytesIn]{
		Name: "things.download", Route: "GET /v1/things/{thingId}/content", Action: "test:things:read", Kind: op.Download, Hints: op.Read, Toolset: "things",
		Title: "Give bytes", Doc: "Gives bytes.", Headers: []op.Header{{Name: "Range", Doc: "A part."}},
	}
	takeBytes = op.StreamDef[bytesIn]{
		Name: "things.upload", Route: "PUT /v1/things/{thingId}/content", Action: "test:things:update", Kind: op.Upload, Hints: op.Write, Toolset: "things",
		Title: "Take bytes", Doc: "Takes bytes.", Out: takenOut{},
	}
	followThing = op.StreamDef[thingIn]{
		Name: "things.follow", Route: "GET /v1/things/{thingId}", Action: "test:things:read", Kind: op.Events, Hints: op.Read, Toolset: "things",
		Title: "Follow", Doc: "Follows.", When: "follow", Messages: []op.Message{{Name: "tick", Doc: "A tick.", Data: tick{}}},
	}
	talkThing = op.StreamDef[thingIn]{
		Name: "things.talk", Route: "GET /v1/things/{thingId}/talk", Action: "test:things:update", Kind: op.Socket, Hints: op.Write, Toolset: "things",
		Title: "Talk", Doc: "Talks.", Messages: []op.Message{{Name: "data", Doc: "Bytes."}},
	}
)

func streamInfos() []op.StreamInfo {
	return []op.StreamInfo{giveBytes.Info(), takeBytes.Info(), followThing.Info(), talkThing.Info()}
}

func bindStreams(r *op.Registry) {
	draft := func(context.Context, *bytesIn) (*op.Draft, error) { return &op.Draft{}, nil }
	drafted := func(context.Context, *thingIn) (*op.Draft, error) { return &op.Draft{}, nil }
	op.HandleStream(r, giveBytes, op.StreamHandler[bytesIn]{Draft: draft, Serve: func(_ context.Context, in *bytesIn, _ *op.Draft, s *op.Stream) error {
		if in.Fail > 0 && in.Fail > in.Size {
			return errs.E(errs.NotFound, "there is no such thing")
		}
		s.W.Header().Set("Content-Length", fmt.Sprint(in.Size))
		n := in.Size
		if in.Fail > 0 {
			n = in.Fail
		}
		if _, err := io.Copy(s.W, io.LimitReader(zeros{}, n)); err != nil {
			return err
		}
		if in.Fail > 0 {
			return errors.New("broken")
		}
		return nil
	}})
	op.HandleStream(r, takeBytes, op.StreamHandler[bytesIn]{Draft: draft, Serve: func(_ context.Context, in *bytesIn, _ *op.Draft, s *op.Stream) error {
		n, err := io.Copy(io.Discard, s.R.Body)
		if err != nil {
			return errs.Wrap(errs.InvalidInput, err, "the body could not be read")
		}
		return json.NewEncoder(s.W).Encode(takenOut{n})
	}})
	op.HandleStream(r, followThing, op.StreamHandler[thingIn]{Draft: drafted, Serve: func(_ context.Context, in *thingIn, _ *op.Draft, s *op.Stream) error {
		s.W.Header().Set("Content-Type", "text/event-stream")
		_, err := fmt.Fprintf(s.W, "event: tick\ndata: {\"n\":1}\n\n")
		s.W.(http.Flusher).Flush()
		return err
	}})
	op.HandleStream(r, talkThing, op.StreamHandler[thingIn]{Draft: drafted, Serve: func(_ context.Context, in *thingIn, _ *op.Draft, s *op.Stream) error {
		conn, rw, err := s.W.(http.Hijacker).Hijack()
		if err != nil {
			return err
		}
		defer conn.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\n\r\nhello %s", in.ThingID)
		return rw.Flush()
	}})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Stream implements Path.
func (p *fakePath) Stream(ctx context.Context, o *op.StreamOperation, raw json.RawMessage, s *op.Stream) error {
	p.mu.Lock()
	p.raw = raw
	p.mu.Unlock()
	if p.fail != nil {
		return p.fail
	}
	in, err := o.Decode(raw)
	if err != nil {
		return err
	}
	return o.Serve(ctx, in, nil, s)
}

func TestStreamRoutes(t *testing.T) {
	f := setup(nil)
	for _, tt := range []struct {
		method, target, body string
		status               int
		code, raw            string
	}{
		{"GET", "/v1/things/a/content?size=5", "", 200, "", `{"thingId":"a","size":5}`},
		{"HEAD", "/v1/things/a/content?size=5", "", 200, "", `{"thingId":"a","size":5}`},
		{"PUT", "/v1/things/a/content", "some bytes", 200, "", `{"thingId":"a"}`},
		{"GET", "/v1/things/a?follow=true", "", 200, "", `{"thingId":"a"}`},
		{"GET", "/v1/things/a?follow=false", "", 200, "", `{"thingId":"a"}`},
		{"GET", "/v1/things/a?follow=1", "", 400, "INVALID_INPUT", ""},
		{"GET", "/v1/things/a?follow=true&follow=true", "", 400, "INVALID_INPUT", ""},
		{"GET", "/v1/things/a?follow=true&more=1", "", 400, "INVALID_INPUT", ""},
		{"GET", "/v1/things/a/content?size=x", "", 400, "INVALID_INPUT", ""},
		{"GET", "/v1/things/a/content?size=-1", "", 400, "INVALID_INPUT", ""},
		{"GET", "/v1/things/a/content?thingId=b", "", 400, "INVALID_INPUT", ""},
		{"GET", "/v1/things/a/content", "a body", 400, "INVALID_INPUT", ""},
		{"GET", "/v1/things/a/content?size=1&fail=2", "", 404, "NOT_FOUND", ""},
		{"POST", "/v1/things/a/content", "", 405, "INVALID_INPUT", ""},
	} {
		w := f.send(tt.method, tt.target, tt.body)
		if w.Code != tt.status {
			t.Errorf("%s %s: status %d: %s", tt.method, tt.target, w.Code, w.Body)
			continue
		}
		if tt.code != "" {
			if got := failure(t, w); string(got.Code) != tt.code {
				t.Errorf("%s %s: %+v", tt.method, tt.target, got)
			}
		} else if got := string(f.path.raw); got != tt.raw {
			t.Errorf("%s %s: the input is %s, want %s", tt.method, tt.target, got, tt.raw)
		}
	}
	if w := f.send("GET", "/v1/things/a/content", "", "Authorization", ""); w.Code != 401 {
		t.Errorf("without a key: %d", w.Code)
	}
}

func serveStreams(t *testing.T, stall time.Duration) (*fixture, string) {
	t.Helper()
	f := setup(nil)
	f.Handler.(*server).stall = stall
	srv := httptest.NewServer(f)
	t.Cleanup(srv.Close)
	return f, srv.URL
}

func request(t *testing.T, method, url string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+goodKey)
	return r
}

// An error after the first byte is never a clean end.
func TestBrokenStream(t *testing.T) {
	_, url := serveStreams(t, stallTime)
	for _, size := range []int64{1 << 20, 100 << 10} {
		res, err := http.DefaultClient.Do(request(t, "GET", fmt.Sprintf("%s/v1/things/a/content?size=%d&fail=%d", url, size, size/2), nil))
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if err == nil || n >= size {
			t.Errorf("%d of %d bytes and a clean end", n, size)
		}
	}
}

// Whoever reads or writes nothing for the time is cut off, and whoever goes on slowly is not.
func TestStalledStream(t *testing.T) {
	f, url := serveStreams(t, 300*time.Millisecond)
	dial := func(head string) net.Conn {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: berth\r\nAuthorization: Bearer %s\r\n", head, goodKey)
		return conn
	}
	never := dial("GET /v1/things/a/content?size=1000000000")
	fmt.Fprint(never, "\r\n")
	half := dial("PUT /v1/things/a/content")
	fmt.Fprint(half, "Content-Length: 1000\r\n\r\nabc")
	slow := dial("PUT /v1/things/a/content")
	fmt.Fprint(slow, "Content-Length: 8\r\n\r\n")
	for range 8 {
		time.Sleep(100 * time.Millisecond) // slow is what is tested
		fmt.Fprint(slow, "x")
	}
	if line, err := bufio.NewReader(slow).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
		t.Errorf("a slow writer got %q, %v", line, err)
	}
	if line, err := bufio.NewReader(half).ReadString('\n'); err != nil || !strings.Contains(line, "400") {
		t.Errorf("a writer that stopped got %q, %v", line, err)
	}
	if n, err := io.Copy(io.Discard, never); n > 100<<20 {
		t.Errorf("a reader that did not read got %d bytes, %v", n, err)
	}
	if !strings.Contains(f.logs.String(), "path=/v1/things/a/content operation=things.download status=200") {
		t.Errorf("the download has not ended:\n%s", f.logs)
	}
	if strings.Contains(f.logs.String(), "level=ERROR") {
		t.Errorf("a caller that does not read is no failure of the server:\n%s", f.logs)
	}
}

func TestSocketStream(t *testing.T) {
	_, url := serveStreams(t, stallTime)
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /v1/things/a/talk HTTP/1.1\r\nHost: berth\r\nAuthorization: Bearer %s\r\n\r\n", goodKey)
	all, err := io.ReadAll(conn)
	if err != nil || !strings.HasSuffix(string(all), "hello a") || !strings.HasPrefix(string(all), "HTTP/1.1 101") {
		t.Errorf("got %q, %v", all, err)
	}
}

func TestOpenAPIStream(t *testing.T) {
	raw, err := OpenAPI([]op.Info{readThing.Info()}, streamInfos(), "")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
			Parameters  []struct{ Name, In string }
			RequestBody *struct{ Content map[string]any }
			Responses   map[string]struct{ Content map[string]any }
			Berth       struct {
				Stream struct {
					Name, Kind string
					Messages   []struct{ Name string }
				}
			} `json:"x-berth"`
		}
		Components struct{ Schemas map[string]any }
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	content, shared := doc.Paths["/v1/things/{thingId}/content"], doc.Paths["/v1/things/{thingId}"]["get"]
	if content["get"].OperationID != "things.download" || content["get"].Responses["200"].Content["application/octet-stream"] == nil ||
		!slices.Contains(content["get"].Parameters, struct{ Name, In string }{"Range", "header"}) {
		t.Errorf("a download: %+v", content["get"])
	}
	if put := content["put"]; put.RequestBody.Content["application/octet-stream"] == nil || put.Responses["200"].Content["application/json"] == nil {
		t.Errorf("an upload: %+v", put)
	}
	if shared.OperationID != "things.get" || shared.Responses["200"].Content["text/event-stream"] == nil || shared.Responses["200"].Content["application/json"] == nil ||
		shared.Berth.Stream.Kind != "events" || !slices.Contains(shared.Parameters, struct{ Name, In string }{"follow", "query"}) {
		t.Errorf("a shared route: %+v", shared)
	}
	if doc.Components.Schemas["ThingsFollowTick"] == nil || doc.Components.Schemas["ThingsUploadOutput"] == nil {
		t.Errorf("schemas: %v", doc.Components.Schemas)
	}
	if doc.Paths["/v1/things/{thingId}/talk"]["get"].Responses["101"].Content != nil {
		t.Error("a socket has content")
	}
}
