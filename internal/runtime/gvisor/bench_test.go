package gvisor

import (
	"testing"
	"time"
)

// TestColdCreateTime tells how long a sandbox takes from nothing to its guest's first answer. It fails only where that is absurd: what is
// fast enough is measured beside a peer, in bench.
func TestColdCreateTime(t *testing.T) {
	for _, kind := range []string{"plain", ""} {
		r := newRig(t, func(c *Config) { c.Disk = kind })
		hello, err := r.Hello(r.ctx())
		if err != nil {
			t.Fatal(err)
		}
		warm := r.create()
		if err := r.Delete(r.ctx(), warm.ID, 2); err != nil {
			t.Fatal(err)
		}
		var all, made []time.Duration
		for range 5 {
			spec := r.spec()
			began := time.Now()
			if _, err := r.Create(r.ctx(), spec); err != nil {
				t.Fatal(err)
			}
			made = append(made, time.Since(began))
			r.awaitGuest(spec.ID)
			all = append(all, time.Since(began))
			began = time.Now()
			if err := r.Delete(r.ctx(), spec.ID, 2); err != nil {
				t.Fatal(err)
			}
			t.Logf("%s: created after %v, guest answered after %v, deleted in %v", hello.Disk, made[len(made)-1], all[len(all)-1], time.Since(began))
		}
		if all[len(all)-1] > 20*time.Second {
			t.Errorf("a cold create took %v", all[len(all)-1])
		}
	}
}
