package mcpapi

import (
	"bytes"
	"encoding/json"
	"errors"
)

// takeMember takes a member that is a string out of the text of an object, and gives it and the rest. What else is in the text stays as it was sent, so
// that what reads it next still sees members that are given twice. The value is empty where the member is absent or no string.
func takeMember(object json.RawMessage, name string) (value string, rest json.RawMessage, err error) {
	if len(object) == 0 {
		return "", nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(object))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return "", nil, errors.New("not an object")
	}
	for first := true; d.More(); first = false {
		from := d.InputOffset() // behind the brace or the member before
		key, err := d.Token()
		if err != nil {
			return "", nil, err
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return "", nil, err
		}
		if key != name {
			continue
		}
		if json.Unmarshal(raw, &value) != nil {
			return "", object, nil
		}
		to := d.InputOffset()
		after := bytes.TrimLeft(object[to:], " \t\r\n")
		if first { // the comma behind it goes too; otherwise the one before it is in the part that is left out
			after = bytes.TrimPrefix(after, []byte(","))
		}
		rest = append(append(json.RawMessage{}, object[:from]...), after...)
		return value, rest, nil
	}
	return "", object, nil
}
