// Package errs owns the error codes of Berth and the one error type that carries them.
//
// A code is set once, where the meaning of a failure is known; above that place errors are wrapped with fmt.Errorf and %w.
// It does not own how an error is written on the wire: each face does that from the fields here.
package errs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"
)

// Code is one of the stable error codes that callers act on.
type Code string

// The codes, grouped by the HTTP status that Status gives them.
const (
	InvalidInput  Code = "INVALID_INPUT"  // 400
	InvalidCursor Code = "INVALID_CURSOR" // 400
	InvalidConfig Code = "INVALID_CONFIG" // 400

	Unauthenticated Code = "UNAUTHENTICATED" // 401

	InsufficientCredit Code = "INSUFFICIENT_CREDIT" // 402

	Forbidden     Code = "FORBIDDEN"      // 403
	LimitExceeded Code = "LIMIT_EXCEEDED" // 403

	NotFound Code = "NOT_FOUND" // 404

	InvalidState         Code = "INVALID_STATE"         // 409
	AlreadyExists        Code = "ALREADY_EXISTS"        // 409
	Busy                 Code = "BUSY"                  // 409
	IdempotencyConflict  Code = "IDEMPOTENCY_CONFLICT"  // 409
	ConfirmationRequired Code = "CONFIRMATION_REQUIRED" // 409

	RateLimited Code = "RATE_LIMITED" // 429

	Internal Code = "INTERNAL_ERROR" // 500

	Upstream Code = "UPSTREAM_ERROR" // 502

	NoCapacity      Code = "NO_CAPACITY"      // 503
	HostUnavailable Code = "HOST_UNAVAILABLE" // 503
	Unavailable     Code = "UNAVAILABLE"      // 503

	Timeout Code = "TIMEOUT" // 504
)

var statuses = map[Code]int{
	InvalidInput: 400, InvalidCursor: 400, InvalidConfig: 400,
	Unauthenticated: 401, InsufficientCredit: 402, Forbidden: 403, LimitExceeded: 403, NotFound: 404,
	InvalidState: 409, AlreadyExists: 409, Busy: 409, IdempotencyConflict: 409, ConfirmationRequired: 409,
	RateLimited: 429, Internal: 500, Upstream: 502, NoCapacity: 503, HostUnavailable: 503, Unavailable: 503, Timeout: 504,
}

// Codes lists every code, for documentation and tests. The order is not fixed.
func Codes() []Code {
	all := make([]Code, 0, len(statuses))
	for c := range statuses {
		all = append(all, c)
	}
	return all
}

// Status is the HTTP status of the code, 500 for an unknown one.
func (c Code) Status() int {
	if s, ok := statuses[c]; ok {
		return s
	}
	return 500
}

// Error is a failure with a code. Message is lower-case and says what is wrong; Suggestion is written for an agent and says what
// to do about it. Reason is a stable lower-case word that tells cases of one code apart.
type Error struct {
	Code       Code
	Message    string
	Suggestion string
	Reason     string
	RetryAfter time.Duration
	Details    map[string]any

	cause error
}

// Error is the message, followed by the cause where there is one.
func (e *Error) Error() string {
	if e.cause != nil {
		return e.Message + ": " + e.cause.Error()
	}
	return e.Message
}

// Whole is the message with the suggestion behind it, for where an error is kept as one text: whoever reads why work failed that went on by itself has
// nothing else.
func (e *Error) Whole() string {
	switch {
	case e.Suggestion == "":
		return e.Message
	case strings.Contains(e.Message, "\n"): // the end of what a command wrote
		return e.Message + "\n" + e.Suggestion
	case strings.HasSuffix(e.Message, "."), strings.HasSuffix(e.Message, "?"), strings.HasSuffix(e.Message, "!"):
		return e.Message + " " + e.Suggestion
	}
	return e.Message + ". " + e.Suggestion
}

// Unwrap gives the cause, or nil.
func (e *Error) Unwrap() error { return e.cause }

// E makes an error from a code and a formatted message for the caller.
func E(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Wrap makes an error from a code, a message for the caller, and a cause that only logs see.
func Wrap(code Code, cause error, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), cause: cause}
}

// Suggest sets what the caller should do, and returns the error.
func (e *Error) Suggest(format string, args ...any) *Error {
	e.Suggestion = fmt.Sprintf(format, args...)
	return e
}

// Because sets the stable reason word, and returns the error.
func (e *Error) Because(reason string) *Error {
	e.Reason = reason
	return e
}

// After sets how long the caller should wait before trying again, and returns the error.
func (e *Error) After(d time.Duration) *Error {
	e.RetryAfter = d
	return e
}

// With sets one detail, and returns the error.
func (e *Error) With(key string, value any) *Error {
	if e.Details == nil {
		e.Details = map[string]any{}
	}
	e.Details[key] = value
	return e
}

// Woke gives an error what results say in woke: the call has started its sandbox, in such a way, and failed then. Where it has not, woke is empty and the error
// stays as it is.
func Woke(err error, woke string) error {
	if err == nil || woke == "" {
		return err
	}
	e := *From(err)
	e.Details = maps.Clone(e.Details)
	return e.With("woke", woke)
}

// CodeOf is the code of the first Error in the chain. A deadline without one is Timeout, anything else Internal; nil has none.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return Timeout
	}
	return Internal
}

// Is reports whether the error's code is the given one.
func Is(err error, code Code) bool { return err != nil && CodeOf(err) == code }

// From gives the Error to show for any error: the first one in its chain with its own message, or for errors without a code a
// bare Timeout or Internal whose message tells nothing of the inside. It is nil for nil.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &Error{Code: Timeout, Message: "the call took too long", Suggestion: "Read the resource to see how far it came, then try again.", cause: err}
	}
	return &Error{Code: Internal, Message: "something failed inside the server", Suggestion: "Try again; if it fails again, report the requestId.", cause: err}
}
