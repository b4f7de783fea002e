//go:build linux

package guest

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// plainListener gives connections that are no sockets as far as anyone can see.
type plainListener struct{ net.Listener }

func (l plainListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return struct{ net.Conn }{c}, err
}

// Contents come whole over connections that cannot be taken from Go's poller, and where there is no connection to take over at all.
func TestContentWithoutSocket(t *testing.T) {
	r := newRig(t)
	want := noise(3<<20 + 5)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: r.server.Handler()}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(plainListener{l}) })
	defer wg.Wait()
	defer srv.Close()
	r.addr = l.Addr().String()
	if w, err := r.PutContent(t.Context(), ContentPut{Path: r.path("file"), Length: int64(len(want))}, bytes.NewReader(want)); err != nil || w.SHA256 != hashOf(want) {
		t.Fatalf("%+v, %v", w, err)
	}
	c, err := r.Content(t.Context(), ContentQuery{Path: r.path("file"), Offset: 1, Length: -1})
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	_ = c.Close()
	if err != nil || !bytes.Equal(got, want[1:]) {
		t.Errorf("%d bytes came, %v", len(got), err)
	}

	ask := func(method string, body io.Reader) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		req := httptest.NewRequestWithContext(t.Context(), method, "/files/content?path="+r.path("other"), body)
		req.Header.Set(TokenHeader, testToken)
		r.server.Handler().ServeHTTP(w, req)
		return w
	}
	if w := ask(http.MethodPut, bytes.NewReader(want)); w.Code != http.StatusOK {
		t.Fatalf("put: %d %s", w.Code, w.Body)
	}
	if w := ask(http.MethodGet, nil); w.Code != http.StatusOK || !bytes.Equal(w.Body.Bytes(), want) {
		t.Errorf("get: %d, %d bytes", w.Code, w.Body.Len())
	}
}

// What refuses an upload in the middle is told, though the host is still sending.
func TestContentDiskFull(t *testing.T) {
	r := newRig(t)
	if err := errors.Join(os.Mkdir(r.path("small"), 0o755), syscall.Mount("none", r.path("small"), "tmpfs", 0, "size=2m")); err != nil {
		t.Fatal(err)
	}
	defer syscall.Unmount(r.path("small"), 0) //nolint:errcheck // the test has failed before
	for _, length := range []int64{32 << 20, -1} {
		_, err := r.PutContent(t.Context(), ContentPut{Path: r.path("small/file"), Length: length}, bytes.NewReader(noise(32<<20)))
		wantCode(t, err, errs.LimitExceeded, "disk_full")
		if got := left(t, r.path("small")); len(got) > 0 {
			t.Errorf("left: %q", got)
		}
	}
}

// A guest that ends breaks contents off that wait for the host, in either direction.
func TestContentEndsWithTheGuest(t *testing.T) {
	r := newRig(t)
	g := NewServer(Config{Token: testToken})
	srv := httptest.NewServer(g.Handler())
	defer srv.Close()
	r.addr = srv.Listener.Addr().String()
	if err := os.WriteFile(r.path("file"), noise(32<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	before := strings.Join(left(t, r.root), " ")
	down, err := r.Content(t.Context(), ContentQuery{Path: r.path("file"), Length: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer down.Close()
	body, more := io.Pipe()
	defer more.Close()
	up := make(chan error, 1)
	go func() {
		_, err := r.PutContent(t.Context(), ContentPut{Path: r.path("new"), Length: 32 << 20}, body)
		up <- err
	}()
	if _, err := more.Write(noise(2 << 20)); err != nil {
		t.Fatal(err)
	}
	moving := func() int {
		g.contents.mu.Lock()
		defer g.contents.mu.Unlock()
		return len(g.contents.open)
	}
	for end := time.Now().Add(10 * time.Second); moving() != 2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d contents are on their way", moving())
		}
	}
	g.Close()
	if n, err := io.Copy(io.Discard, down); err == nil {
		t.Errorf("the download ended well, with %d bytes", n)
	}
	for end := time.Now().Add(10 * time.Second); moving() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d contents are still open", moving())
		}
	}
	_ = more.Close() // the host's side of HTTP waits for the body, too
	if err := <-up; err == nil {
		t.Error("the upload ended well")
	}
	if got := strings.Join(left(t, r.root), " "); got != before {
		t.Errorf("left: %q", got)
	}
}
