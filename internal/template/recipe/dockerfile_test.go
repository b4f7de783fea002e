package recipe

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
)

// told renders what the target's steps do, one line each, and the config at the end.
func told(t *testing.T, r *Recipe, stage int, base Config) (string, Config) {
	t.Helper()
	w, b := r.Walk(stage, base), &strings.Builder{}
	for {
		a, more, err := w.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			return b.String(), w.Config()
		}
		switch {
		case a.Exec != nil:
			fmt.Fprintf(b, "exec %q dir=%s user=%s", a.Exec.Argv, a.Exec.Dir, a.Exec.User)
			if a.Exec.Stdin != "" {
				fmt.Fprintf(b, " stdin=%q", a.Exec.Stdin)
			}
		case a.Put != nil:
			p := a.Put
			fmt.Fprintf(b, "put %q to=%s dir=%v", p.Sources, p.Dest, p.DestDir)
			if p.From != nil {
				fmt.Fprintf(b, " from=%s:%s:%d", p.From.Kind, p.From.Ref, p.From.Stage)
			}
			if p.Mode != nil {
				fmt.Fprintf(b, " mode=%o", *p.Mode)
			}
			if p.Owner != "" {
				fmt.Fprintf(b, " owner=%s", p.Owner)
			}
			if p.Unpack {
				b.WriteString(" unpack")
			}
			for _, e := range p.Exclude {
				b.WriteString(" not=" + e)
			}
			for _, f := range p.Inline {
				fmt.Fprintf(b, " inline=%s:%q", f.Name, f.Data)
			}
		case a.MakeDir != "":
			b.WriteString("mkdir " + a.MakeDir)
		default:
			continue
		}
		b.WriteString("\n")
	}
}

func TestParse(t *testing.T) {
	const file = `# syntax=docker/dockerfile:1
# escape=\
ARG VERSION=13
ARG BASE=debian:${VERSION}
FROM $BASE AS build
ARG VERSION
ARG FLAGS="-O2 -g"
ENV A=one B="two words" C=$A
WORKDIR /src
WORKDIR sub/../lib
COPY --chown=1000:users --chmod=0640 --exclude=*.md a.txt b*.txt ./
# a comment inside does not end the command
RUN apt-get update && \
    # this neither
    apt-get install -y \
      jq
RUN ["echo", "$A"]
FROM scratch as unused
COPY x /x
FROM build
COPY --from=build /src/lib/out /usr/bin/out
COPY --from=0 /src/lib /lib/
COPY --from=alpine:3 /etc/alpine-release /
ADD app.tar.gz /opt
COPY <<EOF <<-"RAW" /etc/conf/
version $VERSION
EOF
	raw $VERSION
	RAW
USER www:www
SHELL ["/bin/bash", "-eo", "pipefail", "-c"]
RUN <<EOF
set -x
id
EOF
RUN <<EOF cat > /dev/null
text
EOF
RUN <<PY
#!/usr/bin/env python3
print(1)
PY
EXPOSE 8080 53/udp $PORT
LABEL a=b "c d"="e $A"
MAINTAINER it's me $A
CMD ["a", "b"]
ENTRYPOINT exec run
HEALTHCHECK CMD true
VOLUME /data
STOPSIGNAL SIGINT
`
	r, err := Parse(file, Options{Args: map[string]string{"VERSION": "12", "NOBODY": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Stages) != 2 || r.Stages[0].From != (Source{Kind: FromImage, Ref: "debian:12"}) || r.Stages[1].From.Stage != 0 || r.Root(1).Ref != "debian:12" {
		t.Fatalf("stages: %+v", r.Stages)
	}
	first, _ := told(t, r, 0, Config{})
	if diff := cmp.Diff(strings.TrimLeft(`
mkdir /src
mkdir /src/lib
put ["a.txt" "b*.txt"] to=/src/lib dir=true mode=640 owner=1000:users not=*.md
exec ["/bin/sh" "-c" "apt-get update &&     apt-get install -y       jq"] dir=/src/lib user=
exec ["echo" "$A"] dir=/src/lib user=
`, "\n"), first); diff != "" {
		t.Error(diff)
	}
	second, c := told(t, r, 1, Config{Cmd: []string{"of the base"}, Env: []string{"PATH=/bin", "PORT=90"}})
	if diff := cmp.Diff(strings.TrimLeft(`
put ["/src/lib/out"] to=/usr/bin/out dir=false from=stage:build:0
put ["/src/lib"] to=/lib dir=true from=stage:0:0
put ["/etc/alpine-release"] to=/ dir=true from=image:alpine:3:0
put ["app.tar.gz"] to=/opt dir=false unpack
put [] to=/etc/conf dir=true inline=EOF:"version 12\n" inline=RAW:"raw $VERSION\n"
exec ["/bin/bash" "-eo" "pipefail" "-c" "set -x\nid\n"] dir=/src/lib user=www:www
exec ["/bin/bash" "-eo" "pipefail" "-c" "<<EOF cat > /dev/null\ntext\nEOF"] dir=/src/lib user=www:www
exec ["/bin/sh" "-c" `+fmt.Sprintf("%q", launch)+`] dir=/src/lib user=www:www stdin="#!/usr/bin/env python3\nprint(1)\n"
`, "\n"), second); diff != "" {
		t.Error(diff)
	}
	want := Config{
		Env: []string{"PATH=/bin", "PORT=90", "A=one", "B=two words", "C="}, Dir: "/src/lib", User: "www:www",
		Shell: []string{"/bin/bash", "-eo", "pipefail", "-c"}, Entrypoint: []string{"/bin/bash", "-eo", "pipefail", "-c", "exec run"}, Cmd: []string{"a", "b"},
		Labels: map[string]string{"a": "b", "c d": "e one", "maintainer": "it's me $A"}, Ports: []string{"53/udp", "8080/tcp", "90/tcp"},
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Error(diff)
	}
	var warned []string
	for _, w := range r.Warnings {
		warned = append(warned, fmt.Sprint(w.Line, " ", strings.Fields(w.Message)[0]))
	}
	if diff := cmp.Diff([]string{"48 HEALTHCHECK", "49 VOLUME", "50 STOPSIGNAL", "0 the"}, warned); diff != "" {
		t.Error(diff)
	}
}

// TestUnsupported names the line and what to do instead, for each thing that is not done.
func TestUnsupported(t *testing.T) {
	tests := map[string]struct {
		file    string
		line    int
		message string // part of it
	}{
		"cache mount":     {"FROM a\nRUN --mount=type=cache,target=/c x", 2, "--mount=type=cache"},
		"secret mount":    {"FROM a\nRUN --mount=type=secret,id=s x", 2, "--mount=type=secret"},
		"ssh mount":       {"FROM a\nRUN --mount=type=ssh x", 2, "--mount=type=ssh"},
		"bind mount":      {"FROM a\n\n# c\nRUN --mount=target=/x x", 4, "--mount=type=bind"},
		"network":         {"FROM a\nRUN --network=host x", 2, "--network=host"},
		"security":        {"FROM a\nRUN --security=insecure x", 2, "--security=insecure"},
		"url":             {"FROM a\nADD https://example.com/a /a", 2, "https://example.com/a"},
		"url by variable": {"FROM a\nENV U=http://x\nADD $U/a /a", 3, "http://x/a"},
		"git":             {"FROM a\nADD git@example.com:a/b.git /a", 2, "git@example.com"},
		"checksum":        {"FROM a\nADD --checksum=sha256:1 a /a", 2, "--checksum"},
		"onbuild":         {"FROM a\nONBUILD RUN x", 2, "ONBUILD"},
		"platform":        {"FROM --platform=linux/s390x a", 1, "linux/s390x"},
		"frontend":        {"# syntax=example.com/mine\nFROM a", 1, "example.com/mine"},
		"no from":         {"ARG a\n", 0, "no FROM"},
		"before from":     {"RUN x\nFROM a", 1, "before the first FROM"},
		"unknown":         {"FROM a\n\nINSTALL jq", 3, "INSTALL"},
		"unknown flag":    {"FROM a\nCOPY --owner=me a b", 2, "owner"},
		"no destination":  {"FROM a\nCOPY a", 2, "at least two arguments"},
		"several to file": {"FROM a\nCOPY a b c", 2, "End it in /"},
		"chmod":           {"FROM a\nCOPY --chmod=u+x a b", 2, "octal"},
		"later stage":     {"FROM a\nCOPY --from=1 a b\nFROM b", 2, "earlier stage"},
		"itself":          {"FROM a as x\nCOPY --from=x a b", 2, "itself"},
		"from variable":   {"FROM a\nCOPY --from=$x a b", 2, "--from=$x"},
		"empty from":      {"ARG X\nFROM $X", 2, "names nothing"},
		"two names":       {"FROM a as x\nFROM b as x", 2, "two stages"},
		"heredoc":         {"FROM a\nRUN <<EOF\nx\n", 2, "unterminated heredoc"},
		"port":            {"FROM a\nEXPOSE 99999", 2, "99999"},
		"shell form":      {"FROM a\nSHELL bash -c", 2, "SHELL"},
		"substitution":    {"FROM a\nWORKDIR ${x?must}", 2, "must"},
		"doubling":        {"FROM a\nENV A=0123456789012345678901234567890123456789\n" + strings.Repeat("ENV A=$A$A$A$A\n", 40), 0, "too long"},
		"multiplying":     {"FROM a\nENV A=" + strings.Repeat("a", 5000) + "\nENV B=${A//a/$A}", 3, "too long"},
		"stages":          {strings.Repeat("FROM a\n", MaxStages+1), MaxStages + 1, "at most 100 stages"},
		"many variables":  {"FROM a\nENV" + numbered(maxNames), 2, "more than 2000 names"},
		"many arguments":  {"FROM a\nARG" + numbered(maxNames+1), 2, "more than 2000 names"},
		"much argument":   {"FROM a\n" + strings.Repeat("ARG A="+strings.Repeat("a", 60_000)+"\n", 1) + "ARG B=$A C=$A D=$A E=$A F=$A G=$A H=$A I=$A J=$A", 3, "512 KiB"},
		"no text":         {"FROM a\nRUN \xff", 0, "UTF-8"},
		"nothing":         {"FROM a\nENV A=\x00", 0, "UTF-8"},
		"steps":           {"FROM a\n" + strings.Repeat("USER x\n", MaxSteps+1), MaxSteps + 2, "at most 1000"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := Parse(tt.file, Options{Arch: "amd64"})
			for i := 0; err == nil && i < len(r.Stages); i++ {
				for w, more := r.Walk(i, Config{}), true; more && err == nil; {
					_, more, err = w.Next()
				}
			}
			var e *errs.Error
			if !errors.As(err, &e) || e.Code != errs.InvalidInput {
				t.Fatalf("got %v", err)
			}
			if !strings.Contains(e.Message+" "+e.Suggestion, tt.message) || e.Suggestion == "" {
				t.Errorf("%s / %s, want %q in it", e.Message, e.Suggestion, tt.message)
			}
			if at := fmt.Sprintf("line %d: ", tt.line); tt.line > 0 && (!strings.HasPrefix(e.Message, at) || e.Details["line"] != tt.line) {
				t.Errorf("%q does not begin with %q", e.Message, at)
			}
		})
	}
}

func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, " V%d=1", i)
	}
	return b.String()
}

func TestTarget(t *testing.T) {
	const file = "FROM a AS one\nFROM b AS Two\nCOPY --from=one x y\nFROM c\nFROM two AS last\nCOPY --from=2 x y\n"
	tests := []struct {
		target string
		want   string
	}{{"", "a b c two"}, {"one", "a"}, {"TWO", "a b"}, {"2", "c"}, {"0", "a"}}
	for _, tt := range tests {
		r, err := Parse(file, Options{Target: tt.target})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for i, s := range r.Stages {
			got = append(got, s.From.Ref)
			for _, st := range s.Steps {
				if f := st.Files.From; f.Stage >= i {
					t.Errorf("%s: stage %d copies from %d", tt.target, i, f.Stage)
				}
			}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%q: stages %v, want %s", tt.target, got, tt.want)
		}
	}
	if _, err := Parse(file, Options{Target: "none"}); err == nil || !strings.Contains(err.Error(), `no stage "none"`) {
		t.Errorf("unknown target: %v", err)
	}
}

func TestArgScopes(t *testing.T) {
	const file = `ARG G=global
FROM a AS base
ARG G
ARG OWN=own
FROM base
RUN one
ENV OWN=env
RUN two
FROM base AS other
ARG G=again
ARG TARGETARCH
RUN three
`
	env := func(target string, args map[string]string) string {
		r, err := Parse(file, Options{Target: target, Args: args, Arch: "arm64"})
		if err != nil {
			t.Fatal(err)
		}
		w, out := r.Walk(len(r.Stages)-1, Config{}), []string(nil)
		for {
			a, more, err := w.Next()
			if err != nil {
				t.Fatal(err)
			}
			if !more {
				return strings.Join(out, " | ")
			}
			if a.Exec != nil {
				out = append(out, strings.Join(a.Exec.Env[1:], " "))
			}
		}
	}
	for _, tt := range []struct {
		target string
		args   map[string]string
		want   string
	}{
		{"1", nil, "G=global OWN=own | OWN=env G=global"},
		{"1", map[string]string{"OWN": "given", "G": "g"}, "G=g OWN=given | OWN=env G=g"},
		{"other", nil, "G=again OWN=own TARGETARCH=arm64"},
		{"other", map[string]string{"HTTP_PROXY": "p", "UNSAID": "x"}, "G=again OWN=own TARGETARCH=arm64 HTTP_PROXY=p"},
	} {
		if got := env(tt.target, tt.args); got != tt.want {
			t.Errorf("%s %v: %s, want %s", tt.target, tt.args, got, tt.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("FROM a\nRUN <<EOF\nx\nEOF\nENV A=$A${B:-c}\nCOPY --from=0 a b\n")
	f.Add("ARG X=1\nFROM $X AS y\nWORKDIR a/../..\nCOPY [\"a b\",\"c\"]\nEXPOSE 1-2/udp")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := Parse(text, Options{Args: map[string]string{"X": "v"}})
		if err != nil {
			var e *errs.Error
			if !errors.As(err, &e) || e.Code != errs.InvalidInput || e.Suggestion == "" && len(text) <= MaxText {
				t.Fatalf("%v", err)
			}
			return
		}
		for i := range r.Stages {
			if from := r.Stages[i].From; from.Kind == FromStage && from.Stage >= i {
				t.Fatalf("stage %d begins with %d", i, from.Stage)
			}
			w := r.Walk(i, Config{})
			for {
				a, more, err := w.Next()
				if err != nil || !more {
					break
				}
				if a.MakeDir != "" && a.MakeDir[0] != '/' || a.Put != nil && a.Put.Dest[0] != '/' {
					t.Fatalf("not absolute: %+v", a)
				}
				if k := a.Key("p", ""); a.Layer() && len(k) != 64 || !a.Layer() && k != "p" {
					t.Fatalf("key %q", k)
				}
			}
		}
	})
}
