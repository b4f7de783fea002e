// Package event owns the events of the deployment: what happened to which resource, appended in the transaction that makes it happen and numbered after
// its commit, so that a reader that goes on after the greatest number it saw never skips one.
//
// It does not deliver events to anyone and does not know what they mean.
package event

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/id"
)

// Event is one thing that happened.
type Event struct {
	ID        string // set by Append where empty
	Org       string
	Workspace string    // empty for one of the whole organization
	At        time.Time // set by Append where zero
	Type      string    // such as sandbox.created
	Resource  string    // an id
	Data      any       // a JSON object, never a secret; from List a json.RawMessage
	Seq       int64     // its number, of the whole deployment; 0 before it has one
}

// Config says what a Log works with. Now and NewID may be nil.
type Config struct {
	DB    *db.DB
	Keep  time.Duration // how long events are there; 90 days where 0
	Now   func() time.Time
	NewID func(id.Kind) string
}

const keepFor = 90 * 24 * time.Hour

// Log is the events of the deployment.
type Log struct {
	cfg Config
	seq db.Sequence
}

// New makes a Log.
func New(cfg Config) *Log {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.NewID == nil {
		cfg.NewID = id.New
	}
	if cfg.Keep == 0 {
		cfg.Keep = keepFor
	}
	return &Log{cfg: cfg, seq: db.Sequence{Table: "events", Gap: 20 * time.Millisecond}}
}

// Run numbers events as they are committed and drops old ones, until the context ends; it gives its error. Every server may run it.
func (l *Log) Run(ctx context.Context) error {
	var dropping sync.WaitGroup
	dropping.Go(func() { _ = l.cfg.DB.RunDropOld(ctx, l.seq, l.cfg.Keep, l.cfg.Now) })
	defer dropping.Wait()
	return l.cfg.DB.RunSequence(ctx, l.seq)
}

// Topic is what a reader of List waits on: it is notified when events have got their numbers.
func (l *Log) Topic() string { return l.seq.NumberedTopic() }

// Append writes an event in the transaction of what it tells, one that db.Tx gave.
func (l *Log) Append(ctx context.Context, tx op.Tx, e Event) error {
	if e.ID == "" {
		e.ID = l.cfg.NewID(id.Event)
	}
	if e.At.IsZero() {
		e.At = l.cfg.Now()
	}
	data := []byte("{}")
	if e.Data != nil {
		var err error
		if data, err = json.Marshal(e.Data); err != nil {
			return fmt.Errorf("encode event %s: %w", e.Type, err)
		}
	}
	_, err := tx.ExecContext(ctx, `
		INSERT INTO events (id, org_id, workspace_id, at, type, resource_id, data) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		e.ID, e.Org, e.Workspace, db.Micros(e.At), e.Type, e.Resource, string(data))
	if err != nil {
		return fmt.Errorf("append event: %w", err)
	}
	l.cfg.DB.NotifyAfter(tx, l.seq.Topic())
	return nil
}

// Emit is Append for areas that know an event only by its parts.
func (l *Log) Emit(ctx context.Context, tx op.Tx, org, workspace, kind, resource string, data any) error {
	return l.Append(ctx, tx, Event{Org: org, Workspace: workspace, Type: kind, Resource: resource, Data: data})
}

// Of gives the newest events of one resource, oldest first, at most limit of them, numbered or not.
func (l *Log) Of(ctx context.Context, resource string, limit int) ([]Event, error) {
	all, err := l.query(ctx, `WHERE resource_id = $1 ORDER BY at DESC, id DESC LIMIT $2`, resource, limit)
	slices.Reverse(all)
	return all, err
}

// List gives the numbered events of an organization after a number, in their order, at most limit of them.
func (l *Log) List(ctx context.Context, org string, after int64, limit int) ([]Event, error) {
	return l.query(ctx, `WHERE org_id = $1 AND seq > $2 ORDER BY seq LIMIT $3`, org, after, limit)
}

func (l *Log) query(ctx context.Context, where string, args ...any) ([]Event, error) {
	rows, err := l.cfg.DB.QueryContext(ctx, `SELECT id, org_id, workspace_id, at, type, resource_id, data, COALESCE(seq, 0) FROM events `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	defer rows.Close()
	var all []Event
	for rows.Next() {
		var e Event
		var at int64
		var data string
		if err := rows.Scan(&e.ID, &e.Org, &e.Workspace, &at, &e.Type, &e.Resource, &data, &e.Seq); err != nil {
			return nil, fmt.Errorf("read event: %w", err)
		}
		e.At, e.Data = db.Time(at), json.RawMessage(data)
		all = append(all, e)
	}
	return all, rows.Err()
}

// Behind gives how many events wait for their numbers, and how long the oldest of them does.
func (l *Log) Behind(ctx context.Context) (events int64, oldest time.Duration, err error) {
	return l.cfg.DB.Behind(ctx, l.seq)
}
