package template

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
)

const (
	lineMost   = 8 << 10                // of one piece of a log
	flushEvery = 150 * time.Millisecond // a log's delay at most
	flushBytes = 256 << 10              // that are held before
	partMost   = time.Second            // that the beginning of a line is held back
)

// journal writes a build's log. What is written shows soon; close writes the rest.
type journal struct {
	s     *Service
	build string

	mu      sync.Mutex
	next    int64
	left    int64 // of the log's bytes
	held    []piece
	size    int
	parts   map[string]*part // the unfinished line of each stream
	wake    chan struct{}
	stop    chan struct{}
	stopped chan struct{}
	failed  error
}

type piece struct {
	at     int64
	step   int64
	stream string
	text   string
}

type part struct {
	step  int64
	text  []byte
	since time.Time
}

// openJournal goes on behind what there is of a build's log.
func (s *Service) openJournal(ctx context.Context, build string) (*journal, error) {
	j := &journal{s: s, build: build, parts: map[string]*part{}, wake: make(chan struct{}, 1), stop: make(chan struct{}), stopped: make(chan struct{})}
	var bytes int64
	err := s.DB.QueryRowContext(ctx, `SELECT COALESCE(MAX(seq) + 1, 0), COALESCE(SUM(LENGTH(text)), 0) FROM build_log WHERE build_id = $1`, build).Scan(&j.next, &bytes)
	if err != nil {
		return nil, fmt.Errorf("read end of log: %w", err)
	}
	j.left = s.LogBytes - bytes
	go j.run(context.WithoutCancel(ctx))
	return j, nil
}

// say writes a line of the build's own.
func (j *journal) say(step int64, format string, args ...any) {
	j.add(step, "build", fmt.Sprintf(format, args...)+"\n")
}

// stream takes bytes of a command's output.
func (j *journal) stream(step int64, stream string, data []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.parts[stream]
	if p == nil {
		p = &part{}
		j.parts[stream] = p
	}
	if len(p.text) == 0 {
		p.step, p.since = step, time.Now()
	}
	p.text = append(p.text, data...)
	end := bytes.LastIndexByte(p.text, '\n') + 1
	if len(p.text) >= lineMost && end == 0 {
		end = len(p.text)
	}
	if end > 0 {
		j.put(p.step, stream, string(p.text[:end]))
		p.text, p.since = append([]byte(nil), p.text[end:]...), time.Now()
	}
}

// rest writes what is left of unfinished lines: the command has ended.
func (j *journal) rest() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.parted(0)
}

// parted writes the unfinished lines that are older than so much.
func (j *journal) parted(age time.Duration) {
	for stream, p := range j.parts {
		if len(p.text) > 0 && time.Since(p.since) >= age {
			j.put(p.step, stream, string(p.text))
			p.text = nil
		}
	}
}

func (j *journal) add(step int64, stream, text string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.put(step, stream, text)
}

// put holds a text in pieces. What the log has no room for is left out, and that is said once.
func (j *journal) put(step int64, stream, text string) {
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "\uFFFD"), "\uFFFD")
	at := db.Micros(j.s.Now())
	for text != "" {
		n := min(len(text), lineMost)
		if n < len(text) {
			if i := strings.LastIndexByte(text[:n], '\n'); i >= 0 {
				n = i + 1
			}
			for n > 1 && text[n]&0xC0 == 0x80 { // a character is never cut
				n--
			}
		}
		if stream != "build" {
			if j.left <= 0 {
				return
			}
			if j.left -= int64(n); j.left <= 0 {
				j.held = append(j.held, piece{at, step, "build", "the log is full: further output of commands is not kept\n"})
				return
			}
		}
		j.held = append(j.held, piece{at, step, stream, text[:n]})
		j.size += n
		text = text[n:]
	}
	if j.size >= flushBytes {
		select {
		case j.wake <- struct{}{}:
		default:
		}
	}
}

func (j *journal) run(ctx context.Context) {
	defer close(j.stopped)
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			j.mu.Lock()
			j.parted(partMost)
			j.mu.Unlock()
		case <-j.wake:
		case <-j.stop:
			j.rest()
			j.flush(ctx)
			return
		}
		j.flush(ctx)
	}
}

// flush writes what is held. Where that fails it is tried again with the next.
func (j *journal) flush(ctx context.Context) {
	j.mu.Lock()
	held, next := j.held, j.next
	j.held, j.size = nil, 0
	j.mu.Unlock()
	if len(held) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err := j.s.DB.TxRelaxed(ctx, func(tx *sql.Tx) error {
		for i, p := range held {
			_, err := tx.ExecContext(ctx, `INSERT INTO build_log (build_id, seq, at, step, stream, text) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING`,
				j.build, next+int64(i), p.at, p.step, p.stream, p.text)
			if err != nil {
				return fmt.Errorf("write log: %w", err)
			}
		}
		j.s.DB.NotifyAfter(tx, topic(j.build))
		return nil
	})
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil {
		if j.failed == nil {
			j.s.Logger.Warn("log of a build not written, will try again", "build", j.build, "error", err)
		}
		j.failed = err
		if len(held) < 4096 {
			j.held = append(held, j.held...)
		}
		return
	}
	j.next, j.failed = next+int64(len(held)), nil
}

func (j *journal) close() {
	close(j.stop)
	<-j.stopped
}

// lines gives a part of a build's log.
func (store) lines(ctx context.Context, q op.Tx, build string, offset int64, limit int) ([]api.BuildLine, error) {
	lines, err := collect(func(s scanner) (*api.BuildLine, error) {
		var l api.BuildLine
		var at int64
		if err := s.Scan(&l.Offset, &at, &l.Step, &l.Stream, &l.Text); err != nil {
			return nil, err
		}
		l.At = db.Time(at)
		return &l, nil
	})(q.QueryContext(ctx, `SELECT seq, at, step, stream, text FROM build_log WHERE build_id = $1 AND seq >= $2 ORDER BY seq LIMIT $3`, build, offset, limit))
	out := make([]api.BuildLine, len(lines))
	for i, l := range lines {
		out[i] = *l
	}
	return out, err
}

// written is how many pieces a build's log has.
func (store) written(ctx context.Context, q op.Tx, build string) (n int64, err error) {
	if err := q.QueryRowContext(ctx, `SELECT COALESCE(MAX(seq) + 1, 0) FROM build_log WHERE build_id = $1`, build).Scan(&n); err != nil {
		return 0, fmt.Errorf("read end of log: %w", err)
	}
	return n, nil
}
