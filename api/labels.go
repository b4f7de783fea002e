package api

import (
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// MaxText bounds what labels, or the variables of an environment, hold together in bytes.
const MaxText = 64 << 10

// CheckMetadata refuses labels that no resource can have: each has a name of 1 to 128 bytes and a value of at most 1024, without NUL.
func CheckMetadata(m map[string]string) error {
	total := 0
	for k, v := range m {
		total += len(k) + len(v)
		if k == "" || len(k) > 128 || len(v) > 1024 || strings.ContainsRune(k+v, 0) {
			return errs.E(errs.InvalidInput, "a label has a name of 1 to 128 and a value of at most 1024 bytes, without NUL").With("path", "metadata")
		}
	}
	if total > MaxText {
		return errs.E(errs.InvalidInput, "metadata must hold at most %d bytes", MaxText).With("path", "metadata")
	}
	return nil
}
