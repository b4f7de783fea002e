package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// openapi is what is read of an OpenAPI document.
type openapi struct {
	Paths      map[string]map[string]*operation `json:"paths"`
	Components struct {
		Schemas map[string]*schema `json:"schemas"`
	} `json:"components"`
}

type operation struct {
	ID          string               `json:"operationId"`
	Summary     string               `json:"summary"`
	Description string               `json:"description"`
	Tags        []string             `json:"tags"`
	Parameters  []parameter          `json:"parameters"`
	RequestBody *body                `json:"requestBody"`
	Responses   map[string]*response `json:"responses"`
	Berth       *struct {
		Hints    []string          `json:"hints"`
		Nullable map[string]string `json:"nullable"`
		Stream   *stream           `json:"stream"`
	} `json:"x-berth"`
}

type stream struct {
	Name     string `json:"name"`
	Kind     string `json:"kind"`
	Messages []struct {
		Name        string  `json:"name"`
		Description string  `json:"description"`
		Schema      *schema `json:"schema"`
	} `json:"messages"`
}

type parameter struct {
	Name        string  `json:"name"`
	In          string  `json:"in"`
	Required    bool    `json:"required"`
	Description string  `json:"description"`
	Schema      *schema `json:"schema"`
}

type body struct {
	Content map[string]struct {
		Schema *schema `json:"schema"`
	} `json:"content"`
}

type response struct {
	Ref     string `json:"$ref"`
	Content map[string]struct {
		Schema *schema `json:"schema"`
	} `json:"content"`
}

type schema struct {
	Ref         string             `json:"$ref,omitempty"`
	Type        string             `json:"type,omitempty"`
	Description string             `json:"description,omitempty"`
	Properties  map[string]*schema `json:"properties,omitempty"`
	Required    []string           `json:"required,omitempty"`
	Additional  json.RawMessage    `json:"additionalProperties,omitempty"`
	Items       *schema            `json:"items,omitempty"`
	Enum        []string           `json:"enum,omitempty"`
	Default     any                `json:"default,omitempty"`
	Null        string             `json:"null,omitempty"` // set here: the type of a member that may be null
}

// call is one method of the client.
type call struct {
	name    string // sandboxes.create
	method  string
	path    string
	summary string
	doc     string
	input   *schema
	output  *schema // nil where the answer is no JSON
	write   bool
	keyed   bool
	stream  *stream
	when    string // the argument that asks for the stream
}

// calls gives the methods in the order of their names. The routes that are no operations have no x-berth.
func (d *openapi) calls() ([]call, error) {
	var all []call
	for path, methods := range d.Paths {
		for method, o := range methods {
			if o.Berth == nil {
				continue
			}
			c, err := d.call(path, method, o)
			if err != nil {
				return nil, err
			}
			if s := o.Berth.Stream; s != nil && s.Name != o.ID {
				followed := *c
				followed.name, followed.stream, followed.output = s.Name, s, nil
				followed.doc = c.parameterDoc(o)
				followed.input = streamInput(o)
				c.input = dropWhen(c.input, o)
				followed.when = whenOf(o)
				all = append(all, followed)
			}
			all = append(all, *c)
		}
	}
	slices.SortFunc(all, func(a, b call) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

func (d *openapi) call(path, method string, o *operation) (*call, error) {
	c := &call{
		name: o.ID, method: strings.ToUpper(method), path: path, summary: o.Summary, doc: o.Description,
		write: slices.Contains(o.Berth.Hints, "write"), input: &schema{Type: "object", Properties: map[string]*schema{}},
	}
	for _, p := range o.Parameters {
		if p.In == "header" {
			c.keyed = c.keyed || p.Name == "Idempotency-Key"
			continue
		}
		c.add(p)
	}
	if s := o.Berth.Stream; s != nil && s.Name == o.ID {
		c.stream = s
	} else if o.RequestBody != nil {
		in, err := d.resolve(o.RequestBody.Content["application/json"].Schema)
		if err != nil {
			return nil, fmt.Errorf("input of %s: %w", o.ID, err)
		}
		for name, p := range in.Properties {
			c.input.Properties[name] = p
		}
		c.input.Required = append(c.input.Required, in.Required...)
	}
	for status, r := range o.Responses {
		if !strings.HasPrefix(status, "2") {
			continue
		}
		answer := r.Content["application/json"].Schema
		if answer == nil {
			continue
		}
		out, err := d.resolve(answer)
		if err != nil {
			return nil, fmt.Errorf("output of %s: %w", o.ID, err)
		}
		c.output = out
	}
	if c.output != nil {
		mark(c.output, "", o.Berth.Nullable)
		promise(c.output)
	}
	return c, nil
}

// promise makes what an output has unless the call is held back for a person's approval a part that is always there: the client throws then.
func promise(out *schema) {
	if out.Properties["status"] == nil {
		return
	}
	for name, p := range out.Properties {
		if p.Type == "object" && !slices.Contains(out.Required, name) {
			out.Required = append(out.Required, name)
		}
	}
}

func (c *call) add(p parameter) {
	s := *p.Schema
	s.Description = p.Description
	c.input.Properties[p.Name] = &s
	if p.Required {
		c.input.Required = append(c.input.Required, p.Name)
	}
}

// whenOf is the argument that turns an operation's route into a stream: the only one in the query that no operation has beside it.
func whenOf(o *operation) string { return "follow" }

func dropWhen(in *schema, o *operation) *schema {
	c := *in
	c.Properties = map[string]*schema{}
	for name, p := range in.Properties {
		if name != whenOf(o) {
			c.Properties[name] = p
		}
	}
	return &c
}

func (c *call) parameterDoc(o *operation) string {
	for _, p := range o.Parameters {
		if p.Name == whenOf(o) {
			return p.Description
		}
	}
	return c.doc
}

// streamInput is the path of the route; what else a followed stream takes is told by the runtime.
func streamInput(o *operation) *schema {
	in := &schema{Type: "object", Properties: map[string]*schema{}}
	for _, p := range o.Parameters {
		if p.In == "path" {
			in.Properties[p.Name] = p.Schema
			in.Required = append(in.Required, p.Name)
		}
	}
	return in
}

func (d *openapi) resolve(s *schema) (*schema, error) {
	if s == nil {
		return nil, fmt.Errorf("there is no schema")
	}
	if s.Ref == "" {
		return s, nil
	}
	name := strings.TrimPrefix(s.Ref, "#/components/schemas/")
	found := d.Components.Schemas[name]
	if found == nil {
		return nil, fmt.Errorf("there is no schema %s", s.Ref)
	}
	return found, nil
}

// mark writes into a schema which of its members may be null.
func mark(s *schema, at string, types map[string]string) {
	for name, p := range s.Properties {
		if t, ok := types[at+name]; ok {
			p.Null = t
		}
		mark(p, at+name+".", types)
		if p.Items != nil {
			mark(p.Items, at+name+"[].", types)
		}
	}
}
