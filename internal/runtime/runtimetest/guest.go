package runtimetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/guest"
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
	code, body, err := c.do(http.MethodPost, "/files/write", guest.FileWrite{Path: path, User: "root", Data: []byte(text)})
	if err != nil || code != http.StatusOK {
		c.t.Fatalf("write %s: %d %s %v", path, code, body, err)
	}
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
