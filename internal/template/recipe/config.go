package recipe

import (
	"maps"
	"slices"
	"strings"
)

// Config is what a stage knows beside its files: the base's to begin with, then what the steps make of it. It is what a sandbox of the template starts with.
type Config struct {
	Env        []string          `json:"env,omitempty"` // NAME=value, each name once, in the order they were first set
	Dir        string            `json:"dir,omitempty"` // absolute; "" is /
	User       string            `json:"user,omitempty"`
	Shell      []string          `json:"shell,omitempty"` // nil is /bin/sh -c
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Cmd        []string          `json:"cmd,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	Ports      []string          `json:"ports,omitempty"` // 8080/tcp, sorted
}

// Clone copies all of it.
func (c Config) Clone() Config {
	c.Env, c.Shell, c.Entrypoint = slices.Clone(c.Env), slices.Clone(c.Shell), slices.Clone(c.Entrypoint)
	c.Cmd, c.Ports, c.Labels = slices.Clone(c.Cmd), slices.Clone(c.Ports), maps.Clone(c.Labels)
	return c
}

// Lookup gives the value of an environment variable.
func (c Config) Lookup(name string) (string, bool) {
	for _, e := range c.Env {
		if k, v, _ := strings.Cut(e, "="); k == name {
			return v, true
		}
	}
	return "", false
}

func (c *Config) setEnv(name, value string) {
	for i, e := range c.Env {
		if k, _, _ := strings.Cut(e, "="); k == name {
			c.Env[i] = name + "=" + value
			return
		}
	}
	c.Env = append(c.Env, name+"="+value)
}

func (c Config) dir() string {
	if c.Dir == "" {
		return "/"
	}
	return c.Dir
}

func (c Config) shell() []string {
	if len(c.Shell) == 0 {
		return []string{"/bin/sh", "-c"}
	}
	return c.Shell
}

// tooLarge reports whether the environment and the labels are more than a build may have: each RUN has all of them.
func (c Config) tooLarge() bool {
	n := 0
	for _, e := range c.Env {
		n += len(e)
	}
	for k, v := range c.Labels {
		n += len(k) + len(v)
	}
	return n > maxConfig || len(c.Env)+len(c.Labels) > maxNames
}
