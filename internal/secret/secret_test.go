package secret

import (
	"bytes"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/errs"
)

// TestBox: what is sealed opens for its organization and row alone, with this key file alone, and shows nothing where it is stored.
func TestBox(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		path := filepath.Join(t.TempDir(), "key")
		w, err := File(path)
		if err != nil {
			t.Fatal(err)
		}
		b := New(w, nil)
		seal := func(org, row, text string) (sealed string) {
			t.Helper()
			err := d.Tx(t.Context(), func(tx *sql.Tx) (err error) {
				sealed, err = b.Seal(t.Context(), tx, org, row, []byte(text))
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			return sealed
		}
		one, again := seal("org_a", "registry/x", "hunter2"), seal("org_a", "registry/x", "hunter2")
		if one == again || strings.Contains(one, "hunter2") {
			t.Errorf("sealed %q and %q", one, again)
		}
		seal("org_b", "registry/x", "other")
		for _, box := range []*Box{b, New(w, nil)} { // with its memory and without
			got, err := box.Open(t.Context(), d, "org_a", "registry/x", one)
			if err != nil || string(got) != "hunter2" {
				t.Errorf("opened %q, %v", got, err)
			}
		}
		for what, try := range map[string][3]string{
			"another organization": {"org_b", "registry/x", one}, "another row": {"org_a", "registry/y", one},
			"changed": {"org_a", "registry/x", one[:len(one)-2] + "AA"}, "no form": {"org_a", "registry/x", "x"}, "an organization without a key": {"org_c", "registry/x", one},
		} {
			if got, err := b.Open(t.Context(), d, try[0], try[1], try[2]); err == nil {
				t.Errorf("%s: opened %q", what, got)
			}
		}
		other, err := File(filepath.Join(t.TempDir(), "key"))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := New(other, nil).Open(t.Context(), d, "org_a", "registry/x", one); err == nil {
			t.Errorf("with another key file: %q", got)
		}
		if _, err := New(nil, nil).Seal(t.Context(), d, "org_a", "r", nil); !errs.Is(err, errs.Unavailable) {
			t.Errorf("without a key: %v", err)
		}
	})
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	one, err := File(path)
	if err != nil {
		t.Fatal(err)
	}
	two, err := File(path)
	if err != nil {
		t.Fatal(err)
	}
	wrapped, err := one.Wrap(t.Context(), []byte("key"), []byte("b"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := two.Unwrap(t.Context(), wrapped, []byte("b")); err != nil || !bytes.Equal(got, []byte("key")) {
		t.Errorf("read again: %q, %v", got, err)
	}
	if _, err := two.Unwrap(t.Context(), wrapped, []byte("c")); err == nil {
		t.Error("unwrapped for something else")
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := os.Chmod(path, 0o644); err != nil { //nolint:gosec // what is refused
		t.Fatal(err)
	}
	if _, err := File(path); !errs.Is(err, errs.InvalidConfig) {
		t.Errorf("readable by others: %v", err)
	}
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := File(path); !errs.Is(err, errs.InvalidConfig) {
		t.Errorf("no key: %v", err)
	}
}

func TestMain(m *testing.M) { dbtest.Main(m) }
