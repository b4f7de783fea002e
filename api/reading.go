package api

import (
	"time"

	"github.com/berthrun/berth/api/op"
)

// SandboxMetricsIn is the input of sandboxes.metrics.
type SandboxMetricsIn struct {
	SandboxIn
	Start       *time.Time `json:"start,omitempty" doc:"An hour before end by default."`
	End         *time.Time `json:"end,omitempty" doc:"Now by default, or when it stopped."`
	StepSeconds int        `json:"stepSeconds,omitempty" min:"15" max:"86400" doc:"Of one point; made longer where more than 300 would come."`
}

// MetricsPoint is the average of a step.
type MetricsPoint struct {
	At            time.Time `json:"at"`
	CPUPercent    float64   `json:"cpuPercent" doc:"Of one core."`
	MemoryUsedMiB float64   `json:"memoryUsedMiB"`
	DiskUsedMiB   float64   `json:"diskUsedMiB"`
	Processes     *int      `json:"processes,omitempty"`
}

// Spread is the least, the mean over time and the most of a reading.
type Spread struct {
	Min     float64 `json:"min"`
	Average float64 `json:"average"`
	Max     float64 `json:"max"`
}

// MetricsSummary sums up every reading between start and end.
type MetricsSummary struct {
	CPUPercent    Spread `json:"cpuPercent"`
	MemoryUsedMiB Spread `json:"memoryUsedMiB"`
	DiskUsedMiB   Spread `json:"diskUsedMiB"`
}

// SandboxMetricsOut is the output of sandboxes.metrics.
type SandboxMetricsOut struct {
	Start       time.Time       `json:"start"`
	End         time.Time       `json:"end"`
	StepSeconds int             `json:"stepSeconds"`
	Resources   Resources       `json:"resources"`
	Points      []MetricsPoint  `json:"points" doc:"Oldest first. A step without a reading has none."`
	Summary     *MetricsSummary `json:"summary,omitempty"`
}

// SandboxMetrics reads what a sandbox used over time.
var SandboxMetrics = op.Def[SandboxMetricsIn, SandboxMetricsOut]{
	Name: "sandboxes.metrics", Route: "GET /v1/sandboxes/{sandboxId}/metrics", Action: "compute:sandboxes:read", Tool: "get_sandbox_metrics",
	Hints: op.Read | op.Idempotent, Toolset: SetSandboxes, Title: "CPU, memory and disk over time",
	Doc: "Gives a sandbox's use of CPU, memory and disk over time, with least, average and most. Kept after it has ended. Never starts it.",
}
