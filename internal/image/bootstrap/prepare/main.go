// Command prepare makes the base image before there is a berth to ask for it, for the tests, and prints the path of its tree. It owns
// nothing but its flags.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/image/bootstrap"
)

func main() {
	dir := flag.String("dir", "", "folder that images are kept in")
	verbose := flag.Bool("v", false, "show the output of the programs that are run")
	ca := flag.String("trust-host-ca", "", "PEM file of certificates that the image trusts too")
	flag.Parse()
	if err := run(*dir, *ca, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "prepare:", err)
		os.Exit(1)
	}
}

func run(dir, ca string, verbose bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	bar := bootstrap.NewBar(os.Stderr)
	defer bar.Close()
	opts := bootstrap.Options{Dir: dir, TrustHostCA: ca, Progress: bar.Progress}
	if verbose {
		opts.Log = os.Stderr
	}
	start := time.Now()
	res, err := bootstrap.Prepare(ctx, opts)
	if err != nil {
		return err
	}
	bar.Close()
	if !res.Cached {
		fmt.Fprintf(os.Stderr, "base image %s: %d packages, %d MiB, %s\n", res.ID, res.Packages, res.Bytes>>20, time.Since(start).Round(time.Second))
	}
	fmt.Println(res.Rootfs)
	return nil
}
