// Package recipe owns what a template is built of, without building it: stages of steps, read from a Dockerfile or from the steps of a call; what each step
// does once its variables are known; and the key under which what it leaves behind is kept.
//
// It starts nothing and reads no file. The files that COPY takes are package inputs' (internal/template/inputs), running is the executor's.
package recipe

// Recipe is a whole build.
type Recipe struct {
	Stages   []Stage // in the order of the file, without those that the last does not need; the last is what the template becomes
	Warnings []Warning

	given   map[string]string // build arguments of the call
	globals map[string]string // ARGs before the first FROM, and what is known of the platform
	escape  rune
}

// Stage is one FROM and what follows it.
type Stage struct {
	Name  string // of AS; "" has none
	Line  int    // 0 of a stage that no file wrote
	Text  string // the FROM as it was written
	From  Source
	Steps []Step
}

// SourceKind says what a Source is.
type SourceKind string

// What a stage begins with, and what COPY --from takes from.
const (
	FromImage    SourceKind = "image"    // Ref names an image
	FromTemplate SourceKind = "template" // Ref is a template's id or name
	FromStage    SourceKind = "stage"    // Stage is an index of Recipe.Stages, always before the stage that names it
	FromScratch  SourceKind = "scratch"  // nothing at all
)

// Source names files that are there before a step.
type Source struct {
	Kind  SourceKind
	Ref   string
	Stage int
}

// Kind is an instruction, in capitals.
type Kind string

// The instructions.
const (
	Run        Kind = "RUN"
	Env        Kind = "ENV"
	Arg        Kind = "ARG"
	Label      Kind = "LABEL"
	Workdir    Kind = "WORKDIR"
	User       Kind = "USER"
	Copy       Kind = "COPY"
	Add        Kind = "ADD"
	Shell      Kind = "SHELL"
	Expose     Kind = "EXPOSE"
	Entrypoint Kind = "ENTRYPOINT"
	Cmd        Kind = "CMD"
)

// Step is one instruction as it was written: its variables are not replaced yet, which takes what comes before it (Walk).
type Step struct {
	Kind Kind
	Line int    // in the Dockerfile, from 1; of a call's steps their number, from 1
	Text string // as written, without what heredocs hold
	Body string // of RUN: what its heredocs hold, for the log

	Args  []string // RUN, CMD, ENTRYPOINT, SHELL: the command; WORKDIR, USER: one; EXPOSE: the ports
	Shell bool     // RUN, CMD, ENTRYPOINT: Args is one text for the shell
	Stdin string   // RUN: what the command reads
	Pairs []Pair   // ENV, ARG, LABEL
	User  string   // RUN of a call's steps: in place of the stage's user
	Files *Files   // COPY, ADD
	Force bool     // run anew, and all that follows

	plain bool // quotes and backslashes are characters like others: the step was not written in a Dockerfile
}

// Pair is a name and its value.
type Pair struct {
	Key, Value string
	Bare       bool // ARG without a default
}

// Files is what COPY and ADD take and where to.
type Files struct {
	From    *Source // nil is the build's context
	Sources []string
	Inline  []Inline // heredocs
	Dest    string
	Exclude []string
	Owner   string // of --chown
	Mode    string // of --chmod
	Parents bool
	Unpack  bool // archives become what is in them
}

// Inline is a file whose content is in the Dockerfile.
type Inline struct {
	Name, Data string
	Expand     bool
}

// Warning is what a recipe says that has no effect here.
type Warning struct {
	Line    int    `json:"line"` // 0 is none
	Message string `json:"message"`
}
