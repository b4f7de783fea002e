package main

import (
	"strings"
	"testing"
	"time"
)

// A reading that grows is seen, one that goes up and down is not, and the warm-up does not count.
func TestJudge(t *testing.T) {
	for name, tt := range map[string]struct {
		value func(minute float64) float64
		flat  bool
	}{
		"flat":    {func(float64) float64 { return 100 << 20 }, true},
		"grows":   {func(m float64) float64 { return 100<<20 + m*(4<<20) }, false},
		"swings":  {func(m float64) float64 { return 100<<20 + float64(int(m*6)%7)*(2<<20) }, true},
		"warm-up": {func(m float64) float64 { return min(m, 5) * (60 << 20) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			var all []sample
			for at := time.Duration(0); at < 30*time.Minute; at += 10 * time.Second {
				all = append(all, sample{at, map[string]float64{"memory of the server": tt.value(at.Minutes())}})
			}
			text, flat := judge(all, 30*time.Minute)
			if flat != tt.flat || !strings.Contains(text, "memory of the server") {
				t.Errorf("flat = %v:\n%s", flat, text)
			}
		})
	}
}
