package bootstrap

import (
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
)

func TestParseOneLine(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []Source
	}{
		{"plain", "deb http://m.test/debian bookworm main contrib\n", []Source{{URI: "http://m.test/debian", Suite: "bookworm", Components: []string{"main", "contrib"}}}},
		{
			"options that choose are dropped, those that trust are kept", "deb [ arch=amd64 signed-by=/k.gpg ] http://m.test/debian bookworm main",
			[]Source{{URI: "http://m.test/debian", Suite: "bookworm", Components: []string{"main"}, Options: []string{"signed-by=/k.gpg"}}},
		},
		{"option without a blank", "deb [trusted=yes] file:/srv/debian sid main", []Source{{URI: "file:/srv/debian", Suite: "sid", Components: []string{"main"}, Options: []string{"trusted=yes"}}}},
		{"comment after it", "deb http://m.test/debian sid main # the rest", []Source{{URI: "http://m.test/debian", Suite: "sid", Components: []string{"main"}}}},
		{"commented out", "# deb http://m.test/debian sid main\n", nil},
		{"sources of packages", "deb-src http://m.test/debian sid main\n", nil},
		{"a disc", "deb cdrom:[Debian]/ bookworm main\n", nil},
		{"flat", "deb http://m.test/debian ./ \n", nil},
		{"flat with component", "deb http://m.test/debian stable/ main\n", nil},
		{"unclosed option", "deb [trusted=yes http://m.test/debian sid main\n", nil},
		{"no component", "deb http://m.test/debian sid\n", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, parseOneLine([]byte(tt.text))); diff != "" {
				t.Errorf("parseOneLine (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseDeb822(t *testing.T) {
	one := func(uri, suite string, opts ...string) Source {
		return Source{URI: uri, Suite: suite, Components: []string{"main"}, Options: opts}
	}
	for _, tt := range []struct {
		name, text string
		want       []Source
	}{
		{
			"two suites, comment inside", "Types: deb\n# a note\nURIs: http://m.test/debian\nSuites: bookworm bookworm-updates\nComponents: main\nSigned-By: /k.gpg\n",
			[]Source{one("http://m.test/debian", "bookworm", "signed-by=/k.gpg"), one("http://m.test/debian", "bookworm-updates", "signed-by=/k.gpg")},
		},
		{
			"two stanzas, one off", "Types: deb\nURIs: http://a.test\nSuites: s\nComponents: main\n\nEnabled: no\nTypes: deb\nURIs: http://b.test\nSuites: s\nComponents: main\n",
			[]Source{one("http://a.test", "s")},
		},
		{"names in any case, both types", "types: deb deb-src\nuris: http://a.test\nSUITES: s\ncomponents: main\n", []Source{one("http://a.test", "s")}},
		{"source packages only", "Types: deb-src\nURIs: http://a.test\nSuites: s\nComponents: main\n", nil},
		{
			"a written key leaves the distribution's keyring", "Types: deb\nURIs: http://a.test\nSuites: s\nComponents: main\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mDM\n",
			[]Source{one("http://a.test", "s")},
		},
		{"values on more lines", "Types: deb\nURIs:\n http://a.test\n http://b.test\nSuites: s\nComponents: main\n", []Source{one("http://a.test", "s"), one("http://b.test", "s")}},
		{"several keys", "Types: deb\nURIs: http://a.test\nSuites: s\nComponents: main\nSigned-By: /a.gpg, /b.gpg\n", []Source{one("http://a.test", "s", "signed-by=/a.gpg,/b.gpg")}},
		{"continuation of nothing", " lost\n\n lost\nTypes deb\n", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, parseDeb822([]byte(tt.text))); diff != "" {
				t.Errorf("parseDeb822 (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSelectSources(t *testing.T) {
	const mirror, security = "http://m.test/debian", "http://m.test/debian-security"
	keyring := "signed-by=/usr/share/keyrings/debian-archive-keyring.gpg"
	for _, tt := range []struct {
		name                string
		distribution, suite string
		lines               string
		want                []string
		wantErr             errs.Code
	}{
		{
			name: "release, updates, security; main only; strangers left out", distribution: "debian", suite: "bookworm",
			lines: "deb " + mirror + " bookworm main contrib\n" +
				"deb " + mirror + " bookworm-updates main\n" +
				"deb " + mirror + " bookworm-backports main\n" +
				"deb [" + keyring + "] " + security + " bookworm-security main\n" +
				"deb [signed-by=/etc/apt/keyrings/docker.gpg] http://d.test/linux/debian bookworm stable\n" +
				"deb [signed-by=/usr/share/keyrings/other-archive-keyring.gpg] http://o.test bookworm main\n" +
				"deb http://p.test bookworm main\n" +
				"deb " + mirror + " bookworm main\n",
			want: []string{"deb " + mirror + " bookworm main", "deb " + mirror + " bookworm-updates main", "deb [" + keyring + "] " + security + " bookworm-security main"},
		},
		{
			name: "old layout of security", distribution: "debian", suite: "buster", lines: "deb " + mirror + " buster main\ndeb http://s.test buster/updates main\n",
			want: []string{"deb " + mirror + " buster main", "deb http://s.test buster/updates main"},
		},
		{
			name: "ubuntu's packages are in universe too", distribution: "ubuntu", suite: "noble",
			lines: "deb http://m.test/ubuntu noble main restricted universe multiverse\ndeb http://m.test/ubuntu-ports noble-security main\n",
			want:  []string{"deb http://m.test/ubuntu noble main universe", "deb http://m.test/ubuntu-ports noble-security main"},
		},
		{name: "a moving name", distribution: "debian", suite: "forky", lines: "deb " + mirror + " sid main\n", want: []string{"deb " + mirror + " sid main"}},
		{name: "updates alone bootstrap nothing", distribution: "debian", suite: "bookworm", lines: "deb " + mirror + " bookworm-updates main\n", wantErr: errs.InvalidConfig},
		{name: "another release", distribution: "debian", suite: "trixie", lines: "deb " + mirror + " bookworm main\n", wantErr: errs.InvalidConfig},
		{name: "none", distribution: "debian", suite: "bookworm", wantErr: errs.InvalidConfig},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := selectSources(parseOneLine([]byte(tt.lines)), tt.distribution, tt.suite)
			if errs.CodeOf(err) != tt.wantErr {
				t.Fatalf("selectSources: error %v, want code %q", err, tt.wantErr)
			}
			var lines []string
			for _, s := range got {
				lines = append(lines, s.String())
			}
			if diff := cmp.Diff(tt.want, lines); diff != "" {
				t.Errorf("selectSources (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNewHost(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	debian := "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_CODENAME=bookworm\nID=debian\n"
	for _, tt := range []struct {
		name    string
		root    fstest.MapFS
		want    host
		wantErr errs.Code
	}{
		{
			name: "all files in order, mirrors in a file resolved, other files left alone",
			root: fstest.MapFS{
				"etc/os-release":                        file(debian),
				"etc/apt/sources.list":                  file("deb http://a.test/debian bookworm main\n"),
				"etc/apt/sources.list.d/debian.sources": file("Types: deb\nURIs: mirror+file:///etc/apt/mirrors/debian.list\nSuites: bookworm\nComponents: main\n"),
				"etc/apt/sources.list.d/b.list":         file("deb http://b.test/debian bookworm main\n"),
				"etc/apt/sources.list.d/c.list.save":    file("deb http://c.test/debian bookworm main\n"),
				"etc/apt/mirrors/debian.list":           file("# nearest first\nhttp://near.test/debian priority:1\nhttp://far.test/debian\n"),
			},
			want: host{id: "debian", codename: "bookworm", sources: []Source{
				{URI: "http://a.test/debian", Suite: "bookworm", Components: []string{"main"}},
				{URI: "http://b.test/debian", Suite: "bookworm", Components: []string{"main"}},
				{URI: "http://near.test/debian", Suite: "bookworm", Components: []string{"main"}},
			}},
		},
		{name: "the other place of os-release", root: fstest.MapFS{"usr/lib/os-release": file("ID='ubuntu'\nVERSION_CODENAME=noble\n")}, want: host{id: "ubuntu", codename: "noble"}},
		{name: "another distribution", root: fstest.MapFS{"etc/os-release": file("ID=fedora\n")}, wantErr: errs.InvalidConfig},
		{name: "no os-release", root: fstest.MapFS{}, wantErr: errs.InvalidConfig},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := newHost(tt.root)
			if errs.CodeOf(err) != tt.wantErr {
				t.Fatalf("newHost: error %v, want code %q", err, tt.wantErr)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(host{})); diff != "" {
				t.Errorf("newHost (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAptSettings(t *testing.T) {
	dump := "APT \"\";\nAcquire::Check-Date \"false\";\nAcquire::http::Proxy \"http://u:p@proxy.test:3128\";\nAcquire::https::Proxy \"\";\nAcquire::Languages \"none\";\nAPT::Install-Recommends \"1\";\n"
	during, kept := aptSettings([]byte(dump))
	if diff := cmp.Diff([]string{`Acquire::Check-Date "false";`, `Acquire::http::Proxy "http://u:p@proxy.test:3128";`}, during); diff != "" {
		t.Errorf("settings while bootstrapping (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{`Acquire::Check-Date "false";`}, kept); diff != "" {
		t.Errorf("settings left in the image (-want +got):\n%s", diff)
	}
}

func FuzzSources(f *testing.F) {
	f.Add([]byte("deb [signed-by=/k.gpg] http://m.test/debian bookworm main # x\n"))
	f.Add([]byte("Types: deb\nURIs: http://m.test/debian\nSuites: a b\nComponents: main\nSigned-By:\n -----BEGIN PGP\n\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, s := range append(parseOneLine(data), parseDeb822(data)...) {
			again := parseOneLine([]byte(s.String() + "\n"))
			for _, a := range again {
				if len(again) != 1 || a.Suite == "" || len(a.Components) == 0 {
					t.Errorf("source %+v reads back as %+v", s, again)
				}
			}
		}
	})
}
