package cli_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/cli"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/template/inputs"
	"github.com/berthrun/berth/internal/template/recipe"
)

// builds takes builds and runs nothing: a step is done once it is named, a RUN of false fails, and the template "slow" goes on until it is cancelled.
type builds struct {
	mu       sync.Mutex
	contexts map[string]string // what was sent, as text
	sums     map[string]string // their ids by SHA-256
	all      map[string]*building
	asked    chan struct{} // closed once a log of "slow" was asked for
}

type building struct {
	api.Build
	lines []api.BuildLine
}

const templateID = "sbxt_aaaaaaaaaaaaaaaaaaaa"

func bindBuilds(r *op.Registry) *builds {
	b := &builds{contexts: map[string]string{}, sums: map[string]string{}, all: map[string]*building{}, asked: make(chan struct{})}
	bind(r, api.BuildTemplate, b.build)
	bind(r, api.GetBuild, b.get)
	bind(r, api.BuildLogs, b.logs)
	bind(r, api.CancelBuild, b.cancel)
	bind(r, api.ListBuilds, b.list)
	bind(r, api.ListTemplates, b.templates)
	bind(r, api.GetTemplate, func(_ context.Context, in *api.TemplateIn) (*api.GetTemplateOut, error) {
		return &api.GetTemplateOut{Template: api.Template{ID: in.TemplateID, Name: "web"}}, nil
	})
	op.HandleStream(r, api.UploadContext, op.StreamHandler[api.UploadContextIn]{
		Draft: func(context.Context, *api.UploadContextIn) (*op.Draft, error) { return &op.Draft{}, nil },
		Serve: b.upload,
	})
	return b
}

func (b *builds) upload(ctx context.Context, in *api.UploadContextIn, _ *op.Draft, s *op.Stream) error {
	if in.SHA256 != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		one, ok := b.sums[in.SHA256]
		if !ok {
			return errs.E(errs.NotFound, "it is not here").Because("unknown")
		}
		return json.NewEncoder(s.W).Encode(api.UploadContextOut{Context: api.BuildContext{ID: one}})
	}
	sum := sha256.New()
	f, err := os.CreateTemp("", "context")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	t, err := inputs.Read(ctx, io.TeeReader(s.R.Body, sum), f, inputs.Options{})
	if err != nil {
		return err
	}
	sel, err := t.Select(ctx, inputs.Query{Sources: []string{"."}})
	if err != nil {
		return err
	}
	var text strings.Builder
	err = sel.Each(inputs.Place{Dest: "/"}, func(p inputs.Placed) error {
		fmt.Fprint(&text, p.Path)
		if p.Content != nil {
			content, err := io.ReadAll(p.Content)
			fmt.Fprintf(&text, "=%s", content)
			return err
		}
		text.WriteString("/")
		return nil
	})
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	one := id.New(id.BuildContext)
	b.contexts[one], b.sums[hex.EncodeToString(sum.Sum(nil))] = text.String(), one
	return json.NewEncoder(s.W).Encode(api.UploadContextOut{Context: api.BuildContext{ID: one, Entries: int64(t.Len())}})
}

func (b *builds) build(_ context.Context, in *api.BuildTemplateIn) (*api.BuildTemplateOut, error) {
	r, err := recipe.Parse(in.Dockerfile, recipe.Options{Target: in.Target, Args: in.BuildArgs})
	if in.Dockerfile == "" {
		r, err = recipe.FromSteps(recipe.Source{Kind: recipe.FromTemplate, Ref: in.FromTemplate}, plainSteps(in.Steps))
	}
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	n := &building{Build: api.Build{ID: id.New(id.Build), TemplateID: templateID, Name: in.Name, Version: 3, Status: api.BuildReady, CreatedAt: at}}
	say := func(step int64, stream, text string) {
		n.lines = append(n.lines, api.BuildLine{Offset: int64(len(n.lines)), At: at, Step: step, Stream: stream, Text: text + "\n"})
	}
	say(0, "build", fmt.Sprintf("args %v force %v target %s context %s", in.BuildArgs, in.Force, in.Target, b.contexts[in.ContextID]))
	steps := r.Stages[len(r.Stages)-1].Steps
	for i, s := range steps {
		cached := ""
		if strings.Contains(s.Text, "cached") {
			cached, n.Cached = "CACHED ", n.Cached+1
		}
		say(int64(i+1), "build", fmt.Sprintf("[%d/%d] %s%s", i+1, len(steps), cached, s.Text))
		at = at.Add(1500 * time.Millisecond)
		if s.Text == "RUN false" {
			n.Status, n.Reason = api.BuildError, fmt.Sprintf("line %d: RUN false: exit code 1", s.Line)
			break
		}
		if cached == "" && s.Kind == recipe.Run {
			say(int64(i+1), "stdout", "1 %\r50 %\r100 %\nout \x1b[31m"+s.Text)
		}
	}
	n.Steps, n.FinishedAt = int64(len(steps)), &at
	if in.Name == "slow" {
		n.Status, n.FinishedAt = api.BuildBuilding, nil
	}
	b.all[n.ID] = n
	return &api.BuildTemplateOut{Status: "done", TemplateID: templateID, BuildID: n.ID, Name: in.Name, Version: 3}, nil
}

func plainSteps(steps []api.TemplateStep) (out []recipe.Plain) {
	for _, s := range steps {
		out = append(out, recipe.Plain(s))
	}
	return out
}

func (b *builds) find(one string) (*building, error) {
	if n := b.all[one]; n != nil {
		return n, nil
	}
	return nil, errs.E(errs.NotFound, "there is no build %s", one)
}

func (b *builds) get(_ context.Context, in *api.GetBuildIn) (*api.GetBuildOut, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, err := b.find(in.BuildID)
	if err != nil {
		return nil, err
	}
	return &api.GetBuildOut{Build: n.Build}, nil
}

// logs gives two lines a call, so that a whole log takes several.
func (b *builds) logs(ctx context.Context, in *api.BuildLogsIn) (*api.BuildLogsOut, error) {
	b.mu.Lock()
	n, err := b.find(in.BuildID)
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	end := min(in.Offset+2, int64(len(n.lines)))
	out := &api.BuildLogsOut{Lines: n.lines[in.Offset:end], NextOffset: end, Status: n.Status, Reason: n.Reason, End: end == int64(len(n.lines))}
	if n.Status == api.BuildBuilding && out.End {
		close(b.asked)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return out, nil
}

func (b *builds) cancel(_ context.Context, in *api.CancelBuildIn) (*api.BuildOut, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, err := b.find(in.BuildID)
	if err != nil {
		return nil, err
	}
	n.Status, n.Reason = api.BuildError, "cancelled"
	return &api.BuildOut{Status: "done", Build: &n.Build}, nil
}

func (b *builds) list(context.Context, *api.ListBuildsIn) (*api.ListBuildsOut, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := &api.ListBuildsOut{}
	for _, n := range b.all {
		out.Items = append(out.Items, n.Build)
	}
	return out, nil
}

// templates has the built-in one and the one that every build here makes.
func (b *builds) templates(_ context.Context, in *api.ListTemplatesIn) (*api.ListTemplatesOut, error) {
	out := &api.ListTemplatesOut{}
	for _, t := range []api.Template{{ID: templateID, Name: "web", Version: 3}, {ID: "base", Name: "base", BuiltIn: true}} {
		if in.Name == "" || in.Name == t.Name {
			out.Items = append(out.Items, t)
		}
	}
	return out, nil
}

// TestInterruptCancelsBuild: Ctrl-C while a build is followed ends it on the server.
func TestInterruptCancelsBuild(t *testing.T) {
	srv, b := startServer()
	defer srv.Close()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM x\nRUN sleep\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(t.Context())
	go func() {
		<-b.asked
		stop(errors.New("interrupt signal received"))
	}()
	var out, errOut bytes.Buffer
	env := func(string) string { return "" }
	code := cli.Main(ctx, []string{"templates", "build", "-t", "slow", dir, "--url", srv.URL, "--key", testKey}, env, nil, &out, &errOut, cli.Commands{})
	if code != 130 || !strings.Contains(errOut.String(), "was cancelled") || !strings.Contains(errOut.String(), "interrupted") {
		t.Errorf("code %d, %s%s", code, out.String(), errOut.String())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.all {
		if n.Reason != "cancelled" {
			t.Errorf("the build is %s", n.Status)
		}
	}
}
