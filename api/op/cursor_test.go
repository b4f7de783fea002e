package op

import (
	"encoding/base64"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
)

func TestCursor(t *testing.T) {
	filters := []any{"sandboxes", map[string]string{"state": "running"}, 3}
	c := EncodeCursor(filters, "2026", "sbx_1")
	got, err := DecodeCursor(*c, filters, 2)
	if diff := cmp.Diff([]string{"2026", "sbx_1"}, got); diff != "" || err != nil {
		t.Errorf("%v, keys (-want +got):\n%s", err, diff)
	}
	if got, err := DecodeCursor("", filters, 2); got != nil || err != nil {
		t.Errorf("no cursor: got %v, %v", got, err)
	}
	tests := []struct {
		name    string
		cursor  string
		filters any
		keys    int
	}{
		{"other filters", *c, []any{"sandboxes", map[string]string{"state": "stopped"}, 3}, 2},
		{"other list", *c, []any{"keys"}, 2},
		{"fewer keys", *c, filters, 1},
		{"more keys", *c, filters, 3},
		{"cut", (*c)[:len(*c)-3], filters, 2},
		{"not base64", "%%%", filters, 2},
		{"not JSON", base64.RawURLEncoding.EncodeToString([]byte("x")), filters, 2},
		{"null", base64.RawURLEncoding.EncodeToString([]byte("null")), filters, 2},
	}
	for _, tt := range tests {
		if got, err := DecodeCursor(tt.cursor, tt.filters, tt.keys); !errs.Is(err, errs.InvalidCursor) {
			t.Errorf("%s: got %v, %v", tt.name, got, err)
		}
	}
}

func TestMoment(t *testing.T) {
	at, id, err := DecodeMoment(*EncodeMoment("x", 1764500000000001, "sbx_1"), "x")
	if at != 1764500000000001 || id != "sbx_1" || err != nil {
		t.Errorf("got %d, %q, %v", at, id, err)
	}
	if at, id, err := DecodeMoment("", "x"); at != 0 || id != "" || err != nil {
		t.Errorf("no cursor: got %d, %q, %v", at, id, err)
	}
	if _, _, err := DecodeMoment(*EncodeCursor("x", "2026", "sbx_1"), "y"); !errs.Is(err, errs.InvalidCursor) {
		t.Errorf("other filters: %v", err)
	}
	if _, _, err := DecodeMoment(*EncodeCursor("x", "today", "sbx_1"), "x"); !errs.Is(err, errs.InvalidCursor) {
		t.Errorf("no time: %v", err)
	}
}

func FuzzCursor(f *testing.F) {
	f.Add("a", "b", *EncodeCursor("x", "1", "2"))
	f.Add("", "\x00\xff", "!")
	f.Fuzz(func(t *testing.T, first, second, raw string) {
		if keys, err := DecodeCursor(raw, "x", 2); err == nil && raw != "" && len(keys) != 2 {
			t.Errorf("%q gives %q", raw, keys)
		} else if err != nil && !errs.Is(err, errs.InvalidCursor) {
			t.Errorf("%q: %v", raw, err)
		}
		got, err := DecodeCursor(*EncodeCursor(second, first, second), second, 2)
		if err != nil || len(got) != 2 {
			t.Errorf("got %q, %v back", got, err)
		}
	})
}
