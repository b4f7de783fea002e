package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
)

const sandboxID = "sbx_aaaaaaaaaaaaaaaaaaaa"

// seen is what a handler got.
type seen struct {
	Method, URI, Body, Auth, Type string
}

func record(r *http.Request) seen {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	return seen{r.Method, r.RequestURI, string(body), r.Header.Get("Authorization"), r.Header.Get("Content-Type")}
}

func newClient(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	c, err := New("http://berth.test/base/", "secret-key", InProcess(h))
	if err != nil {
		t.Fatal(err)
	}
	c.newKey = func() string { return "made" }
	c.jitter = func(d time.Duration) time.Duration { return d }
	return c
}

func TestRequests(t *testing.T) {
	started := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tests := []struct {
		name string
		call func(context.Context, *Client) error
		want seen
	}{
		{"query", func(ctx context.Context, c *Client) error {
			_, err := Call(ctx, c, api.ListSandboxes, api.ListSandboxesIn{
				PageIn: op.PageIn{Limit: 5}, State: []string{"running", "stopped"}, Metadata: map[string]string{"a.b": "c d"}, StartedAfter: &started,
			})
			return err
		}, seen{"GET", "/base/v1/sandboxes?limit=5&metadata.a.b=c+d&startedAfter=2026-01-02T03%3A04%3A05Z&state=running&state=stopped", "", "Bearer secret-key", ""}},
		{"body", func(ctx context.Context, c *Client) error {
			_, err := Call(ctx, c, api.CreateSandbox, api.CreateSandboxIn{Name: "n"})
			return err
		}, seen{"POST", "/base/v1/sandboxes", `{"idempotencyKey":"made","name":"n"}`, "Bearer secret-key", "application/json"}},
		{"own key", func(ctx context.Context, c *Client) error {
			_, err := Call(ctx, c, api.CreateSandbox, api.CreateSandboxIn{WriteIn: op.WriteIn{IdempotencyKey: "mine"}})
			return err
		}, seen{"POST", "/base/v1/sandboxes", `{"idempotencyKey":"mine"}`, "Bearer secret-key", "application/json"}},
		{"path and query", func(ctx context.Context, c *Client) error {
			_, err := Call(ctx, c, api.DeleteSandbox, api.SandboxWaitIn{SandboxIn: api.SandboxIn{SandboxID: "a/b"}})
			return err
		}, seen{"DELETE", "/base/v1/sandboxes/a%2Fb?idempotencyKey=made", "", "Bearer secret-key", ""}},
		{"nothing", func(ctx context.Context, c *Client) error {
			_, err := Call(ctx, c, api.GetAccount, api.None{})
			return err
		}, seen{"GET", "/base/v1/account", "", "Bearer secret-key", ""}},
		{"untyped", func(ctx context.Context, c *Client) error {
			_, err := c.Do(ctx, api.StopSandbox.Info(), json.RawMessage(`{"sandboxId":"`+sandboxID+`","waitSeconds":1}`))
			return err
		}, seen{"POST", "/base/v1/sandboxes/" + sandboxID + "/stop", `{"idempotencyKey":"made","waitSeconds":1}`, "Bearer secret-key", "application/json"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got seen
			c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
				got = record(r)
				io.WriteString(w, `{"unknown":"members are fine"}`)
			})
			if err := tt.call(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRefusedHere(t *testing.T) {
	c := newClient(t, func(http.ResponseWriter, *http.Request) { t.Error("a request was sent") })
	for _, id := range []string{"", ".", ".."} {
		_, err := Call(t.Context(), c, api.GetSandbox, api.SandboxIn{SandboxID: id})
		if CodeOf(err) != "INVALID_INPUT" {
			t.Errorf("the id %q: %v", id, err)
		}
	}
	for _, in := range []string{`[]`, `null`, `{`, `{"name":null}`} {
		if _, err := c.Do(t.Context(), api.ListSandboxes.Info(), json.RawMessage(in)); CodeOf(err) != "INVALID_INPUT" {
			t.Errorf("the input %s: %v", in, err)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for _, tt := range []struct{ url, key string }{
		{"", ""}, {"berth.test", ""}, {"ftp://berth.test", ""}, {"https://user:pw@berth.test", ""}, {"https://berth.test?key=1", ""}, {"https://berth.test", "a\nb"},
	} {
		_, err := New(tt.url, tt.key)
		if CodeOf(err) != "INVALID_CONFIG" {
			t.Errorf("%q, %q: %v", tt.url, tt.key, err)
		}
		if err != nil && (strings.Contains(err.Error(), "pw") || strings.Contains(err.Error(), "a\nb")) {
			t.Errorf("the error repeats what is secret: %v", err)
		}
	}
}

func TestErrors(t *testing.T) {
	tests := []struct {
		name   string
		answer func(http.ResponseWriter)
		want   Error
	}{
		{"whole", func(w http.ResponseWriter) {
			w.WriteHeader(409)
			io.WriteString(w, `{"error":{"code":"BUSY","message":"m","suggestion":"s","requestId":"req_1","reason":"r","retryAfterMs":1500,"details":{"a":1}}}`)
		}, Error{Code: "BUSY", Message: "m", Suggestion: "s", Reason: "r", RequestID: "req_1", RetryAfter: 1500 * time.Millisecond, Details: map[string]any{"a": 1.0}, Status: 409}},
		{"a proxy's page", func(w http.ResponseWriter) {
			w.Header().Set("X-Request-Id", "x")
			w.WriteHeader(504)
			io.WriteString(w, "<html>")
		}, Error{Code: "TIMEOUT", Message: "the server's answer is not Berth's: 504 Gateway Timeout", Suggestion: "Check the server's URL, and what stands between here and the server.", RequestID: "x", Status: 504}},
		{
			"a success that is none", func(w http.ResponseWriter) { io.WriteString(w, "<html>") },
			Error{Code: "UPSTREAM_ERROR", Message: "the server's answer is not Berth's: 200 OK", Suggestion: "Check the server's URL, and what stands between here and the server.", Status: 200},
		},
		{"elsewhere", func(w http.ResponseWriter) {
			w.Header().Set("Location", "https://other.test/v1?secret")
			w.WriteHeader(307)
		}, Error{Code: "INVALID_CONFIG", Message: "the server's URL leads elsewhere", Suggestion: "Use the address to which it leads as the server's URL: https://other.test", Status: 307}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newClient(t, func(w http.ResponseWriter, _ *http.Request) { tt.answer(w) })
			c.http.CheckRedirect = newHTTPClient().CheckRedirect
			_, err := Call(t.Context(), c, api.GetAccount, api.None{})
			got, ok := errors.AsType[*Error](err)
			if !ok {
				t.Fatalf("got %v", err)
			}
			if diff := cmp.Diff(tt.want, *got, cmpopts.IgnoreUnexported(Error{})); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRepetition(t *testing.T) {
	busy := func(status int, ms string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.WriteHeader(status)
			io.WriteString(w, `{"error":{"code":"X","message":"m","requestId":"r","retryAfterMs":`+ms+`}}`)
		}
	}
	lost := func(http.ResponseWriter) { panic(http.ErrAbortHandler) }
	tests := []struct {
		name    string
		answers []func(http.ResponseWriter) // before the good one
		within  time.Duration
		calls   int32
		after   time.Duration
		code    string
	}{
		{"rate limit", []func(http.ResponseWriter){busy(429, "2000")}, time.Minute, 2, 2 * time.Second, ""},
		{"bad gateway", []func(http.ResponseWriter){busy(502, "0"), busy(502, "0")}, time.Minute, 3, 750 * time.Millisecond, ""},
		{"unavailable, then lost", []func(http.ResponseWriter){busy(503, "100"), lost}, time.Minute, 3, 600 * time.Millisecond, ""},
		{"for ever", []func(http.ResponseWriter){busy(503, "0"), busy(503, "0"), busy(503, "0"), busy(503, "0")}, time.Minute, 4, 1750 * time.Millisecond, "X"},
		{"longer than the caller waits", []func(http.ResponseWriter){busy(503, "2000")}, time.Second, 1, 0, "X"},
		{"longer than anybody waits", []func(http.ResponseWriter){busy(503, "3600000")}, 2 * time.Hour, 1, 0, "X"},
		{"refused", []func(http.ResponseWriter){busy(409, "10")}, time.Minute, 1, 0, "X"},
		{"timed out there", []func(http.ResponseWriter){busy(504, "10")}, time.Minute, 1, 0, "X"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var calls atomic.Int32
				bodies := map[string]bool{}
				c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
					bodies[record(r).Body] = true
					if n := int(calls.Add(1)); n <= len(tt.answers) {
						tt.answers[n-1](w)
						return
					}
					io.WriteString(w, `{}`)
				})
				c.newKey = func() string { return "key-" + time.Now().String() }
				ctx, cancel := context.WithTimeout(t.Context(), tt.within)
				defer cancel()
				began := time.Now()
				_, err := Call(ctx, c, api.CreateSandbox, api.CreateSandboxIn{})
				if got := time.Since(began); got != tt.after || calls.Load() != tt.calls || CodeOf(err) != tt.code {
					t.Errorf("%d calls after %v: %v; want %d after %v: %q", calls.Load(), got, err, tt.calls, tt.after, tt.code)
				}
				if len(bodies) != 1 {
					t.Errorf("the repetitions differ: %v", bodies)
				}
			})
		})
	}
}

func TestWriteWithoutKeyIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		c := newClient(t, func(http.ResponseWriter, *http.Request) { calls++; panic("lost") })
		def := op.Def[api.None, api.None]{Name: "x.do", Route: "POST /v1/x", Action: "x", Doc: "x", Hints: op.Write}
		if _, err := Call(t.Context(), c, def, api.None{}); CodeOf(err) != "UNAVAILABLE" || calls != 1 {
			t.Errorf("%d calls: %v", calls, err)
		}
	})
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := newClient(t, func(http.ResponseWriter, *http.Request) { cancel() })
	_, err := Call(ctx, c, api.GetAccount, api.None{})
	if CodeOf(err) != "TIMEOUT" || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestOverTheWire(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, `{"organizationId":"org_1"}`) }))
	c, err := New(srv.URL, "k", Attempts(1), UserAgent("test"))
	if err != nil {
		t.Fatal(err)
	}
	out, err := Call(t.Context(), c, api.GetAccount, api.None{})
	if err != nil || out.OrganizationID != "org_1" {
		t.Errorf("got %+v, %v", out, err)
	}
	srv.Close()
	_, err = Call(t.Context(), c, api.GetAccount, api.None{})
	if e, ok := errors.AsType[*Error](err); !ok || e.Code != "UNAVAILABLE" || e.Status != 0 || e.Unwrap() == nil {
		t.Errorf("a server that is gone: %v", err)
	}
}
