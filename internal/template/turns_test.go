package template

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
)

// TestTurns: an organization with many builds does not have another wait for all of them, and whoever stops waiting holds nothing.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := newTurns(2)
		var order []string
		wait := func(ctx context.Context, org, name string) {
			go func() {
				if ts.take(ctx, org) == nil {
					order = append(order, name)
				}
			}()
			synctest.Wait()
		}
		for _, name := range []string{"a1", "a2", "a3", "a4"} {
			wait(t.Context(), "a", name)
		}
		gone, cancel := context.WithCancel(t.Context())
		wait(gone, "c", "c1")
		wait(t.Context(), "b", "b1")
		wait(t.Context(), "b", "b2")
		cancel()
		synctest.Wait()
		for _, org := range []string{"a", "a", "b", "a", "b", "a"} {
			ts.give(org)
			synctest.Wait()
		}
		if want := []string{"a1", "a2", "b1", "a3", "b2", "a4"}; !slices.Equal(order, want) {
			t.Errorf("turns: %v, want %v", order, want)
		}
		if ts.free != 2 || len(ts.has) != 0 || len(ts.waiting) != 0 {
			t.Errorf("left: %d free, %v, %d waiting", ts.free, ts.has, len(ts.waiting))
		}
	})
}
