// Package growth tells whether one OpenAPI document may follow another: /v1 only grows.
//
// It knows nothing of operations. It is apart from the generator because what it compares with takes long to compile, and this way does so once.
package growth

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/pb33f/libopenapi"
)

// Breaks lists the changes from one OpenAPI document to another after which a caller of the first may fail.
func Breaks(before, after []byte) ([]string, error) {
	after, err := withoutPromises(before, after)
	if err != nil {
		return nil, err
	}
	left, err := libopenapi.NewDocument(before)
	if err != nil {
		return nil, fmt.Errorf("read the document before: %w", err)
	}
	right, err := libopenapi.NewDocument(after)
	if err != nil {
		return nil, fmt.Errorf("read the document after: %w", err)
	}
	changes, err := libopenapi.CompareDocuments(left, right)
	if err != nil {
		return nil, fmt.Errorf("compare the documents: %w", err)
	}
	if changes == nil {
		return nil, nil
	}
	var list []string
	for _, c := range changes.GetAllChanges() {
		if c.Breaking {
			list = append(list, fmt.Sprintf("%s %s: %q became %q", c.Type, c.Property, c.Original, c.New))
		}
	}
	return list, nil
}

// withoutPromises takes out of the second document that members of outputs are always there which were not in the first: the comparison takes any
// new "required" for a demand on callers, but in an output it is a promise to them.
func withoutPromises(before, after []byte) ([]byte, error) {
	var old, now struct {
		Components struct {
			Schemas map[string]any `json:"schemas"`
		} `json:"components"`
	}
	var whole map[string]any
	for raw, into := range map[*[]byte][]any{&before: {&old}, &after: {&now, &whole}} {
		for _, v := range into {
			dec := json.NewDecoder(bytes.NewReader(*raw))
			dec.UseNumber()
			if err := dec.Decode(v); err != nil {
				return nil, fmt.Errorf("read a document: %w", err)
			}
		}
	}
	for name, schema := range now.Components.Schemas {
		if strings.HasSuffix(name, "Output") {
			relax(old.Components.Schemas[name], schema)
		}
	}
	components, _ := whole["components"].(map[string]any)
	components["schemas"] = now.Components.Schemas
	return json.Marshal(whole)
}

// relax takes names out of every "required" of the second value that the same place in the first does not have.
func relax(before, after any) {
	now, _ := after.(map[string]any)
	old, _ := before.(map[string]any)
	if now == nil || old == nil {
		return
	}
	was, _ := old["required"].([]any)
	if names, ok := now["required"].([]any); ok {
		now["required"] = slices.DeleteFunc(names, func(n any) bool { return !slices.Contains(was, n) })
		if len(was) == 0 {
			delete(now, "required")
		}
	}
	for name, inner := range now {
		relax(old[name], inner)
	}
}
