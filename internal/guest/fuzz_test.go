package guest

import (
	"encoding/json"
	"path"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// Whatever a guest sends as an export, decoding it ends, and what is passed on keeps to the protocol.
func FuzzDecodeExport(f *testing.F) {
	f.Add(`{"process":{` + goodEnded + `}}` + "\n" + `{"chunk":{"stream":"stdout","offset":3,"data":"YWI="}}` + "\n" + `{"end":{"processes":1}}`)
	f.Add(`{"end":{"processes":0}}`)
	f.Add("{}\n")
	f.Fuzz(func(t *testing.T, stream string) {
		var last *Process
		next := map[string]int64{}
		_ = DecodeExport(strings.NewReader(stream), func(rec ExportRecord) error {
			switch {
			case rec.Process != nil:
				last, next = rec.Process, map[string]int64{}
				if checkProcess(last) != nil {
					t.Error("a bad process was passed on")
				}
			case rec.Chunk != nil:
				if last == nil || rec.Chunk.Offset < next[rec.Chunk.Stream] || len(rec.Chunk.Data) == 0 || len(rec.Chunk.Data) > OutputBytes {
					t.Errorf("a bad chunk was passed on: %+v", rec.Chunk)
				}
				next[rec.Chunk.Stream] = rec.Chunk.Offset + int64(len(rec.Chunk.Data))
			default:
				t.Error("an empty record was passed on")
			}
			return nil
		})
	})
}

// Whatever a guest answers, the checks do not fail and what passes them keeps what they promise.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte(`{"data":"YWI=","offset":5,"next":7,"earliest":0,"eof":false,"process":{`+goodRunning+`}}`), int64(5))
	f.Add([]byte(`{"entries":[{`+goodFile+`}],"more":true,"next":"/d/g"}`), int64(1))
	f.Add([]byte("{"+goodFile+"}"), int64(0))
	f.Fuzz(func(t *testing.T, body []byte, offset int64) {
		offset = max(offset, 0)
		var o Output
		if json.Unmarshal(body, &o) == nil && checkOutput(&o, offset, 100) == nil {
			if o.Next < o.Offset || len(o.Data) > 100 || len(o.Data) > 0 && o.Offset < offset {
				t.Errorf("passed: %+v", o)
			}
		}
		var l FileEntries
		if json.Unmarshal(body, &l) == nil && checkEntries(&l, "/d", &FileList{}, 10) == nil {
			for _, e := range l.Entries {
				if !strings.HasPrefix(e.Path, "/d/") || path.Clean(e.Path) != e.Path {
					t.Errorf("passed: %q", e.Path)
				}
			}
			if !slices.IsSortedFunc(l.Entries, func(a, b FileInfo) int { return comparePaths(a.Path, b.Path) }) {
				t.Error("passed out of order")
			}
		}
		var x ExecResult
		if json.Unmarshal(body, &x) == nil {
			_, _ = checkProcess(&x.Process), checkExcerpt(&x.Stdout)
		}
		if err := answeredError(500, body); err == nil || !utf8.ValidString(err.Error()) {
			t.Errorf("error = %v", err)
		}
	})
}

// A cleaned path is absolute, clean, without NUL and bounded, and cleaning it again changes nothing.
func FuzzCleanPath(f *testing.F) {
	for _, p := range []string{"", "/", "a", "../..", "/a//b/./..", "a\x00b", strings.Repeat("x/", 3000), "~", "/..", "a/", "./-", "\xff"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		got, err := cleanPath(p)
		if err != nil {
			return
		}
		again, err := cleanPath(got)
		if err != nil || again != got || !path.IsAbs(got) || path.Clean(got) != got || strings.Contains(got, "\x00") || len(got) > MaxPathBytes || slices.Contains(strings.Split(got, "/"), "..") {
			t.Errorf("cleanPath(%q) = %q, then %q, %v", p, got, again, err)
		}
	})
}

// matchSimple is what a glob means, by trying everything.
func matchSimple(pattern, names []string) bool {
	if len(pattern) == 0 {
		return len(names) == 0
	}
	if pattern[0] == "**" {
		return matchSimple(pattern[1:], names) || len(names) > 0 && matchSimple(pattern, names[1:])
	}
	if len(names) == 0 {
		return false
	}
	ok, _ := path.Match(pattern[0], names[0])
	return ok && matchSimple(pattern[1:], names[1:])
}

// A glob matches what its meaning says, and never gives up on a directory in which something matches.
func FuzzGlob(f *testing.F) {
	for _, s := range [][2]string{{"**/*.go", "a/b/c.go"}, {"a/**/b", "a/b"}, {"*", "a"}, {"**", "a/b"}, {"a/**/**/b/**", "a/x/b/y"}, {"[a-c]?/x", "bz/x"}, {"\\*", "*"}, {"**/a/**/b", "a/a/c/b"}} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, pattern, p string) {
		g, err := parseGlob(pattern)
		names := strings.Split(p, "/")
		if err != nil || g == nil || len(names) > 8 || len(g.names) > 8 {
			return
		}
		st := g.start()
		goOn := true
		for i, name := range names {
			st = g.step(st, name)
			if i < len(names)-1 && !g.canGoOn(st) {
				goOn = false
			}
		}
		got, want := g.matches(st), matchSimple(g.names, names)
		if got != want {
			t.Errorf("%q matches %q: %v, want %v", pattern, p, got, want)
		}
		if want && !goOn {
			t.Errorf("%q gave up on the way to %q", pattern, p)
		}
	})
}

// What is shortened is short, and text.
func FuzzClip(f *testing.F) {
	f.Add("héllo", 2)
	f.Add("\xff\xff", 1)
	f.Fuzz(func(t *testing.T, s string, n int) {
		n = min(max(n, 0), 100)
		if got := clip(s, n); len(got) > n || !utf8.ValidString(got) {
			t.Errorf("clip(%q, %d) = %q", s, n, got)
		}
	})
}
