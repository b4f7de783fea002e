// Command gen writes the part of the TypeScript client that follows from the OpenAPI document: the types of every operation's input and output, and a
// method for each. It owns their form; how a call is made is the client's own, in src/runtime.ts.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

const (
	document = "api/openapi.lock.json"
	output   = "clients/typescript/src/generated.ts"
)

func main() {
	root := flag.String("root", ".", "the root of the repository")
	flag.Parse()
	if err := run(*root); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(root string) error {
	raw, err := os.ReadFile(filepath.Join(root, document))
	if err != nil {
		return err
	}
	var doc openapi
	if err := json.Unmarshal(raw, &doc); err != nil {
		return fmt.Errorf("read %s: %w", document, err)
	}
	text, err := generate(&doc)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, output), text, 0o644)
}
