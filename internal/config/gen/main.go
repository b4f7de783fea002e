// Command gen writes the page that lists every key of the configuration. It owns nothing but where the page is.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/berthrun/berth/internal/config"
)

func main() {
	out := flag.String("o", "docs/reference/configuration.md", "the file to write")
	flag.Parse()
	if err := os.WriteFile(*out, []byte(config.Reference()), 0o644); err != nil { //nolint:gosec // a page for everybody
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}
