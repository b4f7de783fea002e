package guest

import "unicode/utf8"

// WholeRunes gives bytes without the beginning of a character that is cut at their end, for the next part to bring whole. Bytes that are nothing but
// such a beginning, and bytes that are no text, come back as they are.
func WholeRunes(b []byte) []byte {
	for i := 1; i <= utf8.UTFMax && i < len(b); i++ {
		if utf8.RuneStart(b[len(b)-i]) {
			if !utf8.FullRune(b[len(b)-i:]) {
				return b[:len(b)-i]
			}
			break
		}
	}
	return b
}
