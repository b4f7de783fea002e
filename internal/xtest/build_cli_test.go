package xtest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/cli"
)

// dockerfile uses what people use: two stages, arguments, heredocs, files of the folder with owners and modes, an archive, a user.
const dockerfile = `# syntax=docker/dockerfile:1
ARG BASE=template://base
FROM ${BASE} AS build
USER root
WORKDIR /src
COPY src/ ./
RUN cat one two > joined && mkdir out && mv joined out/ && ln -s joined out/link

FROM template://base
ARG GREETING="hello there"
ENV GREETING=$GREETING APP=/app
USER root
COPY --from=build /src/out $APP/
COPY --chown=user --chmod=0750 run.sh /usr/local/bin/run-it
ADD data.tar.gz /data
COPY <<EOF /etc/motd
made of $GREETING
EOF
RUN <<PY
#!/usr/bin/env python3
open("/app/python", "w").write("from python\n")
PY
WORKDIR /app/work
USER user
RUN ["/bin/sh", "-c", "id -un > $HOME/who"]
HEALTHCHECK CMD true
CMD ["run-it"]
`

// TestRealBuildByCLI builds a folder as people do: what the steps did is there in a sandbox; again, with other times and owners, nothing runs; what is
// changed runs, with what follows; what fails says at which line.
func TestRealBuildByCLI(t *testing.T) {
	s := StartReal(t)
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		file := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), mode), os.Chmod(file, mode))
	}
	plant := func(text string) {
		write("Dockerfile", text, 0o644)
		write("src/one", "1\n", 0o644)
		write("src/two", "2\n", 0o644)
		write("run.sh", "#!/bin/sh\necho it runs\n", 0o644)
		write("secret.key", "never sent", 0o600)
		write("node_modules/huge", strings.Repeat("x", 1<<20), 0o644)
		write(".dockerignore", "node_modules\n*.key\n", 0o644)
		write("data.tar.gz", string(packedUp(t, "in/file", "unpacked\n")), 0o644)
	}
	env := map[string]string{"BERTH_URL": s.URL, "BERTH_API_KEY": s.Key, "BERTH_DATA": dir}
	run := func(args ...string) (b api.Build, stdout, stderr string, code int) {
		t.Helper()
		var out, errOut bytes.Buffer
		code = cli.Main(t.Context(), append([]string{"templates", "build", "-o", "json", dir}, args...), func(n string) string { return env[n] }, strings.NewReader(""), &out, &errOut, cli.Commands{})
		if code == 0 {
			must(t, json.Unmarshal(out.Bytes(), &b))
		}
		return b, out.String(), errOut.String(), code
	}

	plant(dockerfile)
	first, _, log, code := run("-t", "app", "--build-arg", "GREETING=good day")
	if code != 0 || first.Status != api.BuildReady {
		t.Fatalf("build: %d\n%s\n%s", code, log, s.Log())
	}
	if !strings.Contains(log, "line 26: HEALTHCHECK has no effect") || !strings.Contains(log, "RUN cat one two") {
		t.Errorf("log:\n%s", log)
	}
	box := Must(t, s.Client, api.CreateSandbox, api.CreateSandboxIn{Template: "app"}).Sandbox
	const want = `1
2
joined
1
2
-rwxr-x---
user
it runs
unpacked
made of good day
from python
user
root
/app/work
good day
gone
`
	got := runIn(t, s.Client, box.ID, `cat /app/joined; readlink /app/link; cat /app/link; ls -l /usr/local/bin/run-it | cut -c1-10; stat -c %U /usr/local/bin/run-it; run-it
cat /data/in/file /etc/motd /app/python $HOME/who; stat -c %U /app/work; pwd; echo $GREETING; ls /src /app/secret.key 2>/dev/null || echo gone`)
	if got.Stdout != want {
		t.Errorf("in the sandbox: %s%s\nwant %s", got.Stdout, got.Stderr, want)
	}

	// The same content, made anew: other times, another owner, other modes of what is not a permission.
	must(t, os.RemoveAll(filepath.Join(dir, "src")))
	plant(dockerfile)
	old := time.Unix(1_000_000_000, 0)
	must(t, os.Chtimes(filepath.Join(dir, "src/one"), old, old), os.Lchown(filepath.Join(dir, "src/one"), 12345, 12345), os.Chtimes(filepath.Join(dir, "run.sh"), old, old))
	again, _, log, code := run("-t", "app", "--build-arg", "GREETING=good day")
	if code != 0 || again.Version != 2 || strings.Contains(log, "] RUN") || again.Cached != again.Steps {
		t.Errorf("again: %d %+v\n%s", code, again, log)
	}

	plant(strings.Replace(dockerfile, "from python", "from Python", 1))
	changed, _, log, code := run("-t", "app:next", "--build-arg", "GREETING=good day")
	if code != 0 || changed.Cached == 0 || strings.Contains(log, "\n[5/5] RUN cat") || strings.Contains(log, "CACHED RUN <<PY") || !strings.Contains(log, "CACHED ADD data.tar.gz /data") {
		t.Errorf("changed: %d %+v\n%s", code, changed, log)
	}

	plant(strings.Replace(dockerfile, "WORKDIR /app/work", "RUN echo oh no >&2; exit 3", 1))
	_, _, log, code = run("-t", "app")
	if code != 1 || !strings.Contains(log, "the build failed: line 23: RUN echo oh no >&2; exit 3: exit code 3: oh no") {
		t.Errorf("failed: %d\n%s", code, log)
	}
	if tmpl := Must(t, s.Client, api.GetTemplate, api.TemplateIn{TemplateID: first.TemplateID}).Template; tmpl.BuildID != changed.ID {
		t.Errorf("after a build that failed the template is %+v", tmpl)
	}

	plant("FROM template://base\nCOPY missing /x\n")
	if _, _, log, code = run("-t", "app"); code != 1 || !strings.Contains(log, "line 2: ") || !strings.Contains(log, "missing is not in the build's files") {
		t.Errorf("missing: %d\n%s", code, log)
	}
}

// packedUp is a compressed archive of one file.
func packedUp(t *testing.T, name, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	must(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}))
	_, err := w.Write([]byte(text))
	must(t, err, w.Close(), z.Close())
	return b.Bytes()
}

// TestRealBuildInterrupted: Ctrl-C ends the build and its sandbox.
func TestRealBuildInterrupted(t *testing.T) {
	s := StartReal(t)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM template://base\nRUN echo begun; sleep 1000\n"), 0o644))
	ctx, stop := context.WithCancelCause(t.Context())
	seen := &awaited{text: "begun", then: func() { stop(errors.New("interrupt signal received")) }}
	env := map[string]string{"BERTH_URL": s.URL, "BERTH_API_KEY": s.Key, "BERTH_DATA": dir}
	code := cli.Main(ctx, []string{"templates", "build", "-t", "app", dir}, func(n string) string { return env[n] }, strings.NewReader(""), &bytes.Buffer{}, seen, cli.Commands{})
	if code != 130 || !strings.Contains(seen.String(), "was cancelled") {
		t.Errorf("code %d\n%s", code, seen.String())
	}
	list := Must(t, s.Client, api.ListBuilds, api.ListBuildsIn{}).Items
	if len(list) != 1 {
		t.Fatalf("builds: %+v", list)
	}
	if b := ended(t, s.Client, list[0].ID); b.Status != api.BuildError {
		t.Errorf("the build is %+v", b)
	}
}

// awaited calls a function once a text was written.
type awaited struct {
	bytes.Buffer
	text string
	then func()
}

// Write implements io.Writer.
func (a *awaited) Write(p []byte) (int, error) {
	n, err := a.Buffer.Write(p)
	if a.then != nil && strings.Contains(a.String(), "    "+a.text) {
		a.then()
		a.then = nil
	}
	return n, err
}
