package process

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
)

const (
	// followWait is how long a follower's read waits in the guest.
	followWait = 10 * time.Second
	// keepAlive is how often a silent stream says that it lives.
	keepAlive = 15 * time.Second
	// maxFollowers is how many follow the processes of one sandbox through this server: each holds two of the connections to its guest.
	maxFollowers = 32
	// cutPause is how long the rest of a character is waited for before it is looked for again, at first and at most.
	cutPause, cutPauseMost = 10 * time.Millisecond, time.Second
)

// followers counts those of each sandbox.
type followers struct {
	mu  sync.Mutex
	now map[string]int
}

func (f *followers) enter(sandbox string) (leave func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now[sandbox] >= maxFollowers {
		return nil, errs.E(errs.RateLimited, "%d streams follow this sandbox's processes already", maxFollowers).Because("followers").After(2 * time.Second).
			Suggest("End one of them, or read the output with processes.output.")
	}
	if f.now == nil {
		f.now = map[string]int{}
	}
	f.now[sandbox]++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.now[sandbox]--; f.now[sandbox] == 0 {
			delete(f.now, sandbox)
		}
	}, nil
}

// follower writes the events of one stream. What is written is guarded by mu.
type follower struct {
	s    *Service
	in   *api.FollowProcessIn
	w    http.ResponseWriter
	mu   sync.Mutex
	next map[string]int64 // offset behind what was sent of each stream
	last time.Time        // of the last write
}

func (s *Service) serveFollow(ctx context.Context, in *api.FollowProcessIn, _ *op.Draft, st *op.Stream) error {
	f := &follower{s: s, in: in, w: st.W, next: map[string]int64{"stdout": in.StdoutOffset, "stderr": in.StderrOffset}}
	if err := f.resume(st.R.Header.Get("Last-Event-ID")); err != nil {
		return err
	}
	leave, err := s.followers.enter(in.SandboxID)
	if err != nil {
		return err
	}
	defer leave()
	if _, err := s.process(ctx, &in.ProcessIn); err != nil { // that there is none is told as an error, not as a broken stream
		return err
	}
	h := st.W.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store, no-transform")
	h.Set("X-Accel-Buffering", "no")
	st.W.WriteHeader(http.StatusOK)
	if err := f.write(": following\n\n"); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return f.run(ctx, cancel)
}

// resume reads the id of the last event.
func (f *follower) resume(id string) error {
	if id == "" {
		return nil
	}
	stdout, stderr, ok := strings.Cut(id, "-")
	out, err1 := strconv.ParseInt(stdout, 10, 64)
	errOut, err2 := strconv.ParseInt(stderr, 10, 64)
	if !ok || err1 != nil || err2 != nil || out < 0 || errOut < 0 {
		return errs.E(errs.InvalidInput, "the header Last-Event-ID is not an id of this stream").Suggest("Send the id of the last event, or none to begin anew.").With("path", "Last-Event-ID")
	}
	f.next["stdout"], f.next["stderr"] = out, errOut
	return nil
}

// run follows the streams to their ends and says how the process ended.
func (f *follower) run(ctx context.Context, cancel func()) error {
	streams := []string{"stdout", "stderr"}
	if f.in.Stream == "stdout" || f.in.Stream == "stderr" {
		streams = []string{f.in.Stream}
	}
	ends := make(chan error, len(streams))
	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel()
	for _, stream := range streams {
		wait.Go(func() { ends <- f.follow(ctx, stream) })
	}
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for left := len(streams); left > 0; {
		select {
		case err := <-ends:
			if err != nil {
				return err
			}
			left--
		case <-tick.C:
			if err := f.alive(); err != nil {
				return err
			}
		}
	}
	p, err := f.s.process(ctx, &f.in.ProcessIn)
	if err != nil {
		return err
	}
	return f.event("exit", api.ExitEvent{
		State: p.State, ExitCode: p.ExitCode, Signal: p.Signal, TimedOut: p.TimedOut, EndedAt: p.EndedAt, Stdout: p.StdoutBytes, Stderr: p.StderrBytes,
	})
}

// follow sends one stream to its end.
func (f *follower) follow(ctx context.Context, stream string) error {
	f.mu.Lock()
	offset := f.next[stream]
	f.mu.Unlock()
	pause := cutPause
	for {
		r, err := f.s.read(ctx, &f.in.ProcessIn, stream, offset, guest.OutputBytes, followWait)
		if err != nil {
			if err, again := f.passing(ctx, err); !again {
				return err
			}
			if err := sleep(ctx, time.Second); err != nil {
				return err
			}
			continue
		}
		used, err := f.send(stream, r)
		if err != nil {
			return err
		}
		moved := used > 0 || r.offset != offset
		if offset = r.offset + int64(used); r.eof && offset == r.next {
			return nil
		}
		switch {
		case moved:
			pause = cutPause
		case len(r.data) > 0: // the beginning of a character: its rest is on its way
			if err := sleep(ctx, pause); err != nil {
				return err
			}
			pause = min(2*pause, cutPauseMost)
		case !r.live: // what is stored does not wait
			if err := sleep(ctx, cutPauseMost); err != nil {
				return err
			}
		}
	}
}

// passing tells errors of a sandbox on its way down, after which what is stored goes on, from those that stay.
func (f *follower) passing(ctx context.Context, err error) (error, bool) {
	if ctx.Err() != nil {
		return ctx.Err(), false
	}
	switch e := errs.From(err); e.Code {
	case errs.HostUnavailable, errs.Unavailable, errs.Upstream, errs.Timeout:
		g, lerr := f.s.Sandboxes.Live(ctx, f.in.SandboxID)
		if lerr == nil && g == nil {
			return nil, true
		}
		return f.s.Sandboxes.Explain(ctx, f.in.SandboxID, err), false
	}
	return err, false
}

// send writes what was read as events and gives how many bytes of it they hold.
func (f *follower) send(stream string, r reading) (used int, err error) {
	for _, p := range chunks(r.data, r.eof) {
		ev := api.OutputEvent{Offset: r.offset + int64(used), Data: string(p.data), Encoding: "utf-8"}
		if !p.text {
			ev.Data, ev.Encoding = base64.StdEncoding.EncodeToString(p.data), "base64"
		}
		used += len(p.data)
		f.mu.Lock()
		f.next[stream] = r.offset + int64(used)
		err := f.locked(stream, ev)
		f.mu.Unlock()
		if err != nil {
			return used, err
		}
	}
	return used, nil
}

// chunk is what one event holds.
type chunk struct {
	data []byte
	text bool
}

// chunks divides bytes so that no character is cut: the rest of one whose beginning is gone goes apart, the beginning of one is left for the next read unless
// these are the last bytes.
func chunks(b []byte, last bool) (all []chunk) {
	cut := 0
	for cut < len(b) && cut < utf8.UTFMax-1 && !utf8.RuneStart(b[cut]) {
		cut++
	}
	head, rest := b[:cut], b[cut:]
	if !last {
		if rest = guest.WholeRunes(rest); len(rest) > 0 && len(rest) < utf8.UTFMax && !utf8.FullRune(rest) {
			rest = nil
		}
	}
	if cut > 0 && !utf8.Valid(rest) {
		head, rest = b[:cut+len(rest)], nil
	}
	if len(head) > 0 {
		all = append(all, chunk{head, false})
	}
	if len(rest) > 0 {
		all = append(all, chunk{rest, utf8.Valid(rest)})
	}
	return all
}

func (f *follower) event(name string, v any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.locked(name, v)
}

// locked writes an event with the id that both streams go on from.
func (f *follower) locked(name string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	return f.write(fmt.Sprintf("id: %d-%d\nevent: %s\ndata: %s\n\n", f.next["stdout"], f.next["stderr"], name, b))
}

func (f *follower) write(s string) error {
	f.last = f.s.Now()
	if _, err := f.w.Write([]byte(s)); err != nil {
		return errs.Wrap(errs.Timeout, err, "the reader has gone or reads nothing")
	}
	if fl, ok := f.w.(http.Flusher); ok {
		fl.Flush()
	}
	return nil
}

// alive keeps a silent stream from being taken for a dead one.
func (f *follower) alive() error {
	if !f.mu.TryLock() {
		return nil // something is being written
	}
	defer f.mu.Unlock()
	if f.s.Now().Sub(f.last) < keepAlive/2 {
		return nil
	}
	return f.write(": alive\n\n")
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
