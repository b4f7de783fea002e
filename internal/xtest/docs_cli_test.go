package xtest

import (
	"bytes"
	"strings"
	"testing"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/cli"
)

// TestDocsCommands finds a page and reads it, whole although it comes in parts, on the command line.
func TestDocsCommands(t *testing.T) {
	s := Start(t, Options{})
	run := func(args ...string) string {
		t.Helper()
		var out, errout bytes.Buffer
		env := map[string]string{"BERTH_URL": s.URL, "BERTH_API_KEY": s.Key, "BERTH_DATA": t.TempDir()}
		if code := cli.Main(t.Context(), args, func(n string) string { return env[n] }, strings.NewReader(""), &out, &errout, cli.Commands{}); code != 0 {
			t.Fatalf("berth %s: exit %d\n%s", strings.Join(args, " "), code, errout.String())
		}
		return out.String()
	}
	if got := run("docs", "search", "why was my sandbox stopped"); !strings.Contains(got, "life") {
		t.Errorf("search: %s", got)
	}
	if got := run("docs", "list"); !strings.Contains(got, "reference/sandboxes") {
		t.Errorf("list: %s", got)
	}
	got := run("docs", "read", "reference/sandboxes")
	first := Must(t, s.Client, api.ReadDoc, api.ReadDocIn{Page: "reference/sandboxes"})
	if first.NextOffset == 0 || len(got) <= len(first.Text) || !strings.HasPrefix(got, first.Text) || !strings.Contains(got, "## sandboxes.exec") {
		t.Errorf("read gives %d bytes; the first part has %d", len(got), len(first.Text))
	}
}
