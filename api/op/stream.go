package op

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strings"
)

// Kind says what flows through a stream.
type Kind string

// The kinds of streams.
const (
	Download Kind = "download" // bytes to the caller
	Upload   Kind = "upload"   // bytes from the caller; the answer is JSON
	Events   Kind = "events"   // server-sent events to the caller
	Socket   Kind = "socket"   // a WebSocket
)

// StreamDef defines a stream: a route whose bytes are not one JSON value each way. In is a struct as of a Def; its members come from the path and
// the query, checked like any operation's input. An error before the first byte is answered as an operation's; after it the connection is
// broken off, so that nobody takes a part for the whole.
type StreamDef[In any] struct {
	Name     string // "files.download": plural.verb
	Route    string // "GET /v1/sandboxes/{sandboxId}/files/content"; {names} are fields of In
	Action   string // what authorization asks
	Kind     Kind
	Hints    Hints // a Write has its audit row before the first byte; neither kind takes an idempotency key
	Toolset  string
	Title    string
	Doc      string
	When     string    // a boolean argument of the query, not of In: with true the route is this stream, without it the operation of the same route
	Media    string    // the type of the bytes; application/octet-stream where empty
	Headers  []Header  // of the request, that it looks at
	Messages []Message // of an Events or Socket
	Out      any       // of an Upload: a zero value of the JSON that it answers
}

// Header is a header of the request that a stream looks at.
type Header struct{ Name, Doc string }

// Message is one kind of what goes over an Events or a Socket.
type Message struct {
	Name string // of the event, or the member "type"
	Doc  string
	Data any // a zero value of its JSON; nil where it is bytes
}

// MessageInfo is a Message with its schema, nil where it is bytes.
type MessageInfo struct {
	Name, Doc string
	Data      *Schema
}

// StreamInfo is a definition without its types. Its Out is nil unless it is an Upload.
type StreamInfo struct {
	Info
	Kind     Kind
	When     string
	Media    string
	Headers  []Header
	Messages []MessageInfo
}

// Info gives the definition without its types, its schemas built. It panics when the definition is malformed: that is a programmer's error.
func (d StreamDef[In]) Info() StreamInfo {
	method, path, ok := strings.Cut(d.Route, " ")
	if !ok || d.Name == "" || d.Action == "" || d.Doc == "" || d.Kind == "" || d.Hints.Has(Read) == d.Hints.Has(Write) {
		panic(fmt.Sprintf("op: stream %q is incomplete", d.Name))
	}
	i := StreamInfo{
		Info: Info{
			Name: d.Name, Method: method, Path: path, Action: d.Action, Hints: d.Hints, Toolset: d.Toolset, Title: d.Title, Doc: d.Doc,
			Status: http.StatusOK, In: SchemaOf[In](Closed),
		},
		Kind: d.Kind, When: d.When, Media: d.Media, Headers: d.Headers,
	}
	switch d.Kind {
	case Events:
		i.Media = "text/event-stream"
	case Socket:
		i.Status, i.Media = http.StatusSwitchingProtocols, ""
	default:
		if i.Media == "" {
			i.Media = "application/octet-stream"
		}
	}
	if d.Out != nil {
		i.Out = build(reflect.TypeOf(d.Out), Open)
	}
	for _, m := range d.Messages {
		info := MessageInfo{Name: m.Name, Doc: m.Doc}
		if m.Data != nil {
			info.Data = build(reflect.TypeOf(m.Data), Open)
		}
		i.Messages = append(i.Messages, info)
	}
	return i
}

// Stream is the connection of one call of a stream. A reader or writer at its other end that makes no progress for a minute is cut off.
type Stream struct {
	W http.ResponseWriter // has Flush, and Hijack where the connection does
	R *http.Request       // its body is the bytes of an Upload
}

// StreamHandler is what a service does for a stream. Draft is as an operation's. Serve runs once the call is authorized; its context ends when the caller
// goes away, or, with the cause UNAVAILABLE, when the server is about to stop. It returns nil at a proper end only.
type StreamHandler[In any] struct {
	Draft func(ctx context.Context, in *In) (*Draft, error)
	Serve func(ctx context.Context, in *In, d *Draft, s *Stream) error
}

// StreamOperation is a stream's definition bound to its handler, its types erased. It is an operation whose Act does nothing.
type StreamOperation struct {
	Operation
	Stream StreamInfo

	serve func(ctx context.Context, in any, d *Draft, s *Stream) error
}

// Serve carries the bytes.
func (o *StreamOperation) Serve(ctx context.Context, in any, d *Draft, s *Stream) error {
	return o.serve(ctx, in, d, s)
}

// Streams gives the streams in the order in which they were bound.
func (r *Registry) Streams() []*StreamOperation { return r.streams }

// Stream finds a stream by its name, or nil.
func (r *Registry) Stream(name string) *StreamOperation {
	for _, s := range r.streams {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// HandleStream binds a stream's definition to what a service does for it. It panics like Handle.
func HandleStream[In any](r *Registry, def StreamDef[In], h StreamHandler[In]) {
	info := def.Info()
	if h.Draft == nil || h.Serve == nil {
		panic(fmt.Sprintf("op: %s has no draft or does not serve", info.Name))
	}
	r.refuseClash(info.Info, info.When != "")
	r.streams = append(r.streams, &StreamOperation{
		Operation: Operation{
			Info:   info.Info,
			decode: func(raw []byte) (any, error) { return decodeInto[In](info.In, raw) },
			result: func([]byte) (any, error) { return nil, nil },
			draft:  func(ctx context.Context, in any) (*Draft, error) { return h.Draft(ctx, in.(*In)) },
			act:    func(context.Context, any, *Draft) (any, error) { return nil, nil },
		},
		Stream: info,
		serve:  func(ctx context.Context, in any, d *Draft, s *Stream) error { return h.Serve(ctx, in.(*In), d, s) },
	})
}

// refuseClash panics where a definition shares its name, route or tool with another. shares: its route is an operation's too.
func (r *Registry) refuseClash(info Info, shares bool) {
	for _, o := range r.order {
		if o.Name == info.Name || !shares && clash(o.Info, info) {
			panic(fmt.Sprintf("op: %s and %s share a name, route or tool", o.Name, info.Name))
		}
	}
	for _, s := range r.streams {
		if s.Name == info.Name || s.Method+s.Path == info.Method+info.Path && s.Stream.When == "" {
			panic(fmt.Sprintf("op: %s and %s share a name or route", s.Name, info.Name))
		}
	}
}
