package guest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// TestBegin has many calls at once wait for what the guest is told first; what could not be told fails a call and is tried again by the next.
func TestBegin(t *testing.T) {
	var mu sync.Mutex
	var paths []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		paths = append(paths, r.URL.Path)
		mu.Unlock()
		_, _ = w.Write([]byte(`{"last":"2026-01-02T03:04:05Z"}`))
	}))
	defer srv.Close()
	c := NewClient(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", srv.Listener.Addr().String())
	}, func() string { return "token" })
	defer c.Close()
	broken, asked := errors.New("no row"), 0
	c.Begin(func(context.Context) (*Configure, error) {
		if asked++; asked == 1 {
			return nil, broken
		}
		return &Configure{Hostname: "mine"}, nil
	})
	if _, err := c.Activity(t.Context()); !errors.Is(err, broken) {
		t.Fatalf("the first call: %v", err)
	}
	if len(paths) != 0 {
		t.Fatalf("asked before the guest was told: %v", paths)
	}
	var calls sync.WaitGroup
	for i := range 8 {
		calls.Go(func() {
			var err error
			if i%2 == 0 {
				_, err = c.Activity(t.Context())
			} else {
				_, err = c.Configure(t.Context(), Configure{})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	if asked != 2 || len(paths) != 9 || paths[0] != "/configure" {
		t.Errorf("what it is told was asked for %d times; calls: %v", asked, paths)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	fresh := NewClient(c.dial, c.token)
	fresh.Begin(func(context.Context) (*Configure, error) { return nil, nil })
	fresh.first.turn <- struct{}{} // somebody tells it, and does not come to an end
	if err := fresh.Begun(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("a call that gave up: %v", err)
	}
}
