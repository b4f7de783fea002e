// Package metrics owns what a server tells Prometheus: the names, labels and units of its metrics, and the page on which they are read.
//
// It measures nothing itself: the path of a call, the sandboxes' workers and the clients of guests tell it through interfaces of their own, and what is
// only known when somebody asks is read then. Every label has a bounded set of values, none of which comes from a caller.
package metrics

import (
	"context"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/berthrun/berth/internal/caller"
)

// Metrics are those of one server. It is an observer of calls, sandboxes and guests.
type Metrics struct {
	registry *prometheus.Registry
	calls    *prometheus.CounterVec
	took     *prometheus.HistogramVec
	inFlight *prometheus.GaugeVec
	limited  *prometheus.CounterVec
	boots    *prometheus.HistogramVec
	pauses   *prometheus.HistogramVec
	guest    *prometheus.HistogramVec
	lag      prometheus.Gauge
	readings readings
}

// New makes the metrics of a server of a version.
func New(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_calls_total", Help: "Calls that ended, by operation, face and code (ok or the error's).",
		}, []string{"operation", "face", "code"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_call_duration_seconds", Help: "How long calls took, waiting included.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 75},
		}, []string{"operation", "face"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "berth_calls_in_flight", Help: "Calls that are being worked on.",
		}, []string{"face"}),
		limited: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_calls_limited_total", Help: "Calls that were refused as too many, by the limit: calls_per_minute or in_flight.",
		}, []string{"limit"}),
		boots: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_sandbox_boot_seconds", Help: "How long boots took until the guest answered or they failed, by kind (create, start, wake, fork or snapshot) and result (ok or failed).",
			Buckets: []float64{.01, .025, .05, .1, .2, .3, .4, .5, .75, 1, 1.5, 2.5, 5, 10, 30, 60, 120},
		}, []string{"kind", "result"}),
		pauses: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_sandbox_pause_seconds", Help: "How long pauses took on the node, by depth (frozen or disk) and result (ok or failed).",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"depth", "result"}),
		guest: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_guest_call_seconds", Help: "How long calls of guests took, by call and result (ok or failed). Those that wait for output are long by nature.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"call", "result"}),
		lag: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "berth_worker_lag_seconds", Help: "How much later than planned expiry and idling were last looked at.",
		}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "berth_build_info", Help: "1, with what the server is.", ConstLabels: prometheus.Labels{"version": version, "go_version": runtime.Version()},
	})
	build.Set(1)
	m.registry.MustRegister(m.calls, m.took, m.inFlight, m.limited, m.boots, m.pauses, m.guest, m.lag, build, &m.readings,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Handler serves the metrics in Prometheus' text format.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second})
}

// Begun counts a call that begins.
func (m *Metrics) Begun(_ string, face caller.Face) { m.inFlight.WithLabelValues(faceOf(face)).Inc() }

// Ended counts a call that has ended.
func (m *Metrics) Ended(operation string, face caller.Face, result, reason string, took time.Duration) {
	f := faceOf(face)
	m.inFlight.WithLabelValues(f).Dec()
	m.calls.WithLabelValues(operation, f, result).Inc()
	m.took.WithLabelValues(operation, f).Observe(took.Seconds())
	if result == "RATE_LIMITED" && (reason == "calls_per_minute" || reason == "in_flight") {
		m.limited.WithLabelValues(reason).Inc()
	}
}

func faceOf(f caller.Face) string {
	if f == "" {
		return string(caller.FaceNone)
	}
	return string(f)
}

// Booted counts a boot or a wake that came to its end: kind is create, start, wake, fork or snapshot.
func (m *Metrics) Booted(kind string, failed bool, took time.Duration) {
	m.boots.WithLabelValues(kind, resultOf(failed)).Observe(took.Seconds())
}

// Paused counts a pause that came to its end: depth is frozen or disk, empty where it failed.
func (m *Metrics) Paused(depth string, failed bool, took time.Duration) {
	m.pauses.WithLabelValues(depth, resultOf(failed)).Observe(took.Seconds())
}

// Late tells how much later than planned the sandboxes' worker came to its round.
func (m *Metrics) Late(by time.Duration) { m.lag.Set(max(by, 0).Seconds()) }

// Guest counts a call of a guest.
func (m *Metrics) Guest(call string, failed bool, took time.Duration) {
	m.guest.WithLabelValues(call, resultOf(failed)).Observe(took.Seconds())
}

func resultOf(failed bool) string {
	if failed {
		return "failed"
	}
	return "ok"
}

// Reading is a value, or one for each value of a label, that is read when somebody asks.
type Reading struct {
	Name, Help string
	Label      string // empty: one value, under the empty name
	Counter    bool   // it only grows
	Read       func(ctx context.Context) (map[string]float64, error)
}

// Read adds readings. It must be called before the first request.
func (m *Metrics) Read(all ...Reading) {
	for _, r := range all {
		var labels []string
		if r.Label != "" {
			labels = []string{r.Label}
		}
		kind := prometheus.GaugeValue
		if r.Counter {
			kind = prometheus.CounterValue
		}
		m.readings.list = append(m.readings.list, reading{r, prometheus.NewDesc(r.Name, r.Help, labels, nil), kind})
	}
}

type reading struct {
	Reading
	desc *prometheus.Desc
	kind prometheus.ValueType
}

// readings are collected at each request, together in at most two seconds.
type readings struct {
	list []reading
	mu   sync.Mutex
}

// Describe implements prometheus.Collector: what there is shows when it is collected.
func (r *readings) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector. A reading that fails is left out and counted.
func (r *readings) Collect(out chan<- prometheus.Metric) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	failed := 0
	for _, one := range r.list {
		values, err := one.Read(ctx)
		if err != nil {
			failed++
			continue
		}
		for name, v := range values {
			if one.Label == "" {
				out <- prometheus.MustNewConstMetric(one.desc, one.kind, v)
				continue
			}
			out <- prometheus.MustNewConstMetric(one.desc, one.kind, v, name)
		}
	}
	out <- prometheus.MustNewConstMetric(failedDesc(), prometheus.GaugeValue, float64(failed))
}

func failedDesc() *prometheus.Desc {
	return prometheus.NewDesc("berth_readings_failed", "Readings that could not be made for this page.", nil, nil)
}
