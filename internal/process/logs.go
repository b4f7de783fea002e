package process

import (
	"cmp"
	"context"
	"strconv"
	"strings"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
)

// The bounds of one read of a log.
const (
	logsAtOnce   = 4       // by all callers: others wait
	mostLine     = 8 << 10 // bytes of a line that are shown
	mostScanned  = 8 << 20 // bytes of output that one call looks through
	mostAnswered = 1 << 20 // bytes of text in one page
	defaultLines = 100
)

// place is where in a log a line stands: by time, then by what it is of. Lines of one stream follow their offsets.
type place struct {
	at     int64  // microseconds
	source string // a process's id; empty for the sandbox's own life
	part   int    // of a process: begin, stdout, stderr, end; of the sandbox 0
	offset int64  // behind the line; of the sandbox's life its number among those of the same time
}

// The parts of a process.
const (
	partBegin = iota
	partStdout
	partStderr
	partEnd
)

func (p place) compare(q place) int {
	return cmp.Or(cmp.Compare(p.at, q.at), cmp.Compare(p.source, q.source), cmp.Compare(p.part, q.part), cmp.Compare(p.offset, q.offset))
}

func (p place) keys() []string {
	return []string{strconv.FormatInt(p.at, 10), p.source, strconv.Itoa(p.part), strconv.FormatInt(p.offset, 10)}
}

func placeOf(keys []string) (place, error) {
	at, err1 := strconv.ParseInt(keys[0], 10, 64)
	part, err2 := strconv.Atoi(keys[2])
	offset, err3 := strconv.ParseInt(keys[3], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil {
		return place{}, errs.E(errs.InvalidCursor, "the cursor is not valid for this call").Suggest("Call again without a cursor.")
	}
	return place{at, keys[1], part, offset}, nil
}

// wish is what a call wants to see.
type wish struct {
	in       *api.SandboxLogsIn
	forward  bool
	level    int
	search   string
	from, to int64 // microseconds
	after    *place
	limit    int
}

// levels are the levels, the least first.
var levels = map[string]int{api.LevelDebug: 0, api.LevelInfo: 1, api.LevelWarn: 2, api.LevelError: 3}

func wishOf(in *api.SandboxLogsIn, bound any) (*wish, error) {
	w := &wish{in: in, forward: in.Direction == "forward", level: levels[api.LevelInfo], search: strings.ToLower(in.Search), to: 1<<63 - 1, limit: orInt(in.Limit, defaultLines)}
	if in.Level != "" {
		w.level = levels[in.Level]
	}
	if in.Start != nil {
		w.from = db.Micros(*in.Start)
	}
	if in.End != nil {
		w.to = db.Micros(*in.End)
	}
	if w.from > w.to {
		return nil, errs.E(errs.InvalidInput, "start must not be after end").With("path", "start")
	}
	keys, err := op.DecodeCursor(in.Cursor, bound, 4)
	if err != nil || keys == nil {
		return w, err
	}
	after, err := placeOf(keys)
	w.after = &after
	return w, err
}

// beyond reports whether a place is still to be shown.
func (w *wish) beyond(p place) bool {
	switch {
	case w.after == nil:
		return true
	case w.forward:
		return p.compare(*w.after) > 0
	default:
		return p.compare(*w.after) < 0
	}
}

// wants reports whether a line passes the filters that concern its text.
func (w *wish) wants(l *api.LogLine) bool {
	return levels[l.Level] >= w.level && (w.search == "" || strings.Contains(strings.ToLower(l.Message), w.search))
}

func (s *Service) actLogs(ctx context.Context, in *api.SandboxLogsIn, _ *op.Draft) (*api.SandboxLogsOut, error) {
	bound := *in
	bound.Cursor, bound.Limit = "", 0
	w, err := wishOf(in, bound)
	if err != nil {
		return nil, err
	}
	select {
	case s.reading <- struct{}{}:
		defer func() { <-s.reading }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	pieces, missing, err := s.pieces(ctx, w)
	if err != nil {
		return nil, err
	}
	out := &api.SandboxLogsOut{Missing: missing}
	last, err := s.scan(ctx, w, pieces, out)
	if err != nil {
		return nil, err
	}
	if last != nil {
		out.NextCursor = op.EncodeCursor(bound, last.keys()...)
	}
	return out, nil
}

// scan goes through the pieces and gathers lines, until there are enough or enough was looked at. It gives the place to go on behind, nil at the end.
func (s *Service) scan(ctx context.Context, w *wish, pieces []piece, out *api.SandboxLogsOut) (*place, error) {
	scanned, text := int64(0), 0
	last := w.after
	for i := range pieces {
		p := &pieces[i]
		if scanned >= mostScanned {
			return last, nil
		}
		lines, err := p.lines(ctx, w.forward)
		if err != nil {
			return nil, err
		}
		scanned += p.size()
		for j := range lines {
			l := &lines[j]
			if !w.beyond(l.place) {
				continue
			}
			if w.wants(&l.line) {
				if len(out.Items) == w.limit || text > mostAnswered {
					return last, nil
				}
				out.Items = append(out.Items, l.line)
				text += len(l.line.Message)
			}
			at := l.place
			last = &at
		}
		if len(lines) == 0 && w.beyond(p.place) {
			at := p.place
			last = &at
		}
	}
	return nil, nil
}
