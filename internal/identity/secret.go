package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"hash/crc32"
	"strings"
)

// A key is berth_sk_, 43 characters of base62 and 6 of their checksum: a mistyped or cut key is told from a wrong one without a look-up, and scanners of
// leaked secrets can be sure of what they found.
const (
	prefix     = "berth_sk_"
	bodyLength = 43
	crcLength  = 6
	base62     = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// newSecret makes a key with 256 bits of chance.
func newSecret() string {
	var b strings.Builder
	b.WriteString(prefix)
	var buf [64]byte
	for n := 0; n < bodyLength; {
		_, _ = rand.Read(buf[:])
		for _, c := range buf {
			// 248 is the largest multiple of 62 below 256.
			if c < 248 && n < bodyLength {
				b.WriteByte(base62[c%62])
				n++
			}
		}
	}
	return b.String() + checksum(b.String())
}

func checksum(s string) string {
	sum := crc32.ChecksumIEEE([]byte(s))
	out := make([]byte, crcLength)
	for i := crcLength - 1; i >= 0; i-- {
		out[i] = base62[sum%62]
		sum /= 62
	}
	return string(out)
}

// wellFormed reports whether a token is of the form of a key, its checksum right.
func wellFormed(token string) bool {
	if len(token) != len(prefix)+bodyLength+crcLength || !strings.HasPrefix(token, prefix) {
		return false
	}
	for i := len(prefix); i < len(token); i++ {
		if strings.IndexByte(base62, token[i]) < 0 {
			return false
		}
	}
	cut := len(token) - crcLength
	return token[cut:] == checksum(token[:cut])
}

// hash is what is stored of a key. Its 256 bits of chance need no slow hash.
func hash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func last4(token string) string { return token[len(token)-4:] }
