package httpapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
)

//go:generate go run ./gen -root ../..

// object is a JSON object; its members are written in the order of their names.
type object = map[string]any

// OpenAPI writes the OpenAPI 3.1 document of operations and streams. The same ones and URL always give the same bytes. publicURL may be empty.
func OpenAPI(infos []op.Info, streams []op.StreamInfo, publicURL string) ([]byte, error) {
	doc := object{
		"openapi": "3.1.0",
		"info": object{
			"title":       "Berth",
			"version":     "v1",
			"description": "Sandboxes for AI agents on machines you own. /v1 only grows: new inputs are optional, and outputs may get new members.",
			"license":     object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
		},
		"security": []any{object{"bearer": []any{}}},
		"tags":     tags(infos, streams),
		"paths":    paths(infos, streams),
		"components": object{
			"securitySchemes": object{"bearer": object{
				"type": "http", "scheme": "bearer", "description": "A key of this deployment. It is never sent in a URL.",
			}},
			"schemas":   schemas(infos, streams),
			"responses": responses(),
		},
	}
	if publicURL != "" {
		doc["servers"] = []any{object{"url": strings.TrimSuffix(publicURL, "/")}}
	}
	b, err := json.MarshalIndent(doc, "", " ")
	if err != nil {
		return nil, fmt.Errorf("encode openapi: %w", err)
	}
	return append(b, '\n'), nil
}

func tags(infos []op.Info, streams []op.StreamInfo) []any {
	var names []string
	for _, i := range infos {
		names = append(names, i.Toolset)
	}
	for _, i := range streams {
		names = append(names, i.Toolset)
	}
	slices.Sort(names)
	list := []any{}
	for _, n := range slices.Compact(names) {
		list = append(list, object{"name": n})
	}
	return list
}

func paths(infos []op.Info, streams []op.StreamInfo) object {
	all := object{
		"/v1/openapi.json": object{"get": plain("openapi", "This document", "The OpenAPI document of this server.")},
		"/healthz":         object{"get": plain("healthz", "Is it up", "Answers while the server runs.")},
		"/readyz":          object{"get": plain("readyz", "Is it ready", "Answers 503 while calls cannot be served.")},
	}
	for _, i := range infos {
		path := strings.ReplaceAll(i.Path, "...}", "}")
		if all[path] == nil {
			all[path] = object{}
		}
		all[path].(object)[strings.ToLower(i.Method)] = operation(i)
	}
	addStreams(all, streams)
	return all
}

// plain is a route that is no operation: no sign-in, one JSON object.
func plain(id, title, doc string) object {
	return object{
		"operationId": id, "summary": title, "description": doc, "security": []any{},
		"responses": object{
			"200":     object{"description": "It is.", "content": content(object{"type": "object"})},
			"default": object{"$ref": "#/components/responses/503"},
		},
	}
}

func operation(i op.Info) object {
	in := inputOf(i)
	berth := object{"action": i.Action, "hints": i.Hints.Words()}
	if i.Tool != "" {
		berth["tool"] = i.Tool
	}
	if null := nullable(i.Out, ""); len(null) > 0 {
		berth["nullable"] = null
	}
	o := object{
		"operationId": i.Name, "summary": i.Title, "description": i.Doc, "tags": []string{i.Toolset},
		"x-berth": berth, "responses": answers(i, in),
	}
	if p := parameters(i, in); len(p) > 0 {
		o["parameters"] = p
	}
	if !in.query && len(in.schema.Properties) > 0 {
		o["requestBody"] = object{
			"required": len(in.schema.Required) > 0,
			"content":  content(object{"$ref": "#/components/schemas/" + typeName(i.Name) + "Input"}),
		}
	}
	return o
}

// nullable gives the types of an output's members that may be null, by their paths such as items[].diskGiB: their schemas leave the type open.
func nullable(s *op.Schema, at string) object {
	all := object{}
	for name, p := range s.Properties {
		if p.Nullable {
			all[at+name] = p.Null
		}
		maps.Copy(all, nullable(p, at+name+"."))
		if p.Items != nil {
			maps.Copy(all, nullable(p.Items, at+name+"[]."))
		}
	}
	return all
}

func parameters(i op.Info, in input) []any {
	var list []any
	for _, name := range in.params {
		list = append(list, parameter(name, "path", true, i.In.Properties[name]))
	}
	if in.query {
		for _, name := range in.schema.Order {
			p := parameter(name, "query", slices.Contains(in.schema.Required, name), in.schema.Properties[name])
			switch in.schema.Properties[name].Type {
			case "array":
				p["style"], p["explode"] = "form", true
			case "object":
				p["style"], p["explode"] = "deepObject", true
			}
			list = append(list, p)
		}
	}
	if in.keyed {
		list = append(list, object{
			"name": "Idempotency-Key", "in": "header", "required": false, "schema": object{"type": "string"},
			"description": "The same as " + retryKey + ". Give one of the two, or the same value twice.",
		})
	}
	return list
}

// parameter describes a path or query argument. Its text stands at the parameter, where readers look for it.
func parameter(name, in string, required bool, s *op.Schema) object {
	bare := *s
	bare.Description = ""
	p := object{"name": name, "in": in, "required": required, "schema": &bare}
	if s.Description != "" {
		p["description"] = s.Description
	}
	return p
}

func answers(i op.Info, in input) object {
	out := content(object{"$ref": "#/components/schemas/" + typeName(i.Name) + "Output"})
	all := object{strconv.Itoa(i.Status): object{"description": "Done.", "headers": idHeader(), "content": out}}
	if i.Out.Properties["status"] != nil {
		all["202"] = object{"description": "Held back until a person approves it; call again with the same idempotencyKey.", "headers": idHeader(), "content": out}
	}
	for _, status := range errorStatuses() {
		if in.query && (status == http.StatusRequestEntityTooLarge || status == http.StatusUnsupportedMediaType) {
			continue
		}
		all[strconv.Itoa(status)] = object{"$ref": "#/components/responses/" + strconv.Itoa(status)}
	}
	return all
}

func content(schema any) object { return object{"application/json": object{"schema": schema}} }

func idHeader() object {
	return object{"X-Request-Id": object{"description": "Names this request in logs.", "schema": object{"type": "string"}}}
}

func schemas(infos []op.Info, streams []op.StreamInfo) object {
	all := object{"Error": errorSchema()}
	for _, i := range infos {
		in := inputOf(i)
		if !in.query && len(in.schema.Properties) > 0 {
			all[typeName(i.Name)+"Input"] = in.schema
		}
		all[typeName(i.Name)+"Output"] = i.Out
	}
	addStreamSchemas(all, streams)
	return all
}

// typeName makes SandboxesSetTimeout of sandboxes.setTimeout.
func typeName(name string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(name, ".") {
		b.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return b.String()
}

func errorSchema() object {
	text := func(doc string) object { return object{"type": "string", "description": doc} }
	return object{
		"type": "object", "required": []string{"error"},
		"properties": object{"error": object{
			"type": "object", "required": []string{"code", "message", "requestId"},
			"properties": object{
				"code":         text("One of a fixed set that grows, such as NOT_FOUND."),
				"message":      text("What is wrong."),
				"suggestion":   text("What to do about it."),
				"requestId":    text("Names this request in logs."),
				"reason":       text("Tells cases of one code apart."),
				"retryAfterMs": object{"type": "integer", "description": "How long to wait before trying again, in milliseconds."},
				"details":      object{"type": "object", "description": "More, by code."},
			},
		}},
	}
}

// errorStatuses are the HTTP statuses that an operation may fail with, ascending.
func errorStatuses() []int {
	list := []int{http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType}
	for _, c := range errs.Codes() {
		list = append(list, c.Status())
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func responses() object {
	codes := map[int][]string{
		http.StatusPreconditionFailed:           {string(errs.InvalidState)},
		http.StatusRequestedRangeNotSatisfiable: {string(errs.InvalidInput)},
		http.StatusRequestEntityTooLarge:        {string(errs.InvalidInput)},
		http.StatusUnsupportedMediaType:         {string(errs.InvalidInput)},
	}
	for _, c := range errs.Codes() {
		codes[c.Status()] = append(codes[c.Status()], string(c))
	}
	all := object{}
	for status, names := range codes {
		slices.Sort(names)
		headers := idHeader()
		switch status {
		case http.StatusUnauthorized:
			headers["WWW-Authenticate"] = object{"description": "How to sign in.", "schema": object{"type": "string"}}
		case http.StatusTooManyRequests, http.StatusServiceUnavailable:
			headers["Retry-After"] = object{"description": "In seconds.", "schema": object{"type": "integer"}}
		}
		all[strconv.Itoa(status)] = object{
			"description": strings.Join(names, ", "), "headers": headers,
			"content": content(object{"$ref": "#/components/schemas/Error"}),
		}
	}
	return all
}
