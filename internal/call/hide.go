package call

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/gowebpki/jcs"

	"github.com/berthrun/berth/api/op"
)

// hide gives canonical arguments in which every value that is never shown again is {"secret": its fingerprint}: who approves the call sees that it is there, and
// another value is another request. The salt is known to the server alone, so that nobody can try values out on the fingerprint.
func hide(s *op.Schema, canonical []byte, salt string) ([]byte, error) {
	if !secrets(s) {
		return canonical, nil
	}
	dec := json.NewDecoder(bytes.NewReader(canonical))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("read arguments: %w", err)
	}
	b, err := json.Marshal(hidden(s, v, "", salt))
	if err == nil {
		b, err = jcs.Transform(b)
	}
	if err != nil {
		return nil, fmt.Errorf("hide secrets: %w", err)
	}
	return b, nil
}

// secrets reports whether a schema has any.
func secrets(s *op.Schema) bool {
	if s == nil || s.Secret {
		return s != nil
	}
	for _, p := range s.Properties {
		if secrets(p) {
			return true
		}
	}
	values, _ := s.AdditionalProperties.(*op.Schema)
	return secrets(s.Items) || secrets(values)
}

// hidden is a value as a person may see it. The names in a map are no secret.
func hidden(s *op.Schema, v any, path, salt string) any {
	if s == nil {
		return v
	}
	switch t := v.(type) {
	case map[string]any:
		values, _ := s.AdditionalProperties.(*op.Schema)
		for name, member := range t {
			of := s.Properties[name]
			if of == nil {
				of = values
			}
			if s.Secret {
				of = &op.Schema{Secret: true}
			}
			t[name] = hidden(of, member, path+"\x00"+name, salt)
		}
		return t
	case []any:
		for i, item := range t {
			of := s.Items
			if s.Secret {
				of = &op.Schema{Secret: true}
			}
			t[i] = hidden(of, item, fmt.Sprintf("%s\x00%d", path, i), salt)
		}
		return t
	}
	if !s.Secret {
		return v
	}
	mac := hmac.New(sha256.New, []byte(salt))
	fmt.Fprintf(mac, "berth/secret/v1%s\x00%T\x00%v", path, v, v)
	return map[string]any{"secret": hex.EncodeToString(mac.Sum(nil))}
}
