package xtest

import (
	"context"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
)

// long is a name of 4 KiB and one byte.
var long = strings.Repeat("n", 4097)

// TestHardNames gives names that are no names, and names that few expect, to everything that takes one.
func TestHardNames(t *testing.T) {
	r := StartReal(t)
	watchCanary(t, r, 30*time.Second)
	c := r.Client
	t.Run("sandboxes", func(t *testing.T) {
		for _, name := range []string{"..", "a/b", "a\nb", "a\x00b", "😀", "-a", "A", long} {
			if code := Code(t, c, api.CreateSandbox, api.CreateSandboxIn{Name: name}); code != "INVALID_INPUT" {
				t.Errorf("%.20q: %q", name, code)
			}
		}
		// What a name may hold and a host's name may not.
		id := Sandbox(t, c, api.CreateSandboxIn{Name: "my_box.v2-", Resources: &api.ResourcesIn{MemoryMiB: 256}})
		if out := Exec(t, c, id, "hostname"); out.Stdout != "my-box-v2\n" {
			t.Errorf("its host name is %q", out.Stdout)
		}
		for _, m := range []map[string]string{{"": "x"}, {long: "x"}, {"x": long}, {"a\x00": "x"}, {"x": "a\x00"}} {
			if code := Code(t, c, api.UpdateSandbox, api.UpdateSandboxIn{SandboxIn: in(id), Metadata: m}); code != "INVALID_INPUT" {
				t.Errorf("labels %.40q: %q", m, code)
			}
		}
		odd := map[string]string{"..": "a\nb", "😀": "\u202e", "'; --": "$(x)"}
		Must(t, c, api.UpdateSandbox, api.UpdateSandboxIn{SandboxIn: in(id), Metadata: odd})
		if found := Must(t, c, api.ListSandboxes, api.ListSandboxesIn{Metadata: odd}).Items; len(found) != 1 || found[0].Metadata["😀"] != "\u202e" {
			t.Errorf("found by its labels: %+v", found)
		}
	})
	id := Sandbox(t, c, api.CreateSandboxIn{Resources: &api.ResourcesIn{MemoryMiB: 256}})
	t.Run("commands", func(t *testing.T) {
		for name, cmd := range map[string]api.CommandIn{
			"NUL in the command": {Command: "a\x00b"}, "NUL in an argument": {Argv: []string{"echo", "\x00"}}, "no program": {Argv: []string{""}},
			"a program of 4 KiB": {Argv: []string{long}}, "a folder of 4 KiB": {Command: "pwd", Cwd: long}, "no folder": {Command: "pwd", Cwd: "😀\n.."},
			"NUL in the folder": {Command: "pwd", Cwd: "\x00"}, "no user": {Command: "id", User: "nobody-here"}, "a user of 4 KiB": {Command: "id", User: long},
			"a user that climbs": {Command: "id", User: "../root"}, "a user with a line": {Command: "id", User: "root\nx"}, "an empty variable": {Command: "env", Env: map[string]string{"": "x"}},
			"a variable with =": {Command: "env", Env: map[string]string{"a=b": "x"}}, "NUL in a variable": {Command: "env", Env: map[string]string{"a": "\x00"}},
		} {
			if _, e := run(t, c, id, cmd, 10); e == nil || e.Code != "INVALID_INPUT" || e.Suggestion == "" && e.Reason == "cannot_run" {
				t.Errorf("%s: %+v", name, e)
			}
		}
		out, e := run(t, c, id, api.CommandIn{Argv: []string{"printf", "%s|", "a\nb", "😀", "..", "$(x)", "'\"\\"}, Cwd: "../../tmp", Env: map[string]string{"Ü\n": "b"}}, 10)
		if e != nil || out.Stdout != "a\nb|😀|..|$(x)|'\"\\|" {
			t.Errorf("%q, %+v", out.Stdout, e)
		}
	})
	t.Run("files", func(t *testing.T) {
		for _, path := range []string{"a\x00b", strings.Repeat("n", 256), long[:4096], strings.Repeat("d/", 2040) + "f", "..", "/", "/proc/version", "/proc/sys/kernel/hostname", "/proc/1/mem", "/dev/null", "/dev/zero"} {
			for _, user := range []string{"", "root"} {
				in := file(id, path)
				in.User = user
				if code := Code(t, c, api.WriteFile, api.WriteFileIn{FileIn: in, Data: "x"}); code != "INVALID_INPUT" && code != "FORBIDDEN" {
					t.Errorf("writing %.30q as %q: %q", path, user, code)
				}
			}
		}
		if code := Code(t, c, api.WriteFile, api.WriteFileIn{FileIn: file(id, "../../../../etc/passwd"), Data: "x"}); code != "FORBIDDEN" {
			t.Errorf("climbing: %q", code)
		}
		for _, name := range []string{"a\nb", "😀", "-rf", "a b'\"$", strings.Repeat("n", 255), "..."} {
			w := Must(t, c, api.WriteFile, api.WriteFileIn{FileIn: file(id, "odd/"+name), Data: name})
			if w.File.Name != name {
				t.Errorf("%q is written as %q", name, w.File.Name)
			}
			if got := Must(t, c, api.ReadFile, api.ReadFileIn{FileIn: file(id, "odd/"+name)}); got.Data != name {
				t.Errorf("%q holds %q", name, got.Data)
			}
		}
		if l := Must(t, c, api.ListFiles, api.ListFilesIn{SandboxIn: in(id), Path: "odd"}).Items; len(l) != 6 {
			t.Errorf("listed: %+v", l)
		}
	})
	t.Run("bytes that are no text", func(t *testing.T) {
		out := Exec(t, c, id, `mkdir bytes; cd bytes; touch "$(printf 'a\377')" "$(printf 'b\303')" c; printf '\377\376abc'; printf '\303' >&2; ls | wc -l`)
		if out.Stdout != "\ufffd\ufffdabc3\n" && out.Stdout != "\ufffdabc3\n" || out.Stderr != "\ufffd" || out.StdoutBytes != 7 || out.StderrBytes != 1 {
			t.Errorf("%+v", out)
		}
		p := Must(t, c, api.ProcessOutput, api.ProcessOutputIn{ProcessIn: proc(id, out.ProcessID)})
		if b, err := base64.StdEncoding.DecodeString(p.Data); p.Encoding != "base64" || err != nil || string(b) != "\xff\xfeabc3\n" {
			t.Errorf("the output itself: %+v", p)
		}
		// Such names are shown as they can be and do not keep the rest from being listed.
		l := Must(t, c, api.ListFiles, api.ListFilesIn{SandboxIn: in(id), Path: "bytes"}).Items
		if len(l) != 3 || l[2].Name != "c" {
			t.Errorf("listed: %+v", l)
		}
		// Sent to us, they are refused or replaced before anything happens.
		resp := raw(t, r, "POST", "/v1/sandboxes/"+id+"/files/write", "{\"path\":\"x\xff\",\"data\":\"x\"}")
		if !strings.Contains(resp, " 400 ") && !strings.Contains(resp, " 200 ") || strings.Contains(resp, "INTERNAL") {
			t.Errorf("%s", resp)
		}
	})
	t.Run("a default user that is gone", func(t *testing.T) {
		id := Sandbox(t, c, api.CreateSandboxIn{Resources: &api.ResourcesIn{MemoryMiB: 256}})
		Exec(t, c, id, "sudo sed -i /^user:/d /etc/passwd")
		_, e := run(t, c, id, api.CommandIn{Command: "id -u"}, 10)
		if e == nil || e.Code != "INVALID_INPUT" || e.Reason != "cannot_run" {
			t.Errorf("a command: %+v", e)
		}
		for name, call := range map[string]func(ctx context.Context) error{
			"a write": func(ctx context.Context) error {
				_, err := client.Call(ctx, c, api.WriteFile, api.WriteFileIn{FileIn: file(id, "/root/x"), Data: "x"})
				return err
			},
			"a read": func(ctx context.Context) error {
				_, err := client.Call(ctx, c, api.ReadFile, api.ReadFileIn{FileIn: file(id, "/etc/shadow")})
				return err
			},
		} {
			if e := fault(t, func(ctx context.Context) (struct{}, error) { return struct{}{}, call(ctx) }); e == nil || e.Reason != "cannot_run" {
				t.Errorf("%s: %+v", name, e)
			}
		}
		if out, e := run(t, c, id, api.CommandIn{Command: "id -u", User: "root"}, 10); e != nil || out.Stdout != "0\n" {
			t.Errorf("by name: %+v %+v", out, e)
		}
	})
	t.Run("over MCP", func(t *testing.T) {
		s := agent(t, &r.System, "/mcp", r.Key)
		for name, args := range map[string]map[string]any{
			"..": {"sandboxId": "../../x"}, "4 KiB": {"sandboxId": long}, "NUL": {"sandboxId": "sbx_\x00"}, "emoji": {"sandboxId": "😀"}, "a number": {"sandboxId": 1},
		} {
			res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "get_sandbox", Arguments: args})
			if err != nil || !res.IsError || len(res.Content) == 0 {
				t.Errorf("%s: %+v, %v", name, res, err)
				continue
			}
			if text := res.Content[0].(*mcp.TextContent).Text; !strings.Contains(text, "INVALID_INPUT") && !strings.Contains(text, "NOT_FOUND") {
				t.Errorf("%s: %s", name, text)
			}
		}
	})
}

// TestHardLinks plants what leads out of a sandbox, by every way there is to follow it.
func TestHardLinks(t *testing.T) {
	r := StartReal(t)
	c := r.Client
	id := Sandbox(t, c, api.CreateSandboxIn{Resources: &api.ResourcesIn{MemoryMiB: 256}})
	secret := r.Dir + "/data" // exists on the host, and holds the database
	Exec(t, c, id, "ln -s "+secret+" host; ln -s /proc/1/root/"+secret+" byroot; ln -s /proc/self/fd fds; ln -s ../../../../../.."+secret+" climb; ln -s loop loop; ln -s /proc/1/cwd/"+secret+" bycwd")
	for _, link := range []string{"host", "byroot", "climb", "bycwd", "loop", "fds/0/x"} {
		for _, user := range []string{"", "root"} {
			at := file(id, link+"/berth.db")
			at.User = user
			if out, e := readFile(t, c, at); e == nil || e.Code != "NOT_FOUND" && e.Code != "FORBIDDEN" && e.Code != "INVALID_INPUT" {
				t.Errorf("reading %s as %q: %+v %+v", link, user, out.File, e)
			}
		}
	}
	// As root everything inside may be written, and all of it stays inside.
	Exec(t, c, id, "mkdir -p "+secret)
	at := file(id, "host/planted")
	at.User = "root"
	Must(t, c, api.WriteFile, api.WriteFileIn{FileIn: at, Data: "inside"})
	if out := Exec(t, c, id, "cat "+secret+"/planted"); out.Stdout != "inside" {
		t.Errorf("inside: %+v", out)
	}
	if exists(secret + "/planted") {
		t.Error("it is on the host")
	}
	// Its /tmp, which is mounted by its path, and /etc, which is written at each boot, become links to the host's.
	mark := r.Dir + "/untouched"
	Exec(t, c, id, "sudo sh -c 'rm -rf /tmp /etc/hosts /etc/resolv.conf /etc/hostname; ln -s "+r.Dir+" /tmp; ln -s "+mark+" /etc/hosts; ln -s "+mark+" /etc/resolv.conf; ln -s "+mark+" /etc/hostname' || true")
	Must(t, c, api.StopSandbox, api.SandboxWaitIn{SandboxIn: in(id), WaitIn: wait(30)})
	if out := Exec(t, c, id, "ls /tmp; echo booted > /tmp/x; cat /tmp/x"); !strings.HasSuffix(out.Stdout, "booted\n") || strings.Contains(out.Stdout, "server.log") {
		t.Errorf("after a boot: %+v", out)
	}
	if exists(mark) || exists(r.Dir+"/x") {
		t.Error("a boot wrote to the host through a link")
	}
}

func readFile(t *testing.T, c *client.Client, at api.FileIn) (out api.ReadFileOut, e *client.Error) {
	t.Helper()
	e = fault(t, func(ctx context.Context) (api.ReadFileOut, error) {
		var err error
		out, err = client.Call(ctx, c, api.ReadFile, api.ReadFileIn{FileIn: at})
		return out, err
	})
	return out, e
}
