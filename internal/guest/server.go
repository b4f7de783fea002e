//go:build linux

package guest

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Config says how a guest runs.
type Config struct {
	Token string // that every call has to carry; with an empty one every call is refused
	Build string // what Hello says

	// Init makes it behave as pid 1 of a sandbox: it reaps every child, sets hostname and clock, and limits processes. Without it the
	// process it runs in is left as it is.
	Init bool

	// Root is a directory that all paths of files and working directories are below. It is for tests of a whole system in one
	// process, without sandboxes: it is no protection.
	Root string

	// SFTP is the program, with its arguments, that serves SFTP on its standard input and output as the account that it is run as. Without one
	// there is no such feature.
	SFTP []string

	// State makes it go on where another left off; nil is a boot. Token counts only without one.
	State *State

	Now func() time.Time // default time.Now
	Log *slog.Logger     // default none
}

// Server is the guest's side of the protocol.
type Server struct {
	cfg         Config
	bootID      string
	booted      time.Time
	privileged  bool // runs as root, so that it can become others
	gvisor      bool // the kernel is gVisor
	users       *users
	reaper      *reaper
	limiter     limiter
	guard       *guard // nil unless it is pid 1
	processes   processes
	attachments attachments
	forwards    forwards
	contents    contents
	buffers     buffers
	budget      budget
	once        once
	locks       locks
	null        *os.File
	wg          sync.WaitGroup
	last        atomic.Int64 // unix nanoseconds of what counts as activity
	down        chan struct{}
	downOnce    sync.Once
	exported    atomic.Bool            // the last answer was an export
	workDir     atomic.Pointer[string] // the image's
	madeWorkDir atomic.Bool            // DefaultWorkDir was made here

	mu    sync.Mutex
	token [sha256.Size]byte
	armed bool // there is a token
	env   map[string]string
}

// NewServer makes a guest. Close ends what it started.
func NewServer(cfg Config) *Server {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg, bootID: randomID(), booted: time.Now(), privileged: syscall.Geteuid() == 0, gvisor: insideGvisor(), users: newUsers(cfg.Root), down: make(chan struct{})}
	s.processes.budget, s.processes.now = &s.budget, s.now
	s.processes.byID = map[string]*process{}
	s.once.results = map[string]*result{}
	s.reaper = newReaper(cfg.Init, s.now)
	s.setToken(cfg.Token)
	s.null, _ = os.Open(os.DevNull)
	s.touch()
	if cfg.State != nil {
		s.restore(cfg.State)
	}
	if cfg.Init {
		s.guard = runGuard(s)
	}
	return s
}

// Handler serves the protocol.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, h := range map[string]http.HandlerFunc{
		"GET /hello":                  s.hello,
		"POST /configure":             s.configure,
		"POST /exec":                  s.exec,
		"POST /processes":             s.startProcess,
		"GET /processes":              s.listProcesses,
		"GET /processes/{id}":         s.getProcess,
		"GET /processes/{id}/output":  s.output,
		"POST /processes/{id}/input":  s.sendInput,
		"POST /processes/{id}/signal": s.sendSignal,
		"POST /processes/{id}/resize": s.resize,
		"POST /attach":                s.attach,
		"POST /forward":               s.forward,
		"GET /files/stat":             s.fileStat,
		"POST /files/read":            s.fileRead,
		"POST /files/write":           s.fileWrite,
		"POST /files/edit":            s.fileEdit,
		"POST /files/list":            s.fileList,
		"POST /files/mkdir":           s.fileMkdir,
		"POST /files/move":            s.fileMove,
		"POST /files/remove":          s.fileRemove,
		"GET /files/content":          s.getContent,
		"PUT /files/content":          s.putContent,
		"GET /activity":               s.activity,
		"GET /metrics":                s.metrics,
		"POST /sync":                  s.sync,
		"POST /warm":                  s.warm,
		"POST /shutdown":              s.shutdown,
		"GET /processes/export":       s.export,
		"GET /stamps":                 s.stamped,
		"GET /timers":                 s.timers,
	} {
		mux.HandleFunc(pattern, h)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		answer(w, nil, fail(CodeNotFound, "this guest has no %s %s", clip(r.Method, 16), clip(r.URL.Path, 128)))
	})
	return s.authenticated(s.once.middleware(mux))
}

// Close kills every process that it started and waits for them and for its own goroutines. As pid 1 it leaves what else there is to the end
// of the program.
func (s *Server) Close() {
	s.processes.close()
	for _, p := range s.processes.all() {
		_ = p.kill()
		p.letGo()
	}
	s.attachments.close()
	s.forwards.close()
	s.contents.close()
	for _, p := range s.processes.all() {
		<-p.ended
		closeAll(p.out.file)
		if p.err != nil {
			closeAll(p.err.file)
		}
	}
	s.wg.Wait()
	s.guard.close()
	s.reaper.close()
	s.limiter.close()
	closeAll(s.null)
}

// hello answers who it is.
func (s *Server) hello(w http.ResponseWriter, _ *http.Request) {
	features := []string{
		FeatureExec, FeatureProcesses, FeaturePTY, FeatureFiles, FeatureOnce, FeatureMetrics, FeatureExport, FeatureShutdown, FeatureContent, FeatureAttach, FeatureForward, FeatureStamps, FeatureWarm, FeatureOwner,
		FeatureTimers,
	}
	if len(s.cfg.SFTP) > 0 {
		features = append(features, FeatureSFTP)
	}
	answer(w, Hello{Protocol: Protocol, MinProtocol: MinProtocol, Build: s.cfg.Build, BootID: s.bootID, Features: features}, nil)
}

// authenticated lets only calls with the token pass.
func (s *Server) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given := sha256.Sum256([]byte(r.Header.Get(TokenHeader)))
		s.mu.Lock()
		want, armed := s.token, s.armed
		s.mu.Unlock()
		if subtle.ConstantTimeCompare(given[:], want[:]) != 1 || !armed {
			answer(w, nil, fail(CodeUnauthorized, "the guest's token is missing or wrong"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) setToken(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token, s.armed = sha256.Sum256([]byte(token)), token != ""
}

func (s *Server) configuredEnv() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.env // replaced as a whole, never changed
}

// host is where a cleaned absolute path is on this file system.
func (s *Server) host(path string) string {
	if s.cfg.Root == "" || path == s.cfg.Root || strings.HasPrefix(path, s.cfg.Root+"/") {
		return path
	}
	return filepath.Join(s.cfg.Root, path)
}

// now is the time to put into answers.
func (s *Server) now() time.Time { return s.cfg.Now().UTC() }

// touch marks activity.
func (s *Server) touch() { s.last.Store(s.now().UnixNano()) }

func randomID() string {
	var b [10]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// Done is closed once the host has shut the guest down.
func (s *Server) Done() <-chan struct{} { return s.down }

// MakeWorkDir makes DefaultWorkDir where the image has none, and gives it to the default account.
func (s *Server) MakeWorkDir() error {
	dir := s.host(DefaultWorkDir)
	if isDir(dir) {
		return nil
	}
	s.madeWorkDir.Store(true)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	a, err := s.users.lookup("")
	if err != nil || !s.privileged {
		return err
	}
	return os.Chown(dir, int(a.uid), int(a.gid))
}
