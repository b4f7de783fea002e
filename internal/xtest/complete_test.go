package xtest

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/cli"
	"github.com/berthrun/berth/internal/image/registrytest"
)

// TestCompletion asks what a shell asks when somebody presses the tabulator key, of a server that has something of everything.
func TestCompletion(t *testing.T) {
	reg := registrytest.Start(t, registrytest.Basic)
	s := Start(t, Options{Registry: reg.Host})
	env := map[string]string{"BERTH_URL": s.URL, "BERTH_API_KEY": s.Key, "BERTH_DATA": t.TempDir()}
	tab := func(args ...string) (offers []string, directive string) {
		t.Helper()
		var out, errOut bytes.Buffer
		if code := cli.Main(t.Context(), append([]string{"__complete"}, args...), func(n string) string { return env[n] }, strings.NewReader(""), &out, &errOut, cli.Commands{}); code != 0 {
			t.Fatalf("%q: exit %d, %s", args, code, errOut.String())
		}
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		return lines[:len(lines)-1], lines[len(lines)-1]
	}
	const files, none, none2 = ":0", ":4", ":6" // cobra's directives: files, nothing else, nothing else and no space behind it

	web := Sandbox(t, s.Client, api.CreateSandboxIn{Name: "web"})
	bare := Sandbox(t, s.Client, api.CreateSandboxIn{})
	serve := Must(t, s.Client, api.StartProcess, api.StartProcessIn{SandboxIn: in(web), CommandIn: api.CommandIn{Command: "sleep 600 #\t\n\x1b[2J"}}).Process.ID
	Must(t, s.Client, api.StartProcess, api.StartProcessIn{SandboxIn: in(bare), CommandIn: api.CommandIn{Command: "sleep 601"}})
	Must(t, s.Client, api.SetRegistry, api.SetRegistryIn{Host: reg.Host, Username: registrytest.User, Password: registrytest.Password})
	img := Must(t, s.Client, api.PullImage, api.PullImageIn{Image: reg.Push(t, "app:1", smallImage(t, "1"))}).Image
	key := Must(t, s.Client, api.CreateKey, api.CreateKeyIn{Name: "de\u202eploy"}).Key.ID
	own := Must(t, s.Client, api.ListKeys, api.ListKeysIn{}).Items
	keys := func() (all []string) {
		for _, k := range own {
			all = append(all, k.ID+"\t"+strings.ReplaceAll(k.Name, "\u202e", `\u202e`))
		}
		return all
	}()
	name := reg.Host + "/app"
	boxes := []string{bare + "\trunning", "web\trunning " + web, web + "\trunning web"}
	process := []string{serve + "\trunning sleep 600 # \\x1b[2J"}

	for _, tt := range []struct {
		typed     []string
		want      []string
		directive string
	}{
		{[]string{"sandboxes", "get", ""}, boxes, none},
		{[]string{"sandboxes", "get", "w"}, boxes[1:2], none},
		{[]string{"templates", "build", ""}, nil, files},
		{[]string{"sandboxes", "get", "web", ""}, nil, none},
		{[]string{"sandboxes", "shell", "we"}, boxes[1:2], none},
		{[]string{"sandboxes", "ssh", "we"}, boxes[1:2], none},
		{[]string{"sandboxes", "exec", "web", ""}, nil, files},
		{[]string{"processes", "get", "web", ""}, process, none},
		{[]string{"processes", "output", "--follow", web, serve[:8]}, process, none},
		{[]string{"processes", "signal", "web", "prc_x"}, nil, none},
		{[]string{"processes", "get", "nobody", ""}, nil, none},
		{[]string{"processes", "get", "../..", ""}, nil, none},
		{[]string{"keys", "revoke", ""}, keys, none},
		{[]string{"keys", "revoke", key[:10]}, []string{key + "\tde\\u202eploy"}, none},
		{[]string{"images", "get", ""}, []string{img.ID + "\tready " + name + " 1"}, none},
		{[]string{"images", "export", reg.Host}, []string{name + ":1\tready " + img.ID}, none},
		{[]string{"registries", "delete", ""}, []string{reg.Host + "\t" + registrytest.User}, none},
		{[]string{"files", "list", "w"}, boxes[1:2], none},
		{[]string{"files", "list", "web", ""}, nil, files},
		{[]string{"files", "cp", ""}, nil, files},
		{[]string{"files", "cp", "./x"}, nil, files},
		{[]string{"files", "cp", "./x", "we"}, []string{"web:\trunning " + web}, none2},
		{[]string{"files", "cp", "web:"}, nil, none},
		{[]string{"docs", "read", "reference/sand"}, []string{"reference/sandboxes\tsandboxes"}, none},
		{[]string{"processes", "list", "web", "--state", ""}, []string{"running", "exited", "lost"}, none},
	} {
		got, directive := tab(tt.typed...)
		if diff := cmp.Diff(tt.want, append([]string(nil), got...)); diff != "" || directive != tt.directive {
			t.Errorf("%q: directive %s; offered (-want +got):\n%s", tt.typed, directive, diff)
		}
	}
	// Whoever may not ask, or cannot reach the server, is offered nothing and told nothing.
	for name, value := range map[string]string{"BERTH_API_KEY": "berth_org_unknown", "BERTH_URL": "http://127.0.0.1:1"} {
		before := env[name]
		env[name] = value
		for _, args := range [][]string{{"sandboxes", "get", ""}, {"processes", "get", "web", ""}, {"keys", "revoke", ""}, {"files", "cp", "we"}} {
			if got, _ := tab(args...); len(got) > 0 {
				t.Errorf("with another %s, %q: %q", name, args, got)
			}
		}
		env[name] = before
	}
}
