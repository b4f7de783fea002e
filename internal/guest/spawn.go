//go:build linux

package guest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// plan is a Start that was checked and resolved.
type plan struct {
	start   *Start
	user    *user
	cred    *syscall.Credential
	cwd     string // as the caller knows it
	dir     string // where it is on this file system
	env     []string
	program *program
	size    Size
}

// spawn starts the process of a checked plan and fills the record.
func (s *Server) spawn(p *process, in *Start) error {
	pl, err := s.plan(in)
	if err != nil {
		return err
	}
	defer pl.program.close()

	p.command, p.cwd, p.user, p.background = describe(in), pl.cwd, pl.user.name, in.Background
	var files childFiles
	defer files.closeChild()
	if in.PTY != nil {
		err = s.wireTerminal(p, pl, &files)
	} else {
		err = s.wirePipes(p, pl, &files)
	}
	if err == nil {
		err = s.fork(p, pl, &files)
	}
	if err != nil {
		files.closeParent()
		return err
	}
	for _, st := range []*stream{p.out, p.err} {
		if st != nil {
			s.wg.Add(1)
			go func() { defer s.wg.Done(); st.run() }()
		}
	}
	if files.feed != nil {
		s.wg.Add(1)
		go func() { defer s.wg.Done(); files.feed() }()
	}
	return nil
}

// plan checks a Start and resolves its account, directory, environment and program.
func (s *Server) plan(in *Start) (*plan, error) {
	ways := 0
	for _, way := range []bool{in.Command != "", len(in.Argv) > 0, in.Login, in.SFTP} {
		if way {
			ways++
		}
	}
	if ways != 1 {
		return nil, fail(CodeInvalid, "give either a command or an argv")
	}
	if strings.Contains(in.Command, "\x00") || strings.Contains(strings.Join(in.Argv, ""), "\x00") {
		return nil, fail(CodeInvalid, "a command cannot hold a NUL byte")
	}
	if len(in.Argv) > 0 && in.Argv[0] == "" {
		return nil, fail(CodeInvalid, "the first word of argv is the program and cannot be empty")
	}
	if err := checkEnv(in.Env); err != nil {
		return nil, err
	}
	pl := &plan{start: in}
	var err error
	if in.PTY != nil {
		if pl.size, err = checkSize(*in.PTY); err != nil {
			return nil, err
		}
	}
	if pl.user, err = s.users.lookup(in.User); err != nil {
		return nil, err
	}
	if pl.cred, err = pl.user.credential(); err != nil {
		return nil, err
	}
	if err = s.planDir(pl); err != nil {
		return nil, err
	}
	pl.env = environ(pl.user, pl.cwd, in.PTY != nil, s.configuredEnv(), in.Env)
	switch {
	case in.Login:
		pl.program = loginProgram(pl.user)
	case in.SFTP:
		pl.program, err = s.sftpProgram()
	case len(in.Argv) > 0:
		pl.program, err = argvProgram(in.Argv, lookupEnv(pl.env, "PATH"))
	default:
		if pl.program = plainCommand(in.Command, pl.env); pl.program == nil {
			pl.program, err = shellProgram(in.Command)
		}
	}
	return pl, err
}

// planDir chooses the working directory: the one asked for, or the image's, or DefaultWorkDir, where there is one, else the account's home.
func (s *Server) planDir(pl *plan) error {
	if pl.start.Cwd != "" {
		path, err := cleanPath(pl.start.Cwd)
		if err != nil {
			return err
		}
		pl.cwd, pl.dir = path, s.host(path)
		return nil
	}
	if dir := s.workDir.Load(); dir != nil {
		pl.cwd = *dir
		if pl.dir = s.host(pl.cwd); isDir(pl.dir) {
			return nil
		}
	}
	pl.cwd = DefaultWorkDir
	if pl.dir = s.host(pl.cwd); isDir(pl.dir) {
		return nil
	}
	pl.cwd = filepath.Clean("/" + pl.user.home)
	if pl.dir = s.host(pl.cwd); !isDir(pl.dir) {
		pl.cwd, pl.dir = "/", s.host("/")
	}
	return nil
}

// childFiles are the ends of a process's standard streams.
type childFiles struct {
	stdin, stdout, stderr *os.File // the child's
	null                  bool     // stdin is shared and stays open
	parent                []*os.File
	feed                  func()
}

func (f *childFiles) closeChild() {
	if !f.null {
		closeAll(f.stdin)
	}
	closeAll(f.stdout)
	if f.stderr != f.stdout {
		closeAll(f.stderr)
	}
}

func (f *childFiles) closeParent() { closeAll(f.parent...) }

// wireTerminal gives all three streams one terminal.
func (s *Server) wireTerminal(p *process, pl *plan, f *childFiles) error {
	master, slave, err := openTerminal(pl.size, pl.user)
	if err != nil {
		return err
	}
	f.stdin, f.stdout, f.stderr, f.null = slave, slave, slave, true
	if p.out, err = newStream(master, "terminal", p.stdout, &s.buffers, s.touch); err != nil {
		return err
	}
	p.out.tty = true
	f.parent = append(f.parent, p.out.file)
	p.pty = &terminal{file: p.out.file, raw: p.out.raw}
	p.input = &input{file: p.out.file, tty: true}
	if len(pl.start.Stdin) > 0 {
		f.feed = func() { _, _ = p.out.file.Write(pl.start.Stdin) }
	}
	return nil
}

// wirePipes gives each stream a pipe; the input is empty unless it was asked for.
func (s *Server) wirePipes(p *process, pl *plan, f *childFiles) error {
	var err error
	if p.out, f.stdout, err = s.outPipe(p.stdout, f); err != nil {
		return err
	}
	if p.err, f.stderr, err = s.outPipe(p.stderr, f); err != nil {
		return err
	}
	if len(pl.start.Stdin) == 0 && !pl.start.OpenStdin {
		f.stdin, f.null = s.null, true
		return nil
	}
	r, w, err := pipe()
	if err != nil {
		return err
	}
	f.stdin = os.NewFile(uintptr(r), "stdin")
	_ = unix.SetNonblock(w, true)
	// Most input fits into the pipe.
	sent := 0
	if len(pl.start.Stdin) > 0 {
		if n, err := unix.Write(w, pl.start.Stdin); err == nil {
			sent = n
		}
	}
	end := os.NewFile(uintptr(w), "stdin")
	rest := pl.start.Stdin[sent:]
	if len(rest) == 0 && !pl.start.OpenStdin {
		return end.Close()
	}
	f.parent = append(f.parent, end)
	p.input = &input{file: end}
	if len(rest) == 0 {
		return nil
	}
	f.feed = p.input.feed(rest, !pl.start.OpenStdin)
	return nil
}

// outPipe makes the pipe of an output stream.
func (s *Server) outPipe(to *spool, f *childFiles) (*stream, *os.File, error) {
	r, w, err := pipe()
	if err != nil {
		return nil, nil, err
	}
	child := os.NewFile(uintptr(w), "output")
	_ = unix.SetNonblock(r, true)
	st, err := newStream(r, "output", to, &s.buffers, s.touch)
	if err != nil {
		_ = child.Close()
		return nil, nil, err
	}
	f.parent = append(f.parent, st.file)
	return st, child, nil
}

func pipe() (r, w int, err error) {
	var p [2]int
	err = syscall.Pipe2(p[:], syscall.O_CLOEXEC)
	return p[0], p[1], err
}

// fork starts the program. A plain command that cannot be executed directly is given to the shell, which knows why.
func (s *Server) fork(p *process, pl *plan, f *childFiles) error {
	attr := &syscall.ProcAttr{
		Dir: pl.dir, Env: pl.env,
		Files: []uintptr{f.stdin.Fd(), f.stdout.Fd(), f.stderr.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, Credential: pl.cred, Setctty: p.pty != nil},
	}
	s.limiter.apply(attr.Sys)
	err := s.launch(p, pl, attr)
	if err != nil && pl.start.Command != "" && pl.program.path != shell() {
		if pl.program, err = shellProgram(pl.start.Command); err == nil {
			err = s.launch(p, pl, attr)
		}
	}
	if err == nil {
		return nil
	}
	return s.explain(pl, err)
}

func (s *Server) launch(p *process, pl *plan, attr *syscall.ProcAttr) error {
	if pl.program.script != nil {
		attr.Files = append(attr.Files[:3:3], pl.program.script.Fd())
	}
	return s.reaper.start(p, func() (int, error) {
		return syscall.ForkExec(pl.program.path, pl.program.argv, attr)
	}, func(pid int) {
		s.guard.poke()
		p.pid, p.startedAt = pid, s.now()
		if pl.start.TimeoutMS > 0 {
			p.timer = time.AfterFunc(time.Duration(pl.start.TimeoutMS)*time.Millisecond, p.timeout)
		}
	})
}

// explain says why a program could not be started.
func (s *Server) explain(pl *plan, err error) error {
	switch {
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
		return fail(CodeTooMany, "the sandbox is at its limit of processes or memory")
	case errors.Is(err, syscall.E2BIG):
		return fail(CodeTooLarge, "the arguments and the environment together are too large")
	}
	var st syscall.Stat_t
	switch dirErr := s.as(pl.user, func() error { return syscall.Stat(pl.dir+"/.", &st) }); {
	case errors.Is(dirErr, syscall.ENOENT):
		return fail(CodeCannotRun, "there is no directory %s to run in", clip(pl.cwd, 512))
	case errors.Is(dirErr, syscall.ENOTDIR):
		return fail(CodeCannotRun, "%s is not a directory to run in", clip(pl.cwd, 512))
	case errors.Is(dirErr, syscall.EACCES):
		return fail(CodeCannotRun, "%s may not enter the directory %s", pl.user.name, clip(pl.cwd, 512))
	}
	if pl.program.path == shell() && !executable(shell()) {
		return fail(CodeCannotRun, "there is no shell in this sandbox's image: give the program and its arguments as argv")
	}
	return fail(CodeCannotRun, "%s cannot be run: %s", clip(pl.program.argv[0], 256), err)
}

// describe is the command as it was asked for.
func describe(in *Start) string {
	switch {
	case in.Command != "":
		return clip(in.Command, maxCommandShown)
	case in.Login:
		return "(login shell)"
	case in.SFTP:
		return "(sftp)"
	}
	return clip(strings.Join(in.Argv, " "), maxCommandShown)
}

func isDir(path string) bool {
	var st syscall.Stat_t
	return syscall.Stat(path, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFDIR
}
