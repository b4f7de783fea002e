package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// Error is a call that was refused or failed. Code is one of the API's stable codes, such as NOT_FOUND; a server that cannot be reached is
// UNAVAILABLE with Status 0. Suggestion says what to do about it.
type Error struct {
	Code       string
	Message    string
	Suggestion string
	Reason     string // tells cases of one code apart
	RequestID  string // names the request in the server's logs
	RetryAfter time.Duration
	Details    map[string]any
	Status     int // of HTTP; 0 where nothing answered

	cause error
}

// Error is the message and, where the call did not end with the server's own answer, its cause.
func (e *Error) Error() string {
	if e.cause != nil {
		return fmt.Sprintf("%s (%s): %v", e.Message, e.Code, e.cause)
	}
	return fmt.Sprintf("%s (%s)", e.Message, e.Code)
}

// Unwrap gives the cause, or nil.
func (e *Error) Unwrap() error { return e.cause }

// CodeOf is the code of the first Error in the chain, or empty.
func CodeOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}

// failed makes the error of an answer that is no success. What is not in the API's form, such as a proxy's page, gets the code of its status.
func failed(resp *http.Response, body []byte) *Error {
	var b struct {
		Error struct {
			Code         string         `json:"code"`
			Message      string         `json:"message"`
			Suggestion   string         `json:"suggestion"`
			RequestID    string         `json:"requestId"`
			Reason       string         `json:"reason"`
			RetryAfterMS int64          `json:"retryAfterMs"`
			Details      map[string]any `json:"details"`
		} `json:"error"`
	}
	wait := retryAfter(resp.Header)
	if json.Unmarshal(body, &b) != nil || b.Error.Code == "" {
		return &Error{
			Code: codeOfStatus(resp.StatusCode), Status: resp.StatusCode, RetryAfter: wait, RequestID: resp.Header.Get("X-Request-Id"),
			Message:    "the server's answer is not Berth's: " + strconv.Itoa(resp.StatusCode) + " " + http.StatusText(resp.StatusCode),
			Suggestion: "Check the server's URL, and what stands between here and the server.",
		}
	}
	e := b.Error
	if e.RetryAfterMS > 0 {
		wait = time.Duration(e.RetryAfterMS) * time.Millisecond
	}
	return &Error{
		Code: e.Code, Message: e.Message, Suggestion: e.Suggestion, Reason: e.Reason, RequestID: e.RequestID,
		RetryAfter: wait, Details: e.Details, Status: resp.StatusCode,
	}
}

func retryAfter(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || n < 0 {
		return 0
	}
	return time.Duration(n) * time.Second
}

func codeOfStatus(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return string(errs.Unauthenticated)
	case http.StatusForbidden:
		return string(errs.Forbidden)
	case http.StatusNotFound:
		return string(errs.NotFound)
	case http.StatusTooManyRequests:
		return string(errs.RateLimited)
	case http.StatusServiceUnavailable:
		return string(errs.Unavailable)
	case http.StatusGatewayTimeout:
		return string(errs.Timeout)
	}
	return string(errs.Upstream)
}

// held is the error of a result that says that a person is to approve the call first: it holds nothing of what was asked for.
func held(out json.RawMessage) error {
	if !bytes.Contains(out, []byte(`"confirmation-required"`)) {
		return nil
	}
	details := map[string]any{}
	if json.Unmarshal(out, &details) != nil || details["status"] != "confirmation-required" {
		return nil
	}
	message, _ := details["message"].(string)
	kept := map[string]any{}
	for _, name := range []string{"status", "confirmationId", "idempotencyKey", "expiresAt", "reasons"} {
		if v, ok := details[name]; ok {
			kept[name] = v
		}
	}
	return &Error{
		Code: string(errs.ConfirmationRequired), Message: message, Reason: "held", Status: http.StatusAccepted, Details: kept,
		Suggestion: "Once it is approved, repeat the call with the same idempotencyKey and input.",
	}
}
