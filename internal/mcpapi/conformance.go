//go:build conformance

package mcpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The fixtures of the MCP conformance suite: tools, resources and prompts that it calls by name. Only builds with the tag conformance have them.

// A picture of one red pixel and a sound of no length.
const (
	redPixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
	silence  = "UklGRiQAAABXQVZFZm10IBAAAAABAAEARKwAAIhYAQACABAAZGF0YQAAAAA="
)

// extend announces the features and adds the fixtures.
func extend(e *endpoint, o *mcp.ServerOptions) func(*mcp.Server) {
	o.Capabilities = &mcp.ServerCapabilities{
		Tools: &mcp.ToolCapabilities{}, Prompts: &mcp.PromptCapabilities{}, Resources: &mcp.ResourceCapabilities{Subscribe: true},
		Completions: &mcp.CompletionCapabilities{}, Logging: &mcp.LoggingCapabilities{},
	}
	o.SubscribeHandler = func(context.Context, *mcp.SubscribeRequest) error { return nil }
	o.UnsubscribeHandler = func(context.Context, *mcp.UnsubscribeRequest) error { return nil }
	o.CompletionHandler = func(_ context.Context, r *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
		var fitting []string
		for _, v := range []string{"paris", "park", "party"} {
			if strings.HasPrefix(v, r.Params.Argument.Value) {
				fitting = append(fitting, v)
			}
		}
		return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: append([]string{}, fitting...), Total: len(fitting)}}, nil
	}
	e.extras = fixtureTools()
	return func(s *mcp.Server) {
		addResources(s)
		addPrompts(s)
	}
}

func fixtureTools() []*extra {
	picture := `{"type":"image","data":"` + redPixel + `","mimeType":"image/png"}`
	says := map[string]string{
		"test_simple_text":       `{"type":"text","text":"This is a simple text response for testing."}`,
		"test_image_content":     picture,
		"test_audio_content":     `{"type":"audio","data":"` + silence + `","mimeType":"audio/wav"}`,
		"test_embedded_resource": `{"type":"resource","resource":{"uri":"test://embedded-resource","mimeType":"text/plain","text":"This is an embedded resource content."}}`,
		"test_multiple_content_types": `{"type":"text","text":"Multiple content types test:"},` + picture +
			`,{"type":"resource","resource":{"uri":"test://mixed-content-resource","mimeType":"application/json","text":"{\"test\":\"data\",\"value\":123}"}}`,
		"json_schema_2020_12_tool": `{"type":"text","text":"ok"}`,
	}
	var all []*extra
	add := func(name string, call func(ctx context.Context, x *exchange) ([]byte, *rpcError)) {
		schema := json.RawMessage(`{"type":"object"}`)
		if name == "json_schema_2020_12_tool" {
			schema = json.RawMessage(broadSchema)
		}
		f := false
		all = append(all, &extra{listed: &mcp.Tool{
			Name: name, Title: name, Description: "A fixture of the conformance suite.", InputSchema: schema,
			Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, DestructiveHint: &f, OpenWorldHint: &f},
		}, call: call})
	}
	for _, name := range sortedKeys(says) {
		add(name, func(_ context.Context, x *exchange) ([]byte, *rpcError) {
			return x.done(`"content":[` + says[name] + `]`)
		})
	}
	add("test_error_handling", func(_ context.Context, x *exchange) ([]byte, *rpcError) {
		return x.done(`"isError":true,"content":[{"type":"text","text":"This tool intentionally returns an error for testing"}]`)
	})
	add("test_tool_with_progress", withProgress)
	add("test_tool_with_logging", withLogging)
	add("test_logging_tool", withLogging)
	add("test_streaming_elicitation", func(_ context.Context, x *exchange) ([]byte, *rpcError) {
		x.event([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":0,"progress":1}}`))
		return x.need(nil, []question{askName})
	})
	add("test_missing_capability", func(_ context.Context, x *exchange) ([]byte, *rpcError) {
		if !x.clientHas("sampling") {
			err := problem(http.StatusBadRequest, codeMissingCapability, "this needs the client's capability sampling")
			err.Data = map[string]any{"requiredCapabilities": map[string]any{"sampling": map[string]any{}}}
			return nil, err
		}
		return x.done(textOf("the client has it"))
	})
	for _, r := range rounds() {
		add(r.name, r.call)
	}
	return all
}

const codeMissingCapability = -32021

func textOf(s string) string { return `"content":[{"type":"text","text":` + string(encode(s)) + `}]` }

// done is a result that is complete.
func (x *exchange) done(members string) ([]byte, *rpcError) {
	if x.modern {
		members += `,"resultType":"complete"`
	}
	return []byte(members), nil
}

// clientHas reports whether the client declares a capability in this request.
func (x *exchange) clientHas(name string) bool {
	caps, _ := x.meta.object(mcp.MetaKeyClientCapabilities)
	return caps[name] != nil
}

func withProgress(ctx context.Context, x *exchange) ([]byte, *rpcError) {
	token, wanted := x.progressToken()
	for i, n := range []string{"0", "50", "100"} {
		if i > 0 {
			pause(ctx)
		}
		if wanted {
			x.event([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + string(token) + `,"progress":` + n + `,"total":100}}`))
		}
	}
	return x.done(textOf("the tool is done"))
}

func withLogging(ctx context.Context, x *exchange) ([]byte, *rpcError) {
	if _, wanted := x.meta[mcp.MetaKeyLogLevel]; x.modern && !wanted {
		return x.done(textOf("the tool is done"))
	}
	for i, text := range []string{"Tool execution started", "Tool processing data", "Tool execution completed"} {
		if i > 0 {
			pause(ctx)
		}
		x.event([]byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":` + string(encode(text)) + `}}`))
	}
	return x.done(textOf("the tool is done"))
}

// pause waits as long as the suite wants between two notifications.
func pause(ctx context.Context) {
	t := time.NewTimer(50 * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// broadSchema has what JSON Schema 2020-12 can say and products rarely do.
const broadSchema = `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object",` +
	`"$defs":{"address":{"$anchor":"addressDef","type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"}}}},` +
	`"properties":{"name":{"type":"string"},"address":{"$ref":"#/$defs/address"},"contactMethod":{"type":"string","enum":["phone","email"]},` +
	`"phone":{"type":"string"},"email":{"type":"string"}},"allOf":[{"anyOf":[{"required":["phone"]},{"required":["email"]}]}],` +
	`"if":{"properties":{"contactMethod":{"const":"phone"}},"required":["contactMethod"]},"then":{"required":["phone"]},"else":{"required":["email"]},` +
	`"additionalProperties":false}`

func addResources(s *mcp.Server) {
	add := func(uri, name, kind string, contents mcp.ResourceContents) {
		contents.URI, contents.MIMEType = uri, kind
		s.AddResource(&mcp.Resource{URI: uri, Name: name, Description: "A fixture of the conformance suite.", MIMEType: kind},
			func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
				return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{&contents}}, nil
			})
	}
	add("test://static-text", "static-text", "text/plain", mcp.ResourceContents{Text: "This is the content of the static text resource."})
	add("test://static-binary", "static-binary", "image/png", mcp.ResourceContents{Blob: pixel()})
	add("test://watched-resource", "watched-resource", "text/plain", mcp.ResourceContents{Text: "It does not change."})
	s.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: "test://template/{id}/data", Name: "template", Description: "A fixture.", MIMEType: "application/json"},
		func(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			id := strings.TrimSuffix(strings.TrimPrefix(r.Params.URI, "test://template/"), "/data")
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{
				URI: r.Params.URI, MIMEType: "application/json",
				Text: fmt.Sprintf(`{"id":%s,"templateTest":true,"data":%s}`, encode(id), encode("Data for ID: "+id)),
			}}}, nil
		})
}

func addPrompts(s *mcp.Server) {
	user := func(content mcp.Content) *mcp.PromptMessage {
		return &mcp.PromptMessage{Role: "user", Content: content}
	}
	add := func(name string, arguments []string, messages func(args map[string]string) []*mcp.PromptMessage) {
		p := &mcp.Prompt{Name: name, Description: "A fixture of the conformance suite."}
		for _, a := range arguments {
			p.Arguments = append(p.Arguments, &mcp.PromptArgument{Name: a, Description: "An argument.", Required: true})
		}
		s.AddPrompt(p, func(_ context.Context, r *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return &mcp.GetPromptResult{Messages: messages(r.Params.Arguments)}, nil
		})
	}
	add("test_simple_prompt", nil, func(map[string]string) []*mcp.PromptMessage {
		return []*mcp.PromptMessage{user(&mcp.TextContent{Text: "This is a simple prompt for testing."})}
	})
	add("test_prompt_with_arguments", []string{"arg1", "arg2"}, func(a map[string]string) []*mcp.PromptMessage {
		return []*mcp.PromptMessage{user(&mcp.TextContent{Text: "Prompt with arguments: arg1='" + a["arg1"] + "', arg2='" + a["arg2"] + "'"})}
	})
	add("test_prompt_with_embedded_resource", []string{"resourceUri"}, func(a map[string]string) []*mcp.PromptMessage {
		return []*mcp.PromptMessage{
			user(&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: a["resourceUri"], MIMEType: "text/plain", Text: "Embedded resource content for testing."}}),
			user(&mcp.TextContent{Text: "Please process the embedded resource above."}),
		}
	})
	add("test_prompt_with_image", nil, func(map[string]string) []*mcp.PromptMessage {
		return []*mcp.PromptMessage{user(&mcp.ImageContent{Data: pixel(), MIMEType: "image/png"}), user(&mcp.TextContent{Text: "Please analyze the image above."})}
	})
	s.AddPrompt(&mcp.Prompt{Name: "test_input_required_result_prompt", Description: "A fixture of the conformance suite."},
		func(_ context.Context, r *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			if r.Params.InputResponses["user_context"] == nil {
				return &mcp.GetPromptResult{InputRequests: mcp.InputRequestMap{"user_context": &mcp.ElicitParams{
					Message:         "What context should the prompt use?",
					RequestedSchema: json.RawMessage(`{"type":"object","properties":{"context":{"type":"string"}},"required":["context"]}`),
				}}}, nil
			}
			return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{user(&mcp.TextContent{Text: "With that context."})}}, nil
		})
}
