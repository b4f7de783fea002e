package mcpapi

import (
	"context"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// extra is a tool that is no operation. Only the build for the conformance suite has some; they go through the same face as every other tool.
type extra struct {
	listed *mcp.Tool
	call   func(ctx context.Context, x *exchange) (result []byte, err *rpcError) // the members of the result, as JSON without its braces
}

// optional are the methods of features that the server does not announce, and that a build with extras does.
var optional = map[string]bool{
	"prompts/list": true, "prompts/get": true, "resources/list": true, "resources/templates/list": true, "resources/read": true,
	"resources/subscribe": true, "resources/unsubscribe": true, "completion/complete": true, "logging/setLevel": true,
}

func (x *exchange) callExtra(ctx context.Context, e *extra) {
	result, err := e.call(ctx, x)
	if err != nil {
		x.fail(err)
		return
	}
	b := append([]byte(`{"jsonrpc":"2.0","id":`), x.msg.id...)
	b = append(append(b, `,"result":{`...), result...)
	b = append(x.appendMeta(b), "}}"...)
	if x.streaming {
		x.event(b)
		return
	}
	x.write(http.StatusOK, b)
}
