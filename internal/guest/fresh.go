package guest

import (
	"crypto/rand"
	"encoding/base64"
)

// NewToken makes the token that a guest asks of whoever talks to it.
func NewToken() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails: the program ends where the system's source cannot be read
	return base64.RawURLEncoding.EncodeToString(b)
}

// NewEntropy makes what Configure stirs into a guest's random pool.
func NewEntropy() []byte {
	b := make([]byte, 64)
	_, _ = rand.Read(b)
	return b
}
