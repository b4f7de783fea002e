package sandbox

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/runtime"
)

// Happening is an event of a sandbox, as its log tells it.
type Happening struct {
	At   time.Time
	Kind string // sandbox. and the state that it came into
	Data json.RawMessage
}

// mostHappenings bounds what of a sandbox's life its log looks at; the newest are kept.
const mostHappenings = 5000

// Ever gives a sandbox of the caller's organization as authorization sees it, a deleted one too while its tombstone stands, or errs.NotFound.
func (s *Service) Ever(ctx context.Context, id string) (op.Resource, error) {
	r, err := s.findDeleted(ctx, s.DB, id)
	if err != nil {
		return op.Resource{}, err
	}
	return r.resource(), nil
}

// Story gives what happened to a sandbox, oldest first, and its guest where it runs, else nil.
func (s *Service) Story(ctx context.Context, id string) ([]api.LogLine, *guest.Client, error) {
	r, err := s.findDeleted(ctx, s.DB, id)
	if err != nil {
		return nil, nil, err
	}
	events, err := s.Events.Of(ctx, id, mostHappenings)
	if err != nil {
		return nil, nil, err
	}
	lines := make([]api.LogLine, 0, len(events))
	for _, e := range events {
		if l, ok := line(r, e); ok {
			lines = append(lines, l)
		}
	}
	if r.State != api.StateRunning {
		return lines, nil, nil
	}
	return lines, s.guest(r.ID, r.BootGeneration, r.GuestToken), nil
}

// reasons say in words why a sandbox stopped.
var reasons = map[string]string{
	"requested": "it was asked to", "idle": "it was idle", "expired": "its time was over", bootFailed: "it did not boot",
	diskFull:                  "its node had no room for it",
	runtime.ReasonOutOfMemory: "its memory was used up", runtime.ReasonExited: "the program inside ended", runtime.ReasonKilled: "something on its node ended it",
	runtime.ReasonHostRestart: "its node was started anew",
}

// causes say in words what set a transition off.
var causes = map[string]string{
	causeUsed: "it was used", causeTimer: "a timer in it is due", "retention": "its retention is over", "expired": "its time is over", "failed": "it had failed", "replaced": "another took its name",
}

// line tells of one event.
func line(r *row, e Happening) (api.LogLine, bool) {
	to, ok := strings.CutPrefix(e.Kind, "sandbox.")
	if _, known := transitions[to]; !ok || !known {
		return api.LogLine{}, false
	}
	var data struct{ From, Reason, Error, Cause, Depth string }
	_ = json.Unmarshal(e.Data, &data) // ours; what is missing is not told
	l := api.LogLine{At: e.At.UTC(), Level: api.LevelInfo, Source: "sandbox", State: to, Reason: data.Reason}
	why := reasons[data.Reason]
	switch to {
	case api.StateCreating:
		l.Message = "created from " + origin(r)
	case api.StateStarting:
		l.Message = "started again"
		why = causes[data.Cause]
	case api.StateRunning:
		l.Message = "running"
		switch {
		case data.From == api.StateWaking:
			l.Message = "running again with its memory"
		case data.From == api.StatePausing && data.Error != "":
			l.Message, l.Level = "could not be paused and runs on", api.LevelError
		case data.From == api.StatePausing:
			l.Message = "runs on"
			why = causes[data.Cause]
		}
	case api.StatePausing:
		l.Message = "is being paused"
	case api.StatePaused:
		l.Message = "paused, its memory on disk"
		if data.Depth == api.DepthFrozen {
			l.Message = "paused, its memory still there"
		}
		if data.From == api.StateWaking {
			l.Message, l.Level, why = "could not be woken and is paused as before", api.LevelError, ""
		}
	case api.StateWaking:
		l.Message = "is being woken"
		why = causes[data.Cause]
	case api.StateStopping:
		l.Message = "is being stopped"
	case api.StateStopped:
		l.Message, l.Level = "stopped", levelOf(data.Reason)
	case api.StateFailed:
		l.Message, l.Level = "failed", api.LevelError
	case api.StateDeleting:
		l.Message, l.Reason = "is being deleted", data.Cause
		why = causes[data.Cause]
	default:
		l.Message = to
	}
	if why != "" {
		l.Message += ": " + why
	}
	if data.Error != "" {
		l.Message += " (" + data.Error + ")"
	}
	return l, true
}

// origin is what a sandbox was made of, in words.
func origin(r *row) string {
	switch {
	case r.ForkedFrom != "":
		return r.ForkedFrom + ", as a copy"
	case r.SnapshotID != "":
		return r.SnapshotID
	case r.Template == "":
		return r.ImageRef
	}
	return r.Template
}

// levelOf is how bad a reason to stop is.
func levelOf(reason string) string {
	switch reason {
	case runtime.ReasonOutOfMemory, runtime.ReasonKilled, bootFailed, diskFull:
		return api.LevelError
	case runtime.ReasonExited, runtime.ReasonHostRestart:
		return api.LevelWarn
	}
	return api.LevelInfo
}
