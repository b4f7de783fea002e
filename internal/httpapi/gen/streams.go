package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/berthrun/berth/api/op"
)

// streamRoute is a stream's method and path, with the argument that chooses it.
func streamRoute(s op.StreamInfo) string {
	route := s.Method + " " + s.Path
	if s.When != "" {
		route += "?" + s.When + "=true"
	}
	return route
}

func writeStreamIndex(b *bytes.Buffer, kinds []string, streamsOf map[string][]op.StreamInfo) {
	if len(streamsOf) == 0 {
		return
	}
	b.WriteString("\n## Streams\n\nRoutes that carry bytes or events. An error before the first byte is like any other; after it the connection is broken off.\n\n" +
		"| stream | HTTP | kind | what it is |\n|---|---|---|---|\n")
	for _, kind := range kinds {
		for _, s := range streamsOf[kind] {
			fmt.Fprintf(b, "| [%s](%s.md#%s) | `%s` | %s | %s |\n", s.Name, kind, anchor(s.Name), streamRoute(s), s.Kind, s.Title)
		}
	}
}

func writeStream(b *bytes.Buffer, s op.StreamInfo) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n| | |\n|---|---|\n", s.Name, s.Doc)
	fmt.Fprintf(b, "| HTTP | `%s`, answers %d |\n", streamRoute(s), s.Status)
	fmt.Fprintf(b, "| stream | %s%s |\n", s.Kind, after(s.Media, ", `%s`"))
	fmt.Fprintf(b, "| action | `%s` |\n", s.Action)
	fmt.Fprintf(b, "| toolset | %s |\n", s.Toolset)
	fmt.Fprintf(b, "| hints | %s |\n", strings.Join(s.Hints.Words(), ", "))
	fmt.Fprintf(b, "| errors | [those of every operation](README.md#errors)%s |\n", ownErrors(s.Info))
	b.WriteString("\n### Input, in the path and the query\n\n| member | type | | |\n|---|---|---|---|\n")
	writeMembers(b, s.Info, s.In, "", true)
	if len(s.Headers) > 0 {
		b.WriteString("\n### Headers of the request\n\n| header | |\n|---|---|\n")
		for _, h := range s.Headers {
			fmt.Fprintf(b, "| `%s` | %s |\n", h.Name, h.Doc)
		}
	}
	if s.Out != nil {
		b.WriteString("\n### Answer\n\n| member | type | | |\n|---|---|---|---|\n")
		writeMembers(b, s.Info, s.Out, "", false)
	}
	for _, m := range s.Messages {
		fmt.Fprintf(b, "\n### %s\n\n%s\n", m.Name, m.Doc)
		if m.Data != nil {
			b.WriteString("\n| member | type | | |\n|---|---|---|---|\n")
			writeMembers(b, s.Info, m.Data, "", false)
		}
	}
}

func after(s, format string) string {
	if s == "" {
		return ""
	}
	return fmt.Sprintf(format, s)
}
