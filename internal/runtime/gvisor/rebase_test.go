package gvisor

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
)

// Whenever the runtime is killed while a sandbox gets another disk, it has the old one or the new one, whole.
func TestKilledDuringRebase(t *testing.T) {
	disks(t, func(t *testing.T, r *rig) {
		spec := r.create()
		id := spec.ID
		r.write(id, "/root/kept", "kept")
		rebase := func() error {
			_, err := r.Rebase(r.ctx(), spec, runtime.RebaseOptions{Keep: "/root"})
			return err
		}
		next := func(call func(generation int64) error) {
			t.Helper()
			spec.Generation++
			if err := call(spec.Generation); err != nil {
				t.Fatal(err)
			}
		}
		stop := func(generation int64) error {
			_, err := r.Stop(r.ctx(), id, generation, runtime.StopOptions{})
			return err
		}
		start := func(int64) error { _, err := r.Start(r.ctx(), spec); return err }
		var took time.Duration
		happened, rounds := 0, 10
		for i := range rounds {
			r.write(id, "/var/old", "old")
			next(stop)
			spec.Generation++
			began, done := time.Now(), make(chan error, 1)
			go func() { done <- rebase() }()
			if i > 0 { // once undisturbed, to know how long it takes
				<-time.NewTimer(time.Duration(rand.Int64N(int64(took) + int64(took)/8))).C // the moment is the point of the test
				r.killRuntime()
			}
			err := <-done
			switch {
			case i == 0 && err != nil || err != nil && !errs.Is(err, errs.HostUnavailable):
				t.Fatalf("round %d: %v", i, err)
			case i == 0:
				took = time.Since(began)
			case err == nil:
				happened++
			}
			again := i%2 == 1
			if again {
				if err := rebase(); err != nil {
					t.Fatalf("round %d, repeated: %v", i, err)
				}
			}
			next(start)
			r.awaitGuest(id)
			if text, err := r.read(id, "/root/kept"); err != nil || text != "kept" {
				t.Fatalf("round %d: what was to be kept is %q, %v", i, text, err)
			}
			if text, rerr := r.read(id, "/var/old"); rerr == nil && (text != "old" || again || err == nil) {
				t.Fatalf("round %d, acknowledged %t, repeated %t: the old disk has %q", i, err == nil, again, text)
			}
		}
		t.Logf("%d of %d were acknowledged; undisturbed it takes %v", happened, rounds-1, took)
		if err := r.Delete(r.ctx(), id, 1<<40); err != nil {
			t.Fatal(err)
		}
		for _, l := range r.leftovers() {
			if strings.Contains(l, id) {
				t.Errorf("left: %s", l)
			}
		}
	})
}
