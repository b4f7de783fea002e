package vault_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/blob"
	"github.com/berthrun/berth/internal/chunk"
	"github.com/berthrun/berth/internal/chunk/vault"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/errs"
)

// childFolder names the folder of a process that saves and drops trees until it is killed.
const childFolder = "BERTH_TEST_VAULT_CHILD"

// child works on the store in a folder: it says each tree's name once it is saved, and "-" with the name before it is dropped.
func child(dir string) int {
	ctx := context.Background()
	d, err := db.Open(ctx, db.Config{URL: "sqlite://" + filepath.Join(dir, "db")})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	blobs, err := blob.Open(ctx, filepath.Join(dir, "blobs"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	r := &rig{Store: vault.New(vault.Config{DB: d, Blobs: blobs, Grace: noGrace, Lease: time.Second}), db: d, blobs: blobs}
	content := noise(8, 12<<20)
	parent := ""
	from := filepath.Join(dir, "tree")
	for i := 0; ; i++ {
		seed := rand.Uint64() & 0xffffff
		copy(content[rand.IntN(len(content)-1<<20):], noise(seed, 1<<20))
		name := fmt.Sprintf("%d/%d", os.Getpid(), i)
		if err := errors.Join(os.MkdirAll(from, 0o700), os.WriteFile(filepath.Join(from, "f"), content, 0o600)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if _, err := r.put(ctx, "org_a", name, "disk", from); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println(name)
		if i > 2 {
			fmt.Println("-" + parent)
			if err := r.Drop(ctx, "org_a", parent); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		parent = name
		if _, err := r.Collect(ctx); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
}

// Killed at any moment, a store has every tree that it said it had, none by halves, and what was half made is collected.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	kept := map[string]bool{}
	exe, err := os.Executable()
	must(t, err)
	for i := range 8 {
		var failed bytes.Buffer
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), childFolder+"="+dir)
		cmd.Stderr = &failed
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			if name, gone := strings.CutPrefix(lines.Text(), "-"); gone {
				delete(kept, name)
			} else {
				kept[lines.Text()] = true
			}
			if n == i%4 { // and then anywhere in its work
				time.AfterFunc(rand.N(400*time.Millisecond), func() { _ = cmd.Process.Kill() })
			}
		}
		if err := cmd.Wait(); cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("the child ended by itself: %v\n%s", err, &failed)
		}
	}
	d := dbtest.Open(t, "sqlite://"+filepath.Join(dir, "db"))
	blobs, err := blob.Open(t.Context(), filepath.Join(dir, "blobs"))
	must(t, err)
	defer blobs.Close()
	r := &rig{Store: vault.New(vault.Config{DB: d, Blobs: blobs, Grace: noGrace}), db: d, blobs: blobs, dir: filepath.Join(dir, "blobs")}
	if _, err := d.ExecContext(t.Context(), `UPDATE chunk_leases SET expires_at = 1`); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		rows, err := d.QueryContext(t.Context(), `SELECT name FROM chunk_trees`)
		must(t, err)
		var names []string
		for rows.Next() {
			var n string
			must(t, rows.Scan(&n))
			names = append(names, n)
		}
		must(t, errors.Join(rows.Err(), rows.Close()))
		left := map[string]bool{}
		for _, n := range names {
			left[n] = true
			must(t, r.get(t.Context(), "org_a", n, t.TempDir()))
		}
		for n := range kept {
			if !left[n] {
				t.Errorf("%s is gone", n)
			}
		}
	}
	check()
	for range 3 {
		_, err := r.Collect(t.Context())
		must(t, err)
	}
	check()
	var needed int
	must(t, d.QueryRowContext(t.Context(), `SELECT count(DISTINCT pack_id) FROM chunk_uses`).Scan(&needed))
	if n, _ := r.objects(t); n != needed || needed == 0 {
		t.Errorf("there are %d objects, and %d are needed", n, needed)
	}
	if n := r.count(t, "chunk_leases"); n != 0 {
		t.Errorf("%d leases are left", n)
	}
}

// On a full disk a save fails with its code, what was there stays, and it works again once there is room.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root")
		}
		t.Skip("needs root: a small disk is mounted")
	}
	small := t.TempDir()
	must(t, syscall.Mount("tmpfs", small, "tmpfs", 0, "size=24m"))
	defer syscall.Unmount(small, syscall.MNT_DETACH) //nolint:errcheck // gone already where the test came to its end
	blobs, err := blob.Open(t.Context(), small)
	must(t, err)
	defer blobs.Close()
	d := dbtest.Open(t, dbtest.SQLite(t))
	r := &rig{Store: vault.New(vault.Config{DB: d, Blobs: blobs, Grace: noGrace}), db: d, blobs: blobs, dir: small}
	_, err = r.put(t.Context(), "org_a", "old", "disk", tree(t, noise(9, 8<<20)))
	must(t, err)
	large := tree(t, noise(10, 30<<20))
	if _, err := r.put(t.Context(), "org_a", "new", "disk", large); !errs.Is(err, errs.NoCapacity) {
		t.Errorf("Put on a full disk: %v", err)
	}
	r.same(t, "org_a", "old", noise(9, 8<<20))
	// The other side: no room to make the tree.
	tiny := filepath.Join(t.TempDir(), "m")
	must(t, os.Mkdir(tiny, 0o700))
	must(t, syscall.Mount("tmpfs", tiny, "tmpfs", 0, "size=2m"))
	err = r.get(t.Context(), "org_a", "old", tiny)
	must(t, syscall.Unmount(tiny, syscall.MNT_DETACH))
	if !errs.Is(err, errs.NoCapacity) {
		t.Errorf("Get on a full disk: %v", err)
	}
	_, err = r.Collect(t.Context())
	must(t, err)
	must(t, syscall.Mount("", small, "", syscall.MS_REMOUNT, "size=80m"))
	_, err = r.put(t.Context(), "org_a", "new", "disk", large)
	must(t, err)
	r.same(t, "org_a", "new", noise(10, 30<<20))
	r.same(t, "org_a", "old", noise(9, 8<<20))
	// A reserve is left to others.
	const reserve = 30 << 20
	r.Store = vault.New(vault.Config{DB: d, Blobs: blobs, Grace: noGrace, Reserve: reserve})
	if _, err := r.put(t.Context(), "org_a", "more", "disk", tree(t, noise(11, 30<<20))); !errs.Is(err, errs.NoCapacity) || errs.From(err).Reason != "disk_full" {
		t.Errorf("Put of what would take the reserve: %v", err)
	}
	if free, err := blobs.Free(); err != nil || free < reserve {
		t.Errorf("of %d bytes %d are left, %v", reserve, free, err)
	}
	r.same(t, "org_a", "new", noise(10, 30<<20))
	must(t, syscall.Unmount(small, syscall.MNT_DETACH))
}

var _ chunk.Vault = (*failing)(nil)
