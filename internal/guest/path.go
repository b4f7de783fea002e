package guest

import (
	"path"
	"strings"
)

// cleanPath gives the absolute path that a caller means: relative ones start at DefaultWorkDir. The error is a failure of the guest.
func cleanPath(p string) (string, error) {
	switch {
	case p == "":
		return "", fail(CodeInvalid, "a path cannot be empty")
	case len(p) > MaxPathBytes:
		return "", fail(CodeInvalid, "a path has at most %d bytes", MaxPathBytes)
	case strings.Contains(p, "\x00"):
		return "", fail(CodeInvalid, "a path cannot hold a NUL byte")
	}
	if !strings.HasPrefix(p, "/") {
		p = DefaultWorkDir + "/" + p
	}
	p = path.Clean(p)
	if len(p) > MaxPathBytes {
		return "", fail(CodeInvalid, "a path has at most %d bytes", MaxPathBytes)
	}
	return p, nil
}
