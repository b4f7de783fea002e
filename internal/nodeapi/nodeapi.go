// Package nodeapi owns what the control plane and a node say to each other: a runtime.Driver over an HTTP connection, and what a node tells of
// itself.
//
// The node of one machine uses the same handlers over a pipe. The package decides nothing: placement is the control plane's, running is the
// driver's.
package nodeapi

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
)

// Info is what a node tells of itself: GET /node/v1/info.
type Info struct {
	Driver       string               `json:"driver"`
	Capabilities runtime.Capabilities `json:"capabilities"`
	Images       map[string]string    `json:"images"` // prepared images: their ids by name
	Version      string               `json:"version"`
	Trees        bool                 `json:"trees,omitempty"`        // it hands out the files of saves
	CPUs         int                  `json:"cpus,omitempty"`         // cores that sandboxes may use; 0: unknown
	MemoryMiB    int64                `json:"memoryMiB,omitempty"`    // of the machine; 0: unknown
	AvailableMiB int64                `json:"availableMiB,omitempty"` // of that, as it is now; 0: unknown
}

// The bodies of calls. Each method of runtime.Driver is POST /node/v1/{method} with one of these; the answer is the method's result.
type (
	specBody struct {
		Spec     runtime.Spec `json:"spec"`
		Name     string       `json:"name,omitempty"`     // of a save
		FromDisk bool         `json:"fromDisk,omitempty"` // of a clone
	}
	idBody struct {
		ID         string              `json:"id"`
		Generation int64               `json:"generation,omitempty"`
		Grace      time.Duration       `json:"grace,omitempty"`
		Name       string              `json:"name,omitempty"`
		Save       runtime.SaveOptions `json:"save,omitzero"`
		Port       int                 `json:"port,omitempty"`
		Resources  *runtime.Resources  `json:"resources,omitempty"`
	}
)

// wireError is an errs.Error on the connection.
type wireError struct {
	Code         errs.Code      `json:"code"`
	Message      string         `json:"message"`
	Suggestion   string         `json:"suggestion,omitempty"`
	Reason       string         `json:"reason,omitempty"`
	RetryAfterMS int64          `json:"retryAfterMs,omitempty"`
	Details      map[string]any `json:"details,omitempty"`
}

const maxBody = 1 << 20

func writeError(w http.ResponseWriter, err error) {
	e := toWire(err)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.Code.Status())
	_ = json.NewEncoder(w).Encode(e)
}

func toWire(err error) *wireError {
	e := errs.From(err)
	// Between our own processes the cause is worth keeping: the control plane logs it and shows a caller only what the code allows.
	msg := e.Message
	if e.Code == errs.Internal {
		msg = err.Error()
	}
	return &wireError{
		Code: e.Code, Message: msg, Suggestion: e.Suggestion, Reason: e.Reason,
		RetryAfterMS: e.RetryAfter.Milliseconds(), Details: e.Details,
	}
}

func readError(status int, body io.Reader) error {
	var e wireError
	if err := json.NewDecoder(io.LimitReader(body, maxBody)).Decode(&e); err != nil || e.Code == "" {
		return errs.Wrap(errs.Upstream, errors.New(http.StatusText(status)), "the node answered with an unknown error")
	}
	return fromWire(&e)
}

func fromWire(e *wireError) error {
	if e.Code == errs.Internal {
		return errors.New(e.Message)
	}
	return &errs.Error{
		Code: e.Code, Message: e.Message, Suggestion: e.Suggestion, Reason: e.Reason,
		RetryAfter: time.Duration(e.RetryAfterMS) * time.Millisecond, Details: e.Details,
	}
}
