package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/coder/websocket"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
)

// Socket opens a stream that is a WebSocket, such as api.Terminal. A refusal is an *Error. What goes over it is said by its definition's Messages.
func Socket[In any](ctx context.Context, c *Client, def op.StreamDef[In], in In) (*websocket.Conn, error) {
	raw, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("encode input of %s: %w", def.Name, err)
	}
	method, path, _ := strings.Cut(def.Route, " ")
	req, err := c.build(route{method: method, path: path}, raw)
	if err != nil {
		return nil, err
	}
	header := http.Header{"User-Agent": {c.agent}}
	if c.key != "" {
		header.Set("Authorization", "Bearer "+c.key)
	}
	conn, res, err := websocket.Dial(ctx, req.url, &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: header})
	if err == nil {
		conn.SetReadLimit(maxMessage)
		return conn, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("open %s: %w", def.Name, ctx.Err())
	}
	if res != nil && res.StatusCode >= 300 {
		body, rerr := io.ReadAll(io.LimitReader(res.Body, maxMessage))
		if rerr == nil {
			return nil, failed(res, body)
		}
	}
	return nil, &Error{
		Code: string(errs.Unavailable), Message: "the server cannot be reached", Suggestion: "Check the address and that the server runs.", cause: err,
	}
}

// maxMessage bounds one message of a socket.
const maxMessage = 1 << 20
