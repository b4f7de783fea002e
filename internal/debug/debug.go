// Package debug owns the private listener: profiles, the state of the process and of the server, and the metrics, for the operator of this machine.
//
// It asks nobody who calls, so it listens only where the machine's own users come: a socket of the owner's, or a loopback address. What it serves
// holds no configuration and no command line, which may have passwords in them.
package debug

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"runtime"
	"strings"
	"time"
)

// Config says what is served. State may be nil.
type Config struct {
	Metrics http.Handler
	State   func(ctx context.Context) any // for /debug/state, as JSON
	Version string
}

// Handler serves /metrics, /debug/pprof/, /debug/vars and /debug/state.
func Handler(c Config) http.Handler {
	mux := http.NewServeMux()
	if c.Metrics != nil {
		mux.Handle("GET /metrics", c.Metrics)
	}
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.Handle("GET /debug/pprof/cmdline", http.NotFoundHandler()) // flags may hold passwords
	began := time.Now()
	mux.HandleFunc("GET /debug/vars", func(w http.ResponseWriter, _ *http.Request) { write(w, vars(c.Version, began)) })
	mux.HandleFunc("GET /debug/state", func(w http.ResponseWriter, r *http.Request) {
		if c.State == nil {
			write(w, struct{}{})
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		write(w, c.State(ctx))
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "/metrics\n/debug/pprof/\n/debug/vars\n/debug/state")
	})
	return local(mux)
}

// local refuses what a web page had a browser ask for under a name of its own.
func local(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") == "cross-site" {
			http.Error(w, "not for web pages", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func vars(version string, began time.Time) any {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fds, _ := os.ReadDir("/proc/self/fd")
	return map[string]any{
		"version": version, "goVersion": runtime.Version(), "uptimeSeconds": int64(time.Since(began).Seconds()), "goroutines": runtime.NumGoroutine(),
		"cpus": runtime.NumCPU(), "openFiles": len(fds), "heapBytes": m.HeapAlloc, "heapObjects": m.HeapObjects, "systemBytes": m.Sys,
		"collections": m.NumGC, "pauseTotalNanos": m.PauseTotalNs, "allocatedBytes": m.TotalAlloc,
	}
}

func write(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // a reader that has gone needs no answer
}

// Listen opens unix:/path, a socket that only its owner may use, or an address with a port. The socket of a server that was killed is replaced; one in
// use is an error.
func Listen(ctx context.Context, at string) (net.Listener, error) {
	path, unix := strings.CutPrefix(at, "unix:")
	if !unix {
		return new(net.ListenConfig).Listen(ctx, "tcp", at)
	}
	if conn, err := new(net.Dialer).DialContext(ctx, "unix", path); err == nil {
		return nil, errors.Join(fmt.Errorf("%s is in use", path), conn.Close())
	}
	if st, err := os.Lstat(path); err == nil {
		if st.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("%s is there and no socket", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("replace socket: %w", err)
		}
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return ln, nil
}
