// Command berth-guest is pid 1 of every sandbox: it starts the caller's processes, keeps their output, reads and writes files for
// them, and reaps what is left over. It listens for the host on BERTH_GUEST_ADDR (default :49980) and asks every call for the token in
// BERTH_GUEST_TOKEN, which no process that it starts ever sees. As "berth-guest sftp" it serves SFTP on standard input and output instead.
package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/guest"
)

// build is stamped by the linker.
var build = "dev"

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if len(os.Args) == 2 && os.Args[1] == "sftp" {
		if err := serveSFTP(); err != nil {
			log.Error("sftp ended", "error", err)
			os.Exit(1)
		}
		return
	}
	if err := run(log); err != nil {
		log.Error("guest ended", "error", err)
		os.Exit(1)
	}
}

// run serves until the host shuts the guest down or it is told to end by a signal.
func run(log *slog.Logger) error {
	token, addr := os.Getenv("BERTH_GUEST_TOKEN"), os.Getenv("BERTH_GUEST_ADDR")
	if token == "" {
		return errors.New("BERTH_GUEST_TOKEN is not set")
	}
	hideEnv("BERTH_GUEST_TOKEN")
	os.Clearenv()
	if addr == "" {
		addr = ":" + strconv.Itoa(guest.Port)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	prepare()

	init := os.Getpid() == 1
	cfg := guest.Config{Token: token, Build: build, Init: init, Log: log}
	if self, err := os.Executable(); err == nil {
		cfg.SFTP = []string{self, "sftp"}
	}
	s := guest.NewServer(cfg)
	if init {
		if err := s.MakeWorkDir(); err != nil {
			log.Warn("no work directory", "error", err)
		}
	}
	srv := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 10 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err = <-failed:
	case <-s.Done():
	case <-ctx.Done():
	}
	// The answer to the call that ended the guest is still on its way.
	end, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = srv.Shutdown(end)
	if s.Exported() {
		// What was written last may still be in the sandbox's network, which ends with this program: the host sends TERM once it has read all.
		select {
		case <-ctx.Done():
		case <-time.After(exportTime):
		}
	}
	s.Close()
	syscall.Sync()
	return err
}

// exportTime is how long the host may take to read what it was sent last.
const exportTime = 10 * time.Second

// prepare makes the process fit to be everyone's parent.
func prepare() {
	// Idle sandboxes are many and their guests do little: a second thread of Go's costs more than it gives.
	runtime.GOMAXPROCS(min(runtime.NumCPU(), 2))
	syscall.Umask(0o022)
	files := syscall.Rlimit{Cur: 65536, Max: 1 << 20}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		files.Max = files.Cur
		_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &files)
	}
}
