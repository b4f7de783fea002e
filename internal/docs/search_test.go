package docs

import (
	"slices"
	"strings"
	"testing"
)

// questions are what agents and people ask, with the pages of which one must be among the first three.
var questions = []struct{ ask, pages string }{
	{"how do I create a sandbox and run a command", "quickstart commands go typescript reference/sandboxes"},
	{"connect Claude Code", "connect"},
	{"cursor mcp.json config", "connect"},
	{"why did my sandbox stop by itself", "life troubleshooting"},
	{"keep a sandbox running while idle", "life troubleshooting"},
	{"what does stopReason out_of_memory mean", "life troubleshooting"},
	{"start a web server in the background", "commands"},
	{"expose a port of a sandbox", "commands terminal"},
	{"preview url of a web server", "commands"},
	{"follow the output of a long running process", "commands go reference/processes"},
	{"write to stdin of a process", "commands reference/processes"},
	{"the output was truncated, how do I get the rest", "commands troubleshooting"},
	{"upload a large file", "files limits reference/files"},
	{"edit a file only if nobody changed it", "files go"},
	{"list files matching a glob", "files"},
	{"follow symlinks out of the sandbox", "files security"},
	{"make an api key with fewer permissions", "keys"},
	{"revoke a key", "keys"},
	{"read-only access for an agent", "connect keys"},
	{"avoid creating two sandboxes when the reply is lost", "retries go typescript"},
	{"IDEMPOTENCY_CONFLICT", "errors retries"},
	{"what should I do on BUSY", "errors retries"},
	{"429 too many requests", "errors limits retries"},
	{"how big can a request body be", "limits http"},
	{"maximum lifetime of a sandbox", "limits life"},
	{"how many processes can run in a sandbox", "limits life troubleshooting"},
	{"use postgres instead of sqlite", "running reference/configuration"},
	{"run behind a reverse proxy with TLS", "running reference/configuration"},
	{"uninstall and remove everything", "running"},
	{"curl example of the rest api", "http quickstart"},
	{"pagination of lists", "http go typescript"},
	{"use Berth from javascript in node", "typescript"},
	{"golang client library", "go"},
	{"can code in a sandbox reach the host or metadata service", "security troubleshooting"},
	{"does it isolate tenants with gvisor", "security"},
	{"how fast is creating a sandbox", "performance"},
	{"llms.txt and reading the docs as an agent", "documentation"},
	{"what is a workspace", "glossary reference/workspaces"},
	{"server does not start, port taken", "troubleshooting"},
	{"401 unauthenticated from my client", "troubleshooting errors connect"},
	{"healthz readiness probe", "running http"},
	{"environment variable for the data folder", "running reference/configuration troubleshooting"},
}

func TestQuestionsFindTheirPage(t *testing.T) {
	l := library(t)
	first := 0
	for _, q := range questions {
		want := strings.Fields(q.pages)
		for _, id := range want {
			if l.Page(id) == nil {
				t.Errorf("there is no page %s", id)
			}
		}
		var got []string
		for _, h := range l.Search(q.ask, 3) {
			got = append(got, h.Page.ID+"#"+h.Section.Anchor)
		}
		at := slices.IndexFunc(got, func(hit string) bool {
			id, _, _ := strings.Cut(hit, "#")
			return slices.Contains(want, id)
		})
		if at < 0 {
			t.Errorf("%q: %v, want one of %v", q.ask, got, want)
		}
		if at == 0 {
			first++
		}
	}
	t.Logf("%d of %d questions have their page first", first, len(questions))
	if len(questions) < 30 || first*100 < 75*len(questions) {
		t.Errorf("%d of %d questions have their page first", first, len(questions))
	}
}
