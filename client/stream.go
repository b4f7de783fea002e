package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
)

// Open makes one attempt at a stream and gives its answer, whose body the caller closes. header may be nil. body is an upload's bytes, of that length where
// it is not negative; it may be nil. What is not a success, or 304, is an *Error.
func Open[In any](ctx context.Context, c *Client, def op.StreamDef[In], in In, header http.Header, body io.Reader, length int64) (*http.Response, error) {
	raw, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("encode input of %s: %w", def.Name, err)
	}
	method, path, _ := strings.Cut(def.Route, " ")
	members := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &members); err != nil {
		return nil, invalid("", "the input is not a JSON object")
	}
	if def.When != "" {
		members[def.When] = json.RawMessage("true")
	}
	// All of a stream's input is in the path and the query, as that of a GET.
	if raw, err = json.Marshal(members); err != nil {
		return nil, invalid("", "the input is not JSON")
	}
	req, err := c.build(route{method: http.MethodGet, path: path}, raw)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, method, req.url, body)
	if err != nil {
		return nil, invalid("", "the request cannot be made")
	}
	if body != nil {
		r.ContentLength = length
		if length == 0 {
			r.Body = http.NoBody
		}
	}
	for name, values := range header {
		r.Header[name] = values
	}
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	r.Header.Set("User-Agent", c.agent)
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 || resp.StatusCode == http.StatusNotModified {
		return resp, nil
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 && resp.StatusCode < 400 {
		return nil, &Error{
			Code: string(errs.InvalidConfig), Status: resp.StatusCode, Message: "the server's URL leads elsewhere",
			Suggestion: "Use the address to which it leads as the server's URL: " + originOf(resp.Header.Get("Location")),
		}
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	return nil, failed(resp, b)
}

// passes reports whether an attempt that failed so may succeed a little later.
func passes(err error) (*Error, bool) {
	e, ok := err.(*Error)
	return e, ok && again(&request{repeatable: true}, e)
}
