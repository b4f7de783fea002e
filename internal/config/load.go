package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berthrun/berth/internal/errs"
)

// DefaultFile is read where no other is named and it is there.
const DefaultFile = "/etc/berth/berth.yaml"

// Options say where values come from.
type Options struct {
	File    string              // the file; empty reads DefaultFile where it is there
	NoFile  bool                // reads DefaultFile not even where it is there
	Env     func(string) string // the environment
	Flags   map[string][]string // values by flag, of those that were given
	DataDir string              // what data is where nobody says
}

// Origin says where a value came from.
type Origin struct {
	Kind  string // default, file, environment or flag
	Where string // such as /etc/berth/berth.yaml:4, BERTH_LISTEN_PORT or --port; empty for a default
}

// String is Where, or "default".
func (o Origin) String() string {
	if o.Where == "" {
		return o.Kind
	}
	return o.Where
}

// Loaded is a configuration with the origins of its values.
type Loaded struct {
	Config
	File    string // that was read, empty where none was
	Origins map[string]Origin
}

// Load puts together what defaults, file, environment and flags say, each over the one before, and checks it. Everything that is wrong is one
// errs.InvalidConfig.
func Load(o Options) (*Loaded, error) {
	l := &Loaded{Origins: map[string]Origin{}}
	l.defaults(o.DataDir)
	problems, err := l.readFile(o)
	if err != nil {
		return nil, err
	}
	for _, k := range Keys() {
		if o.Env != nil {
			if text := o.Env(k.Env); text != "" {
				problems = l.take(problems, k, Origin{"environment", k.Env}, func() error { return k.parse(&l.Config, []string{text}) })
			}
		}
		if texts := o.Flags[k.Flag]; len(texts) > 0 {
			problems = l.take(problems, k, Origin{"flag", "--" + k.Flag}, func() error { return k.parse(&l.Config, texts) })
		}
	}
	if len(problems) == 0 {
		problems = l.check()
	}
	return l, invalid(problems)
}

func (l *Loaded) defaults(dataDir string) {
	for _, k := range Keys() {
		l.Origins[k.Path] = Origin{Kind: "default"}
		if k.Default == "" {
			continue
		}
		if err := k.parse(&l.Config, []string{k.Default}); err != nil {
			panic(fmt.Sprintf("config: default of %s: %v", k.Path, err)) // a test loads them all
		}
	}
	l.Data = dataDir
}

func (l *Loaded) take(problems []problem, k Key, from Origin, set func() error) []problem {
	if err := set(); err != nil {
		return append(problems, problem{k.Path, from.Where, err.Error()})
	}
	l.Origins[k.Path] = from
	return problems
}

// readFile takes the values of the file. One that was named must be there.
func (l *Loaded) readFile(o Options) ([]problem, error) {
	name := o.File
	if name == "" {
		if o.NoFile {
			return nil, nil
		}
		name = DefaultFile
	}
	text, err := read(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && o.File == "":
		return nil, nil
	case errors.Is(err, fs.ErrPermission) && o.File == "":
		return nil, nil // it is the server's; a person's commands do without
	case err != nil:
		return nil, errs.Wrap(errs.InvalidConfig, err, "the configuration %s cannot be read", name).
			Suggest("Name another with --config or BERTH_CONFIG.")
	}
	l.File = name
	f, problems := decode(name, text)
	for _, k := range Keys() {
		if v, ok := f.values[k.Path]; ok {
			problems = l.take(problems, k, Origin{"file", f.where(k.Path)}, func() error { return k.set(&l.Config, v) })
		}
	}
	return problems, nil
}

func read(name string) ([]byte, error) {
	f, err := os.Open(filepath.Clean(name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}
