package cli

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
)

func TestKebab(t *testing.T) {
	for in, want := range map[string]string{
		"ttlSeconds": "ttl-seconds", "memoryMiB": "memory-mib", "diskGiB": "disk-gib", "sandboxId": "sandbox-id", "eof": "eof", "setTimeout": "set-timeout",
		"vcpu": "vcpu", "includeRevoked": "include-revoked", "sandboxID": "sandbox-id",
	} {
		if got := kebab(in); got != want {
			t.Errorf("kebab(%q) is %q, want %q", in, got, want)
		}
	}
}

// TestEveryInputCanBeGiven holds the derived commands against the contract: every member of every input is an argument, a flag or a tail, no flag
// hides a global one, and help renders.
func TestEveryInputCanBeGiven(t *testing.T) {
	a := &app{env: func(string) string { return "" }}
	root := a.root(Commands{})
	for _, info := range api.All() {
		c := newCommand(a, info)
		cmd := c.cobra()
		for _, name := range info.In.Order {
			p := info.In.Properties[name]
			switch {
			case isPositional(c, name), c.tail && (name == "command" || name == "argv"),
				info.Name == api.WriteFile.Name && (name == "data" || name == "encoding"),
				info.Name == api.BuildTemplate.Name && name == "steps": // a list of what no flag can say: a file with --input
				continue
			case strings.HasPrefix(info.Name, "policies.") && (name == "text" || name == "cases"): // files too
				continue
			case p.Type == "object" && len(p.Properties) > 0:
				for _, inner := range p.Order {
					if cmd.Flags().Lookup(flagName([]string{name, inner})) == nil {
						t.Errorf("%s: %s.%s has no flag", info.Name, name, inner)
					}
				}
			case cmd.Flags().Lookup(kebab(name)) == nil:
				t.Errorf("%s: %s has no flag", info.Name, name)
			}
		}
		for _, f := range c.inputs.list {
			if u := usage(f.path, f.schema); f.schema.Description == "" && !regexp.MustCompile(`^[A-Za-z-]+[ ,;:.]`).MatchString(u) || strings.HasPrefix(u, "One of: ") || strings.HasPrefix(u, "Default: ") {
				t.Errorf("%s: the help of --%s is %q", info.Name, flagName(f.path), u)
			}
			if root.PersistentFlags().Lookup(flagName(f.path)) != nil {
				t.Errorf("%s: --%s hides a global flag", info.Name, flagName(f.path))
			}
		}
		if want := "berth "; !strings.HasPrefix(Usage(info), want) || !strings.Contains(cmd.UsageString(), "--input") {
			t.Errorf("%s: usage is %q", info.Name, Usage(info))
		}
	}
}

func isPositional(c *command, name string) bool {
	for _, p := range c.args {
		if p.name == name {
			return true
		}
	}
	return false
}

func TestUsage(t *testing.T) {
	for want, info := range map[string]op.Info{
		"berth sandboxes set-timeout SANDBOX_ID --ttl-seconds SECONDS [flags]":     api.SetSandboxTimeout.Info(),
		"berth images pull IMAGE [flags]":                                          api.PullImage.Info(),
		"berth images push IMAGE_ID REFERENCE [flags]":                             api.PushImage.Info(),
		"berth registries set HOST [flags]":                                        api.SetRegistry.Info(),
		"berth files move SANDBOX_ID FROM TO [flags]":                              api.MoveFile.Info(),
		"berth processes start SANDBOX_ID [flags] (COMMAND | -- PROGRAM [ARG]...)": api.StartProcess.Info(),
		"berth processes output SANDBOX_ID PROCESS_ID [flags]":                     api.ProcessOutput.Info(),
		"berth account get [flags]":                                                api.GetAccount.Info(),
		"berth files list SANDBOX_ID [PATH] [flags]":                               api.ListFiles.Info(),
	} {
		if got := Usage(info); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestAsks(t *testing.T) {
	var got []string
	for _, info := range api.All() {
		if newCommand(&app{}, info).asks() {
			got = append(got, info.Name)
		}
	}
	if diff := cmp.Diff([]string{"sandboxes.stop", "sandboxes.delete", "sandboxes.switchImage", "snapshots.delete", "files.remove", "images.delete", "registries.delete", "volumes.delete", "backups.delete", "templates.delete", "keys.revoke"}, got); diff != "" {
		t.Errorf("operations that ask (-want +got):\n%s", diff)
	}
}

func TestMount(t *testing.T) {
	for given, want := range map[string]map[string]any{
		"data": {"volume": "data"}, "data:/d": {"volume": "data", "path": "/d"}, "data:/d:ro": {"volume": "data", "path": "/d", "readOnly": true}, "data:ro": {"volume": "data", "readOnly": true},
		"": nil, ":/d": nil, "data:/a:/b": nil,
	} {
		f := &flag{path: []string{"volumes"}, schema: api.CreateSandbox.Info().In.Properties["volumes"]}
		err := f.Set(given)
		if (err != nil) != (want == nil) {
			t.Errorf("%q: %v", given, err)
		}
		if err != nil {
			continue
		}
		got, _ := f.value()
		if diff := cmp.Diff([]any{want}, got); diff != "" {
			t.Errorf("%q: %s", given, diff)
		}
	}
}

func TestDataDir(t *testing.T) {
	env := map[string]string{"HOME": "/home/a"}
	want := "/home/a/.local/share/berth"
	if os.Geteuid() == 0 {
		want = "/var/lib/berth"
	}
	get := func(name string) string { return env[name] }
	if got := DataDir(get); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	env["BERTH_DATA"] = "/data"
	if got := DataDir(get); got != "/data" {
		t.Errorf("got %s, want /data", got)
	}
}

func TestWriteCredential(t *testing.T) {
	dir := t.TempDir()
	want := Credential{URL: "http://127.0.0.1:7000", Key: "k"}
	for range 2 { // the second replaces the first
		if err := WriteCredential(dir, want); err != nil {
			t.Fatal(err)
		}
	}
	got, err := readCredential(dir)
	if err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	info, err := os.Stat(filepath.Join(dir, credentialFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file's mode is %v, %v", info.Mode(), err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("the folder holds %v, %v", left, err)
	}
	if err := WriteCredential(filepath.Join(dir, "missing"), want); err == nil {
		t.Error("a folder that is not there is written to")
	}
	if err := os.WriteFile(filepath.Join(dir, credentialFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readCredential(dir); err == nil {
		t.Error("a broken file is read")
	}
}

func TestEncodeData(t *testing.T) {
	for name, tt := range map[string]struct {
		in       []byte
		encoding string
	}{
		"text": {[]byte("grüße\n<&>"), "utf-8"}, "binary": {[]byte{0xff, 0}, "base64"}, "empty": {nil, "utf-8"},
		"text that JSON blows up": {bytes.Repeat([]byte{1}, 1000), "base64"},
	} {
		t.Run(name, func(t *testing.T) {
			data, encoding := encodeData(tt.in)
			if encoding != tt.encoding {
				t.Errorf("encoding is %s, want %s", encoding, tt.encoding)
			}
			var back bytes.Buffer
			if err := writeData(&back, data, encoding); err != nil || !bytes.Equal(back.Bytes(), tt.in) {
				t.Errorf("comes back as %q, %v", back.Bytes(), err)
			}
		})
	}
}

// TestLargestWriteFits holds the parts of files.write against the API's limits on data and on a body.
func TestLargestWriteFits(t *testing.T) {
	if got, limit := base64.StdEncoding.EncodedLen(writePart), *api.WriteFile.Info().In.Properties["data"].MaxLength; got > limit {
		t.Errorf("a part has %d characters, the API takes %d", got, limit)
	}
	for _, part := range [][]byte{bytes.Repeat([]byte{'"'}, writePart), bytes.Repeat([]byte{1}, writePart), bytes.Repeat([]byte("<"), writePart)} {
		data, encoding := encodeData(part)
		raw, err := json.Marshal(map[string]any{"data": data, "encoding": encoding, "path": strings.Repeat("p", 4096)})
		if err != nil {
			t.Fatal(err)
		}
		if len(raw) > 4<<20 {
			t.Errorf("a part of %q makes a body of %d bytes", part[0], len(raw))
		}
	}
}

func TestInterrupted(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	cancel := func() { stop(errors.New("interrupt signal received")) }
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done() // an answer would race with the interrupt
	}))
	defer srv.Close()
	var out, errOut bytes.Buffer
	env := func(string) string { return "" }
	code := Main(ctx, []string{"account", "get", "--url", srv.URL, "--key", "k"}, env, nil, &out, &errOut, Commands{})
	if code != exitInterrupted || errOut.String() != "berth: interrupted\n" || out.Len() > 0 {
		t.Errorf("code %d, %q, %q", code, out.String(), errOut.String())
	}
}

func TestNotYours(t *testing.T) {
	denied := fmt.Errorf("read credential: %w", &fs.PathError{Op: "open", Path: "/var/lib/berth/cli.json", Err: syscall.EACCES})
	if err := notYours(denied, "/var/lib/berth"); !strings.Contains(err.Error(), "put sudo in front") || strings.Contains(err.Error(), "cli.json") {
		t.Errorf("denied: %v", err)
	}
	if other := errors.New("read credential: it is not JSON"); notYours(other, "/var/lib/berth") != other {
		t.Error("another error is not left as it is")
	}
}

// TestTimeoutIsSaid names the flag that ended a call, and not the program's own words for it.
func TestTimeoutIsSaid(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer srv.Close()
	var out, errOut bytes.Buffer
	env := func(string) string { return "" }
	code := Main(t.Context(), []string{"account", "get", "--url", srv.URL, "--key", "k", "--timeout", "20ms"}, env, nil, &out, &errOut, Commands{})
	if code != exitFailed || !strings.Contains(errOut.String(), "within --timeout 20ms (TIMEOUT)") || strings.Contains(errOut.String(), "context") {
		t.Errorf("code %d, %q, %q", code, out.String(), errOut.String())
	}
}

// FuzzPlain holds stored text, such as a name that somebody chose, to what cannot steer a terminal.
func FuzzPlain(f *testing.F) {
	for _, s := range []string{"a", "\x1b[31mred", "a\nb", "\u202e", "\xff", "grüße", "\u0085", "\u2028", "\u3164", "a\ufe0f"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := plain(s)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool {
			return unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point)
		}) {
			t.Errorf("%q became %q", s, got)
		}
	})
}

// FuzzFlags holds what flags take to what the API takes: a value that a flag accepts has the type that the schema says.
func FuzzFlags(f *testing.F) {
	f.Add("5", "1.5", "true", "A=b", "x")
	f.Add("-1", "1e9", "no", "=", "\xff")
	f.Add("0x1", "inf", "1", "a==b", "")
	f.Fuzz(func(t *testing.T, i, n, b, m, s string) {
		if strings.ContainsRune(i+n+b+m+s, 0) {
			return // no argument of a program can hold it
		}
		for kind, v := range map[string]string{"integer": i, "number": n, "boolean": b, "object": m, "string": s} {
			schema := &op.Schema{Type: kind}
			if kind == "object" {
				schema.AdditionalProperties = &op.Schema{Type: "string"}
			}
			fl := &flag{path: []string{"x"}, schema: schema}
			if fl.Set(v) != nil {
				continue
			}
			value, err := fl.value()
			if err != nil {
				t.Fatalf("%s %q is set and then refused: %v", kind, v, err)
			}
			raw, err := json.Marshal(map[string]any{"x": value})
			if err != nil {
				t.Fatalf("%s %q is no JSON: %v", kind, v, err)
			}
			whole := &op.Schema{Type: "object", Properties: map[string]*op.Schema{"x": schema}, AdditionalProperties: false, Order: []string{"x"}}
			if err := op.Check(whole, raw); err != nil && !strings.Contains(err.Error(), "must be a whole number") { // beyond 2^53
				t.Fatalf("%s %q became %s: %v", kind, v, raw, err)
			}
		}
	})
}

func TestErrorsOfServers(t *testing.T) {
	var out, errOut bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	serve := &cobra.Command{Use: "serve", RunE: func(*cobra.Command, []string) error {
		cancel() // an error at the end of a server that was told to end is still an error
		return fmt.Errorf("serve: %w", errs.E(errs.InvalidConfig, "the port is taken").Suggest("Choose another with --port."))
	}}
	code := Main(ctx, []string{"serve"}, func(string) string { return "" }, nil, &out, &errOut, Commands{Extra: []*cobra.Command{serve}})
	want := "berth: serve: the port is taken\n  Choose another with --port.\n"
	if code != exitFailed || errOut.String() != want || out.Len() > 0 {
		t.Errorf("code %d, %q, %q", code, out.String(), errOut.String())
	}
}
