package mcpapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"unicode/utf8"
)

// The JSON-RPC codes that are answered here.
const (
	codeParse          = -32700
	codeInvalidRequest = -32600
	codeNotFound       = -32601
	codeInvalidParams  = -32602
	codeRefused        = -32000 // authentication, origin, host: no JSON-RPC code fits
	codeHeaderMismatch = -32020
	codeVersion        = -32022
)

// rpcError is an answer that is no result: an HTTP status and a JSON-RPC error.
type rpcError struct {
	status  int
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
}

func problem(status, code int, message string) *rpcError {
	return &rpcError{status: status, Code: code, Message: message}
}

// message is one JSON-RPC message. A call has an id and a method, a notification only a method, an answer of the client no method.
type message struct {
	id     json.RawMessage
	method string
	params members
	raw    []byte
}

// members are the members of an object as they were sent. Names are compared exactly, unlike those of a struct.
type members map[string]json.RawMessage

// text gives a member that is a string.
func (m members) text(name string) (string, bool) {
	var s *string
	if json.Unmarshal(m[name], &s) != nil || s == nil {
		return "", false
	}
	return *s, true
}

// object gives a member that is an object, nil where there is none or it is null. ok is false for anything else.
func (m members) object(name string) (inner members, ok bool) {
	if len(m[name]) == 0 || string(m[name]) == "null" {
		return nil, true
	}
	if m[name][0] != '{' || json.Unmarshal(m[name], &inner) != nil {
		return nil, false
	}
	return inner, true
}

func parse(body []byte) (*message, *rpcError) {
	body = bytes.TrimSpace(body)
	if !utf8.Valid(body) {
		return nil, problem(http.StatusBadRequest, codeParse, "the body is not valid UTF-8")
	}
	if !json.Valid(body) {
		return nil, problem(http.StatusBadRequest, codeParse, "the body is not valid JSON")
	}
	if body[0] == '[' {
		return nil, problem(http.StatusBadRequest, codeInvalidRequest, "batches are not supported: send one message a request")
	}
	invalid := problem(http.StatusBadRequest, codeInvalidRequest, "the body is not a JSON-RPC 2.0 message")
	var all members
	if body[0] != '{' || json.Unmarshal(body, &all) != nil {
		return nil, invalid
	}
	m := &message{raw: body}
	if version, _ := all.text("jsonrpc"); version != "2.0" {
		return nil, invalid
	}
	if raw, given := all["id"]; given {
		if !validID(raw) {
			return nil, problem(http.StatusBadRequest, codeInvalidRequest, "id must be a string or a whole number")
		}
		m.id = raw
	}
	if _, given := all["method"]; !given {
		if _, result := all["result"]; m.id != nil && (result || all["error"] != nil) {
			return m, nil
		}
		return nil, invalid
	}
	var ok bool
	if m.method, ok = all.text("method"); !ok || m.method == "" {
		return m, invalid
	}
	if m.params, ok = all.object("params"); !ok {
		return m, problem(http.StatusBadRequest, codeInvalidParams, "params must be an object")
	}
	return m, nil
}

func validID(raw json.RawMessage) bool {
	if raw[0] == '"' {
		return len(raw) <= 1024
	}
	var n json.Number
	if json.Unmarshal(raw, &n) != nil {
		return false
	}
	_, err := n.Int64()
	return err == nil
}

// encode writes JSON without escapes for HTML. The values are made here, so that they always marshal.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimRight(b.Bytes(), "\n")
}
