package client

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/errs"
)

const (
	// maxEvent bounds one event: much more than the server sends.
	maxEvent = 1 << 20
	// silence is how long a followed stream may say nothing, not even that it lives.
	silence = time.Minute
)

// Output is a piece of a followed process's stream. Gap is how many bytes before it were discarded.
type Output struct {
	Stream string // stdout or stderr
	Offset int64
	Data   []byte
	Gap    int64
}

// Follow gives the output of a process piece by piece until it ends, and how it ended. Where a connection breaks it goes on behind the last piece. An error of
// visit ends it.
func (c *Client) Follow(ctx context.Context, in api.FollowProcessIn, visit func(Output) error) (api.ExitEvent, error) {
	f := &following{visit: visit, next: map[string]int64{"stdout": in.StdoutOffset, "stderr": in.StderrOffset}}
	for n := 1; ; n++ {
		before := f.seen
		err := c.followOnce(ctx, in, f)
		if f.exit != nil {
			return *f.exit, nil
		}
		if f.failed != nil {
			return api.ExitEvent{}, f.failed
		}
		if f.seen > before {
			n = 1
		}
		e, ok := passes(err)
		if !ok || n >= c.attempts || !c.pause(ctx, n, e.RetryAfter) {
			return api.ExitEvent{}, err
		}
	}
}

// following is where a follower stands.
type following struct {
	visit  func(Output) error
	id     string
	next   map[string]int64
	seen   int // events
	exit   *api.ExitEvent
	failed error // of visit
}

func (c *Client) followOnce(ctx context.Context, in api.FollowProcessIn, f *following) error {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	h := http.Header{"Accept": {"text/event-stream"}}
	if f.id != "" {
		h.Set("Last-Event-ID", f.id)
	}
	resp, err := Open(inner, c, api.FollowProcess, in, h, nil, -1)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	late := time.AfterFunc(silence, cancel)
	defer late.Stop()
	err = readEvents(resp.Body, func() { late.Reset(silence) }, f.event)
	if f.exit != nil || f.failed != nil {
		return nil
	}
	if err == nil {
		err = io.ErrUnexpectedEOF // without an exit it was broken
	}
	return c.unreachable(ctx, err)
}

// event takes one event.
func (f *following) event(id, name, data string) error {
	f.seen++
	switch name {
	case "stdout", "stderr":
		var ev api.OutputEvent
		if err := json.Unmarshal([]byte(data), &ev); err != nil {
			return err
		}
		b := []byte(ev.Data)
		if ev.Encoding == "base64" {
			var err error
			if b, err = base64.StdEncoding.DecodeString(ev.Data); err != nil {
				return err
			}
		}
		gap := max(ev.Offset-f.next[name], 0)
		f.next[name] = ev.Offset + int64(len(b))
		if f.failed = f.visit(Output{Stream: name, Offset: ev.Offset, Data: b, Gap: gap}); f.failed != nil {
			return f.failed
		}
	case "exit":
		var ev api.ExitEvent
		if err := json.Unmarshal([]byte(data), &ev); err != nil {
			return err
		}
		f.exit = &ev
	}
	if id != "" {
		f.id = id
	}
	return nil
}

// readEvents reads server-sent events until the stream ends. alive is called for every line.
func readEvents(r io.Reader, alive func(), event func(id, name, data string) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), maxEvent)
	var id, name string
	var data []string
	for lines.Scan() {
		alive()
		line := lines.Text()
		if line == "" {
			if len(data) > 0 {
				if err := event(id, name, strings.Join(data, "\n")); err != nil {
					return err
				}
			}
			name, data = "", nil
			continue
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "id":
			id = value
		case "event":
			name = value
		case "data":
			data = append(data, value)
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return &Error{Code: string(errs.Upstream), Message: "an event is longer than any that the server sends"}
	}
	return lines.Err()
}
