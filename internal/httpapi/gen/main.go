// Command gen writes what is generated from the operations: the lock of the OpenAPI document and the reference pages. It owns their form, and
// refuses a lock that would break a caller of the one before.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/httpapi/gen/growth"
)

func main() {
	root := flag.String("root", ".", "the root of the repository")
	breaking := flag.Bool("break", false, "write the lock even where that breaks callers")
	flag.Parse()
	if err := run(*root, *breaking); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(root string, mayBreak bool) error {
	files, err := generate(api.All(), api.AllStreams())
	if err != nil {
		return err
	}
	old, err := os.ReadFile(filepath.Join(root, lockFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !mayBreak:
		broken, err := growth.Breaks(old, files[lockFile])
		if err != nil {
			return err
		}
		if len(broken) > 0 {
			return fmt.Errorf("callers of the API would break; /v1 only grows:\n  %s\nrun with -break if that is meant", strings.Join(broken, "\n  "))
		}
	}
	stale, err := staleFiles(root, files)
	if err != nil {
		return err
	}
	for _, name := range stale {
		if err := os.Remove(filepath.Join(root, name)); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, files[name], 0o644); err != nil {
			return err
		}
	}
	return nil
}

// staleFiles are the generated pages that no operation asks for any more.
func staleFiles(root string, files map[string][]byte) ([]string, error) {
	pages, err := filepath.Glob(filepath.Join(root, pagesDir, "*.md"))
	if err != nil {
		return nil, err
	}
	var stale []string
	for _, page := range pages {
		name := filepath.ToSlash(filepath.Join(pagesDir, filepath.Base(page)))
		if files[name] != nil {
			continue
		}
		b, err := os.ReadFile(page)
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(string(b), pageMark) {
			stale = append(stale, name)
		}
	}
	return stale, nil
}
