package mcpapi

import (
	"encoding/json"

	"github.com/berthrun/berth/api/op"
)

// parts says how an operation with a limit gives its result in smaller parts.
type parts struct {
	most    int64                                      // the limit that is asked for at first
	fitting func(text []byte) (limit int64, err error) // a limit for which the result fits
	least   int64
	last    func(text []byte) ([]byte, bool) // what is left to do where the smallest part does not fit
}

// attempts bounds how often an operation is asked again; the content may change between them.
const attempts = 4

// pages reports whether an operation takes a limit and gives items with a cursor.
func pages(info op.Info) bool {
	return info.In.Properties["limit"] != nil && info.Out.Properties["items"] != nil && info.Out.Properties["nextCursor"] != nil
}

// fitParts does the call with a limit so small that the result fits. Its own cursor or offset then says where the next part begins.
func fitParts(o *op.Operation, input json.RawMessage, do doer, plan func(asked members) parts) ([]byte, error) {
	var asked members
	if _, err := o.Decode(input); err != nil || (len(input) > 0 && json.Unmarshal(input, &asked) != nil) {
		return fitOnce(input, do, func([]byte) ([]byte, error) { return nil, tooLarge() }) // the call says what is wrong with it
	}
	p := plan(asked)
	limit := asked.number("limit")
	if p.most > 0 && (limit == 0 || limit > p.most) {
		limit = p.most
		input = asked.with("limit", limit)
	}
	for range attempts {
		res, err := do(input)
		if err != nil {
			return nil, err
		}
		text := plain(res.JSON)
		if chars(text) < budget {
			return text, nil
		}
		next, err := p.fitting(text)
		if err != nil {
			return nil, err
		}
		if limit != 0 && limit <= p.least {
			if short, ok := p.last(text); ok {
				return short, nil
			}
			return nil, tooLarge()
		}
		if limit != 0 {
			next = min(next, limit-1)
		}
		limit = max(next, p.least)
		input = asked.with("limit", limit)
	}
	return nil, tooLarge()
}

func (m members) number(name string) int64 {
	var n int64
	_ = json.Unmarshal(m[name], &n) // checked before
	return n
}

func (m members) with(name string, n int64) json.RawMessage {
	c := members{name: encode(n)}
	for k, v := range m {
		if k != name {
			c[k] = v
		}
	}
	return encode(c)
}

// The sizes of the first part of a file that is asked for: text has few escapes, base64 takes four characters for three bytes.
const (
	textPart   = 14_000
	base64Part = 10_800
)

func fileParts(asked members) parts {
	most := int64(textPart)
	if encoding, _ := asked.text("encoding"); encoding == "base64" {
		most = base64Part
	}
	return parts{most: most, least: 16, fitting: fileLimit, last: func([]byte) ([]byte, bool) { return nil, false }}
}

func fileLimit(text []byte) (int64, error) {
	var out struct{ Data, Encoding string }
	if err := json.Unmarshal(text, &out); err != nil {
		return 0, err
	}
	rest := chars(text) - cost(out.Data)
	room := budget - 256 - rest // a cursor that was absent may come
	if room < 64 {
		return 0, tooLarge()
	}
	_, size := beginning(out.Data, out.Encoding, room)
	return int64(size), nil
}

func listParts(members) parts { return parts{least: 1, fitting: listLimit, last: squeeze} }

func listLimit(text []byte) (int64, error) {
	var out struct{ Items []json.RawMessage }
	if err := json.Unmarshal(text, &out); err != nil {
		return 0, err
	}
	rest := chars(text)
	for _, item := range out.Items {
		rest -= chars(item)
	}
	room := budget - 512 - rest // a cursor that was absent may come
	n := int64(0)
	for _, item := range out.Items {
		if room -= chars(item) + 1; room < 0 {
			break
		}
		n++
	}
	return n, nil
}
