package dbtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// missingError says that PostgreSQL's programs are not installed.
type missingError struct{}

func (missingError) Error() string {
	return "dbtest: PostgreSQL is not installed (Debian: apt-get install postgresql)"
}

// lazyServer starts PostgreSQL when the first test asks for it.
type lazyServer struct {
	once sync.Once
	err  error

	dir  string
	port string
	proc *os.Process
	gone chan struct{} // closed when it has ended
}

func (s *lazyServer) create(name string) (address string, drop func() error, err error) {
	s.once.Do(func() { s.err = s.start() })
	if s.err != nil {
		return "", nil, s.err
	}
	if err := s.exec(`CREATE DATABASE ` + name + ``); err != nil {
		return "", nil, err
	}
	return s.url(name), func() error { return s.exec(`DROP DATABASE ` + name + ` WITH (FORCE)`) }, nil
}

func (s *lazyServer) url(database string) string {
	u := url.URL{Scheme: "postgres", User: url.User("berth"), Host: net.JoinHostPort("127.0.0.1", s.port), Path: "/" + database}
	u.RawQuery = "sslmode=disable"
	return u.String()
}

func (s *lazyServer) exec(query string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := pgx.Connect(ctx, s.url("postgres"))
	if err != nil {
		return fmt.Errorf("dbtest: connect: %w", err)
	}
	_, err = c.Exec(ctx, query)
	if err != nil {
		err = fmt.Errorf("dbtest: %s: %w", query, err)
	}
	return errors.Join(err, c.Close(ctx))
}

func (s *lazyServer) start() error {
	bin, err := binaries()
	if err != nil {
		return err
	}
	sweep()
	s.dir, err = os.MkdirTemp("", fmt.Sprintf("%s%d-", folder, os.Getpid()))
	if err != nil {
		return err
	}
	cred, err := identity(s.dir)
	if err != nil {
		return err
	}
	data := filepath.Join(s.dir, "data")
	initdb := exec.Command(filepath.Join(bin, "initdb"), "-D", data, "-U", "berth", "--auth=trust", "--no-sync", "--no-instructions",
		"--encoding=UTF8", "--locale=C")
	initdb.Dir = s.dir
	initdb.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("dbtest: initdb: %w\n%s", err, out)
	}
	// Another program may take the free port before PostgreSQL does: then another one is tried.
	for range 5 {
		if err = s.serve(filepath.Join(bin, "postgres"), data, cred); err == nil {
			return nil
		}
	}
	return err
}

// serve starts the server and returns once it answers. Its own settings make it fast: nothing here outlives the tests.
func (s *lazyServer) serve(program, data string, cred *syscall.Credential) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	s.port = port
	cmd := exec.Command(program, "-D", data, "-h", "127.0.0.1", "-p", port, "-k", s.dir, "-F", "-c", "full_page_writes=off",
		"-c", "shared_buffers=16MB", "-c", "max_connections=200", "-c", "autovacuum=off", "-c", "timezone=UTC")
	cmd.Dir = s.dir
	// SIGQUIT ends PostgreSQL and its children at once, also when this process is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred, Pdeathsig: syscall.SIGQUIT, Setpgid: true}
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	started, gone := make(chan error, 1), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the signal comes when the thread that started it ends
		defer runtime.UnlockOSThread()
		defer close(gone)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	s.proc, s.gone = cmd.Process, gone
	for {
		err := s.exec(`SELECT 1`)
		if err == nil {
			return nil
		}
		select {
		case <-gone:
			return fmt.Errorf("dbtest: PostgreSQL ended at once: %s", log.String())
		case <-time.After(20 * time.Millisecond): // it has no signal for being ready
		}
	}
}

func (s *lazyServer) close() error {
	if s.proc != nil {
		select {
		case <-s.gone:
		default:
			_ = s.proc.Signal(syscall.SIGQUIT)
			<-s.gone
		}
	}
	if s.dir == "" {
		return nil
	}
	return os.RemoveAll(s.dir)
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close() //nolint:errcheck // only its port is wanted
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

func binaries() (string, error) {
	if p, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(p), nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(found) == 0 {
		return "", missingError{}
	}
	slices.SortFunc(found, func(a, b string) int { return len(a) - len(b) })
	return filepath.Dir(found[len(found)-1]), nil
}

// identity gives root another user for PostgreSQL, which refuses root, and that user the folder. Others run it themselves.
func identity(dir string) (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return nil, err
		}
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2, os.Chown(dir, int(uid), int(gid))); err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// folder begins the name of every data folder; the id of the process that owns it follows.
const folder = "berth-pgtest-"

// sweep removes the folders of test processes that were killed before they could.
func sweep() {
	found, err := filepath.Glob(filepath.Join(os.TempDir(), folder+"*"))
	if err != nil {
		return
	}
	for _, dir := range found {
		pid, err := strconv.Atoi(strings.SplitN(strings.TrimPrefix(filepath.Base(dir), folder), "-", 2)[0])
		if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = os.RemoveAll(dir)
		}
	}
}
