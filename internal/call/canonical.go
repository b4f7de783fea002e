package call

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/gowebpki/jcs"

	"github.com/berthrun/berth/internal/errs"
)

// inputSHA256 tells inputs apart: the SHA-256 of the canonical input.
func inputSHA256(raw []byte) (string, error) {
	canonical, err := canonicalInput(raw)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:]), nil
}

// canonicalInput is an input as canonical JSON (RFC 8785), without what does not change the effect.
func canonicalInput(raw []byte) ([]byte, error) {
	members := map[string]json.RawMessage{}
	if len(bytes.TrimSpace(raw)) > 0 {
		if err := json.Unmarshal(raw, &members); err != nil {
			return nil, errs.Wrap(errs.InvalidInput, err, "the input is not a JSON object")
		}
	}
	delete(members, "idempotencyKey")
	delete(members, "waitSeconds")
	if err := exact(members); err != nil {
		return nil, err
	}
	b, err := json.Marshal(members)
	if err != nil {
		return nil, errs.Wrap(errs.InvalidInput, err, "the input is not valid JSON")
	}
	canonical, err := jcs.Transform(b)
	if err != nil {
		return nil, errs.Wrap(errs.InvalidInput, err, "the input has no canonical form").Suggest("Send text that is valid Unicode.")
	}
	return canonical, nil
}

// exact refuses whole numbers that the canonical form would round, so that different inputs never become one.
func exact(members map[string]json.RawMessage) error {
	for _, raw := range members {
		if !longNumber(raw) {
			continue
		}
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.UseNumber()
		for {
			tok, err := dec.Token()
			if err != nil {
				break // the end: the input was found valid before
			}
			n, ok := tok.(json.Number)
			if !ok || strings.ContainsAny(n.String(), ".eE") {
				continue
			}
			if v, err := n.Int64(); err != nil || v > 1<<53 || v < -1<<53 {
				return errs.E(errs.InvalidInput, "the number %.40s is too large to be kept exactly", n.String()).Suggest("Send it as text.")
			}
		}
	}
	return nil
}

// longNumber reports whether there may be a number of 16 digits or more, the shortest that can be beyond 2^53.
func longNumber(raw []byte) bool {
	run := 0
	for _, c := range raw {
		if c < '0' || c > '9' {
			run = 0
		} else if run++; run >= 16 {
			return true
		}
	}
	return false
}
