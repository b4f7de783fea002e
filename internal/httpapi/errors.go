package httpapi

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// statusError is an error whose HTTP status is finer than its code's.
type statusError struct {
	status int
	error
}

func (e statusError) Unwrap() error { return e.error }

type errorBody struct {
	Error errorFields `json:"error"`
}

type errorFields struct {
	Code         errs.Code      `json:"code"`
	Message      string         `json:"message"`
	Suggestion   string         `json:"suggestion,omitempty"`
	RequestID    string         `json:"requestId"`
	Reason       string         `json:"reason,omitempty"`
	RetryAfterMS int64          `json:"retryAfterMs,omitempty"`
	Details      map[string]any `json:"details,omitempty"`
}

// fail writes an error in the API's form. Of an error inside the server only the request id is shown; the rest is logged here, once.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	rec := w.(*recorder)
	if r.Context().Err() != nil && rec.status == 0 {
		rec.status = 499 // the caller has gone: nobody reads an answer
	}
	e := errs.From(err)
	status := e.Code.Status()
	if se, ok := err.(statusError); ok {
		status = se.status
	}
	fields := errorFields{
		Code: e.Code, Message: e.Message, Suggestion: e.Suggestion, RequestID: rec.requestID, Reason: e.Reason,
		RetryAfterMS: e.RetryAfter.Milliseconds(), Details: e.Details,
	}
	if e.Code.Status() == http.StatusInternalServerError {
		if r.Context().Err() == nil {
			s.Logger.ErrorContext(r.Context(), "call failed inside the server", "operation", rec.operation, "request_id", rec.requestID, "error", err)
		}
		fields = errorFields{
			Code: errs.Internal, Message: "something failed inside the server", RequestID: rec.requestID,
			Suggestion: "Try again; if it fails again, report the requestId.",
		}
	}
	h := w.Header()
	if fields.RetryAfterMS > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(e.RetryAfter.Seconds())), 10))
	}
	if status == http.StatusUnauthorized && h.Get("WWW-Authenticate") == "" {
		h.Set("WWW-Authenticate", challenge(r, e))
	}
	body, merr := json.Marshal(errorBody{fields})
	if merr != nil { // details that are no JSON
		fields.Details = nil
		body, _ = json.Marshal(errorBody{fields})
	}
	s.write(w, status, body)
}

// challenge is the WWW-Authenticate header of RFC 6750: no error where no credential was sent at all.
func challenge(r *http.Request, e *errs.Error) string {
	c := `Bearer realm="berth"`
	switch auth := r.Header.Get("Authorization"); {
	case auth == "":
		return c
	case !strings.EqualFold(scheme(auth), "Bearer"):
		c += `, error="invalid_request"`
	default:
		c += `, error="invalid_token"`
	}
	return c + `, error_description="` + quotable(e.Message) + `"`
}

// quotable keeps what RFC 6750 allows in error_description.
func quotable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r > 0x7e || r == '"' || r == '\\' {
			return '?'
		}
		return r
	}, s)
}

func scheme(auth string) string {
	name, _, _ := strings.Cut(auth, " ")
	return name
}

func (s *server) unknown(w http.ResponseWriter, r *http.Request) {
	s.fail(w, r, errs.E(errs.NotFound, "there is nothing at this path").Because("unknown_route").
		Suggest("GET /v1/openapi.json lists every route; the documentation is at /docs/."))
}

func (s *server) wrongMethod(w http.ResponseWriter, r *http.Request, allow string) {
	w.Header().Set("Allow", allow)
	s.fail(w, r, statusError{
		http.StatusMethodNotAllowed,
		errs.E(errs.InvalidInput, "this path does not take this method").Because("method_not_allowed").Suggest("Use one of: %s.", allow),
	})
}

func (s *server) notReady(w http.ResponseWriter, r *http.Request, err error) {
	if errs.CodeOf(err) == errs.Internal {
		s.Logger.WarnContext(r.Context(), "not ready", "error", err)
		err = errs.E(errs.Unavailable, "the server is not ready").Suggest("Try again in a moment.")
	}
	s.fail(w, r, err)
}
