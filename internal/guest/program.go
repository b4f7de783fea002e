//go:build linux

package guest

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxArgument is the longest command that is handed to the shell as an argument: the kernel takes 128 KiB. A longer one is a script in
// memory that the shell reads.
const maxArgument = 96 << 10

// program is what is executed.
type program struct {
	path   string
	argv   []string
	script *os.File // for descriptor 3
}

func (p *program) close() { closeAll(p.script) }

// shell is the shell for commands.
func shell() string {
	if executable("/bin/bash") {
		return "/bin/bash"
	}
	return "/bin/sh"
}

// shellProgram runs a command through the shell.
func shellProgram(command string) (*program, error) {
	sh := shell()
	if len(command) <= maxArgument {
		return &program{path: sh, argv: []string{sh, "-c", command}}, nil
	}
	fd, err := unix.MemfdCreate("command", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "command")
	if _, err = f.WriteString(command); err == nil {
		_, err = f.Seek(0, 0)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &program{path: sh, argv: []string{sh, "/dev/fd/3"}, script: f}, nil
}

// loginProgram is the account's own shell, which takes the dash before its name as the sign of a login. An account without a usable one gets ours.
func loginProgram(a *user) *program {
	sh := a.shell
	if !executable(sh) || filepath.Base(sh) == "nologin" || filepath.Base(sh) == "false" {
		sh = shell()
	}
	return &program{path: sh, argv: []string{"-" + filepath.Base(sh)}}
}

// sftpProgram serves SFTP.
func (s *Server) sftpProgram() (*program, error) {
	if len(s.cfg.SFTP) == 0 {
		return nil, fail(CodeCannotRun, "this guest has no SFTP")
	}
	return &program{path: s.cfg.SFTP[0], argv: s.cfg.SFTP}, nil
}

// argvProgram runs a program without a shell. The account's own search path finds it.
func argvProgram(argv []string, path string) (*program, error) {
	if strings.Contains(argv[0], "/") {
		return &program{path: argv[0], argv: argv}, nil
	}
	if found := search(argv[0], path); found != "" {
		return &program{path: found, argv: argv}, nil
	}
	return nil, fail(CodeCannotRun, "there is no program %q in %s", clip(argv[0], 256), clip(path, 512))
}

// plainCommand gives the program that a shell would run for a command without any shell syntax, or nil: then only a shell knows. Not having to
// start one halves the time of a small command.
func plainCommand(command string, env []string) *program {
	if len(command) > 4096 {
		return nil
	}
	for i := range len(command) {
		c := command[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte(" -_./:,@+", c) < 0 {
			return nil
		}
	}
	argv := strings.Fields(command)
	if len(argv) == 0 || shellWord(argv) {
		return nil
	}
	for _, kv := range env {
		if strings.HasPrefix(kv, "BASH_") || strings.HasPrefix(kv, "SHELLOPTS=") || strings.HasPrefix(kv, "BASHOPTS=") || strings.HasPrefix(kv, "POSIXLY_CORRECT=") {
			return nil // what the shell would read first may give words another meaning
		}
	}
	path := argv[0]
	if !strings.Contains(path, "/") {
		if path = search(argv[0], lookupEnv(env, "PATH")); path == "" {
			return nil
		}
	} else if !executable(path) {
		return nil // relative to a directory that is not ours, or not there: the shell says it best
	}
	return &program{path: path, argv: argv}
}

// shellWord reports whether a command's first word means something to the shell itself.
func shellWord(argv []string) bool {
	switch argv[0] {
	case "true", "false":
		return len(argv) > 1 // alone, the programs do the same
	case ".", ":", "alias", "bg", "bind", "break", "builtin", "caller", "case", "cd", "command", "compgen", "complete", "compopt", "continue", "coproc",
		"declare", "dirs", "disown", "do", "done", "echo", "elif", "else", "enable", "esac", "eval", "exec", "exit", "export", "fc", "fg", "fi", "for", "function",
		"getopts", "hash", "help", "history", "if", "in", "jobs", "kill", "let", "local", "logout", "mapfile", "popd", "printf", "pushd", "pwd", "read",
		"readarray", "readonly", "return", "select", "set", "shift", "shopt", "source", "suspend", "test", "then", "time", "times", "trap",
		"type", "typeset", "ulimit", "umask", "unalias", "unset", "until", "wait", "while", "chdir":
		return true
	}
	return false
}

// search finds a program in the absolute directories of a search path.
func search(name, path string) string {
	for dir := range strings.SplitSeq(path, ":") {
		if !filepath.IsAbs(dir) {
			return "" // relative to the working directory: left to who knows it
		}
		if candidate := dir + "/" + name; executable(candidate) {
			return candidate
		}
	}
	return ""
}

// executable reports whether a path is a file that someone may execute.
func executable(path string) bool {
	if !filepath.IsAbs(path) {
		return false
	}
	var st syscall.Stat_t
	return syscall.Stat(path, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFREG && st.Mode&0o111 != 0
}
