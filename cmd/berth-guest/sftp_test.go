package main

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/pkg/sftp"

	"github.com/berthrun/berth/internal/guest"
)

// SFTP has the rights of its account and no others: it makes that account's files, and does not read what root alone may.
func TestSFTP(t *testing.T) {
	b := boot(t)
	dir, err := os.MkdirTemp("", "sftp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	secret := filepath.Join(dir, "secret")
	if err := errors.Join(os.Chmod(dir, 0o777), os.WriteFile(secret, []byte("x"), 0o600), os.Chmod(filepath.Dir(built), 0o755)); err != nil {
		t.Fatal(err)
	}
	a, err := b.Attach(t.Context(), guest.Attach{Start: &guest.Start{ID: "proc_1", SFTP: true, User: "65534:65534", Cwd: dir, Linger: &guest.Linger{}}})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	c, err := sftp.NewClientPipe(a.Stdout, closing{a})
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 3<<20)
	_, _ = rand.Read(data)
	f, err := c.Create("made") // relative to where it was started
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(f, bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	got, err := os.ReadFile(filepath.Join(dir, "made"))
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes arrived, %v", len(got), err)
	}
	if st, err := os.Stat(filepath.Join(dir, "made")); err != nil || st.Sys().(*syscall.Stat_t).Uid != 65534 {
		t.Errorf("the file is not the account's: %v", err)
	}
	if _, err := c.Open(secret); !os.IsPermission(err) {
		t.Errorf("root's file was opened: %v", err)
	}
	if err := c.PosixRename("made", "moved"); err != nil {
		t.Error(err)
	}
	if err := c.Symlink("moved", "link"); err != nil {
		t.Error(err)
	}
	if to, err := os.Readlink(filepath.Join(dir, "link")); err != nil || to != "moved" {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	_ = c.Close()
	if p, err := a.Wait(); err != nil || p.ExitCode != 0 {
		t.Errorf("it ended as %+v, %v", p, err)
	}
}

// closing ends standard input when it is closed.
type closing struct{ *guest.Attached }

func (c closing) Close() error { return c.CloseWrite() }
