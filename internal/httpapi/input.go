package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
)

const (
	maxBody     = 4 << 20
	bodyTimeout = time.Minute // for a caller to send the whole body
	retryKey    = "idempotencyKey"
	space       = " \t\r\n" // of JSON
)

// input turns the requests of one route into the operation's JSON input.
type input struct {
	schema *op.Schema // what comes from the query or the body: the input without the names in the path
	params []string
	query  bool // GET and DELETE take their arguments from the query, the others from the body
	keyed  bool
	bytes  bool // the body is a stream's, not looked at here
}

func inputOf(info op.Info) input {
	in := input{params: info.PathParams(), query: info.Method == http.MethodGet || info.Method == http.MethodDelete}
	in.schema = without(info.In, in.params)
	_, in.keyed = info.In.Properties[retryKey]
	return in
}

// without is an object's schema less some of its members.
func without(s *op.Schema, names []string) *op.Schema {
	c := *s
	c.Properties = make(map[string]*op.Schema, len(s.Properties))
	for name, p := range s.Properties {
		if !slices.Contains(names, name) {
			c.Properties[name] = p
		}
	}
	drop := func(name string) bool { return slices.Contains(names, name) }
	c.Order = slices.DeleteFunc(slices.Clone(s.Order), drop)
	c.Required = slices.DeleteFunc(slices.Clone(s.Required), drop)
	return &c
}

// read gives the input as one JSON object. It checks only what the merged object no longer shows; the schema is checked on the path of the call.
func (in input) read(w http.ResponseWriter, r *http.Request) (json.RawMessage, error) {
	outside, err := in.fromPath(r)
	if err != nil {
		return nil, err
	}
	var body []byte
	if in.query {
		body, err = in.fromQuery(r)
	} else {
		body, err = in.fromBody(w, r)
	}
	if err != nil {
		return nil, err
	}
	if err := in.addKey(r, body, outside); err != nil {
		return nil, err
	}
	return splice(outside, body)
}

func (in input) fromPath(r *http.Request) (map[string]string, error) {
	found := make(map[string]string, len(in.params)+1)
	for i, name := range in.params {
		v := r.PathValue("p" + strconv.Itoa(i))
		if !utf8.ValidString(v) {
			return nil, invalid(name, "is not valid UTF-8")
		}
		found[name] = v
	}
	return found, nil
}

func (in input) fromQuery(r *http.Request) ([]byte, error) {
	if r.ContentLength != 0 && !in.bytes {
		return nil, invalid("", "of a %s request goes into the query, not into a body", r.Method)
	}
	for name := range r.URL.Query() {
		if slices.Contains(in.params, name) {
			return nil, invalid(name, "is given in the path and must not be given in the query")
		}
	}
	return queryJSON(in.schema, r.URL.RawQuery)
}

func (in input) fromBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.URL.RawQuery != "" {
		return nil, invalid("", "of a %s request goes into a JSON body, not into the query", r.Method)
	}
	if r.ContentLength == 0 {
		return []byte("{}"), nil
	}
	if err := checkType(r.Header); err != nil {
		return nil, err
	}
	if rec, ok := w.(*recorder); ok {
		w = rec.ResponseWriter // MaxBytesReader tells the server's own writer to close the connection
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTimeout)) // not every reader has deadlines
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil { // else the server would wait for the rest of it without an end
		_ = rc.SetReadDeadline(time.Time{})
	}
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, statusError{
			http.StatusRequestEntityTooLarge,
			errs.E(errs.InvalidInput, "the body is larger than %d bytes", tooLarge.Limit).Because("body_too_large").
				Suggest("Send less in one call, for example a file in several appending writes."),
		}
	}
	if err != nil {
		return nil, errs.Wrap(errs.InvalidInput, err, "the body could not be read").Suggest("Send the whole body and call again.")
	}
	if len(bytes.Trim(body, space)) == 0 {
		return []byte("{}"), nil
	}
	return body, nil
}

func checkType(h http.Header) error {
	kind, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	charset := params["charset"]
	encoding := h.Get("Content-Encoding")
	if err == nil && kind == "application/json" && (charset == "" || strings.EqualFold(charset, "utf-8")) &&
		(encoding == "" || strings.EqualFold(encoding, "identity")) {
		return nil
	}
	return statusError{
		http.StatusUnsupportedMediaType,
		errs.E(errs.InvalidInput, "the body is not JSON").Because("unsupported_media_type").
			Suggest("Send UTF-8 JSON with the header Content-Type: application/json and no Content-Encoding."),
	}
}

// addKey takes the retry key from its header, which must not contradict the one in the arguments. Operations without one ignore the header.
func (in input) addKey(r *http.Request, body []byte, outside map[string]string) error {
	given := r.Header.Values("Idempotency-Key")
	if !in.keyed || len(given) == 0 {
		return nil
	}
	if len(given) > 1 {
		return invalid(retryKey, "is given more than once")
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(body, &members) != nil {
		return nil // refused when it is decoded
	}
	raw, both := members[retryKey]
	if !both {
		outside[retryKey] = given[0]
		return nil
	}
	var inBody string
	if json.Unmarshal(raw, &inBody) == nil && inBody != given[0] {
		return invalid(retryKey, "differs from the header Idempotency-Key")
	}
	return nil
}

// splice puts members in front of those of a JSON object, whose text stays as it is, so that decoding still sees all that is wrong with it.
func splice(members map[string]string, object []byte) (json.RawMessage, error) {
	object = bytes.Trim(object, space)
	if len(object) == 0 || object[0] != '{' {
		return nil, invalid("", "must be a JSON object")
	}
	if len(members) == 0 {
		return object, nil
	}
	front, err := json.Marshal(members)
	if err != nil {
		return nil, err
	}
	rest := bytes.TrimLeft(object[1:], space)
	if len(rest) > 0 && rest[0] == '}' {
		return append(front[:len(front)-1], rest...), nil
	}
	return append(append(front[:len(front)-1], ','), rest...), nil
}

func invalid(path, format string, args ...any) *errs.Error {
	shown := path
	if shown == "" {
		shown = "the input"
	}
	return errs.E(errs.InvalidInput, "%s %s", shown, fmt.Sprintf(format, args...)).Suggest("Correct the argument and call again.").With("path", path)
}
