package sandbox

import (
	"context"
	"strconv"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
)

// The bounds of a retention.
const (
	leastRetention = time.Minute
	mostRetention  = 3650 * 24 * time.Hour
)

// retention reads how long a stopped sandbox is kept, in seconds; 0 is for ever.
func retention(text string) (int64, error) {
	if text == "never" {
		return 0, nil
	}
	d, err := duration("retention", text)
	if err == nil && (d < leastRetention || d > mostRetention) {
		err = errs.E(errs.InvalidInput, "retention must be from 1m to 3650d, or never").With("path", "retention")
	}
	return int64(d / time.Second), err
}

// spell writes a duration as people type it.
func spell(d time.Duration) string {
	for _, u := range []struct {
		of   time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}} {
		if d%u.of == 0 {
			return strconv.FormatInt(int64(d/u.of), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(d/time.Second), 10) + "s"
}

// deletesAt is when time deletes a sandbox that does not run, in microseconds; 0: never.
func deletesAt(r *row) int64 {
	at := int64(0)
	earlier := func(t int64) {
		if at == 0 || t < at {
			at = t
		}
	}
	switch r.State {
	case api.StateStopped, api.StatePaused:
		if r.RetentionSeconds > 0 {
			earlier(r.StateAt + r.RetentionSeconds*1e6)
		}
		if r.OnExpiry == "delete" && r.ExpiresAt > 0 {
			earlier(r.ExpiresAt)
		}
	case api.StateFailed:
		earlier(r.StateAt + failedFor.Microseconds())
	}
	return at
}

// lifetime is how long a sandbox has lived and has left.
func (s *Service) lifetime(r *row) *api.Lifetime {
	now := db.Micros(s.Now())
	seconds := func(from int64) int64 { return max(now-from, 0) / 1e6 }
	l := &api.Lifetime{AgeSeconds: seconds(r.CreatedAt)}
	if r.State == api.StateRunning {
		l.UpSeconds = seconds(r.StartedAt)
	}
	left := func(until int64, next string) {
		n := max(until-now, 0) / 1e6
		l.RemainingSeconds, l.Next = &n, next
	}
	switch {
	case deletesAt(r) > 0:
		left(deletesAt(r), "delete")
	case r.ExpiresAt > 0 && r.State != api.StateStopped && r.State != api.StatePaused && r.State != api.StateFailed:
		left(r.ExpiresAt, r.OnExpiry)
	}
	return l
}

// recoveryPoint is what a sandbox would come back with if it ended now: its disk. Nil where it has none.
func recoveryPoint(r *row) *api.RecoveryPoint {
	switch r.State {
	case api.StateCreating, api.StateFailed:
		return nil
	case api.StateStopped:
		return &api.RecoveryPoint{Kind: "disk", At: timeOf(r.StateAt)}
	case api.StatePaused:
		return &api.RecoveryPoint{Kind: "memory", At: timeOf(r.StateAt)}
	}
	return &api.RecoveryPoint{Kind: "disk"}
}

// storage is what a sandbox's disk holds: by the latest reading, which a stopped one keeps.
func (s *Service) storage(ctx context.Context, r *row, u *api.Usage) (*api.Storage, error) {
	st := &api.Storage{DiskGiB: r.DiskGiB}
	if u != nil {
		st.DiskUsedMiB, st.MeasuredAt = &u.DiskUsedMiB, &u.At
		return st, nil
	}
	last := s.samples.lastOf(r.ID)
	if last == nil {
		var err error
		if last, err = s.store.lastReading(ctx, s.DB, r.ID); err != nil || last == nil {
			return st, err
		}
	}
	used, at := mibOf(last.disk), db.Time(last.at)
	st.DiskUsedMiB, st.MeasuredAt = &used, &at
	return st, nil
}
