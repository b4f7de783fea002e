package controlplane

import (
	"context"
	"database/sql"
	"net/http"
	"time"

	"github.com/berthrun/berth/internal/metrics"
)

// value makes one reading of one value.
func value(name, help string, read func(ctx context.Context) (float64, error)) metrics.Reading {
	return metrics.Reading{Name: name, Help: help, Read: func(ctx context.Context) (map[string]float64, error) {
		v, err := read(ctx)
		return map[string]float64{"": v}, err
	}}
}

// readings are the metrics that are only known when somebody asks.
func (p *Plane) readings() []metrics.Reading {
	all := []metrics.Reading{
		{Name: "berth_sandboxes", Help: "Sandboxes of the deployment by state.", Label: "state", Read: p.sandboxes.States},
		value("berth_sandbox_workers", "Sandboxes that this server carries through moving states.", func(context.Context) (float64, error) {
			return float64(p.sandboxes.Working()), nil
		}),
		value("berth_audit_backlog", "Audit rows that are gathered and not yet written.", func(context.Context) (float64, error) {
			return float64(p.audit.Backlog()), nil
		}),
		value("berth_audit_lag_seconds", "How long the oldest audit row without a number has waited for it.", lagOf(p.audit.Behind)),
		value("berth_event_lag_seconds", "How long the oldest event without a number has waited for it.", lagOf(p.events.Behind)),
		value("berth_http_requests_open", "Requests that are being answered, streams among them.", func(context.Context) (float64, error) {
			return float64(p.gate.open()), nil
		}),
	}
	for name, of := range map[string]func(sql.DBStats) float64{
		"open": func(s sql.DBStats) float64 { return float64(s.OpenConnections) }, "in_use": func(s sql.DBStats) float64 { return float64(s.InUse) },
		"max": func(s sql.DBStats) float64 { return float64(s.MaxOpenConnections) },
	} {
		all = append(all, p.pool("berth_db_connections_"+name, "Connections of the database: "+name+", by pool.", false, of))
	}
	return append(all,
		p.pool("berth_db_waits_total", "Times that something waited for a connection, by pool.", true, func(s sql.DBStats) float64 { return float64(s.WaitCount) }),
		p.pool("berth_db_wait_seconds_total", "How long was waited for connections, by pool.", true, func(s sql.DBStats) float64 { return s.WaitDuration.Seconds() }))
}

func (p *Plane) pool(name, help string, counter bool, of func(sql.DBStats) float64) metrics.Reading {
	return metrics.Reading{Name: name, Help: help, Label: "pool", Counter: counter, Read: func(context.Context) (map[string]float64, error) {
		values := map[string]float64{}
		for pool, s := range p.db.Pools() {
			values[pool] = of(s)
		}
		return values, nil
	}}
}

func lagOf(behind func(context.Context) (int64, time.Duration, error)) func(context.Context) (float64, error) {
	return func(ctx context.Context) (float64, error) {
		_, oldest, err := behind(ctx)
		return oldest.Seconds(), err
	}
}

// Metrics serves the metrics of this server.
func (p *Plane) Metrics() http.Handler { return p.metrics.Handler() }

// State is what this server is doing, for whoever operates it. It holds no names and no arguments.
type State struct {
	Version   string                 `json:"version"`
	Ending    bool                   `json:"ending"`
	Ready     string                 `json:"ready"` // ok, or why it is not
	Open      int                    `json:"openRequests"`
	Workers   int                    `json:"workers"`
	Sandboxes map[string]float64     `json:"sandboxes"`
	Audit     int                    `json:"auditBacklog"`
	Pools     map[string]sql.DBStats `json:"databasePools"`
	Driver    string                 `json:"driver"`
}

// State gives what this server is doing.
func (p *Plane) State(ctx context.Context) any {
	s := State{
		Version: p.cfg.Version, Ending: p.gate.isEnding(), Ready: "ok", Open: p.gate.open(), Workers: p.sandboxes.Working(),
		Audit: p.audit.Backlog(), Pools: p.db.Pools(), Driver: p.node.Name(),
	}
	if err := p.ready(ctx); err != nil {
		s.Ready = err.Error()
	}
	if states, err := p.sandboxes.States(ctx); err == nil {
		s.Sandboxes = states
	}
	return s
}
