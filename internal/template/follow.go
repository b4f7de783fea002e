package template

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
)

func (s *Service) registerStreams(r *op.Registry) {
	op.HandleStream(r, api.UploadContext, op.StreamHandler[api.UploadContextIn]{Draft: collection[api.UploadContextIn], Serve: s.serveUpload})
	op.HandleStream(r, api.FollowBuild, op.StreamHandler[api.FollowBuildIn]{
		Draft: func(ctx context.Context, in *api.FollowBuildIn) (*op.Draft, error) {
			return s.draftOf(ctx, in.BuildID, "")
		}, Serve: s.serveFollow,
	})
}

const (
	keepAlive  = 15 * time.Second // how often a silent stream says that it lives
	followEach = 200              // pieces of a log in one read
)

// serveFollow sends a build's log as it is written, and how the build ended.
func (s *Service) serveFollow(ctx context.Context, in *api.FollowBuildIn, _ *op.Draft, st *op.Stream) error {
	offset := in.Offset
	if last := st.R.Header.Get("Last-Event-ID"); last != "" {
		n, err := strconv.ParseInt(last, 10, 64)
		if err != nil || n < 0 {
			return errs.E(errs.InvalidInput, "the header Last-Event-ID is not an id of this stream").Suggest("Send the id of the last event, or none to begin anew.").With("path", "Last-Event-ID")
		}
		offset = n
	}
	h := st.W.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store, no-transform")
	h.Set("X-Accel-Buffering", "no")
	st.W.WriteHeader(http.StatusOK)
	f := &follower{w: st.W}
	if err := f.write(": following\n\n"); err != nil {
		return err
	}
	signals, stop := s.DB.Subscribe(topic(in.BuildID))
	defer stop()
	poll := time.NewTicker(time.Second)
	defer poll.Stop()
	shown := ""
	for {
		b, err := s.findBuild(ctx, s.DB, in.BuildID)
		if err != nil {
			return err
		}
		lines, err := s.store.lines(ctx, s.DB, in.BuildID, offset, followEach)
		if err != nil {
			return err
		}
		for _, l := range lines {
			offset = l.Offset + 1
			if err := f.event("line", offset, l); err != nil {
				return err
			}
		}
		if now := fmt.Sprint(b.Status, b.Step, b.Steps, b.Cached); now != shown {
			shown = now
			if err := f.event("status", offset, b.show()); err != nil {
				return err
			}
		}
		switch {
		case len(lines) == followEach:
			continue
		case ended(b.Status):
			return f.event("end", offset, api.BuildEndEvent{Status: b.Status, Reason: b.Reason})
		}
		if time.Since(f.last) >= keepAlive {
			if err := f.write(": alive\n\n"); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-signals:
		case <-poll.C:
		}
	}
}

// follower writes events.
type follower struct {
	w    http.ResponseWriter
	last time.Time
}

func (f *follower) event(name string, id int64, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	return f.write(fmt.Sprintf("id: %d\nevent: %s\ndata: %s\n\n", id, name, b))
}

func (f *follower) write(text string) error {
	f.last = time.Now()
	if _, err := f.w.Write([]byte(text)); err != nil {
		return errs.Wrap(errs.Timeout, err, "the reader has gone or reads nothing")
	}
	if fl, ok := f.w.(http.Flusher); ok {
		fl.Flush()
	}
	return nil
}
