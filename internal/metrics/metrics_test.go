package metrics

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/caller"
)

func page(t *testing.T, m *Metrics) string {
	t.Helper()
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	if rec.Code != 200 {
		t.Fatalf("status %d: %s", rec.Code, rec.Body)
	}
	return rec.Body.String()
}

func TestPage(t *testing.T) {
	m := New("1.2.3")
	states := map[string]float64{"running": 2, "stopped": 1}
	m.Read(
		Reading{Name: "berth_sandboxes", Help: "h", Label: "state", Read: func(context.Context) (map[string]float64, error) { return states, nil }},
		Reading{Name: "berth_one", Help: "h", Read: func(context.Context) (map[string]float64, error) { return map[string]float64{"": 7}, nil }},
		Reading{Name: "berth_broken", Help: "h", Read: func(context.Context) (map[string]float64, error) { return nil, errors.New("no") }},
	)
	m.Begun("sandboxes.get", caller.FaceMCP)
	m.Begun("sandboxes.get", caller.FaceHTTP)
	m.Ended("sandboxes.get", caller.FaceMCP, "ok", "", 20*time.Millisecond)
	m.Begun("sandboxes.get", caller.FaceMCP)
	m.Ended("sandboxes.get", caller.FaceMCP, "RATE_LIMITED", "in_flight", time.Millisecond)
	m.Booted("create", false, 400*time.Millisecond)
	m.Guest("exec", true, time.Second)
	m.Late(-time.Second)
	got := page(t, m)
	for _, line := range []string{
		`berth_calls_total{code="ok",face="mcp",operation="sandboxes.get"} 1`,
		`berth_calls_total{code="RATE_LIMITED",face="mcp",operation="sandboxes.get"} 1`,
		`berth_call_duration_seconds_count{face="mcp",operation="sandboxes.get"} 2`,
		`berth_calls_in_flight{face="http"} 1`, `berth_calls_in_flight{face="mcp"} 0`,
		`berth_calls_limited_total{limit="in_flight"} 1`,
		`berth_sandbox_boot_seconds_count{kind="create",result="ok"} 1`,
		`berth_guest_call_seconds_count{call="exec",result="failed"} 1`,
		`berth_worker_lag_seconds 0`, `berth_sandboxes{state="running"} 2`, `berth_one 7`, `berth_readings_failed 1`,
		`version="1.2.3"`, `go_goroutines`, `process_open_fds`, `process_resident_memory_bytes`,
	} {
		if !strings.Contains(got, line) {
			t.Errorf("%s is not on the page", line)
		}
	}
	if strings.Contains(got, "berth_broken") {
		t.Error("a reading that failed is on the page")
	}
}
