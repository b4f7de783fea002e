package main

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli"
	"github.com/berthrun/berth/internal/config"
)

// settings are the configuration of one command: the keys that it takes as flags, and what came of them, file and environment.
type settings struct {
	*config.Loaded
	env       func(string) string
	file      string // as named by --config
	given     map[string][]string
	temporary bool // data and sandboxes go when the server ends; no file is read that is not named
}

func newSettings(env func(string) string) *settings {
	return &settings{env: env, given: map[string][]string{}}
}

// keyFlag is a key as a flag. What it takes is checked with all other values, so that every refusal reads alike.
type keyFlag struct {
	key   config.Key
	given map[string][]string
}

// Set implements pflag.Value.
func (f keyFlag) Set(text string) error {
	if f.key.Type == "list" || f.key.Type == "map" {
		f.given[f.key.Flag] = append(f.given[f.key.Flag], text)
	} else {
		f.given[f.key.Flag] = []string{text}
	}
	return nil
}

// String implements pflag.Value.
func (f keyFlag) String() string { return strings.Join(f.given[f.key.Flag], ",") }

// Type implements pflag.Value; help shows it as what the flag takes.
func (f keyFlag) Type() string {
	switch {
	case f.key.Type == "boolean":
		return "bool"
	case f.key.Type == "map":
		return "KEY=VALUE"
	case f.key.Unit != "":
		return f.key.Unit
	case f.key.Type == "integer", f.key.Type == "number":
		return "number"
	}
	return "text"
}

// flags gives a command --config and the flags of the keys that it takes.
func (s *settings) flags(c *cobra.Command, takes func(path string) bool) {
	c.Flags().StringVar(&s.file, "config", "", "the configuration `file` (BERTH_CONFIG; default "+config.DefaultFile+" where it is there)")
	for _, k := range config.Keys() {
		if !takes(k.Path) {
			continue
		}
		f := c.Flags().VarPF(keyFlag{k, s.given}, k.Flag, "", flagHelp(k))
		if k.Type == "boolean" {
			f.NoOptDefVal = "true"
		}
		if len(k.Enum) > 0 {
			// It fails only for a flag that does not exist.
			_ = c.RegisterFlagCompletionFunc(k.Flag, cobra.FixedCompletions(k.Enum, cobra.ShellCompDirectiveNoFileComp))
		}
	}
}

func flagHelp(k config.Key) string {
	s := strings.ReplaceAll(k.Doc, "`", "'")
	if len(k.Enum) > 0 {
		s += " One of: " + strings.Join(k.Enum, ", ") + "."
	}
	if standard := k.Default; standard != "" {
		s += " Default: " + standard + "."
	} else if k.Shown != "" {
		s += " Default: " + k.Shown + "."
	}
	if k.Type == "list" || k.Type == "map" {
		s += " Can be repeated."
	}
	return s + " (" + k.Env + ")"
}

// load puts the configuration together.
func (s *settings) load() (err error) {
	s.Loaded, err = config.Load(config.Options{
		File: firstOf(s.file, s.env("BERTH_CONFIG")), NoFile: s.temporary, Env: s.env, Flags: s.given, DataDir: cli.DataDir(s.env),
	})
	return err
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// everyKey, nodeKeys and all but data are what serve, prepare and dev take.
func everyKey(string) bool { return true }

func nodeKeys(path string) bool {
	return path == "data" || path == "images.dir" || path == "node.trustHostCA"
}

func butData(path string) bool { return path != "data" }

// imageDir is the folder of prepared images.
func (s *settings) imageDir() string {
	return firstOf(s.Images.Dir, filepath.Join(s.Data, "images"))
}

// databaseURL is where the state is.
func (s *settings) databaseURL() string {
	return firstOf(s.Database.URL, filepath.Join(s.Data, "berth.db"))
}

// dataDir is where the server of this machine keeps its data, for commands that look for it: as its configuration says, where that can be read.
func dataDir(env func(string) string) string {
	s := newSettings(env)
	if err := s.load(); err != nil {
		return cli.DataDir(env)
	}
	return s.Data
}
