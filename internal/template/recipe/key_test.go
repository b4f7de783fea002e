package recipe

import (
	"strings"
	"testing"
)

func only(t *testing.T, text string, args map[string]string) (keys []string) {
	t.Helper()
	r, err := Parse(text, Options{Args: args})
	if err != nil {
		t.Fatal(err)
	}
	key := BaseKey(FromImage, "sha256:1")
	for w := r.Walk(len(r.Stages)-1, Config{}); ; {
		a, more, err := w.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			return keys
		}
		if a.Layer() {
			key = a.Key(key, "content")
			keys = append(keys, key)
		} else if a.Key(key, "") != key {
			t.Errorf("%s has a key of its own and no layer", a.Title)
		}
	}
}

// TestKeyTellsApart: what makes another result has another key, from that step on.
func TestKeyTellsApart(t *testing.T) {
	seen := map[string]string{}
	for _, text := range []string{
		`RUN ["a b"]`, `RUN ["a", "b"]`, `RUN ["a", "", "b"]`, `RUN ["ab"]`, "RUN a b", "RUN a  b", `RUN ["/bin/sh -c", "a b"]`,
		"ENV A=1\nRUN a b", "ENV A=2\nRUN a b", "ENV A=1 B=2\nRUN a b", "ENV A1=\nRUN a b", "ARG A=3\nRUN a b", "USER www\nRUN a b", "SHELL [\"bash\"]\nRUN a b",
		"RUN <<EOF\n#!/bin/sh\na b\nEOF", "RUN <<EOF\n#!/bin/sh\na c\nEOF",
		"COPY a b", "COPY a b/", "COPY a c", "COPY a b c/", `COPY ["a b", "c/"]`, "COPY --chown=1 a b", "COPY --chmod=644 a b", "COPY --chmod=0 a b", "COPY --exclude=x a b", "COPY --parents a b",
		"WORKDIR /a", "WORKDIR /b", "USER www\nWORKDIR /a", "ADD a b", "COPY <<a b\nEOF\na", "COPY <<a b\nEOF2\na",
	} {
		keys := only(t, "FROM x\n"+text, nil)
		k := keys[len(keys)-1]
		if other, ok := seen[k]; ok {
			t.Errorf("%q and %q have one key", text, other)
		}
		seen[k] = text
	}
	a, b := only(t, "FROM x\nRUN 1\nRUN 2\nRUN 3", nil), only(t, "FROM x\nRUN 1\nRUN two\nRUN 3", nil)
	if a[0] != b[0] || a[1] == b[1] || a[2] == b[2] {
		t.Error("a changed step does not change its key and those that follow, and no other")
	}
	put := Action{Put: &Put{Dest: "/x"}}
	if put.Key("p", "one") == put.Key("p", "two") || put.Key("p", "") == put.Key("q", "") {
		t.Error("the content or the parent is not in the key")
	}
	if BaseKey(FromImage, "a") == BaseKey(FromTemplate, "a") || BaseKey(FromImage, "a") == BaseKey(FromImage, "b") {
		t.Error("bases share a key")
	}
}

// TestKeyKeeps: what does not change the result does not change the key.
func TestKeyKeeps(t *testing.T) {
	plain := only(t, "FROM x\nENV A=1 B=2\nRUN go  test && \\\n  true", nil)
	for _, tt := range []struct {
		text string
		args map[string]string
	}{
		{"# a comment\nFROM y AS z\n\n\nENV B=2\nENV A=1\nLABEL a=b\nEXPOSE 80\nCMD x\nENTRYPOINT y\nVOLUME /x\nrun go  test && \\\n  # why\n  true", nil},
		{"FROM x\nENV A=1 B=2\nRUN go  test && \\\n  true", map[string]string{"HTTPS_PROXY": "http://p", "UNSAID": "1"}},
	} {
		if got := only(t, tt.text, tt.args); strings.Join(got, " ") != strings.Join(plain, " ") {
			t.Errorf("%q has other keys", tt.text)
		}
	}
	with := only(t, "FROM x\nARG HTTPS_PROXY\nRUN a", map[string]string{"HTTPS_PROXY": "p"})
	if with[0] == only(t, "FROM x\nARG HTTPS_PROXY\nRUN a", map[string]string{"HTTPS_PROXY": "q"})[0] {
		t.Error("a proxy that an ARG names is not in the key")
	}
}

// FuzzKey: two lists of arguments have one key only where they are the same.
func FuzzKey(f *testing.F) {
	f.Add("a b", "", "a", "b")
	f.Add("a", "b", "a", "b")
	f.Add("\x00\x00\x00\x00\x00\x00\x00\x01", "a", "a", "")
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		one, two := []string{a, b}, []string{c, d}
		k := func(args []string, env []string) string {
			return Action{Exec: &Exec{Argv: args, Env: env}}.Key("", "")
		}
		if same := a == c && b == d; (k(one, nil) == k(two, nil)) != same {
			t.Errorf("%q and %q", one, two)
		}
		if k(one, nil) == k(nil, one) || k(one, nil) == k(one[:1], nil) || k(one, nil) == k(one[:1], one[1:]) {
			t.Errorf("%q: fields run into each other", one)
		}
	})
}
