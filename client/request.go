package client

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

const (
	retryKey  = "idempotencyKey"
	maxAnswer = 64 << 20
)

// route is what a request is built from.
type route struct {
	method, path string
	keyed        bool // its input has a retry key
	write        bool
}

// request is one call, ready to be sent any number of times.
type request struct {
	method     string
	url        string
	body       []byte // nil: none
	repeatable bool
}

// build divides the input between path, query and body, and puts a retry key into a write that has none.
func (c *Client) build(rt route, in json.RawMessage) (*request, error) {
	members := map[string]json.RawMessage{}
	if len(bytes.TrimSpace(in)) > 0 {
		if err := json.Unmarshal(in, &members); err != nil || members == nil {
			return nil, invalid("", "the input is not a JSON object")
		}
	}
	if given := members[retryKey]; rt.keyed && (given == nil || string(given) == `""`) {
		members[retryKey] = quote(c.newKey())
	}
	path, err := fillPath(rt.path, members)
	if err != nil {
		return nil, err
	}
	req := &request{method: rt.method, url: strings.TrimSuffix(c.base.String(), "/") + path, repeatable: !rt.write || rt.keyed}
	if rt.method == http.MethodGet || rt.method == http.MethodDelete {
		values := url.Values{}
		for _, name := range slices.Sorted(maps.Keys(members)) {
			if err := addQuery(values, name, members[name]); err != nil {
				return nil, err
			}
		}
		if len(values) > 0 {
			req.url += "?" + values.Encode()
		}
		return req, nil
	}
	if req.body, err = json.Marshal(members); err != nil {
		return nil, invalid("", "the input is not JSON")
	}
	return req, nil
}

// fillPath puts members into the braces of a path and takes them out of the input. An empty one, or a dot segment, would be another path.
func fillPath(path string, members map[string]json.RawMessage) (string, error) {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		if !strings.HasPrefix(p, "{") {
			continue
		}
		name := strings.TrimSuffix(strings.Trim(p, "{}"), "...")
		var v string
		if json.Unmarshal(members[name], &v) != nil || v == "" || v == "." || v == ".." {
			return "", invalid(name, name+" is missing or is no name")
		}
		parts[i] = url.PathEscape(v)
		delete(members, name)
	}
	return strings.Join(parts, "/"), nil
}

// addQuery writes one member as the API reads it: arrays by repetition, members of objects as name.key.
func addQuery(values url.Values, name string, raw json.RawMessage) error {
	raw = bytes.TrimSpace(raw)
	switch raw[0] {
	case '{':
		var members map[string]json.RawMessage
		if err := json.Unmarshal(raw, &members); err != nil {
			return invalid(name, name+" is not JSON")
		}
		for key, v := range members {
			if err := addQuery(values, name+"."+key, v); err != nil {
				return err
			}
		}
	case '[':
		var items []json.RawMessage
		if err := json.Unmarshal(raw, &items); err != nil {
			return invalid(name, name+" is not JSON")
		}
		for _, v := range items {
			if err := addQuery(values, name, v); err != nil {
				return err
			}
		}
	case '"':
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return invalid(name, name+" is not JSON")
		}
		values.Add(name, s)
	case 'n':
		return invalid(name, name+" must not be null; leave it out instead")
	default:
		values.Add(name, string(raw))
	}
	return nil
}

func invalid(path, message string) *Error {
	return &Error{
		Code: string(errs.InvalidInput), Message: message, Suggestion: "Correct the argument and call again.",
		Details: map[string]any{"path": path},
	}
}

func quote(s string) json.RawMessage {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings always marshal
	}
	return b
}

// send makes one attempt.
func (c *Client) send(ctx context.Context, req *request) (*http.Response, []byte, error) {
	var body io.Reader
	if req.body != nil {
		body = bytes.NewReader(req.body)
	}
	r, err := http.NewRequestWithContext(ctx, req.method, req.url, body)
	if err != nil {
		return nil, nil, err
	}
	if req.body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", c.agent)
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && len(b) > maxAnswer {
		return resp, nil, &Error{Code: string(errs.Upstream), Status: resp.StatusCode, Message: "the server's answer is too large"}
	}
	return resp, b, err
}
