package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"
)

// systemd tells the service manager how far the server is, where it was started by one that listens.
type systemd struct {
	socket   string
	watchdog time.Duration // how often a sign of life is wanted; 0: never
	log      *slog.Logger
}

// newSystemd reads what the manager said, and keeps it from programs that the server starts.
func newSystemd(env func(string) string, log *slog.Logger) *systemd {
	d := &systemd{socket: env("NOTIFY_SOCKET"), log: log}
	if us, err := strconv.ParseInt(env("WATCHDOG_USEC"), 10, 64); err == nil && us > 0 && us < int64(24*time.Hour/time.Microsecond) {
		if pid := env("WATCHDOG_PID"); pid == "" || pid == strconv.Itoa(os.Getpid()) {
			d.watchdog = time.Duration(us) * time.Microsecond
		}
	}
	_ = errors.Join(os.Unsetenv("NOTIFY_SOCKET"), os.Unsetenv("WATCHDOG_USEC"), os.Unsetenv("WATCHDOG_PID")) // fails only for names that are none
	return d
}

func (d *systemd) tell(state string) {
	if !d.manages() {
		return
	}
	// A name that begins with @ is an abstract one, here as there.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: d.socket, Net: "unixgram"})
	if err == nil {
		_, err = conn.Write([]byte(state))
		err = errors.Join(err, conn.Close())
	}
	if err != nil {
		d.log.Warn("the service manager was not told", "state", state, "error", err)
	}
}

// manages says whether a service manager listens.
func (d *systemd) manages() bool { return d.socket != "" }

// starting says what the start waits for, which for the base image is minutes.
func (d *systemd) starting() {
	d.tell("STATUS=Starting: sandboxes are found again, and the base image is prepared where there is none")
}

// ready says that the server serves.
func (d *systemd) ready(addr string) { d.tell("READY=1\nSTATUS=Serving on " + addr) }

// watch gives signs of life for as long as the server answers itself, until the context ends.
func (d *systemd) watch(ctx context.Context, addr string) {
	if d.watchdog == 0 || !d.manages() {
		return
	}
	client := &http.Client{Timeout: d.watchdog / 3, Transport: &http.Transport{DisableKeepAlives: true}}
	tick := time.NewTicker(d.watchdog / 3)
	defer tick.Stop()
	for ctx.Err() == nil {
		if err := alive(ctx, client, addr); err == nil {
			d.tell("WATCHDOG=1")
		} else if ctx.Err() == nil {
			d.log.Error("the server does not answer itself", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// stopping says that the server ends, and how long that may take, which may be longer than the unit's own time.
func (d *systemd) stopping(within time.Duration) {
	d.tell("STOPPING=1\nSTATUS=Ending: calls under way finish\nEXTEND_TIMEOUT_USEC=" + strconv.FormatInt(within.Microseconds(), 10))
}

// alive asks the server for a sign of life through its own listener.
func alive(ctx context.Context, client *http.Client, addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/healthz", nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	return res.Body.Close()
}
