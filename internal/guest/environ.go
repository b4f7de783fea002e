//go:build linux

package guest

import (
	"strings"
)

// defaultPath is where programs are looked for unless the environment says otherwise.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environ builds a process's environment: what every account has, then what the sandbox was configured with, then what was asked for.
func environ(a *user, cwd string, tty bool, configured, asked map[string]string) []string {
	base := [...][2]string{
		{"PATH", defaultPath}, {"HOME", a.home}, {"USER", a.name}, {"LOGNAME", a.name}, {"SHELL", a.shell}, {"LANG", "C.UTF-8"}, {"PWD", cwd}, {"TERM", "xterm-256color"},
	}
	defaults := base[:]
	if !tty {
		defaults = base[:len(base)-1]
	}
	env := make([]string, 0, len(defaults)+len(configured)+len(asked))
	for _, kv := range defaults {
		if _, ok := asked[kv[0]]; ok {
			continue
		}
		if _, ok := configured[kv[0]]; ok {
			continue
		}
		env = append(env, kv[0]+"="+kv[1])
	}
	for k, v := range configured {
		if _, ok := asked[k]; !ok {
			env = append(env, k+"="+v)
		}
	}
	for k, v := range asked {
		env = append(env, k+"="+v)
	}
	return env
}

// checkEnv refuses names and values that an environment cannot hold.
func checkEnv(env map[string]string) error {
	size := 0
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			return fail(CodeInvalid, "%q is not the name of an environment variable", clip(k, 64))
		}
		if strings.Contains(v, "\x00") {
			return fail(CodeInvalid, "the environment variable %q holds a NUL byte", clip(k, 64))
		}
		size += len(k) + len(v) + 2
	}
	if size > MaxEnvBytes {
		return fail(CodeTooLarge, "the environment is larger than %d bytes", MaxEnvBytes)
	}
	return nil
}

// lookupEnv is the last value of a variable.
func lookupEnv(env []string, name string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], name+"="); ok {
			return v
		}
	}
	return ""
}
