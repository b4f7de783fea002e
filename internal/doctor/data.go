package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/bundle"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/disk"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/bootstrap"
)

const again = "Run it again with sudo."

func (d *doctor) disks() {
	dir := filepath.Join(d.Data, "node", "disks")
	desc, err := disk.Probe(dir, disk.Kind(d.Disk))
	switch {
	case errors.Is(err, fs.ErrPermission):
		d.add("node.disk", Skipped, "the data folder may not be read", again)
	case err != nil:
		d.add("node.disk", Error, err.Error(), "Set node.disk to another kind, or leave it out.")
	case len(desc.Missing) > 0:
		d.add("node.disk", Warn, string(desc.Kind)+" on "+disk.Filesystem(existing(d.Data))+": "+strings.Join(desc.Missing, "; "),
			"Install btrfs-progs, or put the data folder on btrfs, before the first sandbox is made.")
	default:
		d.add("node.disk", OK, string(desc.Kind)+" on "+disk.Filesystem(existing(d.Data))+": limits are enforced", "")
	}
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// existing is the nearest folder above a path that is there.
func existing(path string) string {
	for path != "/" && path != "." && !there(path) {
		path = filepath.Dir(path)
	}
	return path
}

func (d *doctor) space() {
	var st unix.Statfs_t
	dir := existing(d.Data)
	if err := unix.Statfs(dir, &st); err != nil {
		d.add("data.space", Skipped, err.Error(), "")
		return
	}
	free := int64(st.Bavail) * st.Bsize //nolint:gosec // far below the largest number
	found := fmt.Sprintf("%s free in %s", size(free), dir)
	switch {
	case free < 2<<30:
		d.add("data.space", Error, found, "Make room: the base image alone takes about 1 GiB.")
	case free < 10<<30, st.Files > 0 && st.Ffree < st.Files/50:
		d.add("data.space", Warn, found+fmt.Sprintf(", %d files left", st.Ffree), "Sandboxes that fill the disk stop all of them: make room.")
	default:
		d.add("data.space", OK, found, "")
	}
}

func size(n int64) string {
	if n >= 10<<30 {
		return fmt.Sprintf("%d GiB", n>>30)
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// permissions looks at who else could read keys, the database or the configuration's password.
func (d *doctor) permissions() {
	st, err := os.Stat(d.Data)
	if errors.Is(err, fs.ErrNotExist) {
		d.add("data.folder", OK, d.Data+" is not there yet: serve makes it", "")
		return
	}
	if err != nil {
		d.add("data.folder", Skipped, d.Data+" may not be looked at", again)
		return
	}
	if st.Mode().Perm()&0o077 != 0 {
		d.add("data.folder", Warn, fmt.Sprintf("%s is open to others (%04o)", d.Data, st.Mode().Perm()), "chmod 0700 "+d.Data)
	} else {
		d.add("data.folder", OK, d.Data+" is its owner's alone", "")
	}
	entries, err := os.ReadDir(d.Data)
	if err != nil {
		d.add("data.files", Skipped, "its files may not be looked at", again)
		return
	}
	var open []string
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
			open = append(open, filepath.Join(d.Data, e.Name()))
		}
	}
	if len(open) > 0 {
		d.add("data.files", Error, "open to others: "+strings.Join(open, ", "), "They hold keys and the database: chmod 0600 "+strings.Join(open, " "))
	} else {
		d.add("data.files", OK, "keys and database are their owner's alone", "")
	}
	if d.ConfigFile == "" {
		return
	}
	if st, err := os.Stat(d.ConfigFile); err == nil && st.Mode().Perm()&0o007 != 0 && strings.Contains(d.Database, "@") {
		d.add("config.file", Error, d.ConfigFile+" is readable by everybody and names a database with a user", "chmod 0640 "+d.ConfigFile)
	}
}

func (d *doctor) database(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	st, err := db.Probe(ctx, d.Database)
	switch {
	case errors.Is(err, fs.ErrPermission):
		d.add("database", Skipped, "it may not be opened", again)
		return
	case err != nil && !d.isRoot() && st.Dialect == db.SQLite:
		d.add("database", Skipped, "it may not be opened: "+err.Error(), again)
		return
	case err != nil:
		d.add("database", Error, string(st.Dialect)+" does not answer: "+err.Error(), "Check database.url, and that the database runs and lets this machine in.")
		return
	case st.Fresh:
		d.add("database", OK, string(st.Dialect)+", without tables: serve makes them", "")
	case st.Version > st.Newest:
		d.add("database", Error, fmt.Sprintf("a newer Berth has used it (migration %d, this one knows %d)", st.Version, st.Newest), "Install the newer Berth again: a database is never taken back.")
	case st.Version < st.Newest:
		d.add("database", Warn, fmt.Sprintf("migration %d of %d", st.Version, st.Newest), "The next start of serve brings it up to date. Make a backup first.")
	case st.Latency > 50*time.Millisecond:
		d.add("database", Warn, fmt.Sprintf("%s answers in %v", st.Dialect, st.Latency.Round(time.Millisecond)), "Every call waits for it several times: put it nearer.")
	default:
		d.add("database", OK, strings.TrimSpace(fmt.Sprintf("%s %s", st.Dialect, st.Server))+fmt.Sprintf(", migration %d, answers in %v", st.Version, st.Latency.Round(10*time.Microsecond)), "")
	}
	if st.Dialect != db.Postgres {
		return
	}
	if off := st.Offset.Abs(); off > time.Second {
		d.add("database.clock", Warn, fmt.Sprintf("its clock is %v away from this machine's", off.Round(time.Millisecond)), "Synchronize both.")
	} else {
		d.add("database.clock", OK, fmt.Sprintf("%v away from this machine's", off.Round(time.Millisecond)), "")
	}
}

func (d *doctor) programs() {
	opts := bundle.Options{Dir: filepath.Join(d.Data, "node"), Runtime: d.Runtime, Guest: d.Guest}
	hash, err := bundle.Hash(opts, bundle.Runtime)
	if err == nil {
		_, err = bundle.Hash(opts, bundle.Guest)
	}
	if err != nil {
		d.add("node.programs", Error, errs.From(err).Message, errs.From(err).Suggestion)
		return
	}
	running, err := d.runtimeHash()
	switch {
	case errors.Is(err, fs.ErrPermission):
		d.add("node.programs", OK, "berth-runtime "+hash[:12]+" (whether it runs cannot be seen)", "")
	case err != nil, running == "":
		d.add("node.programs", OK, "berth-runtime "+hash[:12]+", not running", "")
	case running != hash:
		d.add("node.programs", Warn, "sandboxes run on berth-runtime "+running[:12]+", this Berth brings "+hash[:12], "It changes when berth-runtime starts anew, after the machine does or all sandboxes are stopped.")
	default:
		d.add("node.programs", OK, "berth-runtime "+hash[:12]+" runs", "")
	}
}

// runtimeHash is the hash of the berth-runtime that runs for this data folder; empty where none does.
func (d *doctor) runtimeHash() (string, error) {
	socket := filepath.Join(d.Data, "node", "runtime.sock")
	dirs, _ := filepath.Glob(d.rooted("proc/[0-9]*"))
	for _, dir := range dirs {
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		name, _, _ := strings.Cut(string(line), "\x00")
		if err != nil || !strings.HasPrefix(filepath.Base(name), "berth-runtime") || !strings.Contains(string(line), socket) {
			continue
		}
		return bundle.HashFile(filepath.Join(dir, "exe"))
	}
	return "", nil
}

func (d *doctor) image() {
	id, err := bootstrap.ID(bootstrap.Options{Dir: d.ImageDir, TrustHostCA: d.TrustHostCA})
	if err != nil {
		d.add("node.image", Error, errs.From(err).Message, "Use a Debian or Ubuntu machine: the base image is made of its own packages.")
		return
	}
	if _, err := os.ReadDir(d.ImageDir); errors.Is(err, fs.ErrPermission) {
		d.add("node.image", Skipped, d.ImageDir+" may not be looked at", again)
		return
	}
	res, err := bootstrap.Load(d.ImageDir, id)
	if errs.CodeOf(err) == errs.NotFound { // the last start of a server may have been told another folder; the node knows it
		if used, other := bootstrap.Load(filepath.Join(d.Data, "node", "images"), id); other == nil {
			res, err = used, nil
		}
	}
	switch {
	case err == nil:
		d.add("node.image", OK, fmt.Sprintf("the base image %s is prepared: %d packages, %d MiB", id[:12], res.Packages, res.Bytes>>20), "")
	case errors.Is(err, fs.ErrPermission):
		d.add("node.image", Skipped, d.ImageDir+" may not be looked at", again)
	case errs.CodeOf(err) == errs.NotFound:
		found := "the base image is not prepared"
		if others, _ := filepath.Glob(filepath.Join(d.ImageDir, "*", "image.json")); len(others) > 0 {
			found = "the base image of this version is not prepared; there are older ones"
		}
		d.add("node.image", Warn, found, "sudo berth prepare makes it, else the next start of serve does, which takes minutes.")
	default:
		d.add("node.image", Error, err.Error(), "Remove the folder of that image and run: sudo berth prepare")
	}
}
