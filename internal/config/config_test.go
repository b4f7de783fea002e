package config

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
)

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "berth.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func load(t *testing.T, text string, env map[string]string, flags map[string][]string) (*Loaded, string, error) {
	t.Helper()
	file := write(t, text)
	l, err := Load(Options{File: file, Env: func(n string) string { return env[n] }, Flags: flags, DataDir: "/d"})
	return l, file, err
}

func TestDefaults(t *testing.T) {
	l, err := Load(Options{NoFile: true, DataDir: "/d"})
	if err != nil {
		t.Fatal(err)
	}
	if l.Listen.Port != 7070 || l.Listen.Address != "127.0.0.1" || !l.MCP.Enabled || l.MCP.Path != "/mcp" || l.Calls.PerMinute != 600 || l.Data != "/d" ||
		l.Sandboxes.VCPU != 1 || l.Log.Level != "warn" || l.File != "" {
		t.Errorf("defaults are %+v", l.Config)
	}
	for path, o := range l.Origins {
		if o.Kind != "default" {
			t.Errorf("%s comes from %v", path, o)
		}
	}
}

// TestOrder proves that each source goes over the one before, and that the origin says which one won.
func TestOrder(t *testing.T) {
	l, file, err := load(t, `
listen:
  port: 1001
  address: 0.0.0.0
calls: {perMinute: 5}
limits:
  sandboxes.running: 7
publicUrl: https://a.example
mcp:
  origins: [https://x.example]
log:
  level: # nothing: the default
`, map[string]string{"BERTH_LISTEN_PORT": "1002", "BERTH_CALLS_PER_MINUTE": "6", "BERTH_MCP_ORIGINS": "https://y.example, https://z.example"},
		map[string][]string{"port": {"1003"}, "limit": {"sandboxes.running=8", "disk.total=-1"}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]any{
		"port": l.Listen.Port, "address": l.Listen.Address, "calls": l.Calls.PerMinute, "limits": l.Limits, "origins": l.MCP.Origins, "level": l.Log.Level,
	}
	want := map[string]any{
		"port": 1003, "address": "0.0.0.0", "calls": 6, "limits": map[string]int64{"sandboxes.running": 8, "disk.total": -1},
		"origins": []string{"https://y.example", "https://z.example"}, "level": "warn",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for path, want := range map[string]string{
		"listen.port": "--port", "listen.address": file + ":4", "calls.perMinute": "BERTH_CALLS_PER_MINUTE", "limits": "--limit", "log.level": "default", "publicUrl": file + ":8",
	} {
		if got := l.Origins[path].String(); got != want {
			t.Errorf("%s comes from %s, want %s", path, got, want)
		}
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string // parts of the message
	}{
		{"unknown", "lisen:\n  port: 1\n", []string{"lisen: there is no such key; did you mean listen?", "berth.yaml:1"}},
		{"unknown below", "listen:\n  address: a\n  prot: 1\n", []string{"listen.prot: there is no such key; did you mean listen.port?", "berth.yaml:3"}},
		{"at another level", "port: 80\n", []string{"did you mean listen.port?"}},
		{"case", "Data: /x\n", []string{"Data: there is no such key; did you mean data?"}},
		{"case below", "database:\n  URL: x\n", []string{"did you mean database.url?"}},
		{"twice", "data: /a\nlog: {}\ndata: /b\n", []string{"line 3", "data", "is there twice"}},
		{"twice below", "listen:\n  port: 1\n  port: 2\n", []string{"line 3", "port"}},
		{"type", "listen:\n  port: many\n", []string{`listen.port: must be a whole number from 0 to 65535, not "many"`, "berth.yaml:2"}},
		{"float", "listen:\n  port: 1.5\n", []string{"listen.port: must be a whole number"}},
		{"range", "listen:\n  port: 70000\n", []string{"not 70000"}},
		{"text", "data: 5\n", []string{"data: must be a text, not 5"}},
		{"boolean", "mcp:\n  enabled: 1\n", []string{"mcp.enabled: must be true or false, not 1"}},
		{"list", "listen:\n  trustedProxies: 10.0.0.0/8\n", []string{"must be a list of texts"}},
		{"list of numbers", "listen:\n  trustedProxies: [1]\n", []string{"item 1 must be a text"}},
		{"section", "listen: 7070\n", []string{"listen: must be a map of keys, not 7070"}},
		{"enum", "log: {level: loud}\n", []string{"one of debug, info, warn, error"}},
		{"limit", "limits: {sandboxes.runing: 1}\n", []string{"did you mean sandboxes.running?"}},
		{"limit below", "limits: {sandboxes.running: -2}\n", []string{"at least -1"}},
		{"proxy", "listen: {trustedProxies: [nowhere]}\n", []string{"addresses or networks"}},
		{"public URL", "publicUrl: berth.example\n", []string{"publicUrl: must be an absolute http or https URL"}},
		{"path", "mcp: {path: mcp}\n", []string{"mcp.path: must be an absolute path"}},
		{"origin", "mcp: {origins: ['https://a/b']}\n", []string{"mcp.origins"}},
		{"subnet", "node: {subnet: 10.0.0.0/30}\n", []string{"node.subnet"}},
		{"debug", "debug: {listen: '0.0.0.0:7071'}\n", []string{"debug.listen: is no loopback address"}},
		{"debug socket", "debug: {listen: 'unix:run/x'}\n", []string{"absolute path"}},
		{"database", "database: {url: 'mysql://u:secretpass@h/d'}\n", []string{"database.url: must begin with postgres://"}},
		{"secret of a wrong type", "database: {url: [secretpass]}\n", []string{"database.url: must be a text"}},
		{"no map", "- a\n", []string{"not a map of keys"}},
		{"no YAML", "a: [\n", []string{"line"}},
		{"two documents", "data: /a\n---\ndata: /b\n", []string{"second document", "berth.yaml:2"}},
		{"several", "a: 1\nlog: {level: x}\n", []string{"a: there is no such key", "log.level"}},
		{"control characters", "data: \"/a\\u0000\"\n", []string{"control characters"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := load(t, c.text, nil, nil)
			if errs.CodeOf(err) != errs.InvalidConfig {
				t.Fatalf("got %v", err)
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q lacks %q", err, part)
				}
			}
			if strings.Contains(err.Error(), "secretpass") {
				t.Errorf("%q tells a secret", err)
			}
		})
	}
}

func TestRefusedElsewhere(t *testing.T) {
	_, _, err := load(t, "", map[string]string{"BERTH_LISTEN_PORT": "x"}, map[string][]string{"limit": {"sandboxes.running"}})
	if err == nil || !strings.Contains(err.Error(), "(BERTH_LISTEN_PORT)") || !strings.Contains(err.Error(), "(--limit)") {
		t.Errorf("got %v", err)
	}
	if _, err := Load(Options{File: filepath.Join(t.TempDir(), "none.yaml")}); errs.CodeOf(err) != errs.InvalidConfig {
		t.Errorf("a file that is named and not there: %v", err)
	}
}

func TestRemoteDebugWhereAllowed(t *testing.T) {
	if _, _, err := load(t, "debug: {listen: '0.0.0.0:7071', allowRemote: true}\n", nil, nil); err != nil {
		t.Error(err)
	}
}

func TestPrint(t *testing.T) {
	l, _, err := load(t, "database: {url: 'postgres://berth:hunter2@db.example/berth?sslmode=require&sslpassword=hunter3'}\nblobs: {url: 's3://b?region=eu&secretkey=hunter4'}\n"+
		"limits: {sandboxes.running: 3, disk.total: -1}\nlisten: {trustedProxies: [10.0.0.0/8, '::1']}\n", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := l.Print(&b, true); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "hunter") {
		t.Errorf("a secret is printed:\n%s", b.String())
	}
	for _, part := range []string{"postgres://berth:REDACTED@db.example/berth", "port: 7070  # default", `trustedProxies: ["10.0.0.0/8", "::1"]`, "disk.total: -1, sandboxes.running: 3"} {
		if !strings.Contains(b.String(), part) {
			t.Errorf("%q is not in\n%s", part, b.String())
		}
	}
	again, _, err := load(t, b.String(), nil, nil)
	if err != nil {
		t.Fatalf("what is printed cannot be read: %v\n%s", err, b.String())
	}
	again.Database.URL, again.Blobs.URL = l.Database.URL, l.Blobs.URL
	if diff := cmp.Diff(normal(l.Config), normal(again.Config)); diff != "" {
		t.Error(diff)
	}
}

// normal makes empty lists and maps one.
func normal(c Config) Config {
	for _, list := range []*[]string{&c.Listen.TrustedProxies, &c.MCP.Origins, &c.MCP.Hosts, &c.Images.AllowedRegistries, &c.Images.InsecureRegistries} {
		if len(*list) == 0 {
			*list = nil
		}
	}
	if len(c.Limits) == 0 {
		c.Limits = nil
	}
	return c
}

func TestRedact(t *testing.T) {
	for in, want := range map[string]string{
		"/var/lib/berth/berth.db": "/var/lib/berth/berth.db", "postgres://h/d": "postgres://h/d", "host=h password=p": "REDACTED",
		"postgres://u:p@h": "postgres://u:REDACTED@h", "postgres://u:%zz@h": "REDACTED", "": "",
	} {
		if got := Redact(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

// TestKeysAreTold holds every key to a meaning, and names of its own.
func TestKeysAreTold(t *testing.T) {
	env, flag := map[string]bool{}, map[string]bool{"config": true, "url": true, "key": true, "output": true, "timeout": true, "help": true}
	for _, k := range Keys() {
		if k.Doc == "" || !strings.HasSuffix(k.Doc, ".") {
			t.Errorf("%s is not explained", k.Path)
		}
		if env[k.Env] || !regexp.MustCompile(`^BERTH_[A-Z_]+$`).MatchString(k.Env) || slices.Contains([]string{"BERTH_URL", "BERTH_API_KEY", "BERTH_CONFIG"}, k.Env) {
			t.Errorf("%s has the variable %s", k.Path, k.Env)
		}
		if flag[k.Flag] || !regexp.MustCompile(`^[a-z-]+$`).MatchString(k.Flag) {
			t.Errorf("%s has the flag %s", k.Path, k.Flag)
		}
		env[k.Env], flag[k.Flag] = true, true
	}
}

// TestReference compares the committed page. Run go generate ./internal/config where it fails.
func TestReference(t *testing.T) {
	got, err := os.ReadFile("../../docs/reference/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Reference(), string(got)); diff != "" {
		t.Errorf("docs/reference/configuration.md is not up to date (-generated +committed):\n%s", diff)
	}
}

// TestTemplate holds the template to a file that changes nothing, also with every # taken away from a key.
func TestTemplate(t *testing.T) {
	plain, err := Load(Options{NoFile: true, DataDir: "/d"})
	if err != nil {
		t.Fatal(err)
	}
	open := regexp.MustCompile(`(?m)^( *)# ([a-z][a-zA-Z]*):( .*)?$`).ReplaceAllString(Template(), "$1$2:$3")
	for name, text := range map[string]string{"as it is": Template(), "opened": open} {
		l, _, err := load(t, text, nil, nil)
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, text)
		}
		if diff := cmp.Diff(plain.Config, normal(l.Config)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if n := strings.Count(open, "\n") - strings.Count(Template(), "\n"); n != 0 || strings.Count(open, "# ") >= strings.Count(Template(), "# ")-len(Keys())+1 {
		t.Error("the template does not hold every key")
	}
}

// FuzzDecode reads any file: it is refused with a reason, or what it says can be printed and read again.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(Template()))
	f.Add([]byte("listen: {port: 1}\nlimits: {disk.total: 5}\n"))
	f.Add([]byte("data: &a [*a]\n"))
	f.Add([]byte("? a\n: b\n"))
	f.Add([]byte("Data: 1\ndata: 2\n"))
	f.Add([]byte("database: {url: 'postgres://u:p@h/?password=x'}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		l := &Loaded{Origins: map[string]Origin{}}
		l.defaults("/d")
		file, problems := decode("f", text)
		for _, k := range Keys() {
			if v, ok := file.values[k.Path]; ok {
				problems = l.take(problems, k, Origin{"file", file.where(k.Path)}, func() error { return k.set(&l.Config, v) })
			}
		}
		problems = append(problems, l.check()...)
		if err := invalid(problems); err != nil {
			if len(err.Error()) > 400*len(problems) {
				t.Errorf("a message of %d bytes", len(err.Error()))
			}
			return
		}
		var b strings.Builder
		if err := l.Print(&b, true); err != nil {
			t.Fatal(err)
		}
		if _, problems := decode("f", []byte(b.String())); len(problems) > 0 {
			t.Fatalf("what was printed cannot be read: %v\n%s", problems, b.String())
		}
	})
}
