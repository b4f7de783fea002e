package docs

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/api"
)

// berth gives the program: what make has built, or one that is built here.
func berth(t *testing.T) string {
	t.Helper()
	if bin := os.Getenv("BERTH_BIN"); bin != "" {
		return bin
	}
	bin := filepath.Join(t.TempDir(), "berth")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./cmd/berth")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build berth: %v\n%s", err, out)
	}
	return bin
}

var (
	// invoked is how the pages call the program.
	invoked = regexp.MustCompile(`^(?:sudo )?(?:bin/)?berth(?: |$)`)
	word    = regexp.MustCompile(`^[a-z][a-z-]*$`)
	flagged = regexp.MustCompile(`^--?[a-z][a-z-]*`)
)

// command is a line of a page that calls the program.
type command struct{ page, line string }

func commands(t *testing.T) []command {
	t.Helper()
	var all []command
	for _, b := range blocks(t) {
		if b.kind != "sh" {
			continue
		}
		for line := range strings.Lines(strings.ReplaceAll(b.code, "\\\n", " ")) {
			for part := range strings.SplitSeq(strings.TrimSpace(line), " | ") {
				if part = strings.TrimSpace(part); invoked.MatchString(part) {
					all = append(all, command{b.page, part})
				}
			}
		}
	}
	for _, p := range library(t).Pages() {
		if strings.HasPrefix(p.ID, "reference/") {
			continue // generated from the same commands
		}
		for _, m := range codeSpan.FindAllStringSubmatch(prose(p.Text), -1) {
			if invoked.MatchString(m[1]) && strings.Contains(m[1], " ") {
				all = append(all, command{p.ID, m[1]})
			}
		}
	}
	return all
}

// Every command that a page shows is one of the program's, with its flags.
func TestCommandsExist(t *testing.T) {
	bin := berth(t)
	help := map[string]string{}
	helpOf := func(words []string) string {
		key := strings.Join(words, " ")
		if text, ok := help[key]; ok {
			return text
		}
		cmd := exec.CommandContext(t.Context(), bin, append(slices.Clone(words), "--help")...)
		cmd.Env = append(os.Environ(), "BERTH_URL=http://127.0.0.1:1", "BERTH_API_KEY=x")
		out, _ := cmd.CombinedOutput() // what is no command prints no usage of itself
		help[key] = string(out)
		return help[key]
	}
	all := commands(t)
	for _, c := range all {
		fields := strings.Fields(invoked.ReplaceAllString(c.line, ""))
		var words []string
		for _, f := range fields {
			if !word.MatchString(f) || len(words) == 2 && !slices.Contains([]string{"config", "completion"}, words[0]) {
				break
			}
			words = append(words, f)
		}
		for len(words) > 0 && !strings.Contains(helpOf(words), "berth "+strings.Join(words, " ")) {
			if len(words) == 1 {
				t.Errorf("%s: there is no command berth %s (%s)", c.page, words[0], c.line)
				break
			}
			// The last word may be an argument; a group's own verb may not.
			if strings.Contains(helpOf(words[:len(words)-1]), "Available Commands") {
				t.Errorf("%s: there is no command berth %s (%s)", c.page, strings.Join(words, " "), c.line)
				break
			}
			words = words[:len(words)-1]
		}
		text := helpOf(words)
		for _, f := range fields {
			if f == "--" || strings.HasPrefix(f, "'") {
				break // what follows is the sandbox's
			}
			if name := flagged.FindString(f); name != "" && !strings.Contains(text, name) {
				t.Errorf("%s: berth %s has no flag %s (%s)", c.page, strings.Join(words, " "), name, c.line)
			}
		}
	}
	if len(all) < 20 {
		t.Errorf("only %d commands are checked", len(all))
	}
}

// stand are ids in place of what the pages write for them.
var stand = map[string]string{
	"ID": "sbx_" + twenty, "SANDBOX_ID": "sbx_" + twenty, "PROCESS": "proc_" + twenty, "PROC": "proc_" + twenty, "PROCESS_ID": "proc_" + twenty,
	"SNAPSHOT": "snap_" + twenty, "KEY_ID": "key_" + twenty, "IMAGE_ID": "img_" + twenty, "BUILD_ID": "bld_" + twenty, "BACKUP_ID": "bak_" + twenty, "CONFIRMATION_ID": "cnf_" + twenty,
}

const twenty = "aaaaaaaaaaaaaaaaaaaa"

// Every line of a page that carries out an operation is a command line that makes sense: it gets as far as asking the server, which is not there.
func TestCommandLinesMakeSense(t *testing.T) {
	bin := berth(t)
	groups := map[string]bool{}
	for _, info := range api.All() {
		group, _, _ := strings.Cut(info.Name, ".")
		groups[group] = true
	}
	tried := 0
	for _, c := range lines(t) {
		words := shellWords(invoked.ReplaceAllString(c.line, ""))
		if len(words) < 2 || !groups[words[0]] || slices.Contains([]string{"cp", "shell", "ssh", "import", "export", "build"}, words[1]) || slices.Contains(words, "-it") {
			continue // those look at this machine first
		}
		for i, w := range words {
			if id := stand[w]; id != "" {
				words[i] = id
			}
		}
		tried++
		cmd := exec.CommandContext(t.Context(), bin, slices.Insert(words, 2, "--timeout=1ms")...)
		cmd.Env = []string{"BERTH_URL=http://127.0.0.1:1", "BERTH_API_KEY=berth_sk_x", "HOME=" + t.TempDir()}
		cmd.Dir = t.TempDir()
		out, err := cmd.CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 2 && !strings.Contains(string(out), "say --yes") {
			t.Errorf("%s: %s\n%s", c.page, c.line, out)
		}
	}
	if tried < 30 {
		t.Errorf("only %d commands are tried", tried)
	}
}

// lines are the lines of blocks for a shell that call the program, those of the README too.
func lines(t *testing.T) (all []command) {
	t.Helper()
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range append(blocks(t), block{"README", "sh", string(readme)}) {
		for line := range strings.Lines(b.code) {
			// Behind a pipe or a semicolon begins another command.
			for part := range strings.SplitSeq(line, "| ") {
				if part = strings.TrimSpace(part); b.kind == "sh" && invoked.MatchString(part) {
					all = append(all, command{b.page, part})
				}
			}
		}
	}
	return all
}

// shellWords are the words of a simple command as a shell makes them: quotes are taken off, and what is redirected, piped or said after # is none of them.
func shellWords(line string) (words []string) {
	word, open, quote := "", false, rune(0)
	end := func() {
		if open {
			words, word, open = append(words, word), "", false
		}
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, open = r, true
		case quote == 0 && (r == ' ' || r == '\t'):
			end()
		case quote == 0 && !open && strings.ContainsRune("#|><;&", r):
			return words
		default:
			word, open = word+string(r), true
		}
	}
	end()
	return words
}
