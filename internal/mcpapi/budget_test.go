package mcpapi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/errs"
)

const (
	sandboxID = "sbx_abcdefghij0123456789"
	processID = "proc_abcdefghij0123456789"
)

func (h *host) readFile(_ context.Context, in *api.ReadFileIn) (*api.ReadFileOut, error) {
	content, ok := h.files[in.Path]
	if !ok {
		return nil, errs.E(errs.NotFound, "there is no such file")
	}
	limit, offset := in.Limit, in.Offset
	if limit == 0 {
		limit = 65536
	}
	if in.Cursor != "" {
		_, _ = fmt.Sscanf(in.Cursor, "at-%d", &offset)
	}
	part := content[offset:min(offset+limit, int64(len(content)))]
	out := &api.ReadFileOut{Encoding: "utf-8", Offset: offset, File: api.File{Path: in.Path, Size: int64(len(content))}}
	for len(part) > 0 && !utf8.ValidString(part) && utf8.ValidString(content) {
		part = part[:len(part)-1]
	}
	out.Data = part
	if !utf8.ValidString(content) || in.Encoding == "base64" {
		out.Data, out.Encoding = base64.StdEncoding.EncodeToString([]byte(part)), "base64"
	}
	out.NextOffset = offset + int64(len(part))
	if out.EOF = out.NextOffset == int64(len(content)); !out.EOF {
		c := fmt.Sprintf("at-%d", out.NextOffset)
		out.Cursor = &c
	}
	return out, nil
}

func contents() map[string]string {
	random := rand.New(rand.NewPCG(1, 2))
	binary := make([]byte, 60_000)
	for i := range binary {
		binary[i] = byte(random.Uint32())
	}
	return map[string]string{
		"short": "hello <b>&amp;</b>\n", "empty": "",
		"text":    strings.Repeat("The quick brown fox jumps over the lazy dog.\n", 2000),
		"quotes":  strings.Repeat(`"\`, 30_000),
		"control": strings.Repeat("\x00\x01\x1b[31m", 10_000),
		"markup":  strings.Repeat("<p>a & b</p>", 5000),
		"cjk":     strings.Repeat("船着き場の砂箱。", 4000),
		"emoji":   strings.Repeat("🚢⚓", 9000),
		"binary":  string(binary),
	}
}

// TestNothingOfAFileIsLost reads files part by part, by cursor and by offset, and puts them together again.
func TestNothingOfAFileIsLost(t *testing.T) {
	h := newHost(t, nil)
	h.files = contents()
	for name, want := range h.files {
		for _, by := range []string{"cursor", "offset"} {
			t.Run(name+" by "+by, func(t *testing.T) {
				var got strings.Builder
				args := map[string]any{"sandboxId": sandboxID, "path": name}
				for n := 0; ; n++ {
					out, _ := result[api.ReadFileOut](t, h.tool("/mcp", "read_file", args))
					if int64(got.Len()) != out.Offset || n > 40 {
						t.Fatalf("part %d is at %d, have %d", n, out.Offset, got.Len())
					}
					got.Write(decoded(t, out.Data, out.Encoding))
					if out.EOF {
						break
					}
					if args["offset"] = out.NextOffset; by == "cursor" {
						delete(args, "offset")
						args["cursor"] = *out.Cursor
					}
				}
				if got.String() != want {
					t.Errorf("got %d bytes, want %d", got.Len(), len(want))
				}
			})
		}
	}
}

func decoded(t *testing.T, data, encoding string) []byte {
	t.Helper()
	if encoding != "base64" {
		return []byte(data)
	}
	b, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestAskedLimitsOfFilesHold(t *testing.T) {
	h := newHost(t, nil)
	h.files = contents()
	out, _ := result[api.ReadFileOut](t, h.tool("/mcp", "read_file", map[string]any{"sandboxId": sandboxID, "path": "text", "limit": 100}))
	if len(out.Data) != 100 {
		t.Errorf("got %d bytes, want 100", len(out.Data))
	}
	e := toolError(t, h.tool("/mcp", "read_file", map[string]any{"sandboxId": sandboxID, "path": "text", "limit": 3}))
	if e.Code != errs.InvalidInput {
		t.Errorf("code %s", e.Code)
	}
}

// TestNothingOfOutputIsLost cuts a part of a process's output and looks where the next one would begin.
func TestNothingOfOutputIsLost(t *testing.T) {
	h := newHost(t, nil)
	for name, content := range contents() {
		t.Run(name, func(t *testing.T) {
			content = content[:min(len(content), 49152)]
			for utf8.ValidString(h.files[name]) && !utf8.ValidString(content) && name != "binary" {
				content = content[:len(content)-1]
			}
			h.output = api.ProcessOutputOut{
				Data: content, Encoding: "utf-8", NextOffset: 1000 + int64(len(content)), EOF: true,
				Process: api.Process{ID: processID, Command: strings.Repeat("echo ", 20_000)},
			}
			if name == "binary" {
				h.output.Data, h.output.Encoding = base64.StdEncoding.EncodeToString([]byte(content)), "base64"
			}
			out, text := result[api.ProcessOutputOut](t, h.tool("/mcp", "read_process_output", map[string]any{"sandboxId": sandboxID, "processId": processID, "offset": 1000}))
			got := string(decoded(t, out.Data, out.Encoding))
			if !strings.HasPrefix(content, got) || out.NextOffset != 1000+int64(len(got)) || out.EOF != (len(got) == len(content)) {
				t.Errorf("%d of %d bytes, next %d, eof %v", len(got), len(content), out.NextOffset, out.EOF)
			}
			if n := chars([]byte(text)); len(got) < len(content) && n < budget-200 {
				t.Errorf("only %d characters are used", n)
			}
		})
	}
}

func TestOutputOfCommandsIsShared(t *testing.T) {
	h := newHost(t, nil)
	long := strings.Repeat("0123456789", 6000)
	for name, tt := range map[string]struct {
		stdout, stderr     string
		wholeOut, wholeErr bool
	}{
		"both short":        {"hi\n", "warning\n", true, true},
		"both long":         {long, long, false, false},
		"long stdout":       {long, "the only line of stderr", false, true},
		"long stderr":       {"the only line of stdout", long, true, false},
		"quotes":            {strings.Repeat(`"`, 20_000), strings.Repeat(`\`, 20_000), false, false},
		"control":           {strings.Repeat("\x1b[0m\x00", 20_000), "", false, true},
		"runes":             {strings.Repeat("船🚢", 20_000), strings.Repeat("ü", 20_000), false, false},
		"one line":          {strings.Repeat("x", 100_000), "", false, true},
		"just below":        {strings.Repeat("x", 15_000), "", true, true},
		"markup":            {strings.Repeat("<>&", 4500), "", true, true},
		"separator of rows": {strings.Repeat("\u2028", 9000), "", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			code := 3
			h.exec = api.ExecOut{
				ExitCode: &code, Stdout: tt.stdout, Stderr: tt.stderr, ProcessID: processID,
				StdoutBytes: int64(len(tt.stdout)), StderrBytes: int64(len(tt.stderr)), OutputCut: &api.OutputCut{Stdout: 5}, Truncated: true,
			}
			out, text := result[api.ExecOut](t, h.tool("/mcp", "run_command", map[string]any{"sandboxId": sandboxID, "command": "x"}))
			kept(t, "stdout", tt.stdout, out.Stdout, out.OutputCut.Stdout-5, tt.wholeOut)
			kept(t, "stderr", tt.stderr, out.Stderr, out.OutputCut.Stderr, tt.wholeErr)
			if out.ProcessID != processID || *out.ExitCode != 3 || !out.Truncated || out.StdoutBytes != int64(len(tt.stdout)) {
				t.Errorf("the rest was changed: %+v", out)
			}
			if n := chars([]byte(text)); !(tt.wholeOut && tt.wholeErr) && n < budget-400 {
				t.Errorf("only %d characters are used", n)
			}
			if !tt.wholeOut && !tt.wholeErr {
				if a, b := cost(out.Stdout), cost(out.Stderr); a-b > 100 || b-a > 100 {
					t.Errorf("the streams have %d and %d", a, b)
				}
			}
		})
	}
}

// kept checks that a stream keeps its beginning and its end around a marker, and that the count of what is left out is right.
func kept(t *testing.T, name, whole, got string, left int64, all bool) {
	t.Helper()
	if all {
		if got != whole || left != 0 {
			t.Errorf("%s is not whole: %d of %d, cut %d", name, len(got), len(whole), left)
		}
		return
	}
	head, rest, ok := strings.Cut(got, "\n[… ")
	_, tail, ok2 := strings.Cut(rest, " characters left out …]\n")
	if !ok || !ok2 || head == "" || tail == "" || !strings.HasPrefix(whole, head) || !strings.HasSuffix(whole, tail) {
		t.Errorf("%s does not keep its beginning and end: %.60q", name, got)
	}
	if want := int64(utf8.RuneCountInString(whole) - utf8.RuneCountInString(head) - utf8.RuneCountInString(tail)); left != want || !utf8.ValidString(got) {
		t.Errorf("%s leaves out %d, says %d", name, want, left)
	}
}

// TestNothingOfAListIsLost reads a list page by page.
func TestNothingOfAListIsLost(t *testing.T) {
	h := newHost(t, nil)
	for name, size := range map[string]int{"small": 10, "middle": 900, "large": 7000, "huge": 40_000} {
		t.Run(name, func(t *testing.T) {
			h.notes = nil
			for i := range 45 {
				h.notes = append(h.notes, thing{fmt.Sprint("n", i), strings.Repeat(`é"`, size/2)})
			}
			var got []string
			args := map[string]any{"limit": 30}
			for {
				out, _ := result[listOut](t, h.tool("/mcp", "list_notes", args))
				for _, n := range out.Items {
					got = append(got, n.ID)
					if size < 10_000 && n.Text != h.notes[0].Text {
						t.Fatalf("an item was shortened to %d", len(n.Text))
					}
				}
				if out.NextCursor == nil {
					break
				}
				args["cursor"] = *out.NextCursor
			}
			if len(got) != 45 || got[44] != "n44" {
				t.Errorf("got %d items, the last %s", len(got), got[len(got)-1])
			}
		})
	}
}

func TestLongStringsOfWritesAreShortened(t *testing.T) {
	h := newHost(t, nil)
	long := strings.Repeat("0123456789", 9000)
	out, _ := result[noteOut](t, h.tool("/mcp", "add_note", map[string]any{"text": long}))
	if out.IdempotencyKey != "key-1" || !strings.HasPrefix(out.Thing.Text, "0123456789") || !strings.Contains(out.Thing.Text, "characters left out") {
		t.Errorf("got %.200s", out.Thing.Text)
	}
	if calls, _, _ := h.seen(); len(calls) != 1 {
		t.Errorf("a write ran %d times", len(calls))
	}
}

func TestTooManySmallParts(t *testing.T) {
	var many []string
	for i := range 4000 {
		many = append(many, fmt.Sprint("item ", i))
	}
	if _, ok := squeeze(encode(map[string]any{"items": many})); ok {
		t.Error("squeeze made 4,000 items fit")
	}
}

func FuzzCut(f *testing.F) {
	f.Add("hello\x00\"\\<>&\u2028船🚢", 60)
	f.Add(strings.Repeat("\x1b", 500), 100)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		if limit < 4*markerRoom || limit > 1<<20 {
			return
		}
		s = strings.ToValidUTF8(s, "\uFFFD")
		got, left := cutCount(s, limit)
		b := encode(got)
		if n := chars(b) - 2; n > limit || n != cost(got) || !utf8.ValidString(got) {
			t.Errorf("cut to %d: takes %d, cost says %d", limit, n, cost(got))
		}
		if (left == 0) != (got == s) {
			t.Errorf("left out %d", left)
		}
		var back string
		if err := json.Unmarshal(appendString(nil, []byte(s)), &back); err != nil || back != s {
			t.Errorf("appendString: %v, %q", err, back)
		}
		html, _ := json.Marshal(s)
		if err := json.Unmarshal(plain(html), &back); err != nil || back != s {
			t.Errorf("plain: %v, %q", err, back)
		}
	})
}
