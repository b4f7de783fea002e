package recipe

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
)

// TestFromSteps: named members and args say the same, and both what a Dockerfile would.
func TestFromSteps(t *testing.T) {
	named := []Plain{
		{Type: "USER", User: "root"},
		{Type: "RUN", Command: `echo "$HOME" 'x'`, User: "www"},
		{Type: "ENV", Key: "PATH", Value: "/opt/bin:$PATH"},
		{Type: "ENV", Key: "QUOTED", Value: `it's "so"`},
		{Type: "WORKDIR", Path: "/app"},
		{Type: "COPY", Source: "src/", Destination: "code/", Mode: "0755"},
		{Type: "copy", Source: "a", Destination: "b", User: "1:2", Force: true},
	}
	listed := []Plain{
		{Type: "USER", Args: []string{"root"}},
		{Type: "RUN", Args: []string{`echo "$HOME" 'x'`, "www"}},
		{Type: "ENV", Args: []string{"PATH", "/opt/bin:$PATH", "QUOTED", `it's "so"`}},
		{Type: "WORKDIR", Args: []string{"/app"}},
		{Type: "COPY", Args: []string{"src/", "code/", "", "0755"}},
		{Type: "COPY", Args: []string{"a", "b", "1:2"}, Force: true},
	}
	const want = `exec ["/bin/sh" "-c" "echo \"$HOME\" 'x'"] dir=/ user=www
mkdir /app
put ["src/"] to=/app/code dir=true mode=755 owner=root
put ["a"] to=/app/b dir=false owner=1:2
`
	for _, steps := range [][]Plain{named, listed} {
		r, err := FromSteps(Source{Kind: FromTemplate, Ref: "base"}, steps)
		if err != nil {
			t.Fatal(err)
		}
		got, c := told(t, r, 0, Config{})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{"PATH=/opt/bin:" + defaultPath, `QUOTED=it's "so"`}, c.Env); diff != "" {
			t.Error(diff)
		}
		if steps := r.Stages[0].Steps; !steps[len(steps)-1].Force {
			t.Error("force is lost")
		}
	}
}

func TestFromStepsRefuses(t *testing.T) {
	for message, p := range map[string]Plain{
		"not \"LABEL\"":     {Type: "LABEL", Args: []string{"a", "b"}},
		"has no command":    {Type: "RUN"},
		"takes no path":     {Type: "RUN", Command: "x", Path: "/"},
		"args and command":  {Type: "RUN", Command: "x", Args: []string{"x"}},
		"without a value":   {Type: "ENV", Args: []string{"x"}},
		"has 3 args":        {Type: "RUN", Args: []string{"x", "y", "z"}},
		"has no destinatio": {Type: "COPY", Source: "x"},
		"has no user":       {Type: "USER"},
	} {
		_, err := FromSteps(Source{}, []Plain{{Type: "RUN", Command: "true"}, p})
		var e *errs.Error
		if !errors.As(err, &e) || e.Code != errs.InvalidInput || !strings.HasPrefix(e.Message, "step 2: ") || !strings.Contains(e.Message, message) || e.Suggestion == "" {
			t.Errorf("%+v: %v, want %s", p, err, message)
		}
	}
}
