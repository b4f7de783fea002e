package mcpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/catalog"
	"github.com/berthrun/berth/internal/errs"
)

// chosen is the operation that a tool call means, and the input for it.
type chosen struct {
	op    *op.Operation
	input json.RawMessage
	name  string // of a tool that does several things; empty for another
	verb  string
}

// choose finds the operation of a tool that the caller may use here. What a name means is settled before anything runs.
func (x *exchange) choose(name string, arguments json.RawMessage) (*chosen, error) {
	var named []*op.Operation
	var verbs []string
	for _, o := range x.h.cfg.Registry.All() {
		if o.Tool == "" {
			continue
		}
		if place, verb := x.list.Place(o.Info); place == name {
			named, verbs = append(named, o), append(verbs, verb)
		}
	}
	switch {
	case len(named) == 0:
		return nil, x.unknown(name, arguments)
	case verbs[0] == "":
		return &chosen{op: named[0], input: arguments}, x.reach(name, named[0])
	}
	var offered []string
	for i, o := range named {
		if x.reach(called(name, verbs[i]), o) == nil {
			offered = append(offered, verbs[i])
		}
	}
	verb, rest, err := takeMember(arguments, "action")
	if err != nil || verb == "" {
		return nil, errs.E(errs.InvalidInput, "action: is missing or not a string").Because("missing").With("path", "action").
			Suggest("%s does several things: give action, one of %s.", name, strings.Join(offered, ", "))
	}
	for i, o := range named {
		if verbs[i] == verb {
			return &chosen{op: o, input: rest, name: name, verb: verb}, x.reach(called(name, verb), o)
		}
	}
	return nil, errs.E(errs.InvalidInput, "action: %s has no action %s", name, quoted(verb)).Because("unknown_action").With("path", "action").
		Suggest("The actions are %s.", strings.Join(offered, ", "))
}

// reach says why an operation is out of reach here: the address only reads, its toolset or profile leaves it out, the credential does not allow it.
func (x *exchange) reach(name string, o *op.Operation) error {
	base := x.h.cfg.Base
	switch {
	case x.list.ReadOnly && !o.Hints.Has(op.Read):
		return errs.E(errs.Forbidden, "this connection is read-only, and %s changes something", name).Because("read_only").
			Suggest("Nothing ran. Ask the person to connect %s instead of an address that ends in /readonly if this may be changed.", base)
	case !x.list.Offers(o.Info):
		return errs.E(errs.NotFound, "the profile %s leaves %s out", x.list.Profile, name).Because("not_in_profile").
			Suggest("Nothing ran. The person can do this by the command line or connect %s without a profile.", base)
	case x.list.Chosen() && !x.list.Holds(o.Info):
		return errs.E(errs.NotFound, "this connection has the toolsets %s only, without %s", strings.Join(x.list.Toolsets, ", "), name).Because("not_in_toolset").
			Suggest("Nothing ran. Ask the person to connect %s/x/%s as well.", base, o.Toolset)
	case !x.h.cfg.Visible(x.caller, o.Info):
		return errs.E(errs.Forbidden, "this credential may not use %s", name).Because("insufficient_scope").
			Suggest("It needs the action %s, which its scopes do not include. Ask the person for a credential with it; get_account shows the scopes of this one.", o.Action)
	}
	return nil
}

// unknown names the tool that does what a name from elsewhere, or of another list, does.
func (x *exchange) unknown(name string, arguments json.RawMessage) error {
	err := errs.E(errs.NotFound, "there is no tool %s", quoted(name)).Because("unknown_tool")
	verb, _, _ := takeMember(arguments, "action")
	if o := x.operation(name, verb); o != nil { // the name of a plain list in a compact one
		return err.Suggest("Nothing ran. Call %s.", x.place(o))
	}
	old, known := catalog.Find(name, verb)
	if !known {
		return err.Suggest("Call tools/list to see the tools that there are.")
	}
	if old.Tool == "" {
		return err.Suggest("Nothing ran. Berth has no tool for this here: %s.", old.Note)
	}
	o := x.operation(old.Tool, old.Verb)
	if o == nil {
		return err.Suggest("Nothing ran. %s does this, which this deployment does not have: list_capabilities says what it needs.", called(old.Tool, old.Verb))
	}
	note := ""
	if old.Note != "" {
		note = ": " + old.Note
	}
	return err.Suggest("Nothing ran. Call %s instead%s.%s", x.place(o), note, x.elsewhere(o))
}

// operation finds what a tool of a plain list does, or nil where this deployment does not do it.
func (x *exchange) operation(tool, verb string) *op.Operation {
	for _, o := range x.h.cfg.Registry.All() {
		if o.Tool == tool && tool != "" && (o.Verb == "" || o.Verb == verb) {
			return o
		}
	}
	return nil
}

func (x *exchange) place(o *op.Operation) string { return called(x.list.Place(o.Info)) }

// elsewhere says which address lists an operation that this one does not.
func (x *exchange) elsewhere(o *op.Operation) string {
	if x.list.Holds(o.Info) {
		return ""
	}
	return fmt.Sprintf(" This connection does not list it; %s/x/%s does.", x.h.cfg.Base, o.Toolset)
}

// renamed puts the names of the list into a text that names tools.
func (x *exchange) renamed(text string) string {
	if x.end == nil {
		return text
	}
	return x.end.rename(text)
}

// explain says what an action takes when its input was refused.
func (c *chosen) explain(err error) error {
	if c.name == "" || errs.CodeOf(err) != errs.InvalidInput {
		return err
	}
	e := *errs.From(err)
	e.Suggestion = strings.TrimSpace(e.Suggestion + " " + called(c.name, c.verb) + " takes, beside action, " + brief(c.op.In) + ".")
	return &e
}

// conceal takes out of a result what the list keeps back.
func (x *exchange) conceal(o *op.Operation, text []byte) []byte {
	if x.list.Profile != catalog.ChatGPT {
		return text
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		panic(fmt.Sprintf("mcpapi: a result is no JSON: %v", err)) // every result was encoded by the server
	}
	return encode(concealed(v, func(member string) bool { return x.list.Conceals(o.Name, member) }))
}

func concealed(v any, conceals func(string) bool) any {
	switch t := v.(type) {
	case []any:
		for i := range t {
			t[i] = concealed(t[i], conceals)
		}
	case map[string]any:
		for k := range t {
			if conceals(k) {
				delete(t, k)
				continue
			}
			t[k] = concealed(t[k], conceals)
		}
	}
	return v
}
