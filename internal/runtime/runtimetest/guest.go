package runtimetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// client talks to the guest of one sandbox through the driver's Dial.
type client struct {
	t     *testing.T
	s     *suite
	token string
	http  *http.Client
}

func (s *suite) guest(t *testing.T, spec runtime.Spec) *client {
	t.Helper()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return s.Driver.Dial(ctx, spec.ID, guest.Port)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	return &client{t: t, s: s, token: spec.GuestToken, http: &http.Client{Transport: tr}}
}

// do makes one call and gives the status and body of its answer.
func (c *client) do(method, path string, in any) (int, []byte, error) {
	b, err := json.Marshal(in)
	if err != nil {
		return 0, nil, err
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), c.s.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://guest"+path, bytes.NewReader(b))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set(guest.TokenHeader, c.token)
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}

// hello waits until the guest answers: a sandbox runs a moment before its guest listens.
func (c *client) hello() guest.Hello {
	c.t.Helper()
	deadline, tick := time.After(c.s.Patience), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for {
		code, body, err := c.do(http.MethodGet, "/hello", nil)
		if err == nil && code == http.StatusOK {
			var h guest.Hello
			if err := json.Unmarshal(body, &h); err != nil || h.Protocol < guest.MinProtocol {
				c.t.Fatalf("the guest says %s: %v", body, err)
			}
			return h
		}
		select {
		case <-tick.C:
		case <-deadline:
			c.t.Fatalf("the guest does not answer: %d %s %v", code, body, err)
		}
	}
}

func (c *client) write(path, text string) {
	c.t.Helper()
	if err := c.tryWrite(path, text); err != nil {
		c.t.Fatalf("write %s: %v", path, err)
	}
}

func (c *client) tryWrite(path, text string) error {
	code, body, err := c.do(http.MethodPost, "/files/write", guest.FileWrite{Path: path, User: "root", Data: []byte(text)})
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("status %d: %s", code, body)
	}
	return err
}

// read gives a file's content, or an error where it cannot be read.
func (c *client) read(path string) (string, error) {
	code, body, err := c.do(http.MethodPost, "/files/read", guest.FileRead{Path: path, User: "root"})
	if err != nil {
		return "", err
	}
	if code != http.StatusOK {
		return "", fmt.Errorf("status %d: %s", code, body)
	}
	var out guest.FileData
	err = json.Unmarshal(body, &out)
	return string(out.Data), err
}

// configure gives the guest what is renewed after each restore.
func (c *client) configure(in guest.Configure) {
	c.t.Helper()
	code, body, err := c.do(http.MethodPost, "/configure", in)
	if err != nil || code != http.StatusOK {
		c.t.Fatalf("configure: %d %s %v", code, body, err)
	}
	if in.Token != "" {
		c.token = in.Token
	}
}

// run starts the harness's program with two words, and waits for its end where it has one.
func (c *client) run(path, word, file string) {
	c.t.Helper()
	in := guest.Start{ID: id.New("proc"), Argv: append(slices.Clone(c.s.Program), word, file), Cwd: "/tmp", User: "root"}
	code, body, err := c.do(http.MethodPost, path, in)
	if err != nil || code != http.StatusOK {
		c.t.Fatalf("run %s %s: %d %s %v", word, file, code, body, err)
	}
}

// count starts a process that counts, and waits until it does.
func (c *client) count() {
	c.t.Helper()
	c.run("/processes", "count", "counted")
	c.counted(2)
}

// counted waits until the process that counts has come to a number at least, and gives the last. What it wrote must be all numbers in their order:
// else its memory and the disk are not of one moment.
func (c *client) counted(least int) int {
	c.t.Helper()
	deadline, tick := time.After(c.s.Patience), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for {
		text, err := c.read("/tmp/counted")
		n := 0
		for line := range strings.Lines(text) {
			if !strings.HasSuffix(line, "\n") {
				break // being written
			}
			if n++; line != strconv.Itoa(n)+"\n" {
				c.t.Fatalf("line %d of the count is %q", n, line)
			}
		}
		if n >= least {
			return n
		}
		select {
		case <-tick.C:
		case <-deadline:
			c.t.Fatalf("the count is at %d, %v; want %d", n, err, least)
		}
	}
}

// random gives what a process gets from the kernel at random.
func (c *client) random() string {
	c.t.Helper()
	c.run("/exec", "random", "random")
	text, err := c.read("/tmp/random")
	if err != nil || len(text) < 16 {
		c.t.Fatalf("random bytes: %q, %v", text, err)
	}
	return text
}

// wantFile compares a file's content; an empty one means that there is no such file.
func (c *client) wantFile(path, want string) {
	c.t.Helper()
	got, err := c.read(path)
	if want == "" && err == nil {
		c.t.Errorf("%s is there: %q", path, got)
	}
	if want != "" && (err != nil || got != want) {
		c.t.Errorf("%s = %q, %v; want %q", path, got, err, want)
	}
}
