package docs

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/fstest"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	pages "github.com/berthrun/berth/docs"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/errs"
)

func library(t testing.TB) *Library {
	t.Helper()
	l, err := New(pages.Files())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func small(t testing.TB, files map[string]string) *Library {
	t.Helper()
	m := fstest.MapFS{}
	for name, text := range files {
		m[name] = &fstest.MapFile{Data: []byte(text)}
	}
	l, err := New(m)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestParse(t *testing.T) {
	text := "<!-- Made. -->\n\n# The `page` [of](x.md) words\n\nFirst. Second.\n\n## One two\n\na\n\n```sh\n# no heading\n```\n\n### Deep\n\nb\n\n## One two\n\nc\n"
	p := parse("a/b.md", text)
	if p.ID != "a/b" || p.Title != "The page of words" || !strings.HasPrefix(p.Text, "# The") {
		t.Errorf("id %q, title %q, text %q", p.ID, p.Title, p.Text)
	}
	type row struct{ Anchor, Own, Whole string }
	var got []row
	for _, s := range p.Sections {
		got = append(got, row{s.Anchor, p.Text[s.Start:s.End], p.Text[s.Start:s.Whole]})
	}
	last := "## One two\n\nc\n"
	deep := "### Deep\n\nb\n\n"
	one := "## One two\n\na\n\n```sh\n# no heading\n```\n\n"
	head := "# The `page` [of](x.md) words\n\nFirst. Second.\n\n"
	want := []row{{"", head, p.Text}, {"one-two", one, one + deep}, {"deep", deep, deep}, {"one-two-1", last, last}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := firstSentence(p); got != "First." {
		t.Errorf("first sentence %q", got)
	}
}

func TestOrderAndNames(t *testing.T) {
	l := small(t, map[string]string{
		"README.md": "# Home\n\n## Start\n\n- [Later](z.md): the last letter, [see](a.md) it\n\n## Look up\n\n- [Reference](reference/): all\n- [Elsewhere](https://example.com/a.md): no\n",
		"z.md":      "# Zed\n\ntext\n", "a.md": "# Ay\n\nWhat it says. More.\n", "reference/README.md": "# Reference\n", "reference/b.md": "# Bee\n\ntext\n",
	})
	type row struct{ ID, Group, Summary string }
	var got []row
	for _, p := range l.Pages() {
		got = append(got, row{p.ID, p.Group, p.Summary})
	}
	want := []row{{"index", "", ""}, {"z", "Start", "the last letter, see it"}, {"reference", "Look up", "all"}, {"reference/b", "Look up", "text"}, {"a", "", "What it says."}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for name, id := range map[string]string{
		"z": "z", "z.md": "z", "/docs/z": "z", "docs/z.md": "z", " Z ": "z", "reference/": "reference", "reference/README.md": "reference", "README.md": "index", "": "index", "/docs/": "index",
	} {
		if p := l.Page(name); p == nil || p.ID != id {
			t.Errorf("page %q: %+v", name, p)
		}
	}
	for _, name := range []string{"nothing", "../z", "reference/../z", "z\x00"} {
		if p := l.Page(name); p != nil {
			t.Errorf("page %q: %s", name, p.ID)
		}
	}
}

func TestBroken(t *testing.T) {
	for name, m := range map[string]fstest.MapFS{
		"no index": {"a.md": {Data: []byte("# A\n")}},
		"no title": {"README.md": {Data: []byte("# A\n")}, "b.md": {Data: []byte("text\n")}},
	} {
		if _, err := New(m); errs.CodeOf(err) != errs.InvalidConfig {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWords(t *testing.T) {
	for text, want := range map[string]string{
		"How do I delete, deleting, deletes or deleted it?": "delet delet delet delet",
		"run_command and idempotencyKey":                    "run_command run command idempotencykey idempotency key",
		"stopping stops stopped stop":                       "stop stop stop stop",
		"processes process policies policy":                 "process process policy policy",
		"LIMIT_EXCEEDED":                                    "limit_exceeded limit exceed",
		"Größe: 64 GB":                                      "größ 64 gb",
	} {
		if got := strings.Join(words(text), " "); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// do carries an operation out as a face would.
func do[Out any](t *testing.T, l *Library, name, input string) (*Out, error) {
	t.Helper()
	r := op.NewRegistry()
	l.Register(r)
	ctx := caller.With(t.Context(), &caller.Caller{OrgID: "org_1"})
	o := r.Get(name)
	in, err := o.Decode([]byte(input))
	if err != nil {
		return nil, err
	}
	d, err := o.Draft(ctx, in)
	if err != nil {
		return nil, err
	}
	out, err := o.Act(ctx, in, d)
	if err != nil {
		return nil, err
	}
	b, err := op.Encode(out)
	if err != nil {
		t.Fatal(err)
	}
	if n := utf8.RuneCount(b); n >= 16_000 {
		t.Errorf("%s %s: the result has %d characters", name, input, n)
	}
	return out.(*Out), nil
}

// Every page can be read whole, in parts of which each is less than a result may have.
func TestReadParts(t *testing.T) {
	l := library(t)
	parts := 0
	for _, p := range l.Pages() {
		var whole strings.Builder
		for offset := 0; ; {
			in, err := json.Marshal(api.ReadDocIn{Page: p.ID, Offset: offset})
			if err != nil {
				t.Fatal(err)
			}
			out, err := do[api.ReadDocOut](t, l, "docs.read", string(in))
			if err != nil {
				t.Fatal(err)
			}
			whole.WriteString(out.Text)
			parts++
			if out.NextOffset == 0 {
				break
			}
			if out.NextOffset <= offset {
				t.Fatalf("%s: from %d to %d", p.ID, offset, out.NextOffset)
			}
			if offset == 0 && len(out.Sections) == 0 && len(p.Sections) > 1 {
				t.Errorf("%s: a part without the list of sections", p.ID)
			}
			offset = out.NextOffset
		}
		if whole.String() != p.Text {
			t.Errorf("%s: the parts are not the page", p.ID)
		}
	}
	if parts <= len(l.Pages()) {
		t.Error("no page was so long that it came in parts")
	}
}

func TestLongLine(t *testing.T) {
	long := strings.Repeat("ä\"", partSize)
	l := small(t, map[string]string{"README.md": "# A\n\n" + long + "\n"})
	var got strings.Builder
	for offset := 0; ; {
		out, err := l.actRead(context.Background(), &api.ReadDocIn{Page: "index", Offset: offset}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !utf8.ValidString(out.Text) {
			t.Fatal("a character was cut")
		}
		got.WriteString(out.Text)
		if offset = out.NextOffset; offset == 0 {
			break
		}
	}
	if got.String() != l.Page("index").Text {
		t.Error("the parts are not the page")
	}
}

func TestReadSection(t *testing.T) {
	l := small(t, map[string]string{"README.md": "# A\n", "b.md": "# B\n\n## First part\n\none\n\n### Deep\n\ntwo\n\n## Second\n\nthree\n"})
	for _, in := range []string{
		`{"page":"b","section":"first-part"}`, `{"page":"b#first-part"}`, `{"page":"b","section":"First part"}`, `{"page":"b.md","section":"#first-part"}`,
	} {
		out, err := do[api.ReadDocOut](t, l, "docs.read", in)
		if err != nil || out.Text != "## First part\n\none\n\n### Deep\n\ntwo\n\n" {
			t.Errorf("%s: %+v %v", in, out, err)
		}
	}
	for in, reason := range map[string]string{`{"page":"b","section":"third"}`: "unknown_section", `{"page":"first part"}`: "unknown_page", `{"page":"b","offset":1000}`: ""} {
		_, err := do[api.ReadDocOut](t, l, "docs.read", in)
		e, ok := errors.AsType[*errs.Error](err)
		if !ok || e.Reason != reason || e.Suggestion == "" {
			t.Errorf("%s: %v", in, err)
		}
		if reason == "unknown_page" && !strings.Contains(e.Suggestion, "Perhaps b") {
			t.Errorf("%s: %s", in, e.Suggestion)
		}
	}
}

func TestList(t *testing.T) {
	l := library(t)
	out, err := do[api.ListDocsOut](t, l, "docs.list", `{}`)
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Items) != len(l.Pages())-1 {
		t.Errorf("%d of %d pages", len(out.Items), len(l.Pages()))
	}
	for _, p := range out.Items {
		if p.Title == "" || p.Summary == "" {
			t.Errorf("%+v says too little", p)
		}
	}
}

func TestSearchIsTerse(t *testing.T) {
	l := library(t)
	out, err := do[api.SearchDocsOut](t, l, "docs.search", `{"query":"how do I keep a sandbox running"}`)
	if err != nil || len(out.Items) != defaultHits {
		t.Fatalf("%+v %v", out, err)
	}
	b, err := op.Encode(out)
	if err != nil {
		t.Fatal(err)
	}
	if n := utf8.RuneCount(b); n > 2400 {
		t.Errorf("five hits take %d characters", n)
	}
	none, err := do[api.SearchDocsOut](t, l, "docs.search", `{"query":"xyzzy ???"}`)
	if err != nil || len(none.Items) != 0 {
		t.Errorf("nonsense finds %+v %v", none, err)
	}
}

func BenchmarkSearch(b *testing.B) {
	l := library(b)
	l.Search("warm", 1)
	for b.Loop() {
		l.Search("how do I keep a sandbox running while a command waits for input", 5)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("# A\n\n```\n# b\n")
	f.Add("<!-- x")
	f.Fuzz(func(t *testing.T, text string) {
		p := parse("a.md", text)
		end := -1
		for _, s := range p.Sections {
			if s.Start <= end || s.End < s.Start || s.Whole < s.End || s.Whole > len(p.Text) {
				t.Fatalf("section %+v after %d in %d", s, end, len(p.Text))
			}
			end = s.Start
		}
		newIndex([]*Page{p}).score(&part{terms: map[string]float64{}}, terms(text))
	})
}
