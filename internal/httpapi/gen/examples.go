package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/berthrun/berth/api/op"
)

// given are the members that an operation's example has although they need not be there; of the others it has what is required.
var given = map[string][]string{
	"sandboxes.create":  {"idempotencyKey", "name", "metadata"},
	"sandboxes.list":    {"state", "limit"},
	"sandboxes.update":  {"name"},
	"sandboxes.exec":    {"command", "timeoutSeconds"},
	"sandboxes.metrics": {"stepSeconds"},
	"sandboxes.logs":    {"search", "limit"},
	"processes.start":   {"command", "openStdin"},
	"processes.output":  {"offset", "waitSeconds"},
	"processes.input":   {"data"},
	"files.list":        {"path", "glob", "depth"},
	"files.remove":      {"recursive"},
	"keys.create":       {"scopes", "ttlSeconds"},
	"docs.read":         {"section"},
}

// shown are the members of outputs that need not be there and that an example has.
var shown = []string{
	"sandbox", "process", "image", "registry", "name", "startedAt", "expiresAt", "key", "secret", "exitCode", "file", "section", "summary", "keyId", "keyName", "min", "max", "average",
}

// samples are values by the name of a member.
var samples = map[string]any{
	"name": "hello", "idempotencyKey": "hello-1", "template": "base", "state": "running", "status": "done", "command": "python3 -c 'print(6*7)'", "cwd": "/workspace",
	"user": "user", "group": "user", "path": "notes.txt", "from": "notes.txt", "to": "old/notes.txt", "data": "one\ntwo\n", "encoding": "utf-8", "type": "file", "mode": "0644",
	"oldText": "two", "newText": "2", "glob": "**/*.txt", "stdout": "42\n", "stderr": "", "by": "1h", "onIdle": "stop", "onExpiry": "stop", "signal": "TERM", "last4": "x7Qm",
	"secret": "berth_sk_…", "query": "how do I repeat a call safely", "page": "retries", "section": "what-to-repeat", "title": "Retries", "excerpt": "Choose an idempotencyKey before a write …",
	"summary": "how to be safe when a reply is lost", "text": "## What to repeat\n…", "organizationName": "root", "workspaceName": "default", "keyName": "first", "unit": "count",
	"version": "1.0.0", "publicKey": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI… you@laptop", "certificate": "ssh-ed25519-cert-v01@openssh.com AAAA…", "missing": "", "etag": "5f1c-8", "sha256": "7aeaa3a99187ddbca55967f8a2dd52f8e5b6b0b6cd8e3c4ca2bf6c5b3c9f0d1e", "woke": "", "search": "error",
	"url": "https://berth.example.com/", "image": "docker.io/library/debian:13", "reference": "docker.io/library/debian:13", "digest": "sha256:7aeaa3a99187ddbca55967f8a2dd52f8e5b6b0b6cd8e3c4ca2bf6c5b3c9f0d1e",
	"size": 8, "sizeMiB": 48, "unpackedMiB": 118, "layers": 1, "stepSeconds": 60, "min": 0, "average": 12, "max": 97, "cpuPercent": 12, "memoryUsedMiB": 210, "diskUsedMiB": 35, "stdoutBytes": 3, "stderrBytes": 0, "durationMs": 46, "exitCode": 0, "offset": 0, "nextOffset": 8, "earliestOffset": 0, "limit": 20, "used": 1, "ttlSeconds": 86400,
	"timeoutSeconds": 60, "waitSeconds": 10, "idlePauseSeconds": 1800, "generation": 2, "vcpu": 1, "memoryMiB": 2048, "diskGiB": 10, "callsPerMinute": 600, "callsInFlight": 4, "replaced": 1,
	"bytesWritten": 8, "depth": 3, "totalRunning": 1, "expect": 1, "entries": 1, "bytes": 8, "ready": true, "reachable": true, "internet": true, "autoWake": true, "wakeOnTimers": true, "created": true,
	"current": true, "enabled": true, "deleted": true, "removed": true, "openStdin": true, "recursive": true, "eof": true,
}

// ofKind are values by the kind of thing that the operation is about, and the name of a member.
var ofKind = map[string]string{
	"images.name": "docker.io/library/debian", "images.state": "ready", "images.source": "docker.io/library/debian:13", "images.tags": "13", "images.tag": "tested",
	"registries.host": "registry.example.com", "registries.username": "ci", "sandboxes.message": "the sandbox is running", "sandboxes.level": "info", "sandboxes.source": "sandbox",
	"confirmations.state": "pending", "confirmations.operation": "sandboxes.delete", "confirmations.title": "Delete a sandbox", "confirmations.digest": "3b1e7d0c5a92f4866f0d2b7c9e13a4d58812c6f7e0b9d3a1746c5e2f8a90b4d7",
	"confirmations.arguments": `{"sandboxId":"sbx_0123456789abcdefghij"}`, "confirmations.reasons": "this key's compute:sandboxes:delete is held back for a person", "confirmations.kind": "sandbox",
	"confirmations.draft": `{"action":"compute:sandboxes:delete","arguments":{"sandboxId":"sbx_0123456789abcdefghij"},…}`,
	"snapshots.state":     "ready", "snapshots.mode": "memory", "pools.image": "base",
	"volumes.state": "ready", "backups.state": "ready", "templates.state": "ready", "volumes.path": "/volumes/hello", "builds.status": "ready",
}

// owner names the kind of the thing whose id stands under a bare id.
var owner = map[string]string{
	"resource": "sbx", "audit": "aud", "confirmation": "cnf", "confirmations": "cnf", "sandbox": "sbx", "process": "proc", "key": "key", "image": "img", "images": "img", "workspaces": "ws", "sandboxes": "sbx", "processes": "proc", "keys": "key", "file": "sbx", "snapshot": "snap", "snapshots": "snap",
	"volume": "vol", "volumes": "vol", "backup": "bak", "backups": "bak", "template": "sbxt", "templates": "sbxt", "build": "bld", "builds": "bld", "context": "bctx",
}

// ids are the kinds of ids by the names of members that hold one.
var ids = map[string]string{
	"confirmationId": "cnf", "sandboxId": "sbx", "processId": "proc", "keyId": "key", "workspaceId": "ws", "organizationId": "org", "principalId": "key", "imageId": "img", "registryId": "reg", "snapshotId": "snap",
	"volumeId": "vol", "backupId": "bak", "templateId": "sbxt", "buildId": "bld", "contextId": "bctx",
}

const idEnd = "_0123456789abcdefghij"

// exampleIn is an input of an operation, as compact JSON.
func exampleIn(i op.Info) []byte {
	var b bytes.Buffer
	writeSample(&b, i.In, place{operation: i}, "")
	return b.Bytes()
}

// exampleOut is an answer to it, in lines.
func exampleOut(i op.Info) []byte {
	var b, lines bytes.Buffer
	writeSample(&b, i.Out, place{operation: i, output: true}, "")
	if err := json.Indent(&lines, b.Bytes(), "", "  "); err != nil {
		panic(err) // it was written here
	}
	return lines.Bytes()
}

// place is where in an example a value stands.
type place struct {
	operation op.Info
	output    bool
	within    string // the member that holds the object
}

// writeSample writes a value of a schema; name is that of the member it is of.
func writeSample(b *bytes.Buffer, s *op.Schema, at place, name string) {
	switch {
	case s.Type == "object" && len(s.Properties) > 0:
		inner := at
		inner.within = name
		b.WriteByte('{')
		first := true
		for _, member := range s.Order {
			if !slices.Contains(s.Required, member) && !at.has(member) {
				continue
			}
			if !first {
				b.WriteByte(',')
			}
			first = false
			b.Write(text(member))
			b.WriteByte(':')
			writeSample(b, s.Properties[member], inner, member)
		}
		b.WriteByte('}')
	case s.Type == "object":
		if name == "metadata" {
			b.WriteString(`{"team":"a"}`)
		} else {
			b.WriteString("{}")
		}
	case s.Type == "array":
		b.WriteByte('[')
		if name == "items" {
			name = at.kind()
		}
		writeSample(b, s.Items, at, name)
		b.WriteByte(']')
	case s.Nullable && s.Null == "string":
		b.WriteString("null") // a cursor of the last page
	default:
		b.Write(text(sample(s, at, name)))
	}
}

// has reports whether a member that need not be there is shown.
func (p place) has(member string) bool {
	if p.output && member == "exitCode" {
		return p.operation.Name == "sandboxes.exec" // a process that still runs has none
	}
	if p.output {
		return slices.Contains(shown, member)
	}
	return p.within == "" && slices.Contains(given[p.operation.Name], member)
}

// kind is what the operation is about, such as sandboxes.
func (p place) kind() string {
	kind, _, _ := strings.Cut(p.operation.Name, ".")
	return kind
}

// sample is one value that fits the schema.
func sample(s *op.Schema, at place, name string) any {
	kind := s.Type
	if s.Nullable {
		kind = s.Null
	}
	switch kind {
	case "string":
		return sampleText(s, at, name)
	case "integer", "number":
		if v, ok := samples[name].(int); ok && within(s, float64(v)) {
			return v
		}
		if s.Minimum != nil {
			return *s.Minimum
		}
		return 0
	case "boolean":
		v, _ := samples[name].(bool)
		return v
	}
	return nil
}

func within(s *op.Schema, v float64) bool {
	return (s.Minimum == nil || v >= *s.Minimum) && (s.Maximum == nil || v <= *s.Maximum)
}

func sampleText(s *op.Schema, at place, name string) string {
	if len(s.Enum) > 0 {
		if v, ok := samples[name].(string); ok && slices.Contains(s.Enum, v) {
			return v
		}
		return s.Enum[0]
	}
	switch {
	case s.Format == "date-time":
		if name == "expiresAt" {
			return "2026-12-02T09:00:00Z"
		}
		return "2026-12-01T09:00:00Z"
	case strings.HasSuffix(s.Pattern, "_[a-z0-9]{20}$"):
		prefix, _, _ := strings.Cut(strings.TrimPrefix(s.Pattern, "^"), "_")
		return prefix + idEnd
	case ids[name] != "":
		return ids[name] + idEnd
	case name == "id":
		for _, holder := range []string{at.within, at.kind()} {
			if prefix := owner[holder]; prefix != "" {
				return prefix + idEnd
			}
		}
		return "x" + idEnd
	case (at.within == "createdBy" || at.within == "askedBy") && name == "key":
		return "key" + idEnd
	case at.output && name == "idempotencyKey" && !slices.Contains(given[at.operation.Name], name):
		return "made-by-the-server-1"
	case name == "scopes":
		return "read"
	case at.kind() == "account" && name == "key":
		return "sandboxes.running"
	case at.kind() == "capabilities" && name == "name":
		return "sandboxes"
	case at.kind() == "files" && name == "name":
		return "notes.txt"
	case at.kind() == "files" && name == "path" && at.output:
		return "/workspace/notes.txt"
	case strings.HasSuffix(at.operation.Name, ".mkdir") && name == "path":
		return "old"
	}
	v, ok := ofKind[at.kind()+"."+name]
	if !ok {
		if v, ok = samples[name].(string); !ok {
			v = "…"
		}
	}
	if s.Pattern != "" {
		v = matching(s.Pattern, v)
	}
	if s.MinLength != nil && utf8.RuneCountInString(v) < *s.MinLength {
		v = strings.Repeat("x", *s.MinLength)
	}
	return v
}

// matching is the sample where the pattern allows it, else the first of a few simple words that it allows.
func matching(pattern, v string) string {
	re := regexp.MustCompile(pattern)
	for _, word := range []string{v, "hello", "latest", "1", "1h", "0644"} {
		if re.MatchString(word) {
			return word
		}
	}
	return v
}

func text(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // samples always encode
	}
	return bytes.TrimSpace(b.Bytes())
}

// writeExample shows a call with curl and its answer.
func writeExample(b *bytes.Buffer, i op.Info) {
	fmt.Fprintf(b, "\n### Example\n\n```sh\n%s\n```\n\n```json\n%s\n```\n", curl(i), exampleOut(i))
}

// curl is the example's request. The arguments of a tool are the same members in one object.
func curl(i op.Info) string {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(exampleIn(i), &members); err != nil {
		panic(err) // it was written here
	}
	path := i.Path
	for _, p := range i.PathParams() {
		var v string
		if err := json.Unmarshal(members[p], &v); err != nil {
			panic(err) // names in a path are text
		}
		path = strings.NewReplacer("{"+p+"}", v, "{"+p+"...}", v).Replace(path)
	}
	inPath := func(name string) bool { return slices.Contains(i.PathParams(), name) }
	line := "curl -s"
	if i.Method != http.MethodGet && i.Method != http.MethodPost {
		line += " -X " + i.Method
	}
	const auth = ` -H "Authorization: Bearer $BERTH_API_KEY"`
	if i.Method == http.MethodGet || i.Method == http.MethodDelete {
		query := url.Values{}
		for name, raw := range members {
			if inPath(name) {
				continue
			}
			for _, v := range plainValues(raw) {
				query.Add(name, v)
			}
		}
		if len(query) > 0 {
			return line + ` "$BERTH_URL` + path + "?" + query.Encode() + `"` + auth
		}
		return line + " $BERTH_URL" + path + auth
	}
	var body bytes.Buffer
	body.WriteByte('{')
	for _, name := range i.In.Order {
		raw, ok := members[name]
		if !ok || inPath(name) {
			continue
		}
		if body.Len() > 1 {
			body.WriteString(", ")
		}
		fmt.Fprintf(&body, "%s: %s", text(name), raw)
	}
	body.WriteByte('}')
	return line + " $BERTH_URL" + path + auth + " \\\n  -H 'Content-Type: application/json' -d '" + strings.ReplaceAll(body.String(), "'", `'\''`) + "'"
}

// plainValues are the values of a member as they stand in a query.
func plainValues(raw json.RawMessage) []string {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		list = []json.RawMessage{raw}
	}
	var all []string
	for _, v := range list {
		var s string
		if json.Unmarshal(v, &s) != nil {
			s = string(v)
		}
		all = append(all, s)
	}
	return all
}
