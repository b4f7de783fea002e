package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
)

func TestInput(t *testing.T) {
	tests := []struct {
		name, method, target, body string
		headers                    []string
		want                       string // the input, or the message of the refusal
		status                     int
	}{
		{"body", "POST", "/v1/things", `{"name":"a"}`, nil, `{"name":"a"}`, 201},
		{"charset", "POST", "/v1/things", `{"name":"a"}`, []string{"Content-Type", "application/json; charset=UTF-8"}, `{"name":"a"}`, 201},
		{"body and path", "PATCH", "/v1/things/x%20y", ` { "name" : "a" } `, nil, `{"thingId":"x y","name" : "a" }`, 200},
		{"no body", "PATCH", "/v1/things/x", "", nil, `{"thingId":"x"}`, 200},
		{"empty object", "PATCH", "/v1/things/x", "{ }", nil, `{"thingId":"x"}`, 200},
		{
			"query", "GET", "/v1/things?limit=5&big=true&state=on&state=off&labels.a.b=1&labels[c]=2&size.width=0.5", "", nil,
			`{"big":true,"labels":{"a.b":"1","c":"2"},"limit":5,"size":{"width":0.5},"state":["on","off"]}`, 200,
		},
		{"query of a delete", "DELETE", "/v1/things/x?force=false&idempotencyKey=k", "", nil, `{"thingId":"x","force":false,"idempotencyKey":"k"}`, 200},
		{"key in header", "DELETE", "/v1/things/x", "", []string{"Idempotency-Key", "k"}, `{"idempotencyKey":"k","thingId":"x"}`, 200},
		{"key in both", "POST", "/v1/things", `{"name":"a","idempotencyKey":"k"}`, []string{"Idempotency-Key", "k"}, `{"name":"a","idempotencyKey":"k"}`, 201},
		{"two keys", "POST", "/v1/things", `{"name":"a","idempotencyKey":"k"}`, []string{"Idempotency-Key", "l"}, "idempotencyKey differs from the header Idempotency-Key", 400},
		{"key of a read", "GET", "/v1/things/x", "", []string{"Idempotency-Key", "k"}, `{"thingId":"x"}`, 200},
		{"path member in body", "PATCH", "/v1/things/x", `{"thingId":"y"}`, nil, "thingId is given twice", 400},
		{"path member in query", "DELETE", "/v1/things/x?thingId=y", "", nil, "thingId is given in the path and must not be given in the query", 400},
		{"repeated scalar", "GET", "/v1/things?limit=1&limit=2", "", nil, "limit is given 2 times; it takes one value", 400},
		{"not an integer", "GET", "/v1/things?limit=1.5", "", nil, "limit must be a whole number", 400},
		{"not a boolean", "GET", "/v1/things?big=1", "", nil, "big must be true or false", 400},
		{"not a number", "GET", "/v1/things?size.width=NaN", "", nil, "size.width must be a number", 400},
		{"a member twice", "GET", "/v1/things?labels.a=1&labels[a]=2", "", nil, "labels.a is given twice", 400},
		{"an object", "GET", "/v1/things?labels=1", "", nil, "labels has members: write it as labels.name=value", 400},
		{"unknown", "GET", "/v1/things?colour=red", "", nil, "colour is not known; known are: cursor, limit, state, labels, size, big", 400},
		{"unknown of an object", "GET", "/v1/things?size.depth=1", "", nil, "size.depth is not known; known are: width, height", 400},
		{"percent", "GET", "/v1/things?a%25d=1", "", nil, "a%d is not known; known are: cursor, limit, state, labels, size, big", 400},
		{"outside the enum", "GET", "/v1/things?state=broken", "", nil, "state[0] must be one of: on, off", 400},
		{"bad encoding", "GET", "/v1/things?a=%zz", "", nil, "the input has a query that cannot be read: it must be percent-encoded", 400},
		{"bad UTF-8", "GET", "/v1/things?cursor=%ff", "", nil, "cursor is not valid UTF-8", 400},
		{"bad UTF-8 in the path", "GET", "/v1/things/%ff", "", nil, "thingId is not valid UTF-8", 400},
		{"body of a read", "GET", "/v1/things", `{}`, nil, "the input of a GET request goes into the query, not into a body", 400},
		{"query of a write", "POST", "/v1/things?name=a", `{}`, nil, "the input of a POST request goes into a JSON body, not into the query", 400},
		{"array", "POST", "/v1/things", `[]`, nil, "the input must be a JSON object", 400},
		{"broken", "POST", "/v1/things", `{"name":`, nil, "name is not valid JSON", 400},
		{"more behind it", "PATCH", "/v1/things/x", `{} {}`, nil, "the input has more after the first JSON value", 400},
		{"twice", "POST", "/v1/things", `{"name":"a","name":"b"}`, nil, "name is given twice", 400},
		{"missing", "POST", "/v1/things", `{}`, nil, "name is required", 400},
		{"not JSON", "POST", "/v1/things", `name=a`, []string{"Content-Type", "application/x-www-form-urlencoded"}, "the body is not JSON", 415},
		{"no type", "POST", "/v1/things", `{}`, []string{"Content-Type", ""}, "the body is not JSON", 415},
		{"compressed", "POST", "/v1/things", `{}`, []string{"Content-Encoding", "gzip"}, "the body is not JSON", 415},
		{"too large", "POST", "/v1/things", `{"name":"` + strings.Repeat("a", maxBody) + `"}`, nil, "the body is larger than 4194304 bytes", 413},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := setup(nil)
			w := f.send(tt.method, tt.target, tt.body, tt.headers...)
			if w.Code != tt.status {
				t.Fatalf("status is %d, want %d: %s", w.Code, tt.status, w.Body)
			}
			got := string(f.path.raw)
			if tt.status >= 400 {
				e := failure(t, w)
				got = e.Message
				if e.Code != errs.InvalidInput || e.Suggestion == "" {
					t.Errorf("code is %s, suggestion %q", e.Code, e.Suggestion)
				}
			}
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestResult(t *testing.T) {
	f := setup(nil)
	w := f.send("POST", "/v1/things", `{"name":"a"}`)
	want := `{"idempotencyKey":"","status":"","id":"a"}`
	if w.Code != 201 || w.Body.String() != want {
		t.Errorf("got %d %s, want 201 %s", w.Code, w.Body, want)
	}
	if w := f.send("POST", "/v1/things", `{"name":"a","labels":{"status":"confirmation-required"}}`); w.Code != 202 {
		t.Errorf("a held call has status %d, want 202", w.Code)
	}
	if w := f.send("GET", "/v1/things", ""); w.Body.String() != `{"nextCursor":null,"items":[]}` {
		t.Errorf("the list is %s", w.Body)
	}
	c := f.path.caller
	if c.Face != caller.FaceHTTP || c.OrgID != "org_1" || c.RequestID == "" || c.SourceIP != "192.0.2.1" {
		t.Errorf("the caller is %+v", c)
	}
	if w := f.send("HEAD", "/v1/things", ""); w.Code != 200 {
		t.Errorf("HEAD has status %d", w.Code)
	}
}

func TestErrors(t *testing.T) {
	tests := []struct {
		name       string
		err        error
		status     int
		want       errorFields
		retryAfter string
	}{
		{
			"whole", errs.E(errs.RateLimited, "too many calls").Suggest("Wait.").Because("minute").After(1500*time.Millisecond).With("limit", 600), 429,
			errorFields{Code: errs.RateLimited, Message: "too many calls", Suggestion: "Wait.", Reason: "minute", RetryAfterMS: 1500, Details: map[string]any{"limit": 600.0}},
			"2",
		},
		{"wrapped", statusError{http.StatusNotFound, errs.E(errs.NotFound, "gone")}, 404, errorFields{Code: errs.NotFound, Message: "gone"}, ""},
		{
			"inside", errs.Wrap(errs.Internal, context.Canceled, "the password is hunter2"), 500,
			errorFields{Code: errs.Internal, Message: "something failed inside the server", Suggestion: "Try again; if it fails again, report the requestId."},
			"",
		},
		{
			"plain", http.ErrNoLocation, 500,
			errorFields{Code: errs.Internal, Message: "something failed inside the server", Suggestion: "Try again; if it fails again, report the requestId."},
			"",
		},
		{
			"details that are no JSON", errs.E(errs.Busy, "busy").With("f", func() {}), 409, errorFields{Code: errs.Busy, Message: "busy"}, "",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := setup(nil)
			f.path.fail = tt.err
			w := f.send("GET", "/v1/things", "")
			got := failure(t, w)
			tt.want.RequestID = got.RequestID
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if w.Code != tt.status || w.Header().Get("Retry-After") != tt.retryAfter {
				t.Errorf("status %d, Retry-After %q", w.Code, w.Header().Get("Retry-After"))
			}
			if strings.Contains(w.Body.String(), "hunter2") {
				t.Error("the inside is shown")
			}
		})
	}
}

func TestPanicIsAnError(t *testing.T) {
	f := setup(nil)
	f.path.panics = true
	w := f.send("GET", "/v1/things", "")
	if e := failure(t, w); w.Code != 500 || e.Code != errs.Internal || strings.Contains(w.Body.String(), "secret") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	if !strings.Contains(f.logs.String(), "a bug with a secret inside") {
		t.Error("the panic is not logged")
	}
}

func TestCredentials(t *testing.T) {
	tests := []struct {
		name, header, challenge string
	}{
		{"none", "", `Bearer realm="berth"`},
		{"basic", "Basic YTpi", `Bearer realm="berth", error="invalid_request", error_description="the Authorization header is not Bearer and one key"`},
		{"two words", "Bearer a b", `Bearer realm="berth", error="invalid_token", error_description="the Authorization header is not Bearer and one key"`},
		{"unknown", "Bearer nope", `Bearer realm="berth", error="invalid_token", error_description="the key is not known"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := setup(nil)
			w := f.send("POST", "/v1/things", `{"name":"a"}`, "Authorization", tt.header)
			if e := failure(t, w); w.Code != 401 || e.Code != errs.Unauthenticated {
				t.Errorf("got %d %s", w.Code, e.Code)
			}
			if got := w.Header().Get("WWW-Authenticate"); got != tt.challenge {
				t.Errorf("challenge is %s\nwant %s", got, tt.challenge)
			}
			if f.path.raw != nil {
				t.Error("the call was made")
			}
		})
	}
	if w := setup(nil).send("GET", "/v1/things", "", "Authorization", "bearer "+goodKey); w.Code != 200 {
		t.Errorf("the scheme's case matters: %d", w.Code)
	}
}

func TestKeyInURL(t *testing.T) {
	for _, target := range []string{
		"/v1/things?access_token=abc", "/v1/things?API_KEY=abc", "/v1/things?cursor=" + goodKey, "/v1/things?cursor=%62" + goodKey[1:],
		"/v1/things/" + goodKey, "/nowhere?" + goodKey + "=1", "/v1/things/%62" + goodKey[1:],
	} {
		f := setup(nil)
		w := f.send("GET", target, "")
		if e := failure(t, w); w.Code != 400 || e.Reason != "key_in_url" {
			t.Errorf("%s: got %d %s", target, w.Code, e.Reason)
		}
		if strings.Contains(f.logs.String(), goodKey) || strings.Contains(f.logs.String(), "abc") || strings.Contains(w.Body.String(), goodKey) {
			t.Errorf("%s: the key is in the log or the answer: %s", target, f.logs)
		}
	}
}

func TestNamesLikeKeysAreNoKeys(t *testing.T) {
	for _, target := range []string{"/v1/things?cursor=/workspace/berth_report_20260101.csv", "/v1/things?labels.key=abc", "/v1/things/berth_notes_abcdefghijklmnop"} {
		if w := setup(nil).send("GET", target, ""); w.Code != 200 {
			t.Errorf("%s: %d %s", target, w.Code, w.Body)
		}
	}
}

func TestRoutes(t *testing.T) {
	tests := []struct {
		name, method, target string
		status               int
		reason, allow        string
	}{
		{"unknown", "GET", "/v1/nothing", 404, "unknown_route", ""},
		{"root", "GET", "/", 404, "unknown_route", ""},
		{"trailing slash", "GET", "/v1/things/", 404, "unknown_route", ""},
		{"double slash", "GET", "/v1//things", 404, "unknown_route", ""},
		{"traversal", "GET", "/v1/things/../things", 404, "unknown_route", ""},
		{"escaped traversal", "GET", "/v1/things/%2e%2e/things", 404, "unknown_route", ""},
		{"traversal in a name", "GET", "/v1/things/..%2f..%2fetc", 404, "unknown_route", ""},
		{"control characters", "GET", "/v1/things/a%00b", 404, "unknown_route", ""},
		{"wrong method", "PUT", "/v1/things/x", 405, "method_not_allowed", "DELETE, GET, HEAD, PATCH"},
		{"options", "OPTIONS", "/v1/things", 405, "method_not_allowed", "GET, HEAD, POST"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := setup(nil)
			w := f.send(tt.method, tt.target, "")
			e := failure(t, w)
			if w.Code != tt.status || e.Reason != tt.reason || w.Header().Get("Allow") != tt.allow || e.Suggestion == "" {
				t.Errorf("got %d %s, Allow %q, suggestion %q", w.Code, e.Reason, w.Header().Get("Allow"), e.Suggestion)
			}
		})
	}
}

func TestOrigin(t *testing.T) {
	tests := []struct {
		name, method string
		headers      []string
		status       int
	}{
		{"program", "POST", nil, 201},
		{"own page", "POST", []string{"Origin", "https://berth.example"}, 201},
		{"foreign page", "POST", []string{"Origin", "https://evil.example"}, 403},
		{"foreign page, by the browser's word", "POST", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"foreign page reads", "GET", []string{"Origin", "https://evil.example"}, 200},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			body := ""
			if tt.method == "POST" {
				body = `{"name":"a"}`
			}
			w := setup(nil).send(tt.method, "/v1/things", body, tt.headers...)
			if w.Code != tt.status {
				t.Errorf("status is %d, want %d", w.Code, tt.status)
			}
			if got := w.Header().Get("Access-Control-Allow-Origin"); got != "" {
				t.Errorf("Access-Control-Allow-Origin is %q", got)
			}
		})
	}
}

func TestRequestID(t *testing.T) {
	f := setup(nil)
	if got := f.send("GET", "/v1/things", "", "X-Request-Id", "trace-1.2:3").Header().Get("X-Request-Id"); got != "trace-1.2:3" {
		t.Errorf("a good id became %q", got)
	}
	if f.path.caller.RequestID != "trace-1.2:3" {
		t.Errorf("the caller has %q", f.path.caller.RequestID)
	}
	for _, bad := range []string{"", "a b", strings.Repeat("a", 129), "a\tb", goodKey} {
		if got := f.send("GET", "/healthz", "", "X-Request-Id", bad).Header().Get("X-Request-Id"); !id.Valid(id.Request, got) {
			t.Errorf("%q became %q", bad, got)
		}
	}
}

func TestSourceIP(t *testing.T) {
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	tests := []struct {
		name, peer, forwarded, want string
	}{
		{"direct", "198.51.100.7:1", "", "198.51.100.7"},
		{"untrusted proxy", "198.51.100.7:1", "203.0.113.9", "198.51.100.7"},
		{"one proxy", "10.0.0.1:1", "203.0.113.9", "203.0.113.9"},
		{"forged in front", "10.0.0.1:1", "1.1.1.1, 203.0.113.9", "203.0.113.9"},
		{"two proxies", "10.0.0.1:1", "1.1.1.1, 203.0.113.9, 10.0.0.2", "203.0.113.9"},
		{"garbage", "10.0.0.1:1", "1.1.1.1, <script>", "10.0.0.1"},
		{"nothing", "10.0.0.1:1", "", "10.0.0.1"},
		{"v6", "[fd00::1]:1", "[2001:db8::1]:443", "2001:db8::1"},
		{"v4 in v6", "[::ffff:10.0.0.1]:1", "203.0.113.9:80", "203.0.113.9"},
		{"no address", "@", "203.0.113.9", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = tt.peer
			if tt.forwarded != "" {
				r.Header.Set("X-Forwarded-For", tt.forwarded)
			}
			if got := SourceIP(proxies)(r); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestHealth(t *testing.T) {
	var notReady error
	f := setup(func(c *Config) { c.Ready = func(context.Context) error { return notReady } })
	if w := f.send("GET", "/healthz", "", "Authorization", ""); w.Code != 200 || w.Body.String() != `{"status":"ok","version":"1.2.3"}` {
		t.Errorf("healthz: %d %s", w.Code, w.Body)
	}
	if w := f.send("GET", "/readyz", "", "Authorization", ""); w.Code != 200 {
		t.Errorf("readyz: %d %s", w.Code, w.Body)
	}
	notReady = http.ErrServerClosed
	if w := f.send("GET", "/readyz", ""); w.Code != 503 || failure(t, w).Code != errs.Unavailable {
		t.Errorf("readyz of a server that is not ready: %d %s", w.Code, w.Body)
	}
}

func TestAccessLogHasNoQuery(t *testing.T) {
	f := setup(nil)
	f.send("GET", "/v1/things?cursor=private", "")
	line := f.logs.String()
	for _, want := range []string{"operation=things.list", "status=200", "org_id=org_1", "principal_id=key_1", "path=/v1/things "} {
		if !strings.Contains(line, want) {
			t.Errorf("%q is not in the log: %s", want, line)
		}
	}
	if strings.Contains(line, "private") {
		t.Errorf("the query is in the log: %s", line)
	}
}

func TestServerOverTheWire(t *testing.T) {
	f := setup(nil)
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = NewServer(t.Context(), f, slog.New(slog.DiscardHandler))
	srv.Start()
	defer srv.Close()
	r, err := http.NewRequestWithContext(t.Context(), "POST", srv.URL+"/v1/things", strings.NewReader(`{"name":"`+strings.Repeat("a", maxBody)+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+goodKey)
	r.Header.Set("Content-Type", "application/json")
	resp, err := srv.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 413 || !resp.Close {
		t.Errorf("an endless body: status %d, connection closed: %v", resp.StatusCode, resp.Close)
	}
}
