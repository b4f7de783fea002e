// Package audit owns the record of who did what: one row a call, without the values of its arguments.
//
// A write's row is made in the transaction of its intent, so that none happens unrecorded. Reads, refusals and the results of writes follow in batches;
// what was gathered in the last 100 ms is all that a crash may lose.
//
// Rows are in chains: a row that nothing changes any more gets the next number of its organization and a hash over every field and the hash of the row
// before it. Each organization has a chain of its own, so that what it exports is verified by itself, shows every gap in its numbers, and tells nothing
// of others. A row is chained once it has its result, or after three minutes, when no call that waits can have one any more: it was cut off, or it is a
// terminal or an upload that goes on. An end that comes later is a row of its own, which names the first. So what has a number never changes.
//
// Whoever may write to the database can make a whole new chain; that is seen by those who have noted a number with its hash, or kept an export.
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
	EndOf        string // the id of the row with the call's beginning, where that was chained before the end came; then At is the time of the end
	Seq          int64  // its number in its organization, 0 before it has one
	Hash         string // over all of it and the hash of the row before
}

// Config says what a Log works with. Now, NewID and Logger may be nil.
type Config struct {
	DB   *db.DB
	Keep time.Duration // how long rows are there; 400 days where 0
	// Endless is how long a row without a result waits for one before it is chained without; three minutes where 0.
	Endless time.Duration
	Now     func() time.Time
	NewID   func(id.Kind) string
	Logger  *slog.Logger
}

// ending is the end of a call. Where it comes late it is a row, of the id own.
type ending struct {
	id       string
	own      string
	at       time.Time
	result   string
	duration time.Duration
}

// Log is the audit log of the deployment.
type Log struct {
	cfg Config

	mu      sync.Mutex
	entries []Entry
	ends    []ending

	writing sync.Mutex // one flush at a time, so that an end never overtakes
}

// kindAudit is the kind of the rows' ids.
const kindAudit id.Kind = "aud"

// Notified when rows were written, and when they were chained.
const (
	writtenTopic = "new:audit"
	chainedTopic = "numbered:audit"
)

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
	if cfg.Endless == 0 {
		cfg.Endless = endless
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Log{cfg: cfg}
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
	l.gather(nil, &ending{entry, l.cfg.NewID(kindAudit), l.cfg.Now(), result, d})
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
			if err := end(ctx, tx, e); err != nil {
				return err
			}
		}
		l.cfg.DB.NotifyAfter(tx, writtenTopic)
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

// Run writes what is gathered, chains the rows and drops old ones, until the context ends; then it writes the rest and gives the context's error.
func (l *Log) Run(ctx context.Context) error {
	var beside sync.WaitGroup
	beside.Go(func() { l.runChain(ctx) })
	beside.Go(func() { l.runDrop(ctx) })
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

// Behind gives how many rows that could be chained are not, and how long the oldest of them waits at most.
func (l *Log) Behind(ctx context.Context) (rows int64, oldest time.Duration, err error) {
	now, err := l.cfg.DB.Now(ctx, l.cfg.DB)
	if err != nil {
		return 0, 0, err
	}
	var at sql.NullInt64
	if err := l.cfg.DB.QueryRowContext(ctx, `SELECT COUNT(*), MIN(at + duration_us) FROM audit WHERE seq IS NULL AND result <> ''`).Scan(&rows, &at); err != nil {
		return 0, 0, fmt.Errorf("count rows without numbers: %w", err)
	}
	if !at.Valid {
		return rows, 0, nil
	}
	return rows, max(0, now.Sub(db.Time(at.Int64))), nil
}
