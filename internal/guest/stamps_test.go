//go:build linux

package guest

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
)

func TestStampsOfASpool(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := &spool{budget: &budget{}, now: func() time.Time { return now }}
	base := now.UnixMicro()
	write := func(n int, later time.Duration) {
		now = now.Add(later)
		s.write(pattern(s.total, int64(n)))
	}
	write(10, 0)
	write(10, time.Millisecond) // shares the first one's
	write(10, time.Second)
	write(10, -time.Minute) // the clock was set back
	write(10, 2*time.Minute)
	got := s.stamped()
	want := StreamStamps{Total: 50, Stamps: []Stamp{{0, base}, {20, base + 1_001_000}, {40, base + 61_001_000}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
	// However often it is written to, there are few, in order, and they reach back to what is kept.
	for range 3000 {
		write(1000, 20*time.Millisecond)
	}
	got = s.stamped()
	if err := checkStamps(&got); err != nil {
		t.Errorf("%v: %+v", err, got)
	}
	if n := len(got.Stamps); n < MaxStamps/8 || n > MaxStamps {
		t.Errorf("%d stamps", n)
	}
	s.drop()
	if got := s.stamped(); len(got.Stamps) != 0 || got.Earliest != got.Total || checkStamps(&got) != nil {
		t.Errorf("let go: %+v", got)
	}
}

// What a process writes at three times is told by the guest, live and in an export.
func TestStamps(t *testing.T) {
	r := newRig(t)
	before := time.Now()
	p := r.start(Start{Command: "echo one; sleep 0.2; echo two >&2; sleep 0.2; printf three", Background: true})
	r.ended(p.ID)
	all, err := r.Client.Stamps(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("got %+v, %v", all, err)
	}
	out, errOut := all[0].Stdout, all[0].Stderr
	if out.Total != 9 || len(out.Stamps) != 2 || errOut.Total != 4 || len(errOut.Stamps) != 1 || out.Stamps[1][0] != 4 {
		t.Fatalf("got %+v", all[0])
	}
	one, two, three := out.Stamps[0][1], errOut.Stamps[0][1], out.Stamps[1][1]
	if one < before.UnixMicro() || two-one < 150_000 || three-two < 150_000 || three > time.Now().UnixMicro() {
		t.Errorf("the times are %d, %d, %d", one, two, three)
	}
	var marks []int64
	err = r.Client.Export(t.Context(), func(rec ExportRecord) error {
		if rec.Chunk != nil {
			marks = append(marks, rec.Chunk.Offset, rec.Chunk.AtMicros)
		}
		return nil
	})
	if d := cmp.Diff([]int64{0, one, 4, three, 0, two}, marks); err != nil || d != "" {
		t.Errorf("the export, %v:\n%s", err, d)
	}
}

func TestLiesAboutStamps(t *testing.T) {
	good := `{"process":{` + goodEnded + `},"stdout":{"earliest":0,"total":5,"stamps":[[0,1767225600000000],[3,1767225601000000]]},"stderr":{"earliest":0,"total":0}}`
	for name, tt := range map[string]struct{ from, to string }{
		"good":            {"", ""},
		"no order":        {"[3,1767225601000000]", "[0,1767225601000000]"},
		"back in time":    {"[3,1767225601000000]", "[3,1767225500000000]"},
		"beyond the end":  {"[3,", "[9,"},
		"begins late":     {"[[0,", "[[1,"},
		"before 2020":     {"[[0,1767225600000000]", "[[0,5]"},
		"after 2200":      {"[3,1767225601000000]", "[3,9767225601000000]"},
		"bytes, no stamp": {`"stamps":[[0,1767225600000000],[3,1767225601000000]]`, `"stamps":[]`},
		"negative":        {`"total":5`, `"total":-5`},
		"more than kept":  {`"total":5`, `"total":5000000`},
	} {
		t.Run(name, func(t *testing.T) {
			c := liar(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/hello" {
					_, _ = w.Write([]byte(`{"protocol":1,"minProtocol":1,"features":["stamps"]}`))
					return
				}
				_, _ = w.Write([]byte(`{"processes":[` + strings.Replace(good, tt.from, tt.to, 1) + `]}`))
			})
			_, err := c.Stamps(context.Background())
			if name == "good" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantCode(t, err, errs.Upstream, "guest_protocol")
		})
	}
}

// A guest from before has no stamps: all that a process wrote is of its start.
func TestNoStamps(t *testing.T) {
	c := liar(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hello" {
			_, _ = w.Write([]byte(`{"protocol":1,"minProtocol":1,"features":["exec"]}`))
			return
		}
		_, _ = w.Write([]byte(`{"processes":[{` + goodEnded + `}]}`))
	})
	all, err := c.Stamps(t.Context())
	if err != nil || len(all) != 1 || len(all[0].Stdout.Stamps) > 1 {
		t.Fatalf("got %+v, %v", all, err)
	}
	if s := all[0].Stdout; s.Total != all[0].Process.StdoutBytes || checkStamps(&s) != nil {
		t.Errorf("got %+v", s)
	}
}
