package main

import (
	"bytes"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/httpapi"
)

const (
	lockFile = "api/openapi.lock.json"
	lockMark = "{\n \"x-generated\": \"by go generate ./internal/httpapi; do not edit\",\n"
)

// generate gives the content of every generated file by its path below the root.
func generate(infos []op.Info, streams []op.StreamInfo) (map[string][]byte, error) {
	doc, err := httpapi.OpenAPI(infos, streams, "")
	if err != nil {
		return nil, err
	}
	files := pages(infos, streams)
	files[lockFile] = bytes.Replace(doc, []byte("{\n"), []byte(lockMark), 1)
	return files, nil
}
