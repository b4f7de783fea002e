package recipe

// Action is what a step does, its variables replaced. At most one of Exec, Put and MakeDir is there; where none is, the step only changed the config and
// leaves no layer.
type Action struct {
	Step    Step
	Exec    *Exec
	Put     *Put
	MakeDir string // of WORKDIR: an absolute folder to make where it is missing, with its parents, with mode 0755
	As      string // of WORKDIR: who owns what is made, as Exec.User
	Title   string // one line for people: RUN apt-get update

	hidden []string // NAME=value of the environment that the key leaves out
}

// Layer reports whether the action leaves files behind.
func (a Action) Layer() bool { return a.Exec != nil || a.Put != nil || a.MakeDir != "" }

// Exec is a command to run.
type Exec struct {
	Argv  []string
	Env   []string // NAME=value, each name once: the config's, and the arguments in effect
	Dir   string   // absolute
	User  string   // name, uid, or either with :group; "" is root
	Stdin string
}

// Put is files to place.
type Put struct {
	From    *Source // nil is the build's context
	Sources []string
	Inline  []Inline
	Dest    string // absolute and clean
	DestDir bool   // it is a folder whether or not it is there yet
	Exclude []string
	Owner   string // user, user:group, numbers or names; "" is root
	Mode    *int64 // permission bits for all of them; nil keeps each file's own
	Parents bool   // keep the folders of the sources' names
	Unpack  bool   // tar archives, compressed or not, become what is in them
}
