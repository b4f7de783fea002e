package mcpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/call"
	"github.com/berthrun/berth/internal/errs"
)

// budget is the number of characters that the text of a result stays under. A longer one crowds out what a model has in mind, and clients cut it
// themselves, in the middle of a value.
const budget = 16_000

// doer carries the operation out with an input.
type doer func(input json.RawMessage) (*call.Result, error)

// fit does a call and gives the text of its result within the budget. What an operation can give in parts is asked for in smaller parts, so that
// nothing is lost; output of commands keeps its beginning and end; elsewhere long strings are shortened visibly.
func fit(o *op.Operation, input json.RawMessage, do doer) ([]byte, error) {
	switch o.Name {
	case "sandboxes.exec":
		return fitOnce(input, do, cutExec)
	case "processes.output":
		return fitOnce(input, do, cutOutput)
	case "files.read":
		return fitParts(o, input, do, fileParts)
	}
	if o.Hints.Has(op.Read) && pages(o.Info) {
		return fitParts(o, input, do, listParts)
	}
	return fitOnce(input, do, func(text []byte) ([]byte, error) { return squeezeFor(o, text) })
}

// fitOnce does the call once and lets shrink make a text that is too long shorter.
func fitOnce(input json.RawMessage, do doer, shrink func([]byte) ([]byte, error)) ([]byte, error) {
	res, err := do(input)
	if err != nil {
		return nil, err
	}
	text := plain(res.JSON)
	if chars(text) < budget {
		return text, nil
	}
	return shrink(text)
}

func squeezeFor(o *op.Operation, text []byte) ([]byte, error) {
	if short, ok := squeeze(text); ok {
		return short, nil
	}
	if o.Hints.Has(op.Read) {
		return nil, tooLarge()
	}
	return nil, errs.E(errs.LimitExceeded, "the call was carried out, but its result does not fit into %d characters", budget).
		Because("result_too_large").Suggest("Do not call it again. Read what it changed in smaller parts.")
}

func tooLarge() *errs.Error {
	return errs.E(errs.LimitExceeded, "the result does not fit into %d characters", budget).
		Because("result_too_large").Suggest("Ask for less: a smaller limit, narrower filters or one item.")
}

// squeeze shortens the longest strings, more and more of each, until the text fits. Cursors and addresses are left whole: they are no use cut.
func squeeze(text []byte) ([]byte, bool) {
	for _, limit := range []int{4000, 1000, 250} {
		if text = shortened(text, limit); chars(text) < budget {
			return text, true
		}
	}
	return nil, false
}

// shortened cuts every string of more than limit characters.
func shortened(text []byte, limit int) []byte {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		panic(fmt.Sprintf("mcpapi: a result is no JSON: %v", err)) // every result was encoded by the server
	}
	return encode(shorten(v, limit))
}

func shorten(v any, limit int) any {
	switch t := v.(type) {
	case string:
		return cut(t, limit)
	case []any:
		for i := range t {
			t[i] = shorten(t[i], limit)
		}
	case map[string]any:
		for k := range t {
			if lower := strings.ToLower(k); strings.HasSuffix(lower, "cursor") || strings.HasSuffix(lower, "url") {
				continue
			}
			t[k] = shorten(t[k], limit)
		}
	}
	return v
}

// cut keeps the beginning and the end of a string so that, escaped, it takes at most limit characters with the marker between them. It never cuts
// a rune. A string that fits is given back as it is.
func cut(s string, limit int) string {
	short, _ := cutCount(s, limit)
	return short
}

// markerRoom is how much a marker may take: its own characters and a number.
const markerRoom = 48

// cutCount also gives how many characters were left out.
func cutCount(s string, limit int) (string, int64) {
	if cost(s) <= limit {
		return s, 0
	}
	room := max(limit-markerRoom, 0)
	head := prefix(s, room-room/2)
	tail := suffix(s[len(head):], room/2)
	left := int64(utf8.RuneCountInString(s[len(head) : len(s)-len(tail)]))
	return head + fmt.Sprintf("\n[… %d characters left out …]\n", left) + tail, left
}

// prefix is the longest beginning of s that takes at most room characters once escaped.
func prefix(s string, room int) string {
	for i, r := range s {
		if room -= runeCost(r); room < 0 {
			return s[:i]
		}
	}
	return s
}

// suffix is the longest such end.
func suffix(s string, room int) string {
	for i := len(s); i > 0; {
		r, size := utf8.DecodeLastRuneInString(s[:i])
		if room -= runeCost(r); room < 0 {
			return s[i:]
		}
		i -= size
	}
	return s
}

// cost is how many characters a string takes in JSON, without its quotes.
func cost(s string) int {
	n := 0
	for _, r := range s {
		n += runeCost(r)
	}
	return n
}

func runeCost(r rune) int {
	switch r {
	case '"', '\\', '\n', '\r', '\t', '\b', '\f':
		return 2
	case 0x2028, 0x2029:
		return 6
	}
	if r < 0x20 {
		return 6
	}
	return 1
}

func chars(text []byte) int { return utf8.RuneCount(text) }
