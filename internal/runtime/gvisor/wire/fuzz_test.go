package wire

import (
	"encoding/json"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// FuzzError: whatever is answered as an error becomes one with a code, and what it says of its cause stays out of its message.
func FuzzError(f *testing.F) {
	f.Add([]byte(`{"code":"BUSY","message":"x","reason":"y","retryAfterMs":5,"cause":"secret"}`))
	f.Add([]byte(`{"code":"BUSY","message":"%s%n","retryAfterMs":-9223372036854775808}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var e Error
		if json.Unmarshal(b, &e) != nil || e.Code == "" {
			return
		}
		got := errs.From(e.Err())
		if got == nil || got.Code != e.Code || got.Message != e.Message || got.Reason != e.Reason {
			t.Errorf("%s becomes %+v", b, got)
		}
	})
}
