package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// TestWhatWasMeant: a command or flag as it is called elsewhere is answered with what it is called here.
func TestWhatWasMeant(t *testing.T) {
	for _, tt := range []struct{ line, want string }{
		{"template build .", "did you mean: berth templates?"},
		{"volume create x", "did you mean: berth volumes?"},
		{"sandboxes create --volume notes", "did you mean: --volumes?"},
		{"sandboxes create --memory 512", "did you mean: --resources.memory-mib?"},
		{"templates build -t x --memory 512 .", "did you mean: --memory-mib?"},
		{"builds list --template web", "did you mean: --template-id?"},
		{"volumes create x --size 5", "did you mean: --size-gib?"},
		{"templates build -t x --platform linux/arm64 .", "berth templates build --help lists the flags"},
	} {
		var out, errOut bytes.Buffer
		code := Main(t.Context(), strings.Fields(tt.line), func(string) string { return "" }, nil, &out, &errOut, Commands{})
		if code != exitUsage || !strings.Contains(errOut.String(), tt.want) {
			t.Errorf("berth %s: %d, %s", tt.line, code, errOut.String())
		}
	}
}

// TestSuggestionsNameCommands: servers suggest tools; on a command line they are commands.
func TestSuggestionsNameCommands(t *testing.T) {
	for in, want := range map[string]string{
		"list_templates shows which exist; base always does.": "berth templates list shows which exist; base always does.",
		"Stop it with stop_sandbox, then call again.":         "Stop it with berth sandboxes stop, then call again.",
		"get_build_logs shows what it wrote.":                 "berth builds logs shows what it wrote.",
		"Use another_name for x_y.":                           "Use another_name for x_y.",
	} {
		if got := commandsFor(in); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestErrorsOfSeveralLines: the end of what a command wrote is printed as lines, none of which passes for one of Berth's own or steers the terminal.
func TestErrorsOfSeveralLines(t *testing.T) {
	var errOut bytes.Buffer
	a := &app{stderr: &errOut}
	a.printError(errs.E(errs.InvalidState, "exit code 1: one\nberth: two\x1b[2J\r\n"))
	if want := "berth: exit code 1: one\n    berth: two\\x1b[2J\n"; errOut.String() != want {
		t.Errorf("%q, want %q", errOut.String(), want)
	}
}
