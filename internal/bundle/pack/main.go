// Command pack compresses programs into the bundle that berth is built with. It owns nothing but its command line: pack -o DIR PROGRAM…
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/berthrun/berth/internal/bundle"
)

func main() {
	dir := flag.String("o", "", "folder that the bundle is written to")
	flag.Parse()
	if *dir == "" || flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: pack -o DIR PROGRAM…")
		os.Exit(2)
	}
	if err := bundle.Pack(*dir, flag.Args()...); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}
