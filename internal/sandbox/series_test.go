package sandbox

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// What is stored minute by minute, by two servers too, comes back as it was.
func TestReadingsAreKept(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		var s store
		base := 10 * minute
		var all []sample
		for i := range int64(10) {
			all = append(all, sample{at: base + i*15_000_000 + 1000, span: 15_000, cpu: i * 1000, memory: 100 + i, disk: 7, processes: i - 1})
		}
		for _, part := range [][]sample{all[:3], all[3:6], all[6:]} { // the first two share a minute
			if err := s.storeReadings(t.Context(), d, pack("sbx_a", part)); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.storeReadings(t.Context(), d, pack("sbx_b", all[:1])); err != nil {
			t.Fatal(err)
		}
		got, err := s.readings(t.Context(), d, "sbx_a", base, base+10*minute)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(all, got, cmp.AllowUnexported(sample{})); diff != "" {
			t.Errorf("readings (-want +got):\n%s", diff)
		}
		if last, err := s.lastReading(t.Context(), d, "sbx_a"); err != nil || last == nil || *last != all[9] {
			t.Errorf("the last: got %+v, %v", last, err)
		}
		if err := s.oldReadings(t.Context(), d, base+minute); err != nil {
			t.Fatal(err)
		}
		if got, err = s.readings(t.Context(), d, "sbx_a", 0, base+10*minute); err != nil || len(got) != 6 {
			t.Errorf("after the first minute was removed: %d, %v", len(got), err)
		}
		if err := s.dropReadings(t.Context(), d, "sbx_a"); err != nil {
			t.Fatal(err)
		}
		if last, err := s.lastReading(t.Context(), d, "sbx_a"); err != nil || last != nil {
			t.Errorf("once dropped: got %+v, %v", last, err)
		}
	})
}

func TestUnpackDamaged(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, ";": 0, "1,2,3,4,5,6;": 1, "1,2,3,4,5,6;x;7,8": 1, "1,0,3,4,5,6;": 0, "1,2,3,4,5,6,7;": 0, "1,2,3,4,5,99999999999999999999;": 0,
	} {
		if got := unpack(0, text); len(got) != want {
			t.Errorf("%q: got %+v", text, got)
		}
	}
}

func TestStepOf(t *testing.T) {
	const second = int64(1_000_000)
	for _, tt := range []struct {
		span        int64
		asked, want int
	}{
		{3600 * second, 0, 15},
		{4500 * second, 0, 15},
		{4501 * second, 0, 30},
		{86400 * second, 0, 300},
		{7 * 86400 * second, 0, 3600},
		{3600 * second, 60, 60},
		{86400 * second, 15, 300},
		{3600 * second, 86400, 86400},
		{1, 0, 15},
	} {
		if got := stepOf(tt.span, tt.asked); got != tt.want {
			t.Errorf("%d s, asked for %d: got %d, want %d", tt.span/second, tt.asked, got, tt.want)
		}
	}
}

// Averages are weighted by time, and a gap does not stretch what was held before it.
func TestTotal(t *testing.T) {
	var sum total
	sum.add(sample{span: 15_000, cpu: 15_000_000, memory: 1024, disk: 2048, processes: -1})
	sum.add(sample{span: 600_000, cpu: 0, memory: 5 * 1024, disk: 2048, processes: 3})
	got := sum.summary()
	if got.CPUPercent.Min != 0 || got.CPUPercent.Max != 100 || got.CPUPercent.Average != 2.44 {
		t.Errorf("CPU: %+v", got.CPUPercent)
	}
	if got.MemoryUsedMiB.Min != 1 || got.MemoryUsedMiB.Max != 5 || got.MemoryUsedMiB.Average != 4.2 { // (1×15 + 5×60) / 75
		t.Errorf("memory: %+v", got.MemoryUsedMiB)
	}
	if got.DiskUsedMiB.Average != 2 {
		t.Errorf("disk: %+v", got.DiskUsedMiB)
	}
}
