// Package audit owns the record of who did what: one row a call, without the values of its arguments.
//
// A write's row is made in the transaction of its intent, so that none happens unrecorded. Reads, refusals and the results of writes follow in batches;
// what was gathered in the last 100 ms is all that a crash may lose. The hash chain over the rows comes with their numbers later.
package audit

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/id"
)

const (
	flushEvery = 100 * time.Millisecond
	flushAt    = 256     // entries: then the call that brings the next one writes them itself
	keepAtMost = 100_000 // entries: while the database refuses them
	keepFor    = 400 * 24 * time.Hour
	// OK is the result of a call that succeeded; of another one it is the error's code.
	OK = "ok"
)

// Entry is one call.
type Entry struct {
	ID           string
	At           time.Time // when it began
	Caller       caller.Caller
	Operation    string
	Action       string
	ResourceKind string
	ResourceID   string
	Result       string // OK, an error's code, or empty: it has not come to an end
	Duration     time.Duration
	Seq          int64 // its number, 0 before it has one
}

// Config says what a Log works with. Now, NewID and Logger may be nil.
type Config struct {
	DB     *db.DB
	Keep   time.Duration // how long rows are there; 400 days where 0
	Now    func() time.Time
	NewID  func(id.Kind) string
	Logger *slog.Logger
}

type ending struct {
	id       string
	result   string
	duration time.Duration
}

// Log is the audit log of the deployment.
type Log struct {
	cfg Config
	seq db.Sequence

	mu      sync.Mutex
	entries []Entry
	ends    []ending

	writing sync.Mutex // one flush at a time, so that an end never overtakes
}

// kindAudit is the kind of the rows' ids.
const kindAudit id.Kind = "aud"

// New makes a Log. Run writes what is gathered.
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
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Log{cfg: cfg, seq: db.Sequence{Table: "audit", Gap: flushEvery, Relaxed: true}}
}

// Begin records a write in the transaction of its intent and gives the row's id for End.
func (l *Log) Begin(ctx context.Context, tx op.Tx, e Entry) (string, error) {
	l.complete(&e)
	if err := insert(ctx, tx, []Entry{e}); err != nil {
		return "", err
	}
	return e.ID, nil
}

// End sets the result of a write that Begin recorded, soon.
func (l *Log) End(entry, result string, d time.Duration) {
	l.gather(nil, &ending{entry, result, d})
}

// Record records a call that has come to its end without an intent, soon.
func (l *Log) Record(e Entry) {
	l.complete(&e)
	l.gather(&e, nil)
}

func (l *Log) complete(e *Entry) {
	if e.ID == "" {
		e.ID = l.cfg.NewID(kindAudit)
	}
	if e.At.IsZero() {
		e.At = l.cfg.Now()
	}
	e.Caller.Client = plain(e.Caller.Client, 200)
}

// plain cuts untrusted text and takes out what could forge lines or colours where it is shown.
func plain(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s), "")
}

func (l *Log) gather(e *Entry, end *ending) {
	l.mu.Lock()
	if e != nil {
		l.entries = append(l.entries, *e)
	}
	if end != nil {
		l.ends = append(l.ends, *end)
	}
	full := (len(l.entries)+len(l.ends))%flushAt == 0
	l.mu.Unlock()
	if full {
		if err := l.Flush(context.Background()); err != nil {
			l.cfg.Logger.Error("the audit log was not written", "error", err)
		}
	}
}

// Flush writes what is gathered now.
func (l *Log) Flush(ctx context.Context) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	entries, ends := l.entries, l.ends
	l.entries, l.ends = nil, nil
	l.mu.Unlock()
	if len(entries)+len(ends) == 0 {
		return nil
	}
	err := l.cfg.DB.TxRelaxed(ctx, func(tx *sql.Tx) error {
		for part := range slices.Chunk(entries, 100) {
			write := insertEach
			if l.cfg.DB.Dialect() != db.SQLite {
				write = func(ctx context.Context, tx *sql.Tx, part []Entry) error { return insert(ctx, tx, part) }
			}
			if err := write(ctx, tx, part); err != nil {
				return err
			}
		}
		for _, e := range ends {
			if _, err := tx.ExecContext(ctx, `UPDATE audit SET result = $2, duration_us = $3 WHERE id = $1`,
				e.id, e.result, e.duration.Microseconds()); err != nil {
				return fmt.Errorf("end audit row: %w", err)
			}
		}
		l.cfg.DB.NotifyAfter(tx, l.seq.Topic())
		return nil
	})
	if err != nil {
		l.putBack(entries, ends)
	}
	return err
}

// putBack keeps for the next try what could not be written, as long as there is room.
func (l *Log) putBack(entries []Entry, ends []ending) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries, l.ends = append(entries, l.entries...), append(ends, l.ends...)
	if lost := len(l.entries) - keepAtMost; lost > 0 {
		l.cfg.Logger.Error("audit entries are lost", "entries", lost)
		l.entries = l.entries[lost:]
	}
	if lost := len(l.ends) - keepAtMost; lost > 0 {
		l.ends = l.ends[lost:]
	}
}

// Run writes what is gathered, numbers the rows and drops old ones, until the context ends; then it writes the rest and gives the context's error.
func (l *Log) Run(ctx context.Context) error {
	var beside sync.WaitGroup
	beside.Go(func() { _ = l.cfg.DB.RunSequence(ctx, l.seq) })
	beside.Go(func() { _ = l.cfg.DB.RunDropOld(ctx, l.seq, l.cfg.Keep, l.cfg.Now) })
	defer beside.Wait()
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			if err := l.Flush(last); err != nil {
				l.cfg.Logger.Error("the audit log was not written", "error", err)
			}
			return ctx.Err()
		case <-tick.C:
			if err := l.Flush(ctx); err != nil && ctx.Err() == nil {
				l.cfg.Logger.Error("the audit log was not written", "error", err)
			}
		}
	}
}

// Backlog is how many rows and ends of rows are gathered and not yet written.
func (l *Log) Backlog() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.entries) + len(l.ends)
}

// Behind gives how many rows wait for their numbers, and how long the oldest of them does.
func (l *Log) Behind(ctx context.Context) (rows int64, oldest time.Duration, err error) {
	return l.cfg.DB.Behind(ctx, l.seq)
}
