package xtest

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/cli"
)

// The server of the session: it greets on SIGTERM's way out, so that its last words can be read.
const greeter = "trap 'echo bye; exit 0' TERM; echo listening; while :; do sleep 0.05; done"

// TestSessionThroughHTTP is an agent's session through the Go client.
func TestSessionThroughHTTP(t *testing.T) {
	c := Start(t, Options{}).Client

	made := Must(t, c, api.CreateSandbox, api.CreateSandboxIn{Name: "site", Env: map[string]string{"GREETING": "hello"}})
	if !made.Ready || made.Sandbox.State != api.StateRunning || made.IdempotencyKey == "" {
		t.Fatalf("create: %+v", made)
	}
	id := made.Sandbox.ID

	if out := Exec(t, c, id, "echo $GREETING; echo oops >&2; exit 3"); out.Stdout != "hello\n" || out.Stderr != "oops\n" || *out.ExitCode != 3 {
		t.Errorf("exec: %+v", out)
	}
	if out := Must(t, c, api.WriteFile, api.WriteFileIn{FileIn: file(id, "src/page.txt"), Data: "one\ntwo\n"}); !out.Created || out.File.Size != 8 {
		t.Errorf("write: %+v", out)
	}
	page := Must(t, c, api.ReadFile, api.ReadFileIn{FileIn: file(id, "src/page.txt")})
	if page.Data != "one\ntwo\n" || !page.EOF {
		t.Errorf("read: %+v", page)
	}
	if out := Must(t, c, api.EditFile, api.EditFileIn{FileIn: file(id, "src/page.txt"), OldText: "two", NewText: "three", IfMatch: page.File.ETag}); out.Replaced != 1 {
		t.Errorf("edit: %+v", out)
	}
	if list := Must(t, c, api.ListFiles, api.ListFilesIn{SandboxIn: in(id), Depth: 2}).Items; len(list) != 2 || list[0].Name != "src" || list[1].Name != "page.txt" || list[1].Size != 10 {
		t.Errorf("list: %+v", list)
	}

	server := start(t, c, id, greeter)
	out := Must(t, c, api.ProcessOutput, api.ProcessOutputIn{ProcessIn: proc(id, server), WaitSeconds: 10})
	if out.Data != "listening\n" || out.EOF {
		t.Errorf("output: %+v", out)
	}
	Must(t, c, api.ProcessSignal, api.ProcessSignalIn{ProcessIn: proc(id, server), Signal: "TERM"})
	eventually(t, func() bool { return Must(t, c, api.GetProcess, proc(id, server)).Process.State == "exited" })
	if end := Must(t, c, api.ProcessOutput, api.ProcessOutputIn{ProcessIn: proc(id, server), Offset: out.NextOffset}); end.Data != "bye\n" || !end.EOF || *end.Process.ExitCode != 0 {
		t.Errorf("its end: %+v", end)
	}

	if out := Must(t, c, api.StopSandbox, waiting(id, 30)); out.Sandbox.State != api.StateStopped || out.Sandbox.StopReason != "requested" {
		t.Errorf("stop: %+v", out.Sandbox)
	}
	if got := read(t, c, id, server, 0); got != "listening\nbye\n" {
		t.Errorf("what was kept: %q", got)
	}
	if out := Must(t, c, api.StartSandbox, waiting(id, 30)); !out.Ready {
		t.Errorf("start: %+v", out.Sandbox)
	}
	if out := Exec(t, c, id, "cat src/page.txt"); out.Stdout != "one\nthree\n" || out.Woke != "" {
		t.Errorf("its files: %+v", out)
	}
	if out := Must(t, c, api.DeleteSandbox, waiting(id, 30)); !out.Deleted {
		t.Errorf("delete: %+v", out)
	}
	if code := Code(t, c, api.GetSandbox, in(id)); code != "NOT_FOUND" {
		t.Errorf("get after it: %q", code)
	}
}

// TestSessionThroughMCP is the same session through MCP, as an agent has it.
func TestSessionThroughMCP(t *testing.T) {
	s := Start(t, Options{})
	a := talk{t, agent(t, &s.System, "/mcp", s.Key)}

	made := a.call("create_sandbox", `{"name": "site", "env": {"GREETING": "hello"}, "idempotencyKey": "site-1"}`)
	if made["ready"] != true || made["idempotencyKey"] != "site-1" {
		t.Fatalf("create: %v", made)
	}
	id := made["sandbox"].(map[string]any)["id"].(string)

	a.want("run_command", `{"sandboxId": "`+id+`", "command": "echo $GREETING; echo oops >&2; exit 3"}`,
		`{"stdout": "hello\n", "stderr": "oops\n", "exitCode": 3, "timedOut": false}`)
	a.want("write_file", `{"sandboxId": "`+id+`", "path": "src/page.txt", "data": "one\ntwo\n"}`, `{"created": true}`)
	a.want("read_file", `{"sandboxId": "`+id+`", "path": "src/page.txt"}`, `{"data": "one\ntwo\n", "eof": true, "encoding": "utf-8"}`)
	a.want("edit_file", `{"sandboxId": "`+id+`", "path": "src/page.txt", "oldText": "two", "newText": "three"}`, `{"replaced": 1}`)
	if list := a.call("list_files", `{"sandboxId": "`+id+`", "depth": 2}`)["items"].([]any); len(list) != 2 || list[1].(map[string]any)["path"] != "/workspace/src/page.txt" {
		t.Errorf("list: %v", list)
	}

	command, err := json.Marshal(greeter)
	if err != nil {
		t.Fatal(err)
	}
	server := a.call("start_process", `{"sandboxId": "`+id+`", "command": `+string(command)+`}`)["process"].(map[string]any)["id"].(string)
	process := `{"sandboxId": "` + id + `", "processId": "` + server + `"`
	a.want("read_process_output", process+`, "waitSeconds": 10}`, `{"data": "listening\n", "eof": false, "nextOffset": 10}`)
	a.call("signal_process", process+`, "signal": "TERM"}`)
	eventually(t, func() bool {
		return a.call("get_process", process+"}")["process"].(map[string]any)["state"] == "exited"
	})
	a.want("read_process_output", process+`, "offset": 10}`, `{"data": "bye\n", "eof": true}`)

	if out := a.call("stop_sandbox", `{"sandboxId": "`+id+`"}`); out["sandbox"].(map[string]any)["state"] != "stopped" {
		t.Errorf("stop: %v", out)
	}
	a.want("read_process_output", process+`}`, `{"data": "listening\nbye\n", "eof": true}`)
	a.want("start_sandbox", `{"sandboxId": "`+id+`"}`, `{"ready": true}`)
	a.want("run_command", `{"sandboxId": "`+id+`", "argv": ["cat", "src/page.txt"]}`, `{"stdout": "one\nthree\n", "exitCode": 0}`)
	a.want("delete_sandbox", `{"sandboxId": "`+id+`"}`, `{"deleted": true}`)
	wantRefusal(t, a.s, "get_sandbox", map[string]any{"sandboxId": id}, "NOT_FOUND")
}

// talk is a session whose calls have to succeed.
type talk struct {
	t *testing.T
	s *mcp.ClientSession
}

// call calls a tool with a JSON object and gives its result. Both forms of the result say the same.
func (a talk) call(tool, args string) map[string]any {
	a.t.Helper()
	res, err := a.s.CallTool(context.Background(), &mcp.CallToolParams{Name: tool, Arguments: json.RawMessage(args)})
	if err != nil {
		a.t.Fatalf("%s: %v", tool, err)
	}
	text := res.Content[0].(*mcp.TextContent).Text
	structured, ok := res.StructuredContent.(map[string]any)
	if res.IsError || !ok {
		a.t.Fatalf("%s %s: %s", tool, args, text)
	}
	var said map[string]any
	if err := json.Unmarshal([]byte(text), &said); err != nil {
		a.t.Fatalf("%s: %v in %s", tool, err, text)
	}
	if diff := cmp.Diff(said, structured); diff != "" {
		a.t.Errorf("%s: the text says otherwise than the structure:\n%s", tool, diff)
	}
	return structured
}

// want calls a tool and compares those members of its result that are named.
func (a talk) want(tool, args, want string) {
	a.t.Helper()
	var members map[string]any
	if err := json.Unmarshal([]byte(want), &members); err != nil {
		a.t.Fatal(err)
	}
	got := a.call(tool, args)
	for name, v := range members {
		if diff := cmp.Diff(v, got[name]); diff != "" {
			a.t.Errorf("%s: %s (-want +got):\n%s", tool, name, diff)
		}
	}
}

// TestSessionThroughCLI runs the sessions in testdata, each against a system of its own.
//
//	berth ARGS                runs the command line; ! says that its exit code is not 0
//	code N                    compares the exit code of the last one
//	let NAME PATTERN          sets a variable to the first group of a pattern in what was printed last
//	until PATTERN berth ARGS  runs it until it prints the pattern
func TestSessionThroughCLI(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(e *testscript.Env) error {
			s := Start(e.T().(testing.TB), Options{})
			e.Setenv("BERTH_URL", s.URL)
			e.Setenv("BERTH_API_KEY", s.Key)
			e.Setenv("GREETER", greeter)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"berth": func(ts *testscript.TestScript, neg bool, args []string) {
				var out, err strings.Builder
				code := cli.Main(context.Background(), args, ts.Getenv, strings.NewReader(""), &out, &err, cli.Commands{Version: "test"})
				fmt.Fprint(ts.Stdout(), out.String())
				fmt.Fprint(ts.Stderr(), err.String())
				ts.Setenv("CODE", strconv.Itoa(code))
				if (code != 0) != neg {
					ts.Fatalf("exit code %d\n%s%s", code, out.String(), err.String())
				}
			},
			"code": func(ts *testscript.TestScript, _ bool, args []string) {
				if got := ts.Getenv("CODE"); got != args[0] {
					ts.Fatalf("exit code %s, want %s", got, args[0])
				}
			},
			"let": func(ts *testscript.TestScript, _ bool, args []string) {
				found := regexp.MustCompile(args[1]).FindStringSubmatch(ts.ReadFile("stdout"))
				if found == nil {
					ts.Fatalf("there is no %s in what was printed", args[1])
				}
				ts.Setenv(args[0], found[1])
			},
			"until": func(ts *testscript.TestScript, _ bool, args []string) {
				want := regexp.MustCompile(args[0])
				for range 600 {
					var out strings.Builder
					cli.Main(context.Background(), args[2:], ts.Getenv, strings.NewReader(""), &out, &out, cli.Commands{})
					if want.MatchString(out.String()) {
						return
					}
				}
				ts.Fatalf("it never printed %s", args[0])
			},
		},
	})
}
