package op

import (
	"context"
	"database/sql"
)

// Tx is a database transaction as services use it in an intent: the three calls of database/sql.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Draft is the canonical request: what would be done, to what, at what cost. It is what authorization decides on and what a person approves.
type Draft struct {
	Resource Resource
	Cost     map[string]int64  // by limit, such as "sandboxes.running": what the call would take
	Uses     map[string]string // what names in the input mean now, such as a template's build: another meaning is another request
	Process  string            // the id of a process that the call will start, kept for a replay
	Once     string            // set by the path of a call after Draft: an id of this one effect, the same at every repetition with the same key
	Data     any               // the service's own, between its steps

	Confirmed bool // a person approved exactly this; only the path of a call sets it
}

// Resource is what a call acts on. A collection has no ID; what is about to be made has the ID that it will get.
type Resource struct {
	Kind        string // sandbox, key, organization, …
	ID          string
	OrgID       string
	WorkspaceID string
	Name        string // untrusted text of a caller
	Version     int64  // its generation when the draft was made
	CreatedBy   CreatedBy
	Labels      map[string]string
}

// Decision is what authorization says of a draft.
type Decision struct {
	Allowed bool
	Message string // of a refusal, for the caller

	Confirm []string // why a person is to approve first; Allowed is false then
}

// CreatedBy says who made a resource and through what.
type CreatedBy struct {
	Person string `json:"person,omitempty" doc:"The person for whom it was made."`
	Agent  string `json:"agent,omitempty" doc:"The agent that made it."`
	App    string `json:"app,omitempty" doc:"The connected app that made it."`
	Key    string `json:"key,omitempty" doc:"The key that made it."`
}

// WriteIn is embedded by the input of every write.
type WriteIn struct {
	IdempotencyKey string `json:"idempotencyKey,omitempty" pattern:"^[A-Za-z0-9._:-]{1,128}$" doc:"Your own: the same key and input again give the first result. Made when absent."`
}

// WriteOut is embedded by the output of every write.
type WriteOut struct {
	IdempotencyKey string `json:"idempotencyKey" doc:"To repeat this call with."`
	Replayed       bool   `json:"replayed,omitempty" doc:"An earlier call's result."`
}

// SetWrite is called by the path of a call.
func (w *WriteOut) SetWrite(key string, replayed bool) { w.IdempotencyKey, w.Replayed = key, replayed }

// WaitIn is embedded by the input of writes that take time.
type WaitIn struct {
	WaitSeconds *int `json:"waitSeconds,omitempty" min:"0" max:"30" default:"20" doc:"How long to wait for its end."`
}

// Wait is the number of seconds to wait, the default where none was given.
func (w WaitIn) Wait() int {
	if w.WaitSeconds == nil {
		return 20
	}
	return *w.WaitSeconds
}

// PageIn is embedded by the input of every list.
type PageIn struct {
	Cursor string `json:"cursor,omitempty" maxlen:"1024" doc:"nextCursor of the page before, with the same filters."`
	Limit  int    `json:"limit,omitempty" min:"1" max:"200" default:"20" doc:"How many items at most."`
}

// Size is the limit, the default where none was given.
func (p PageIn) Size() int {
	if p.Limit == 0 {
		return 20
	}
	return p.Limit
}

// PageOut is embedded by the output of every list.
type PageOut struct {
	NextCursor *string `json:"nextCursor" null:"true" doc:"The next page's cursor; null on the last one."`
}

// Keyed is what the path of a call asks of a write's input, Stamped of its output.
type (
	// Keyed gives the caller's own retry key.
	Keyed interface{ RetryKey() string }
	// Stamped takes the retry key and whether the result is a replay.
	Stamped interface {
		SetWrite(key string, replayed bool)
	}
)

// Redactor is implemented by an output with parts that are shown once, such as a new key's secret: Redacted gives a copy without them, of the same
// type. It is what is kept for replays.
type Redactor interface{ Redacted() any }

// RetryKey implements Keyed.
func (w WriteIn) RetryKey() string { return w.IdempotencyKey }
