// Package op owns what an operation is: its definition, the JSON schemas that are built from its Go types, the strict decoding of its
// input, and the registry in which services bind definitions to what they do.
//
// It is public and knows no product area, no database and no face. Everything that shows an operation (HTTP routes, MCP tools, CLI
// commands, reference pages, the client) is derived from what stands here.
package op

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
)

// Hints say how an operation behaves. They become MCP annotations, CLI prompts and cache rules.
type Hints uint8

// The hints. An operation has exactly one of Read and Write.
const (
	Read        Hints = 1 << iota // changes nothing
	Write                         // changes something
	Idempotent                    // calling again with the same input changes nothing more
	Destructive                   // something may be lost
	Creates                       // makes a resource: a retry key that the server made is recorded too
	Wakes                         // may start a stopped sandbox, which may be billed
	OpenWorld                     // reaches beyond this deployment, such as a command with internet access
)

// Has reports whether all of the given hints are set.
func (h Hints) Has(x Hints) bool { return h&x == x }

// Def defines an operation. In and Out are structs whose fields carry the tags that schema.go lists.
type Def[In, Out any] struct {
	Name    string // "sandboxes.create": plural.verb
	Route   string // "POST /v1/sandboxes"; {names} are fields of In
	Action  string // "compute:sandboxes:create", what authorization asks
	Tool    string // "create_sandbox"; empty: for people and programs only
	Verb    string // "list", where operations share a tool: the value of its argument action that is this one
	Hints   Hints
	Toolset string // the group that /mcp/x/{toolset} lists
	Title   string // a few words
	Doc     string // for the caller: what it does, what to know, in sentences
	Status  int    // of success over HTTP; 200 where 0
}

// Info is a definition without its types.
type Info struct {
	Name    string
	Method  string
	Path    string
	Action  string
	Tool    string
	Verb    string
	Hints   Hints
	Toolset string
	Title   string
	Doc     string
	Status  int
	In      *Schema // closed: unknown members are refused
	Out     *Schema // open
}

// Info gives the definition without its types, its schemas built. It panics when the definition is malformed: that is a programmer's error.
func (d Def[In, Out]) Info() Info {
	method, path, ok := strings.Cut(d.Route, " ")
	if !ok || d.Name == "" || d.Action == "" || d.Doc == "" || d.Hints.Has(Read) == d.Hints.Has(Write) {
		panic(fmt.Sprintf("op: definition %q is incomplete", d.Name))
	}
	status := d.Status
	if status == 0 {
		status = 200
	}
	return Info{
		Name: d.Name, Method: method, Path: path, Action: d.Action, Tool: d.Tool, Verb: d.Verb, Hints: d.Hints, Toolset: d.Toolset,
		Title: d.Title, Doc: d.Doc, Status: status, In: SchemaOf[In](Closed), Out: SchemaOf[Out](Open),
	}
}

// ShownTool names the tool for people, of a shared one with the action; empty where there is none.
func (i Info) ShownTool() string {
	if i.Verb == "" {
		return i.Tool
	}
	return i.Tool + " (" + i.Verb + ")"
}

// PathParams are the names between braces in the route.
func (i Info) PathParams() []string {
	var names []string
	for part := range strings.SplitSeq(i.Path, "/") {
		if len(part) > 2 && part[0] == '{' && part[len(part)-1] == '}' {
			names = append(names, strings.TrimSuffix(part[1:len(part)-1], "..."))
		}
	}
	return names
}

// Handler is what a service does for an operation, in the steps of the path of a call. Draft reads only and may run for a call that is refused
// afterwards. Intent is nil for an operation that writes no row of its own; it runs in one transaction with the call's own rows. Act is repeatable:
// after a crash it runs again for the same draft and must lead to one effect.
type Handler[In, Out any] struct {
	Draft  func(ctx context.Context, in *In) (*Draft, error)
	Intent func(ctx context.Context, tx Tx, in *In, d *Draft) error
	Act    func(ctx context.Context, in *In, d *Draft) (*Out, error)
}

// Operation is a definition bound to its handler, its types erased.
type Operation struct {
	Info

	decode func(raw []byte) (any, error)
	result func(raw []byte) (any, error)
	draft  func(ctx context.Context, in any) (*Draft, error)
	intent func(ctx context.Context, tx Tx, in any, d *Draft) error
	act    func(ctx context.Context, in any, d *Draft) (any, error)
}

// Decode checks raw JSON against the input schema and gives the typed input. The first problem is an errs.InvalidInput with its JSON path.
func (o *Operation) Decode(raw []byte) (any, error) { return o.decode(raw) }

// Result reads an output that Encode wrote and gives it typed, a pointer as Act gives it.
func (o *Operation) Result(raw []byte) (any, error) { return o.result(raw) }

// Draft makes the canonical request.
func (o *Operation) Draft(ctx context.Context, in any) (*Draft, error) { return o.draft(ctx, in) }

// Intent writes the service's rows.
func (o *Operation) Intent(ctx context.Context, tx Tx, in any, d *Draft) error {
	if o.intent == nil {
		return nil
	}
	return o.intent(ctx, tx, in, d)
}

// Act does the work and gives the output.
func (o *Operation) Act(ctx context.Context, in any, d *Draft) (any, error) { return o.act(ctx, in, d) }

// Registry holds the operations of a deployment in the order in which they were bound.
type Registry struct {
	byName  map[string]*Operation
	order   []*Operation
	streams []*StreamOperation
}

// NewRegistry makes an empty registry.
func NewRegistry() *Registry { return &Registry{byName: map[string]*Operation{}} }

// All gives the operations in the order in which they were bound.
func (r *Registry) All() []*Operation { return r.order }

// Get finds an operation by its name, or nil.
func (r *Registry) Get(name string) *Operation { return r.byName[name] }

// Tool finds an operation by its tool's name, of a shared tool the first one, or nil.
func (r *Registry) Tool(tool string) *Operation {
	for _, o := range r.order {
		if o.Tool == tool && tool != "" {
			return o
		}
	}
	return nil
}

// clash reports whether two definitions cannot stand beside each other. Operations share a tool only where each has a verb of its own.
func clash(a, b Info) bool {
	sameTool := a.Tool != "" && a.Tool == b.Tool && (a.Verb == "" || b.Verb == "" || a.Verb == b.Verb)
	return a.Name == b.Name || a.Method+a.Path == b.Method+b.Path || sameTool
}

// Handle binds a definition to what a service does for it. It panics on a second binding of one name, route or tool, and on a handler without
// Draft or Act: those are programmers' errors.
func Handle[In, Out any](r *Registry, def Def[In, Out], h Handler[In, Out]) {
	info := def.Info()
	if h.Draft == nil || h.Act == nil {
		panic(fmt.Sprintf("op: %s has no draft or no act", info.Name))
	}
	r.refuseClash(info, false)
	o := &Operation{
		Info:   info,
		decode: func(raw []byte) (any, error) { return decodeInto[In](info.In, raw) },
		result: func(raw []byte) (any, error) {
			out := new(Out)
			if err := json.Unmarshal(raw, out); err != nil {
				return nil, fmt.Errorf("read output of %s: %w", info.Name, err)
			}
			return out, nil
		},
		draft: func(ctx context.Context, in any) (*Draft, error) { return h.Draft(ctx, in.(*In)) },
		act: func(ctx context.Context, in any, d *Draft) (any, error) {
			out, err := h.Act(ctx, in.(*In), d)
			if err != nil {
				return nil, err
			}
			return out, nil
		},
	}
	if h.Intent != nil {
		o.intent = func(ctx context.Context, tx Tx, in any, d *Draft) error { return h.Intent(ctx, tx, in.(*In), d) }
	}
	r.byName[info.Name] = o
	r.order = append(r.order, o)
}

// Encode writes an output as JSON: nil slices and maps of required members become empty ones, so that nothing is null that the schema says is not.
func Encode(out any) (json.RawMessage, error) {
	b, err := json.Marshal(fill(out))
	if err != nil {
		return nil, fmt.Errorf("encode output: %w", err)
	}
	return b, nil
}
