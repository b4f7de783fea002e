package main

import (
	"cmp"
	"strings"
	"testing"
	"time"
)

// A reading that grows is seen, one that goes up and down is not, the warm-up does not count, and nothing is called flat that was not seen to be.
func TestJudge(t *testing.T) {
	swings := func(m float64) float64 { return 100<<20 + float64(int(m*6)%7)*(2<<20) }
	for name, tt := range map[string]struct {
		long    time.Duration
		value   func(minute float64) float64
		verdict string
		reading string  // the memory of the server where empty
		left    float64 // more than before
	}{
		"flat":      {30 * time.Minute, func(float64) float64 { return 100 << 20 }, "flat", "", 8 << 20},
		"grows":     {30 * time.Minute, func(m float64) float64 { return 100<<20 + m*(4<<20) }, "grows", "", 0},
		"shrinks":   {30 * time.Minute, func(m float64) float64 { return 200<<20 - m*(4<<20) }, "flat", "", 0},
		"swings":    {30 * time.Minute, swings, "flat", "", 0},
		"warm-up":   {30 * time.Minute, func(m float64) float64 { return min(m, 5) * (60 << 20) }, "flat", "", 0},
		"both":      {30 * time.Minute, func(m float64) float64 { return swings(m) + m*(4<<20) }, "grows", "", 0},
		"too short": {2 * time.Minute, swings, "cannot be told", "", 0},
		"unread":    {30 * time.Minute, nil, "too few readings", "", 0},
		"left":      {30 * time.Minute, func(float64) float64 { return 100 }, "left behind", "descriptors of the server", 49},
		"none left": {2 * time.Minute, func(m float64) float64 { return 200 + float64(int(m*6)%7)*20 }, "swings, nothing is left", "descriptors of the server", 16},
	} {
		t.Run(name, func(t *testing.T) {
			reading := cmp.Or(tt.reading, "memory of the server")
			values := func(minute float64) map[string]float64 {
				all := map[string]float64{}
				for _, g := range growth {
					all[g.name] = 100
				}
				delete(all, reading)
				if tt.value != nil {
					all[reading] = tt.value(minute)
				}
				return all
			}
			var all []sample
			for at := time.Duration(0); at < tt.long; at += 10 * time.Second {
				all = append(all, sample{at, values(at.Minutes())})
			}
			before, after := values(0), values(0)
			if tt.value != nil {
				after[reading] += tt.left
			}
			text, flat := judge(all, tt.long, before, after)
			line := text[strings.Index(text, "| "+reading):]
			line, _, _ = strings.Cut(line, "\n")
			if flat != (tt.verdict == "flat" || tt.left == 16) || !strings.Contains(line, tt.verdict) {
				t.Errorf("flat = %v:\n%s", flat, text)
			}
		})
	}
}
