// Package doctor owns the examination of a machine and a deployment: what Berth needs of them, whether it is there, and what to do where it is not.
//
// It changes nothing and needs no running server. What it may not look at, as somebody who is not root, it says so.
package doctor

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The outcomes of a check.
const (
	OK      = "ok"
	Warn    = "warn"    // it works, and something is worth knowing or will go wrong
	Error   = "error"   // something does not work
	Skipped = "skipped" // it could not be looked at
)

// Check is the outcome of one check.
type Check struct {
	ID     string `json:"id"` // such as host.cgroups
	Status string `json:"status"`
	Found  string `json:"found"`        // what there is
	Do     string `json:"do,omitempty"` // what to do about it
}

// Config says what is examined.
type Config struct {
	Data, ImageDir, ConfigFile string
	Database                   string   // a URL or a path
	Listen                     string   // address:port
	Left                       string   // the URL that the server of this data folder has left there, empty where none did
	PublicURL, MCPPath         string   // MCPPath is empty where there is no endpoint
	MCPURLs                    []string // endpoints to probe beside the own one
	Proxies                    bool     // proxies are trusted
	Runtime, Guest             string   // paths of the programs, empty: those in berth itself
	Disk, TrustHostCA          string
	Root                       string // of the machine's files; / where empty
	UID                        int
	HTTP                       *http.Client     // nil: one of its own
	Now                        func() time.Time // nil: time.Now
}

// probeTime bounds what is asked over a network.
const probeTime = 5 * time.Second

type doctor struct {
	Config
	checks []Check
}

// Run examines everything, in order.
func Run(ctx context.Context, c Config) []Check {
	if c.Root == "" {
		c.Root = "/"
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.HTTP == nil {
		c.HTTP = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	d := &doctor{Config: c}
	d.kernel()
	d.namespaces()
	d.cgroups()
	d.nftables()
	d.clock()
	d.disks()
	d.space()
	d.permissions()
	d.database(ctx)
	d.programs()
	d.image()
	running := d.server(ctx)
	d.ports(running)
	d.public(ctx)
	d.gates(ctx, running)
	return d.checks
}

func (d *doctor) add(id, status, found, do string) {
	d.checks = append(d.checks, Check{id, status, found, do})
}

// rooted gives a path of the machine that is examined.
func (d *doctor) rooted(path string) string { return filepath.Join(d.Root, path) }

// line reads the first line of a small file of the kernel, empty where there is none.
func (d *doctor) line(path string) string {
	b, err := os.ReadFile(d.rooted(path))
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(first)
}

func (d *doctor) isRoot() bool { return d.UID == 0 }

// Worst is the worst status of all checks: error, warn or ok.
func Worst(checks []Check) string {
	for _, s := range []string{Error, Warn} {
		if slices.ContainsFunc(checks, func(c Check) bool { return c.Status == s }) {
			return s
		}
	}
	return OK
}
