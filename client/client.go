// Package client is the Go client of Berth: it makes any operation of the api package over HTTP, or in process against a handler.
//
//	c, err := client.New("https://berth.example.com", key)
//	out, err := client.Call(ctx, c, api.CreateSandbox, api.CreateSandboxIn{Name: "build"})
//
// A write without a retry key gets one, and is repeated with it when its answer is lost, so that it has one effect. It holds no definitions: what
// can be called is what the api package defines.
package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/berthrun/berth/api/op"
)

// Client calls one deployment with one key. It is safe for concurrent use.
type Client struct {
	base     *url.URL
	key      string
	http     *http.Client
	agent    string
	attempts int
	newKey   func() string
	jitter   func(time.Duration) time.Duration
}

// Option changes a client.
type Option func(*Client)

// HTTPClient makes calls through an HTTP client of your own. A timeout that it has bounds every single attempt.
func HTTPClient(h *http.Client) Option { return func(c *Client) { c.http = h } }

// InProcess makes calls straight into a handler, without a network.
func InProcess(h http.Handler) Option {
	return func(c *Client) { c.http = &http.Client{Transport: inProcess{h}} }
}

// UserAgent sets what the program calls itself.
func UserAgent(name string) Option { return func(c *Client) { c.agent = name } }

// Attempts sets how often a call is tried at most, 4 by default; 1 is no repetition.
func Attempts(n int) Option { return func(c *Client) { c.attempts = max(n, 1) } }

// New makes a client. baseURL is the address of the deployment, such as https://berth.example.com; it has no user, query or fragment.
// key may be empty for a server that signs nobody in.
func New(baseURL, key string, opts ...Option) (*Client, error) {
	u, err := url.Parse(baseURL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		// The URL is not repeated: it may hold what does not belong into it.
		return nil, &Error{Code: "INVALID_CONFIG", Message: "the server's URL is not of the form https://HOST[:PORT]", Suggestion: "Give the address of the deployment, such as https://berth.example.com."}
	}
	if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, &Error{Code: "INVALID_CONFIG", Message: "the key has characters that no key has", Suggestion: "Copy the key again, without spaces or line ends."}
	}
	c := &Client{base: u, key: key, http: newHTTPClient(), agent: "berth-go", attempts: 4, newKey: rand.Text, jitter: jitter}
	for _, o := range opts {
		o(c)
	}
	return c, nil
}

// newHTTPClient follows no redirects: the key would go to an address that nobody named.
func newHTTPClient() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 16
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// Call makes an operation. A refusal or failure is an *Error; one that ctx ended wraps ctx's error.
func Call[In, Out any](ctx context.Context, c *Client, def op.Def[In, Out], in In) (Out, error) {
	var out Out
	raw, err := json.Marshal(in)
	if err != nil {
		return out, fmt.Errorf("encode input of %s: %w", def.Name, err)
	}
	method, path, _ := strings.Cut(def.Route, " ")
	_, keyed := any(in).(op.Keyed)
	answer, err := c.call(ctx, route{method: method, path: path, keyed: keyed, write: def.Hints.Has(op.Write)}, raw)
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(answer, &out); err != nil {
		return out, fmt.Errorf("decode output of %s: %w", def.Name, err)
	}
	return out, nil
}

// Do makes an operation that is known only by its Info. in is its input as a JSON object; the output comes back as the server wrote it.
func (c *Client) Do(ctx context.Context, info op.Info, in json.RawMessage) (json.RawMessage, error) {
	_, keyed := info.In.Properties[retryKey]
	return c.call(ctx, route{method: info.Method, path: info.Path, keyed: keyed, write: info.Hints.Has(op.Write)}, in)
}
