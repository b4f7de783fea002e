package process

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
)

// piece is a part of a log whose lines stand together in time: one line that is known already, or what a process wrote to a stream at a time.
type piece struct {
	place  place // before every line of it but those of the same time
	known  *api.LogLine
	stream *logStream
	from   int64 // of the stream, inclusive
	to     int64 // exclusive
}

// logStream is what is kept of one stream of a process, live or stored.
type logStream struct {
	process, name   string
	part            int
	earliest, total int64
	ended           bool // nothing comes any more
	read            func(ctx context.Context, from, to int64) ([]byte, error)
}

// placed is a line and where it stands.
type placed struct {
	line  api.LogLine
	place place
}

func (p *piece) size() int64 { return p.to - p.from }

// lines reads the lines that end in the piece, in the order of the call. A line stands at the time at which it was complete.
func (p *piece) lines(ctx context.Context, forward bool) ([]placed, error) {
	if p.known != nil {
		return []placed{{*p.known, p.place}}, nil
	}
	st := p.stream
	from := max(p.from-mostLine, st.earliest) // the beginning of its first line may be before it
	data, err := st.read(ctx, from, p.to)
	if errs.Is(err, errs.NotFound) {
		return nil, nil // forgotten meanwhile
	}
	if err != nil {
		return nil, err
	}
	if int64(len(data)) < p.to-from {
		return nil, nil // discarded meanwhile
	}
	var all []placed
	at := int(p.from - from)
	start := bytes.LastIndexByte(data[:at], '\n') + 1
	cut := start == 0 && from > st.earliest // the line began even before
	for at < len(data) {
		n := bytes.IndexByte(data[at:], '\n')
		if n < 0 {
			break
		}
		all = append(all, p.line(data[start:at+n], from+int64(at+n)+1, cut))
		at += n + 1
		start, cut = at, false
	}
	if start < len(data) && p.to == st.total && st.ended { // the last line has no end
		all = append(all, p.line(data[start:], p.to+1, cut))
	}
	if !forward {
		slices.Reverse(all)
	}
	return all, nil
}

func (p *piece) line(text []byte, end int64, cut bool) placed {
	text = bytes.TrimSuffix(text, []byte{'\r'})
	l := api.LogLine{At: db.Time(p.place.at), Level: api.LevelInfo, Source: "process", ProcessID: p.stream.process, Stream: p.stream.name, Truncated: cut}
	if p.stream.part == partStderr {
		l.Level = api.LevelError
	}
	if len(text) > mostLine {
		text, l.Truncated = guest.WholeRunes(text[:mostLine]), true
	}
	if cut {
		text = wholeStart(text)
	}
	l.Message = valid(text)
	at := p.place
	at.offset = end
	return placed{l, at}
}

// pieces gathers everything that may have lines for a call, in its order. missing says what could not be read.
func (s *Service) pieces(ctx context.Context, w *wish) (all []piece, missing string, err error) {
	in := w.in
	story, g, err := s.Sandboxes.Story(ctx, in.SandboxID)
	if err != nil {
		return nil, "", err
	}
	if in.ProcessID == "" && in.Stream == "" {
		all = append(all, told(story)...)
	}
	found := in.ProcessID == ""
	add := func(p api.Process, out, errOut *logStream, stamps [2][]guest.Stamp) {
		if in.ProcessID != "" && in.ProcessID != p.ID {
			return
		}
		found = true
		if in.Stream == "" {
			all = append(all, ends(p, lastStamp(stamps))...)
		}
		for i, st := range []*logStream{out, errOut} {
			if in.Stream == "" || in.Stream == st.name {
				all = append(all, cutUp(st, stamps[i])...)
			}
		}
	}
	known := map[string]bool{}
	if g != nil {
		live, lerr := g.Stamps(ctx)
		if lerr != nil {
			missing = "what its processes wrote since its last start: " + errs.From(lerr).Message
		}
		for _, p := range live {
			known[p.Process.ID] = true
			add(show(in.SandboxID, p.Process), liveStream(g, &p, partStdout), liveStream(g, &p, partStderr), [2][]guest.Stamp{p.Stdout.Stamps, p.Stderr.Stamps})
		}
	}
	stored, err := s.storedAll(ctx, in.SandboxID)
	if err != nil {
		return nil, "", err
	}
	for i := range stored {
		r := &stored[i]
		if !known[r.info.ID] {
			add(r.info, s.keptStream(r, partStdout), s.keptStream(r, partStderr), [2][]guest.Stamp{r.stdout.stamps, r.stderr.stamps})
		}
	}
	if !found {
		return nil, "", errNoProcess(in.ProcessID)
	}
	all = slices.DeleteFunc(all, func(p piece) bool { return !w.may(&p) })
	slices.SortFunc(all, func(a, b piece) int {
		if w.forward {
			return a.place.compare(b.place)
		}
		return b.place.compare(a.place)
	})
	return all, missing, nil
}

// may reports whether a piece may have lines that a call wants and was not given yet.
func (w *wish) may(p *piece) bool {
	at := p.place.at
	if at < w.from || at > w.to {
		return false
	}
	if p.known != nil {
		return w.beyond(p.place) && levels[p.known.Level] >= w.level
	}
	if p.stream.part == partStdout && w.level > levels[api.LevelInfo] {
		return false
	}
	last := p.place
	last.offset = p.to + 1
	if w.forward {
		return w.beyond(last)
	}
	return w.beyond(p.place) // its place is before all its lines
}

// told makes pieces of what happened to the sandbox.
func told(story []api.LogLine) []piece {
	all := make([]piece, len(story))
	n := int64(0)
	for i := range story {
		if i > 0 && story[i].At.Equal(story[i-1].At) {
			n++
		} else {
			n = 0
		}
		all[i] = piece{place: place{at: db.Micros(story[i].At), offset: n}, known: &story[i]}
	}
	return all
}

// lastStamp is when a process wrote last, in microseconds.
func lastStamp(stamps [2][]guest.Stamp) int64 {
	last := int64(0)
	for _, s := range stamps {
		if len(s) > 0 {
			last = max(last, s[len(s)-1][1])
		}
	}
	return last
}

// ends makes pieces of a process's beginning and end. What it wrote last may have been read a moment after it ended.
func ends(p api.Process, wrote int64) []piece {
	begin := piece{place: place{at: db.Micros(p.StartedAt), source: p.ID, part: partBegin}, known: &api.LogLine{
		At: p.StartedAt, Level: api.LevelDebug, Source: "process", ProcessID: p.ID, Message: "started: " + clip(p.Command, 256),
	}}
	if p.EndedAt == nil {
		return []piece{begin}
	}
	at := max(db.Micros(*p.EndedAt), wrote)
	l := &api.LogLine{At: db.Time(at), Level: api.LevelDebug, Source: "process", ProcessID: p.ID, Message: "ended"}
	switch {
	case p.TimedOut:
		l.Level, l.Message, l.Reason = api.LevelWarn, "was killed at its timeout", "timed_out"
	case p.Signal != "":
		l.Level, l.Message, l.Reason = api.LevelWarn, "was ended by the signal "+p.Signal, "signal"
	case p.ExitCode != nil && *p.ExitCode != 0:
		l.Level, l.Message, l.Reason = api.LevelWarn, fmt.Sprintf("ended with exit code %d", *p.ExitCode), "exit_code"
	}
	return []piece{begin, {place: place{at: at, source: p.ID, part: partEnd}, known: l}}
}

// cutUp makes pieces of a stream, one for each of its stamps.
func cutUp(st *logStream, stamps []guest.Stamp) []piece {
	var all []piece
	for i, m := range stamps {
		p := piece{place: place{at: m[1], source: st.process, part: st.part}, stream: st, from: max(m[0], st.earliest), to: st.total}
		if i+1 < len(stamps) {
			p.to = min(stamps[i+1][0], st.total)
		}
		p.place.offset = p.from
		if p.from < p.to {
			all = append(all, p)
		}
	}
	return all
}

func liveStream(g *guest.Client, p *guest.StampedProcess, part int) *logStream {
	name, marks := "stdout", &p.Stdout
	if part == partStderr {
		name, marks = "stderr", &p.Stderr
	}
	id := p.Process.ID
	return &logStream{
		process: id, name: name, part: part, earliest: marks.Earliest, total: marks.Total, ended: !p.Process.Running,
		read: func(ctx context.Context, from, to int64) ([]byte, error) {
			var data []byte
			for from < to {
				o, err := g.Output(ctx, id, guest.OutputQuery{Stream: name, Offset: from, Limit: int(min(to-from, guest.OutputBytes))})
				if err != nil {
					return nil, err
				}
				if o.Offset != from || len(o.Data) == 0 {
					return nil, nil // discarded meanwhile
				}
				data, from = append(data, o.Data...), o.Next
			}
			return data, nil
		},
	}
}

func (s *Service) keptStream(r *record, part int) *logStream {
	name := "stdout"
	if part == partStderr {
		name = "stderr"
	}
	k, pack := r.stream(name), r.pack
	return &logStream{
		process: r.info.ID, name: name, part: part, earliest: k.at, total: k.at + k.length, ended: true,
		read: func(ctx context.Context, from, to int64) ([]byte, error) { return s.readKept(ctx, pack, k, from, to) },
	}
}
