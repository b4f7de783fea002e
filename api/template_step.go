package api

// TemplateStep is one step of a template's build. What it takes is said by named members, or by args in the order in which they are listed here.
type TemplateStep struct {
	Type        string   `json:"type" enum:"RUN,ENV,WORKDIR,USER,COPY" doc:"RUN takes command and user; ENV key and value; WORKDIR path; USER user; COPY source, destination, user and mode."`
	Args        []string `json:"args,omitempty" doc:"In place of the named members, in the order that type lists them; ENV takes several pairs."`
	Command     string   `json:"command,omitempty" doc:"RUN: through the shell."`
	Key         string   `json:"key,omitempty" doc:"ENV."`
	Value       string   `json:"value,omitempty" doc:"ENV: $NAME and ${NAME} are replaced."`
	Path        string   `json:"path,omitempty" doc:"WORKDIR: made where it is missing."`
	User        string   `json:"user,omitempty" doc:"USER: for what follows. RUN: for this command. COPY: who owns the files, user or user:group; as commands run where absent."`
	Source      string   `json:"source,omitempty" doc:"COPY: a path or pattern in the uploaded archive."`
	Destination string   `json:"destination,omitempty" doc:"COPY: ends in / where it is a folder."`
	Mode        string   `json:"mode,omitempty" doc:"COPY: permission bits in octal, such as 0755."`
	Force       bool     `json:"force,omitempty" doc:"Runs it and what follows anew."`
}
