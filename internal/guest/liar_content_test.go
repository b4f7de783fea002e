//go:build linux

package guest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// contentLiar is a client whose guest can do contents and answers them as a test says.
func contentLiar(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	return liar(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hello" {
			_ = json.NewEncoder(w).Encode(Hello{Protocol: Protocol, MinProtocol: MinProtocol, Features: []string{FeatureContent}})
			return
		}
		h(w, r)
	})
}

// What a guest says of a content has to fit to itself, to what was asked for and to the bytes that come: nothing else is passed on.
func TestContentLies(t *testing.T) {
	const folder = `"name":"f","path":"/d/f","type":"directory","size":3,"mode":"0755","user":"root","group":"root","modifiedAt":"2026-11-01T00:00:00Z","etag":"e"`
	say := func(info string, offset, length int) string {
		return base64.StdEncoding.EncodeToString(fmt.Appendf(nil, `{"info":{%s},"offset":%d,"length":%d}`, info, offset, length))
	}
	whole := ContentQuery{Path: "/d/f", Length: -1}
	part := ContentQuery{Path: "/d/f", Offset: 1, Length: 1}
	end := ContentQuery{Path: "/d/f", Offset: -2, Length: -1}
	beyond := ContentQuery{Path: "/d/f", Offset: 9, Length: 4}
	packed := ContentQuery{Path: "/d/f", Length: -1, Tar: true}
	for name, tt := range map[string]struct {
		ask  ContentQuery
		head string
		body string // of its own length, or without one where it ends in …
		good bool
	}{
		"the whole":         {whole, say(goodFile, 0, 3), "abc", true},
		"a part":            {part, say(goodFile, 1, 1), "b", true},
		"the end":           {end, say(goodFile, 1, 2), "bc", true},
		"beyond the end":    {beyond, say(goodFile, 9, 0), "", true},
		"a folder":          {packed, say(folder, 0, -1), "tar…", true},
		"no description":    {whole, "", "abc", false},
		"not base64":        {whole, "{}", "abc", false},
		"not JSON":          {whole, base64.StdEncoding.EncodeToString([]byte("info")), "abc", false},
		"another file":      {whole, say(strings.ReplaceAll(goodFile, "/d/f", "/e/f"), 0, 3), "abc", false},
		"a negative size":   {whole, say(strings.Replace(goodFile, `"size":3`, `"size":-3`, 1), 0, 3), "abc", false},
		"an absurd size":    {whole, say(strings.Replace(goodFile, `"size":3`, `"size":9223372036854775807`, 1), 0, 3), "abc", false},
		"a folder as file":  {whole, say(folder, 0, 3), "abc", false},
		"a pipe":            {whole, say(strings.Replace(goodFile, `"type":"file"`, `"type":"other"`, 1), 0, 3), "abc", false},
		"less than there":   {whole, say(goodFile, 0, 2), "ab", false},
		"more than there":   {whole, say(goodFile, 0, 4), "abcd", false},
		"no length":         {whole, say(goodFile, 0, -1), "abc…", false},
		"another offset":    {part, say(goodFile, 0, 1), "a", false},
		"more than asked":   {part, say(goodFile, 1, 2), "bc", false},
		"another end":       {end, say(goodFile, 2, 1), "c", false},
		"bytes of nothing":  {beyond, say(goodFile, 9, 4), "abcd", false},
		"a shorter body":    {whole, say(goodFile, 0, 3), "ab", false},
		"a longer body":     {whole, say(goodFile, 0, 3), "abcd", false},
		"an endless body":   {whole, say(goodFile, 0, 3), "abc…", false},
		"a file as folder":  {packed, say(goodFile, 0, -1), "tar…", false},
		"a folder's length": {packed, say(folder, 0, 3), "tar", false},
	} {
		t.Run(name, func(t *testing.T) {
			c := contentLiar(t, func(w http.ResponseWriter, _ *http.Request) {
				body, open := strings.CutSuffix(tt.body, "…")
				w.Header().Set(ContentHeader, tt.head)
				if !open {
					w.Header().Set("Content-Length", fmt.Sprint(len(body)))
				}
				_, _ = io.WriteString(w, body)
				_ = http.NewResponseController(w).Flush()
			})
			got, err := c.Content(t.Context(), tt.ask)
			if !tt.good {
				wantCode(t, err, errs.Upstream, "guest_protocol")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer got.Close()
			b, err := io.ReadAll(got)
			if want := strings.TrimSuffix(tt.body, "…"); err != nil || string(b) != want {
				t.Errorf("got %q, %v, want %q", b, err, want)
			}
		})
	}
}

// A body that breaks off is an error, never a shorter content.
func TestContentLiesBreakOff(t *testing.T) {
	c := contentLiar(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(ContentHeader, base64.StdEncoding.EncodeToString([]byte(`{"info":{`+goodFile+`},"offset":0,"length":3}`)))
		w.Header().Set("Content-Length", "3")
		_, _ = io.WriteString(w, "ab")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	got, err := c.Content(t.Context(), ContentQuery{Path: "/d/f", Length: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	b, err := io.ReadAll(got)
	wantCode(t, err, errs.Unavailable, "guest_unresponsive")
	if string(b) != "ab" {
		t.Errorf("before it broke off: %q", b)
	}
}

// What a guest says of a content that it was sent has to be what was sent.
func TestPutContentLies(t *testing.T) {
	file := ContentPut{Path: "/d/f", Length: 3}
	packed := ContentPut{Path: "/d/f", Length: 3, Tar: true}
	folder := strings.Replace(goodFile, `"type":"file"`, `"type":"directory"`, 1)
	for name, tt := range map[string]struct {
		put    ContentPut
		answer string
		good   bool
	}{
		"a file":           {file, `{"info":{` + goodFile + `},"bytes":3}`, true},
		"a folder":         {packed, `{"info":{` + folder + `},"bytes":2,"entries":1}`, true},
		"nothing":          {file, "", false},
		"not JSON":         {file, "stored", false},
		"another file":     {file, `{"info":{` + strings.ReplaceAll(goodFile, "/d/f", "/e/f") + `},"bytes":3}`, false},
		"less":             {file, `{"info":{` + goodFile + `},"bytes":2}`, false},
		"more":             {file, `{"info":{` + goodFile + `},"bytes":4}`, false},
		"a file as folder": {packed, `{"info":{` + goodFile + `},"bytes":2,"entries":1}`, false},
		"more than came":   {packed, `{"info":{` + folder + `},"bytes":4,"entries":1}`, false},
		"negative bytes":   {packed, `{"info":{` + folder + `},"bytes":-1,"entries":1}`, false},
		"negative entries": {packed, `{"info":{` + folder + `},"bytes":2,"entries":-1}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := contentLiar(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = io.WriteString(w, tt.answer)
			})
			out, err := c.PutContent(t.Context(), tt.put, strings.NewReader("abc"))
			if !tt.good {
				wantCode(t, err, errs.Upstream, "guest_protocol")
			} else if err != nil || !tt.put.Tar && out.SHA256 != hashOf([]byte("abc")) {
				t.Errorf("%+v, %v", out, err)
			}
		})
	}
}
