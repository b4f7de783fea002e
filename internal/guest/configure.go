//go:build linux

package guest

import (
	"bytes"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxSkew is how far the clock may be off before it is set.
const maxSkew = time.Second

// configure takes what the host renews after each boot and each restore.
func (s *Server) configure(w http.ResponseWriter, r *http.Request) {
	var in Configure
	if err := decode(w, r, 1<<20, &in); err != nil {
		answer(w, nil, err)
		return
	}
	out, err := s.apply(&in)
	answer(w, out, err)
}

// apply checks everything before it changes anything.
func (s *Server) apply(in *Configure) (*Configured, error) {
	if err := checkEnv(in.Env); err != nil {
		return nil, err
	}
	if len(in.Hostname) > 64 || strings.ContainsAny(in.Hostname, " \t\r\n\x00") {
		return nil, fail(CodeInvalid, "%q is not a host name", clip(in.Hostname, 64))
	}
	if in.Pids < 0 || in.UnixNanos < 0 {
		return nil, fail(CodeInvalid, "a number of processes or a time cannot be negative")
	}
	if len(in.User) > 256 || len(in.WorkDir) > MaxPathBytes || strings.ContainsAny(in.User+in.WorkDir, "\x00\n") {
		return nil, fail(CodeInvalid, "a default user or working directory that cannot be")
	}
	out := &Configured{}
	if in.UnixNanos > 0 {
		skew := time.Since(time.Unix(0, in.UnixNanos))
		out.ClockSkewMS = skew.Milliseconds()
		if s.cfg.Init && skew.Abs() > maxSkew {
			ts := unix.NsecToTimespec(in.UnixNanos)
			if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
				s.cfg.Log.Warn("clock not set", "error", err, "skew_ms", out.ClockSkewMS)
			}
		}
	}
	if s.cfg.Init {
		s.own(in)
	}
	if in.Env != nil {
		s.mu.Lock()
		s.env = maps.Clone(in.Env)
		s.mu.Unlock()
	}
	if in.Token != "" {
		s.setToken(in.Token)
	}
	s.asImage(in)
	return out, nil
}

// asImage takes what the sandbox's image says about running it. A working directory that was made for want of one goes to the account that it is for.
func (s *Server) asImage(in *Configure) {
	if in.WorkDir != "" {
		dir := path.Clean("/" + in.WorkDir)
		s.workDir.Store(&dir)
	}
	if in.User == "" {
		return
	}
	s.users.setDefault(in.User)
	if a, err := s.users.lookup(""); err == nil && s.privileged && s.madeWorkDir.Load() {
		if err := os.Lchown(s.host(DefaultWorkDir), int(a.uid), int(a.gid)); err != nil {
			s.cfg.Log.Warn("working directory not given to the default account", "error", err)
		}
	}
}

// own applies what belongs to the whole sandbox. What the kernel refuses is logged: none of it keeps commands from running.
func (s *Server) own(in *Configure) {
	if in.Hostname != "" {
		if err := unix.Sethostname([]byte(in.Hostname)); err != nil {
			s.cfg.Log.Warn("host name not set", "error", err)
		}
		s.writeHostname(in.Hostname)
	}
	if len(in.Entropy) > 0 {
		if err := stir(in.Entropy); err != nil {
			s.cfg.Log.Warn("entropy not taken", "error", err)
		}
	}
	if in.Pids > 0 {
		if err := s.limiter.set(in.Pids); err != nil {
			s.cfg.Log.Warn("processes not limited as asked", "error", err)
		}
	}
}

// stir mixes bytes into the kernel's random pool.
func stir(entropy []byte) error {
	f, err := os.OpenFile("/dev/urandom", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(entropy)
	return err
}

// writeHostname makes the host name's files agree. They may be mounts, so they are written in place.
func (s *Server) writeHostname(name string) {
	_ = os.WriteFile(filepath.Join(s.cfg.Root, "/etc/hostname"), []byte(name+"\n"), 0o644)
	hosts := filepath.Join(s.cfg.Root, "/etc/hosts")
	old, err := os.ReadFile(hosts)
	if err != nil || len(old) > maxAccountFile {
		return
	}
	var b bytes.Buffer
	for line := range bytes.Lines(old) {
		if !bytes.HasPrefix(line, []byte("127.0.1.1")) {
			b.Write(line)
		}
	}
	if n := b.Len(); n > 0 && b.Bytes()[n-1] != '\n' {
		b.WriteByte('\n')
	}
	b.WriteString("127.0.1.1\t" + name + "\n")
	if !bytes.Equal(b.Bytes(), old) {
		_ = os.WriteFile(hosts, b.Bytes(), 0o644)
	}
}
