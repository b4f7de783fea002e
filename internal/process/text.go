package process

import (
	"encoding/base64"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/berthrun/berth/internal/guest"
)

// text makes one text of a stream's beginning and end, and says how many bytes are left out between them. No character is cut; what is no UTF-8 is
// replaced.
func text(e guest.Excerpt) (s string, left int64) {
	kept := int64(len(e.Head) + len(e.Tail))
	if kept >= e.Total {
		return valid(append(append([]byte(nil), e.Head...), e.Tail...)), 0
	}
	head, tail := guest.WholeRunes(e.Head), wholeStart(e.Tail)
	left = e.Total - int64(len(head)+len(tail))
	return valid(head) + fmt.Sprintf("\n… %d bytes left out …\n", left) + valid(tail), left
}

func valid(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }

// wholeStart leaves out the rest of a character at the start.
func wholeStart(b []byte) []byte {
	for i := 0; i < utf8.UTFMax && i < len(b); i++ {
		if utf8.RuneStart(b[i]) {
			return b[i:]
		}
	}
	return b
}

// encode gives bytes as text where they are text, else as base64. A character that is cut at the end is left for the next read unless these are the
// last bytes: used is how many bytes the result stands for.
func encode(b []byte, last bool) (data, encoding string, used int) {
	whole := b
	if !last {
		whole = guest.WholeRunes(b)
	}
	if utf8.Valid(whole) {
		return string(whole), "utf-8", len(whole)
	}
	return base64.StdEncoding.EncodeToString(b), "base64", len(b)
}
