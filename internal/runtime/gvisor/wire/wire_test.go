package wire

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
)

func TestErrorsSurviveTheWire(t *testing.T) {
	sent := errs.Wrap(errs.Busy, errors.New("why"), "not now").Because("reason").Suggest("wait").After(3 * time.Second)
	b, err := json.Marshal(FromError(sent))
	if err != nil {
		t.Fatal(err)
	}
	var e Error
	if err := json.Unmarshal(b, &e); err != nil {
		t.Fatal(err)
	}
	got := errs.From(e.Err())
	if got.Code != errs.Busy || got.Message != "not now" || got.Reason != "reason" || got.Suggestion != "wait" || got.RetryAfter != 3*time.Second {
		t.Errorf("got %+v", got)
	}
	if want := "not now: not now: why"; e.Err().Error() != want {
		t.Errorf("for the log: %q, want %q", e.Err(), want)
	}
}

func TestLatest(t *testing.T) {
	st := func(id string, gen int64) runtime.Status { return runtime.Status{ID: id, Generation: gen} }
	q := NewLatest()
	q.Put(st("a", 1), false)
	q.Put(st("b", 1), false)
	q.Put(st("a", 2), false)
	q.Put(st("b", 0), true) // read before the change
	q.Put(st("c", 1), true)
	<-q.Ready()
	want := []runtime.Status{st("a", 2), st("b", 1), st("c", 1)}
	if diff := cmp.Diff(want, q.Take()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := q.Take(); len(got) != 0 {
		t.Errorf("taken twice: %v", got)
	}
	select {
	case <-q.Ready():
		t.Error("ready with nothing in it")
	default:
	}
}
