package op

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strconv"

	"github.com/berthrun/berth/internal/errs"
)

type cursor struct {
	After  []string `json:"a"`
	Filter string   `json:"f"`
}

// EncodeCursor makes an opaque cursor that continues after the given sort keys and is bound to the filters.
func EncodeCursor(filters any, after ...string) *string {
	b, err := json.Marshal(cursor{After: after, Filter: filterHash(filters)})
	if err != nil {
		panic(err) // strings always marshal
	}
	s := base64.RawURLEncoding.EncodeToString(b)
	return &s
}

// DecodeCursor gives the sort keys of a cursor: keys of them, or none for the empty cursor. One that is malformed or was made for other
// filters is errs.InvalidCursor.
func DecodeCursor(s string, filters any, keys int) ([]string, error) {
	if s == "" {
		return nil, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return nil, errCursor()
	}
	var c cursor
	if json.Unmarshal(b, &c) != nil || c.Filter != filterHash(filters) || len(c.After) != keys {
		return nil, errCursor()
	}
	return c.After, nil
}

// EncodeMoment is EncodeCursor for a list in the order of times, given in microseconds, and of ids where those are the same.
func EncodeMoment(filters any, at int64, id string) *string {
	return EncodeCursor(filters, strconv.FormatInt(at, 10), id)
}

// DecodeMoment gives what EncodeMoment was given, or zeros for the empty cursor.
func DecodeMoment(s string, filters any) (at int64, id string, err error) {
	after, err := DecodeCursor(s, filters, 2)
	if err != nil || after == nil {
		return 0, "", err
	}
	if at, err = strconv.ParseInt(after[0], 10, 64); err != nil {
		return 0, "", errCursor()
	}
	return at, after[1], nil
}

func errCursor() error {
	return errs.E(errs.InvalidCursor, "the cursor is not valid for this call").
		Suggest("Filters may have changed since it was given. Call again without a cursor to begin at the first page.")
}

func filterHash(filters any) string {
	b, err := json.Marshal(filters)
	if err != nil {
		panic(err) // filters are parts of a decoded input
	}
	sum := sha256.Sum256(b)
	return base64.RawURLEncoding.EncodeToString(sum[:9])
}
