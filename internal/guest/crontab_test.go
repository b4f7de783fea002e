package guest

import (
	"testing"
	"time"
)

func TestNextCron(t *testing.T) {
	now := time.Date(2026, 11, 30, 1, 30, 20, 0, time.UTC) // a Monday
	for table, want := range map[string]string{
		"* * * * * root true":              "2026-11-30 01:31",
		"30 1 * * * true":                  "2026-12-01 01:30",
		"*/20 * * * * true":                "2026-11-30 01:40",
		"5/20 * * * * true":                "2026-11-30 01:45",
		"0 9-17/4 * * mon-fri true":        "2026-11-30 09:00",
		"0 0 * * 7 true":                   "2026-12-06 00:00",
		"0 0 1 * fri true":                 "2026-12-01 00:00",
		"0 0 29 2 * true":                  "",
		"@daily true":                      "2026-12-01 00:00",
		"@reboot true":                     "",
		"# 1 2 3 4 5\nPATH=/bin:/usr/bin":  "",
		"61 * * * * x\n1 5 * jan,DEC * x":  "2026-12-01 05:01",
		"0 0 * * 0 x\n45 1 30 11 * soon\n": "2026-11-30 01:45",
		"* * * *":                          "",
		"5-1 * * * * x\n*/0 * * * * x":     "",
	} {
		got := ""
		if next := nextCron(table, now); !next.IsZero() {
			got = next.Format("2006-01-02 15:04")
		}
		if got != want {
			t.Errorf("%q: %q, want %q", table, got, want)
		}
	}
}

func TestSleepTime(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want time.Duration
		ok   bool
	}{
		{[]string{"90"}, 90 * time.Second, true},
		{[]string{"1.5m", "2s"}, 92 * time.Second, true},
		{[]string{"1d", "1h"}, 25 * time.Hour, true},
		{[]string{"infinity"}, 0, false},
		{[]string{"1000d"}, 0, false},
		{[]string{"--help"}, 0, false},
		{[]string{"NaN"}, 0, false},
		{nil, 0, false},
	} {
		if got, ok := sleepTime(tt.args); ok != tt.ok || ok && got != tt.want {
			t.Errorf("%q: %v, %v", tt.args, got, ok)
		}
	}
}

func TestAtTime(t *testing.T) {
	want := time.Date(2026, 11, 30, 1, 45, 0, 0, time.UTC)
	if got, ok := atTime("a0000701c948a1"); !ok || !got.Equal(time.Unix(0x01c948a1*60, 0)) {
		t.Errorf("got %v, %v, like %v", got, ok, want)
	}
	for _, name := range []string{"=0000701c948a1", ".SEQ", "a00007zzzzzzzz", "spool"} {
		if _, ok := atTime(name); ok {
			t.Errorf("%s is taken for a job", name)
		}
	}
}

// FuzzNextCron: whatever stands in a table, what is due is within a year from now, or nothing.
func FuzzNextCron(f *testing.F) {
	f.Add("* * * * * x\n@hourly x\n0 0 1-31/2 jan-dec 0,7 x")
	now := time.Date(2026, 11, 30, 1, 30, 20, 0, time.UTC)
	f.Fuzz(func(t *testing.T, table string) {
		if next := nextCron(table, now); !next.IsZero() && (!next.After(now) || next.Sub(now) > 367*24*time.Hour) {
			t.Errorf("%q: %v", table, next)
		}
	})
}
