package audit_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/audit"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/errs"
)

// as is a context of a caller of an organization.
func as(t *testing.T, org string) context.Context {
	c := who(org)
	return caller.With(t.Context(), &c)
}

func registry(log *audit.Log) *op.Registry {
	r := op.NewRegistry()
	log.Register(r)
	return r
}

func list(t *testing.T, r *op.Registry, org string, in map[string]any) (*api.ListAuditOut, error) {
	t.Helper()
	raw, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	o := r.Get("audit.list")
	decoded, err := o.Decode(raw)
	if err != nil {
		t.Fatal(err)
	}
	out, err := o.Act(as(t, org), decoded, nil)
	if err != nil {
		return nil, err
	}
	return out.(*api.ListAuditOut), nil
}

// numbers goes along all pages.
func numbers(t *testing.T, r *op.Registry, org string, in map[string]any) (all []int64) {
	t.Helper()
	for {
		out, err := list(t, r, org, in)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range out.Items {
			if row.OrganizationID != org || len(row.Hash) != 64 {
				t.Errorf("row %+v", row)
			}
			all = append(all, row.Number)
		}
		if out.NextCursor == nil {
			return all
		}
		in["cursor"] = *out.NextCursor
	}
}

func export(t *testing.T, r *op.Registry, org string, after int64) (string, error) {
	t.Helper()
	o := r.Stream("audit.export")
	in, err := o.Decode(fmt.Appendf(nil, `{"after":%d}`, after))
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	err = o.Serve(as(t, org), in, nil, &op.Stream{W: w, R: httptest.NewRequest("GET", "/", nil)})
	return w.Body.String(), err
}

func TestList(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		log := audit.New(audit.Config{DB: d})
		r := registry(log)
		if got := numbers(t, r, "org_a", map[string]any{}); len(got) != 0 {
			t.Errorf("an empty log has %v", got)
		}
		begun := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		for i := range 9 {
			e := read("org_a", fmt.Sprintf("sbx_%d", i%3))
			e.At = begun.Add(time.Duration(i) * 24 * time.Hour)
			switch i {
			case 4:
				e.Result = "NOT_FOUND"
			case 5:
				e.Operation = "sandboxes.exec"
			case 6:
				e.Caller.PersonID = "user_b"
			case 7:
				e.Caller.KeyID = "key_b"
			}
			log.Record(e)
		}
		log.Record(read("org_b", "sbx_0"))
		chain(t, log)
		if _, err := log.Drop(t.Context(), begun.Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		day := func(n int) string { return begun.Add(time.Duration(n) * 24 * time.Hour).Format(time.RFC3339) }
		for _, tt := range []struct {
			name string
			in   map[string]any
			want []int64
		}{
			{"all", map[string]any{}, []int64{9, 8, 7, 6, 5, 4, 3, 2}},
			{"pages", map[string]any{"limit": 3}, []int64{9, 8, 7, 6, 5, 4, 3, 2}},
			{"result", map[string]any{"result": "NOT_FOUND"}, []int64{5}},
			{"operation", map[string]any{"operation": "sandboxes.exec"}, []int64{6}},
			{"person", map[string]any{"principal": "user_b"}, []int64{7}},
			{"key", map[string]any{"principal": "key_b"}, []int64{8}},
			{"resource", map[string]any{"resource": "sbx_1", "limit": 1}, []int64{8, 5, 2}},
			{"start", map[string]any{"start": day(6)}, []int64{9, 8, 7}},
			{"end", map[string]any{"end": day(3)}, []int64{3, 2}},
			{"between, in pages", map[string]any{"start": day(3), "end": day(6), "limit": 1}, []int64{6, 5, 4}},
			{"two filters", map[string]any{"resource": "sbx_1", "start": day(2)}, []int64{8, 5}},
			{"later than all", map[string]any{"start": day(100)}, nil},
			{"earlier than all", map[string]any{"end": day(-100)}, nil},
		} {
			if got := numbers(t, r, "org_a", tt.in); !slices.Equal(got, tt.want) {
				t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
			}
		}
		if got := numbers(t, r, "org_b", map[string]any{}); !slices.Equal(got, []int64{1}) {
			t.Errorf("the other organization has %v", got)
		}
		out, err := list(t, r, "org_a", map[string]any{"limit": 1})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := list(t, r, "org_a", map[string]any{"cursor": *out.NextCursor, "result": "ok"}); errs.CodeOf(err) != errs.InvalidCursor {
			t.Errorf("a cursor of other filters: %v", err)
		}
	})
}

// A rare row is found behind many others, in pages that may be empty.
func TestListFar(t *testing.T) {
	d := dbtest.Open(t, dbtest.SQLite(t))
	log := audit.New(audit.Config{DB: d})
	rare := read("org_a", "sbx_rare")
	rare.At = time.Now().Add(-time.Minute)
	log.Record(rare)
	for range 21_000 {
		log.Record(read("org_a", "sbx_1"))
	}
	chain(t, log)
	out, err := list(t, registry(log), "org_a", map[string]any{"resource": "sbx_rare"})
	if err != nil || len(out.Items) != 0 || out.NextCursor == nil {
		t.Fatalf("the first page: %+v, %v", out, err)
	}
	if got := numbers(t, registry(log), "org_a", map[string]any{"resource": "sbx_rare"}); !slices.Equal(got, []int64{1}) {
		t.Errorf("got %v", got)
	}
}

// TestExport takes an export apart: whatever is changed in it, by a byte, is found without a database.
func TestExport(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		log := audit.New(audit.Config{DB: d})
		r := registry(log)
		if text, err := export(t, r, "org_a", 0); err != nil || text != "" {
			t.Errorf("an empty log: %q, %v", text, err)
		}
		for i := range 1300 { // more than are read at once
			log.Record(read([]string{"org_a", "org_a", "org_b"}[i%3], "sbx_1"))
		}
		chain(t, log)
		text, err := export(t, r, "org_a", 0)
		if err != nil {
			t.Fatal(err)
		}
		v, err := audit.VerifyExport(strings.NewReader(text), verify(t, d, audit.Mark{})[0].Last)
		if err != nil || v.Wrong != nil || v.Rows != 867 || v.First.Number != 1 || v.Last.Number != 867 || !v.Seen || v.Organization != "org_a" {
			t.Fatalf("the export: %+v, %v", v, err)
		}
		lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
		for _, line := range lines[:3] {
			documented(t, line)
		}
		again, err := export(t, r, "org_a", 860)
		if err != nil || again != strings.Join(lines[860:], "")+"\n" {
			t.Errorf("it goes on with %q, %v", again, err)
		}
		if v, err := audit.VerifyExport(strings.NewReader(again), v.Last); err != nil || v.Wrong != nil || v.Rows != 7 || v.Dropped != 860 || !v.Seen {
			t.Errorf("a part: %+v, %v", v, err)
		}
		if text, err := export(t, r, "org_a", 867); err != nil || text != "" {
			t.Errorf("nothing new: %q, %v", text, err)
		}
		if _, err := export(t, r, "org_a", 868); errs.CodeOf(err) != errs.InvalidInput {
			t.Errorf("after a row that is not there: %v", err)
		}
		change(t, d, `DELETE FROM audit WHERE org_id = 'org_a' AND seq = 600`)
		if _, err := export(t, r, "org_a", 0); errs.CodeOf(err) != errs.InvalidState {
			t.Errorf("a row is missing: %v", err)
		}
		tamper(t, lines)
	})
}

// documented takes the hash of a line as docs/audit.md tells others to.
func documented(t *testing.T, line string) {
	t.Helper()
	var row map[string]any
	dec := json.NewDecoder(strings.NewReader(line))
	dec.UseNumber()
	if err := dec.Decode(&row); err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	put := func(text string) { fmt.Fprintf(h, "%d:%s\n", len(text), text) }
	put("berth-audit-1")
	put(row["previousHash"].(string))
	for _, name := range strings.Fields(`number id organizationId workspaceId at principalId personId agentId appId keyId face client sourceIp requestId
		operation action resourceKind resourceId result durationUs endOf`) {
		if row[name] == nil {
			row[name] = ""
		}
		put(fmt.Sprint(row[name]))
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != row["hash"] {
		t.Errorf("%s has the hash %s", line, got)
	}
	if first := sha256.Sum256([]byte("berth-audit-1\norg_a")); row["number"] == json.Number("1") && row["previousHash"] != hex.EncodeToString(first[:]) {
		t.Errorf("it begins with %s", row["previousHash"])
	}
}

func tamper(t *testing.T, lines []string) {
	t.Helper()
	found := func(name string, number int64, changed ...string) {
		t.Helper()
		v, err := audit.VerifyExport(strings.NewReader(strings.Join(changed, "")), audit.Mark{})
		if err != nil || v.Wrong == nil || number > 0 && v.Wrong.Number != number {
			t.Errorf("%s: %+v, %v", name, v.Wrong, err)
		}
	}
	five := lines[:5]
	replaced := func(line string) []string { return append(append(slices.Clone(five[:2]), line), five[3:]...) }
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(five[2]), &members); err != nil {
		t.Fatal(err)
	}
	for name, v := range members {
		other := `"x` + strings.TrimPrefix(string(v), `"`)
		switch name {
		case "at":
			other = `"2020-01-02T03:04:05Z"`
		case "number", "durationUs":
			other = "77"
		}
		changed := strings.Replace(five[2], `"`+name+`":`+string(v), `"`+name+`":`+other, 1)
		if changed == five[2] {
			t.Errorf("%s is not changed", name)
		}
		found(name, 3, replaced(changed)...)
	}
	for name, changed := range map[string]string{
		"another member":  strings.Replace(five[2], `{`, `{"note":"x",`, 1),
		"a member twice":  strings.Replace(five[2], `{`, `{"result":"FORBIDDEN",`, 1),
		"a member's case": strings.Replace(five[2], `"result"`, `"Result"`, 1),
		"spaces":          strings.Replace(five[2], `{`, `{ `, 1),
		"no JSON":         "x\n",
		"something after": strings.TrimSuffix(five[2], "\n") + " {}\n",
		"a late end":      strings.Replace(five[2], `"hash"`, `"endOf":"aud_x","hash"`, 1),
	} {
		found(name, 3, replaced(changed)...)
	}
	found("a line removed", 3, five[0], five[1], five[3])
	found("lines exchanged", 3, five[0], five[1], five[3], five[2])
	found("a line twice", 2, five[0], five[1], five[1], five[2])
	found("half a line at the end", 5, five[0], five[1], five[2], five[3], five[4][:50])
	found("another organization's beginning", 1, strings.ReplaceAll(strings.Join(five, ""), "org_a", "org_c"))
	if _, err := audit.VerifyExport(bytes.NewReader([]byte("no export\n")), audit.Mark{}); err == nil {
		t.Error("a text is taken for an export")
	}
}
