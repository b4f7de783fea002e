package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
)

// columns of lists, by operation; others show the first members of their items.
var columns = map[string][]string{
	"audit.list":         {"number", "at", "principalId", "sourceIp", "face", "operation", "resourceId", "result"},
	"sandboxes.list":     {"id", "name", "state", "template", "createdAt", "expiresAt"},
	"processes.list":     {"id", "state", "exitCode", "startedAt", "command"},
	"files.list":         {"mode", "user", "size", "modifiedAt", "type", "path"},
	"keys.list":          {"id", "name", "last4", "scopes", "expiresAt", "lastUsedAt", "revokedAt"},
	"account.limits":     {"key", "limit", "used", "unit"},
	"workspaces.list":    {"id", "name", "current", "createdAt"},
	"capabilities.list":  {"name", "enabled", "missing"},
	"docs.list":          {"page", "title", "summary"},
	"docs.search":        {"page", "section", "excerpt"},
	"snapshots.list":     {"id", "name", "state", "mode", "memoryMiB", "diskMiB", "createdAt", "sandboxId"},
	"volumes.list":       {"id", "name", "state", "sizeGiB", "usedMiB", "createdAt"},
	"backups.list":       {"id", "volumeName", "state", "automatic", "contentMiB", "storedMiB", "createdAt"},
	"images.list":        {"id", "name", "tags", "state", "unpackedMiB", "createdAt"},
	"templates.list":     {"id", "name", "ready", "version", "updatedAt"},
	"builds.list":        {"id", "name", "version", "status", "createdAt", "finishedAt", "reason"},
	"confirmations.list": {"id", "state", "operation", "title", "expiresAt", "arguments"},
	"registries.list":    {"host", "username", "createdAt", "updatedAt"},
}

// Characters of a table's cell; a terminal that is narrower has fewer.
const (
	maxCell = 60
	maxLast = 160 // in the last column
)

// print writes an output: a table of a list, else one line a member, or with -o json as the server gave it.
func (a *app) print(info op.Info, raw json.RawMessage) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var out map[string]any
	if err := dec.Decode(&out); err != nil {
		return fmt.Errorf("decode output of %s: %w", info.Name, err)
	}
	if a.output == "json" {
		var b bytes.Buffer
		if err := json.Indent(&b, raw, "", "  "); err != nil {
			return fmt.Errorf("decode output of %s: %w", info.Name, err)
		}
		b.WriteByte('\n')
		_, err := a.stdout.Write(calm(b.Bytes()))
		return err
	}
	a.noteWoke(out["woke"])
	delete(out, "woke") // it has been said
	if a.quiet {
		return a.ids(raw)
	}
	if items, ok := out["items"].([]any); ok {
		return a.printList(info, out, items)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	lists := printMembers(w, info.Out, mainMember(info), "", out)
	if err := w.Flush(); err != nil {
		return err
	}
	return a.printNested(lists)
}

func (a *app) printList(info op.Info, out map[string]any, items []any) error {
	schema := info.Out.Properties["items"].Items
	names := columns[info.Name]
	if names == nil {
		names = schema.Order[:min(6, len(schema.Order))]
	}
	var lists []nested
	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool {
		p := schema.Properties[n]
		for i, item := range items {
			members, _ := item.(map[string]any)
			if inner, ok := listOfThings(p, members[n]); ok {
				lists = append(lists, nested{first(idOf(item), strconv.Itoa(i+1)) + " " + n, p.Items, inner})
			}
		}
		return holdsThings(p)
	})
	var err error
	if info.Name == api.SandboxLogs.Name {
		err = a.printLog(schema, items)
	} else {
		err = table(a.stdout, a.width(), rows(schema, names, items))
	}
	if err := errors.Join(err, a.printNested(lists)); err != nil {
		return err
	}
	more := out["nextCursor"]
	delete(out, "items")
	delete(out, "nextCursor")
	if len(out) > 0 {
		w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
		fmt.Fprintln(w)
		lists := printMembers(w, info.Out, "", "", out)
		if err := errors.Join(w.Flush(), a.printNested(lists)); err != nil {
			return err
		}
	}
	if len(items) == 0 && a.mine {
		a.note("nothing of what this key made; --scope all looks at everything that it may see")
	}
	if cursor, ok := more.(string); ok {
		a.note("there is more: --cursor %s", plain(cursor))
	}
	return nil
}

// mainMember is the member that an output is about: sandbox for sandboxes.get. Its own members are shown without a prefix.
func mainMember(info op.Info) string {
	group, _, _ := strings.Cut(info.Name, ".")
	for _, name := range info.Out.Order {
		if p := info.Out.Properties[name]; p.Type == "object" && (group == name+"s" || group == name+"es") {
			return name
		}
	}
	return ""
}

// printMembers writes one line for each member in the order of the schema; objects are spread out, and lists of objects left to the caller.
func printMembers(w io.Writer, s *op.Schema, mainName, prefix string, members map[string]any) (lists []nested) {
	for _, name := range ordered(s, members) {
		v := members[name]
		if prefix == "" && (name == "idempotencyKey" || (name == "status" && v == "done")) {
			continue
		}
		if main, ok := members[mainName].(map[string]any); ok && prefix == "" && main[name] != nil {
			continue // it is said with the thing itself
		}
		p := s.Properties[name]
		inner, isObject := v.(map[string]any)
		if isObject && p != nil && len(p.Properties) > 0 {
			below := prefix + name + "."
			if name == mainName && prefix == "" {
				below = ""
			}
			lists = append(lists, printMembers(w, p, "", below, inner)...)
			continue
		}
		if items, ok := listOfThings(p, v); ok {
			lists = append(lists, nested{prefix + name, p.Items, items})
			continue
		}
		fmt.Fprintf(w, "%s:\t%s\n", plain(prefix+name), text(p, name, v))
	}
	return lists
}

// ordered gives the names that are there: those of the schema first, then those that a newer server has, by name.
func ordered(s *op.Schema, members map[string]any) []string {
	var names []string
	for _, n := range s.Order {
		if _, ok := members[n]; ok {
			names = append(names, n)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(members)) {
		if _, ok := s.Properties[n]; !ok {
			names = append(names, n)
		}
	}
	return names
}

// text writes a value in one line.
func text(p *op.Schema, name string, v any) string {
	switch v := v.(type) {
	case nil:
		return "-"
	case string:
		if p != nil && p.Format == "date-time" {
			if t, err := time.Parse(time.RFC3339Nano, v); err == nil {
				return t.UTC().Format(time.RFC3339)
			}
		}
		if v == "" {
			return "-"
		}
		return plain(v)
	case json.Number:
		return figure(name, v)
	case bool:
		return strconv.FormatBool(v)
	case []any:
		parts := make([]string, len(v))
		for i, item := range v {
			parts[i] = text(nil, "", item)
		}
		return first(strings.Join(parts, ","), "-")
	case map[string]any:
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, plain(k)+"="+text(nil, k, v[k]))
		}
		return first(strings.Join(parts, ","), "-")
	}
	return fmt.Sprint(v)
}

// plain shows what would steer a terminal, such as escapes in a stored name, instead of sending it.
func plain(s string) string {
	if !strings.ContainsFunc(s, steers) && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case steers(r):
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
			continue
		case r == utf8.RuneError:
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// calm escapes in JSON what would steer a terminal: it stays the same JSON.
func calm(doc []byte) []byte {
	steersInside := func(r rune) bool { return r != '\n' && steers(r) }
	if bytes.IndexFunc(doc, steersInside) < 0 {
		return doc
	}
	out := make([]byte, 0, len(doc)+64)
	for _, r := range string(doc) {
		switch {
		case !steersInside(r):
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return out
}

// steers reports control characters, those that reorder or break text, and those that are not seen.
func steers(r rune) bool {
	return r >= 0x7f && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) || r < 0x20
}

func clip(s string) string { return clipTo(s, maxCell) }

// noteWoke says that a call has started a sandbox that was stopped or asleep.
func (a *app) noteWoke(how any) {
	if said := wokeNote(how); said != "" {
		a.note("%s", said)
	}
}

// wokeNote is what there is to say of an answer's woke.
func wokeNote(how any) string {
	switch how {
	case "", nil:
		return ""
	case "memory":
		return "the sandbox was asleep and has been woken for this call; while it runs it may be billed"
	}
	return "the sandbox was stopped and has been started for this call; while it runs it may be billed"
}

func writeJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(calm(b.Bytes()))
	return err
}
