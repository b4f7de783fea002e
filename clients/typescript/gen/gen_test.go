package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

const example = `{
 "paths": {
  "/v1/boxes": {
   "get": {"operationId": "boxes.list", "summary": "List", "description": "Lists boxes.", "parameters": [
     {"name": "cursor", "in": "query", "schema": {"type": "string"}},
     {"name": "state", "in": "query", "schema": {"type": "array", "items": {"type": "string", "enum": ["on", "off"]}}}],
    "responses": {"200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/BoxesListOutput"}}}}},
    "x-berth": {"hints": ["read"], "nullable": {"nextCursor": "string", "items[].disk": "integer"}}},
   "post": {"operationId": "boxes.create", "summary": "Create", "description": "Makes */ one.", "parameters": [{"name": "Idempotency-Key", "in": "header", "schema": {"type": "string"}}],
    "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/BoxesCreateInput"}}}},
    "responses": {"201": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/BoxesCreateOutput"}}}}},
    "x-berth": {"hints": ["write"], "nullable": {"box.disk": "integer"}}}},
  "/v1/boxes/{boxId}/content": {
   "get": {"operationId": "boxes.download", "summary": "Down", "description": "Bytes.", "parameters": [{"name": "boxId", "in": "path", "required": true, "schema": {"type": "string"}}],
    "responses": {"200": {"content": {"application/octet-stream": {}}}}, "x-berth": {"hints": ["read"], "stream": {"name": "boxes.download", "kind": "download"}}}},
  "/v1/boxes/{boxId}/output": {
   "get": {"operationId": "boxes.output", "summary": "Output", "description": "A part.", "parameters": [
     {"name": "boxId", "in": "path", "required": true, "schema": {"type": "string"}}, {"name": "follow", "in": "query", "schema": {"type": "boolean"}, "description": "Follows it."}],
    "responses": {"200": {"content": {"application/json": {"schema": {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}}}}},
    "x-berth": {"hints": ["read"], "stream": {"name": "boxes.follow", "kind": "events", "messages": [
      {"name": "stdout", "schema": {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}}, {"name": "exit"}]}}}},
  "/healthz": {"get": {"operationId": "healthz"}}
 },
 "components": {"schemas": {
  "BoxesListOutput": {"type": "object", "required": ["items", "nextCursor"], "properties": {"nextCursor": {}, "items": {"type": "array", "items":
    {"type": "object", "required": ["id", "disk"], "properties": {"id": {"type": "string"}, "disk": {}, "labels": {"type": "object", "additionalProperties": {"type": "string"}}}}}}},
  "BoxesCreateInput": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "description": "Its name.", "default": "a"}, "size": {"type": "integer"}}},
  "BoxesCreateOutput": {"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}, "box":
    {"type": "object", "required": ["id", "disk"], "properties": {"id": {"type": "string"}, "disk": {}, "labels": {"type": "object", "additionalProperties": {"type": "string"}}}}}}
 }}
}`

func TestGenerate(t *testing.T) {
	var doc openapi
	if err := json.Unmarshal([]byte(example), &doc); err != nil {
		t.Fatal(err)
	}
	b, err := generate(&doc)
	if err != nil {
		t.Fatal(err)
	}
	got := string(b)
	for _, want := range []string{
		firstLine,
		"export interface Box {\n  disk: number | null;\n  id: string;\n  labels?: Record<string, string> | undefined;\n}",
		"  cursor?: string | undefined;\n  state?: (\"on\" | \"off\")[] | undefined;",
		"  /** Its name. Default: a. */\n  name: string;\n  size?: number | undefined;",
		"export interface BoxesCreateOutput {\n  box: Box;\n  status: string;\n}", // held back, it throws
		"  nextCursor: string | null;",
		"  /** Create: Makes * / one. */\n  create(input: BoxesCreateInput, options?: CallOptions): Promise<BoxesCreateOutput> {\n" +
			"    return this.#transport.call({ method: \"POST\", path: \"/v1/boxes\", write: true, keyed: true }, input, options);",
		"list(input: BoxesListInput = {}, options?: CallOptions): ListCall<BoxesListOutput, Box> {",
		"download(input: BoxesDownloadInput, options?: StreamOptions): Promise<Download> {",
		"follow(input: BoxesFollowInput, options?: FollowOptions): AsyncIterable<BoxesFollowMessage> {",
		"{ when: \"follow\", end: \"exit\" }",
		"output(input: BoxesOutputInput, options?: CallOptions): Promise<BoxesOutputOutput> {",
		"  | { event: \"stdout\"; data: {\n    data: string;\n  } }\n  | { event: \"exit\"; data: null };",
		"  readonly boxes: Boxes;",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks\n%s", want)
		}
	}
	if strings.Contains(got, "healthz") || strings.Contains(got, "BoxesOutputInput {\n  follow") {
		t.Error("has what it should not")
	}
	if t.Failed() {
		t.Log(got)
	}
}

// The compiler that the package names is the one that it is tested with.
func TestCompilerVersion(t *testing.T) {
	version := func(file string) string {
		var p struct{ DevDependencies map[string]string }
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, &p); err != nil {
			t.Fatal(err)
		}
		return p.DevDependencies["typescript"]
	}
	if own, tested := version("../package.json"), version("../../../test/clients/package.json"); own != tested || own == "" {
		t.Errorf("typescript %q, tested with %q", own, tested)
	}
}
