package call

import (
	"encoding/json"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// FuzzInputHash: what a retry key is bound to is the same for the same input, however it is written, and without the key itself.
func FuzzInputHash(f *testing.F) {
	f.Add([]byte(`{"a":1,"idempotencyKey":"k","waitSeconds":3}`))
	f.Add([]byte(`{"a":9007199254740993}`))
	f.Add([]byte(`{"a":"\ud800","b":[1e400,-0,1.0]}`))
	f.Add([]byte(` `))
	f.Fuzz(func(t *testing.T, raw []byte) {
		one, err := inputSHA256(raw)
		if err != nil {
			if !errs.Is(err, errs.InvalidInput) {
				t.Errorf("%q: %v", raw, err)
			}
			return
		}
		if len(one) != 64 {
			t.Errorf("%q: %q", raw, one)
		}
		members := map[string]json.RawMessage{}
		if json.Unmarshal(raw, &members) != nil {
			return
		}
		members["idempotencyKey"] = json.RawMessage(`"another"`)
		again, err := json.Marshal(members)
		if err != nil {
			return
		}
		if two, err := inputSHA256(again); err != nil || two != one {
			t.Errorf("%q: %s, with another key %s, %v", raw, one, two, err)
		}
	})
}
