package main

import (
	"bytes"
	"fmt"

	"github.com/pb33f/libopenapi"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/httpapi"
)

const (
	lockFile = "api/openapi.lock.json"
	lockMark = "{\n \"x-generated\": \"by go generate ./internal/httpapi; do not edit\",\n"
)

// generate gives the content of every generated file by its path below the root.
func generate(infos []op.Info) (map[string][]byte, error) {
	doc, err := httpapi.OpenAPI(infos, "")
	if err != nil {
		return nil, err
	}
	files := pages(infos)
	files[lockFile] = bytes.Replace(doc, []byte("{\n"), []byte(lockMark), 1)
	return files, nil
}

// breaks lists the changes from one OpenAPI document to another after which a caller of the first may fail.
func breaks(before, after []byte) ([]string, error) {
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
