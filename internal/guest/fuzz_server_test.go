//go:build linux

package guest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzRequests: whatever the guest is asked, it answers JSON with a code of the protocol, and nothing outside its root is touched. What starts programs is
// only planned.
func FuzzRequests(f *testing.F) {
	targets := []string{
		"GET /hello", "GET /processes", "GET /processes/x", "GET /processes/x/output", "POST /processes/x/input", "POST /processes/x/signal", "POST /processes/x/resize",
		"GET /files/stat", "POST /files/read", "POST /files/write", "POST /files/edit", "POST /files/list", "POST /files/mkdir", "POST /files/move", "POST /files/remove",
		"GET /activity", "GET /metrics", "POST /configure",
	}
	root := f.TempDir()
	if err := os.WriteFile(filepath.Join(root, "f"), []byte("text\n"), 0o600); err != nil {
		f.Fatal(err)
	}
	s := NewServer(Config{Token: "t", Root: root})
	f.Cleanup(s.Close)
	h := s.Handler()
	for i := range targets {
		f.Add(i, "path=/f&user=root&offset=1&limit=5&stream=stderr&waitMs=0", `{"path":"/f","user":"root","name":"TERM","cols":80,"rows":24}`, "op")
	}
	f.Add(8, "", `{"path":"/f","lineStart":-1,"lineEnd":9223372036854775807,"offset":-5,"limit":-1}`, "")
	f.Add(11, "", `{"path":"/","depth":99,"glob":"**/[","after":"/../x","limit":-1}`, "")
	f.Add(9, "", `{"path":"../../x","data":"!!","mode":"99999"}`, strings.Repeat("o", 200))
	f.Add(17, "", `{"token":"","pids":-1,"env":{"a=":"b"},"hostname":"a b"}`, "")
	f.Fuzz(func(t *testing.T, n int, query, body, op string) {
		method, path, _ := strings.Cut(targets[((n%len(targets))+len(targets))%len(targets)], " ")
		if path == "/configure" && strings.Contains(strings.ToLower(body), "token") {
			return // it would lock us out
		}
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.URL.RawQuery = query
		r.Header.Set(TokenHeader, "t")
		r.Header[OpHeader] = []string{op}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if !json.Valid(w.Body.Bytes()) {
			t.Fatalf("%s %s?%s %q: %d %q", method, path, query, body, w.Code, w.Body)
		}
		if w.Code == http.StatusOK {
			return
		}
		var e Error
		if json.Unmarshal(w.Body.Bytes(), &e) != nil || e.Code == "" || statusOf(e.Code) != w.Code {
			t.Fatalf("%s %s?%s %q: %d %q", method, path, query, body, w.Code, w.Body)
		}
		if _, known := meanings[e.Code]; !known && e.Code != CodeInternal {
			t.Errorf("the code %q", e.Code)
		}
	})
}

// FuzzStart: a request to start a program is planned or refused with a code.
func FuzzStart(f *testing.F) {
	f.Add(`{"id":"proc_a","command":"echo x | cat","env":{"A":"b"},"cwd":"/","user":"root"}`)
	f.Add(`{"id":"proc_a","argv":["/bin/true","a\u0000b"],"pty":{"cols":0,"rows":-1}}`)
	f.Add(`{"command":"A=b 'c d' \"$x\" \\","user":"1:2"}`)
	s := NewServer(Config{Token: "t", Root: f.TempDir()})
	f.Cleanup(s.Close)
	f.Fuzz(func(t *testing.T, body string) {
		var in Start
		if json.Unmarshal([]byte(body), &in) != nil {
			return
		}
		pl, err := s.plan(&in)
		if err != nil {
			if failureOf(err).code == CodeInternal {
				t.Errorf("%q: %v", body, err)
			}
			return
		}
		defer pl.program.close()
		if pl.program.path == "" || len(pl.program.argv) == 0 || pl.cwd == "" {
			t.Errorf("%q is planned as %+v", body, pl)
		}
	})
}

// FuzzTables: what the kernel's files hold, which a program's name is part of, is read without trust.
func FuzzTables(f *testing.F) {
	f.Add([]byte("7 (a) b) S 1 7 7 0"), []byte(gvisorMeminfo))
	f.Add([]byte("7 () R"), []byte("MemTotal: 99999999999999999999 kB\nMemFree: -1 kB\nAnonPages:"))
	f.Fuzz(func(t *testing.T, stat, meminfo []byte) {
		if k, ok := parseTask(7, stat); ok && k.pid != 7 {
			t.Errorf("%q: %+v", stat, k)
		}
		for _, gvisor := range []bool{true, false} {
			if m := parseMemory(meminfo, gvisor); m.total < 0 || m.used < 0 {
				t.Errorf("%q: %+v", meminfo, m)
			}
		}
	})
}

// FuzzAccounts: the tenant writes the account files. A name is never someone else's.
func FuzzAccounts(f *testing.F) {
	f.Add("root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n", "root:x:0:\nwheel:x:10:user\n", "user")
	f.Add("user:x:-1:4294967296::\n::::::\n", "x:x:x:x\n", "1000:10")
	root := f.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o700); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, passwd, group, name string) {
		for file, text := range map[string]string{"passwd": passwd, "group": group} {
			if err := os.WriteFile(filepath.Join(root, "etc", file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		u := newUsers(root)
		a, err := u.lookup(name)
		if err != nil {
			if failureOf(err).code != CodeCannotRun {
				t.Errorf("%q: %v", name, err)
			}
			return
		}
		if a.uid == 0 && name != "root" && name != "" && !strings.Contains(passwd, ":0") && strings.Trim(name, "0:123456789") != "" {
			t.Errorf("%q is root in %q", name, passwd)
		}
	})
}
