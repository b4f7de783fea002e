package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// soak is many clients that use one server for a long time, as agents do and as they should not, over HTTP and MCP.
type soak struct {
	s       *server
	clients int
	long    time.Duration
	pause   time.Duration // of a client between two calls, in the mean
	began   time.Time

	mu      sync.Mutex
	took    map[string][]time.Duration // by operation
	faults  map[string]int             // of what should have succeeded, by operation and code
	samples []sample
	before  map[string]float64 // of the server that nobody uses
	after   map[string]float64 // when all had left
}

const (
	warmUp = 5 // the first part of a soak, one of so many, is not judged
	// restFor is how long at most is waited for what is kept for a minute to be gone once all clients have left.
	restFor = 2 * time.Minute
)

// runSoak soaks, and gives a report and whether everything stayed flat.
func (b *bench) runSoak(ctx context.Context, s *server) (string, bool, error) {
	k := &soak{s: s, clients: b.soakClients, long: b.soak, pause: b.pause, began: time.Now(), took: map[string][]time.Duration{}, faults: map[string]int{}}
	k.before = s.readings()
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, b.soak)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { k.sample(ctx) })
	var failed error
	var once sync.Mutex
	for n := range k.clients {
		wg.Go(func() {
			if err := k.client(ctx, n); err != nil && ctx.Err() == nil {
				once.Lock()
				failed = errors.Join(failed, fmt.Errorf("client %d: %w", n, err))
				once.Unlock()
				cancel()
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return "", false, failed
	}
	if err := k.rest(whole); err != nil {
		return "", false, err
	}
	text, flat := k.report()
	if b.series != "" {
		if err := os.WriteFile(b.series, []byte(series(k.samples)), 0o644); err != nil { //nolint:gosec // figures for everybody
			return "", false, err
		}
	}
	return text, flat, nil
}

// rest deletes what clients left, such as a sandbox whose creation they did not wait for, and waits until nothing is left of them.
func (k *soak) rest(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, restFor)
	defer cancel()
	for {
		status, answer, err := k.s.http(ctx, "GET", "sandboxes?limit=100", nil)
		var all struct{ Items []struct{ ID string } }
		if err == nil && status == http.StatusOK {
			err = json.Unmarshal(answer, &all)
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("list what is left: %w", err)
		}
		for _, sb := range all.Items {
			_, _, _ = k.s.http(ctx, "DELETE", "sandboxes/"+sb.ID, nil)
		}
		k.after = k.s.readings()
		if tidy(k.before, k.after) || !pause(ctx, 5*time.Second) {
			return nil
		}
	}
}

// client is one of them: it has a sandbox of its own, which it makes anew now and then. Odd ones speak MCP, even ones HTTP.
func (k *soak) client(ctx context.Context, n int) error {
	c := &soaker{soak: k, rnd: rand.New(rand.NewPCG(uint64(n), 7))} //nolint:gosec // a mix, no secret
	if n%2 == 1 {
		session, err := k.s.connect(ctx)
		if err != nil {
			return err
		}
		defer session.Close() //nolint:errcheck // it ends
		c.session = session
	}
	defer func() {
		if c.sandbox != "" {
			end, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			_ = c.do(end, "sandboxes.delete", "DELETE", "sandboxes/"+c.sandbox, nil, nil)
		}
	}()
	// They do not all begin at once.
	if !pause(ctx, time.Duration(n)*k.long/time.Duration(20*k.clients)) {
		return nil
	}
	for ctx.Err() == nil {
		c.step(ctx)
		if !pause(ctx, time.Duration(c.rnd.Int64N(int64(2*k.pause)))) {
			return nil
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// soaker is what one client knows.
type soaker struct {
	*soak
	rnd     *rand.Rand
	session *mcp.ClientSession // nil: over HTTP
	sandbox string
	steps   int
	broken  bool // its sandbox is of no use any more
}

// step is the next thing that it does.
func (c *soaker) step(ctx context.Context) {
	if c.sandbox == "" {
		var out sandboxOut
		if c.call(ctx, "sandboxes.create", "create_sandbox", "POST", "sandboxes", map[string]any{"resources": map[string]any{"memoryMiB": 128, "vcpu": 0.5}}, &out) == nil {
			c.sandbox, c.steps = out.Sandbox.ID, 0
		}
		return
	}
	at := "sandboxes/" + c.sandbox
	if c.broken {
		_ = c.do(ctx, "sandboxes.delete", "DELETE", at, nil, nil)
		c.sandbox, c.broken = "", false
		return
	}
	id := map[string]any{"sandboxId": c.sandbox}
	with := func(more map[string]any) map[string]any {
		for key, v := range id {
			if c.session != nil {
				more[key] = v
			}
		}
		return more
	}
	c.steps++
	switch p := c.rnd.IntN(100); {
	case c.steps > 40 && p < 20:
		_ = c.call(ctx, "sandboxes.delete", "delete_sandbox", "DELETE", at, with(map[string]any{}), nil)
		c.sandbox = ""
	case p < 30:
		_ = c.call(ctx, "sandboxes.exec", "run_command", "POST", at+"/exec", with(map[string]any{"command": "echo soaked | cat"}), nil)
	case p < 42:
		data := strings.Repeat("0123456789abcdef", 1<<c.rnd.IntN(12))
		_ = c.call(ctx, "files.write", "write_file", "POST", at+"/files/write", with(map[string]any{"path": fmt.Sprintf("f%d", c.rnd.IntN(20)), "data": data}), nil)
	case p < 52:
		_ = c.call(ctx, "files.list", "list_files", "GET", at+"/files/list", with(map[string]any{}), nil)
	case p < 62:
		_ = c.call(ctx, "sandboxes.get", "get_sandbox", "GET", at, with(map[string]any{}), nil)
	case p < 70:
		_ = c.call(ctx, "sandboxes.list", "list_sandboxes", "GET", "sandboxes", map[string]any{}, nil)
	case p < 78:
		_ = c.call(ctx, "processes.start", "start_process", "POST", at+"/processes", with(map[string]any{"command": "seq 2000; sleep 2"}), nil)
	case p < 84:
		_ = c.call(ctx, "processes.list", "list_processes", "GET", at+"/processes", with(map[string]any{}), nil)
	case p < 90:
		c.misbehave(ctx, at)
	case p < 94:
		c.leave(ctx, at)
	case p < 96:
		if c.call(ctx, "sandboxes.stop", "stop_sandbox", "POST", at+"/stop", with(map[string]any{}), nil) == nil {
			_ = c.call(ctx, "sandboxes.start", "start_sandbox", "POST", at+"/start", with(map[string]any{}), nil)
		}
	default:
		_ = c.call(ctx, "tools/list", "", "GET", "sandboxes", map[string]any{}, nil)
	}
}

// misbehave sends what has to be refused.
func (c *soaker) misbehave(ctx context.Context, at string) {
	for _, in := range [][3]string{
		{"POST", at + "/exec", `{"command":`},
		{"POST", at + "/exec", `{"comand":"x"}`},
		{"GET", "sandboxes/sbx_nothing", ""},
		{"POST", at + "/files/write", `{"path":"\u0000","data":"x"}`},
		{"DELETE", "nowhere", ""},
		{"GET", "sandboxes?cursor=garbage", ""},
	} {
		status, _, err := c.s.http(ctx, in[0], in[1], []byte(in[2]))
		if err == nil && (status < 400 || status >= 500) {
			c.fault("bad input", fmt.Sprint(status))
		}
	}
}

// leave begins a call and goes away.
func (c *soaker) leave(ctx context.Context, at string) {
	short, cancel := context.WithTimeout(ctx, time.Duration(c.rnd.Int64N(int64(300*time.Millisecond))))
	defer cancel()
	_, _, _ = c.s.http(short, "POST", at+"/exec", []byte(`{"command":"sleep 3","timeoutSeconds":5}`))
	if conn, err := net.Dial("tcp", strings.TrimPrefix(c.s.url, "http://")); err == nil {
		_, _ = io.WriteString(conn, "POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
		_ = conn.Close()
	}
}

// call makes one call by the client's own face and takes its time.
func (c *soaker) call(ctx context.Context, name, tool, method, path string, args map[string]any, out any) error {
	err := c.by(ctx, name, tool, method, path, args, out)
	if err != nil && c.sandbox != "" {
		code := codeIn(err.Error())
		c.broken = code == "UPSTREAM_ERROR" || code == "INVALID_STATE" // it did not boot, on a machine that has too much to do
	}
	return err
}

func (c *soaker) by(ctx context.Context, name, tool, method, path string, args map[string]any, out any) error {
	if c.session == nil {
		return c.do(ctx, name, method, path, args, out)
	}
	begun := time.Now()
	var err error
	if tool == "" {
		_, err = c.session.ListTools(ctx, nil)
	} else {
		err = callTool(ctx, c.session, tool, args, out)
	}
	return c.took1(ctx, name+" (MCP)", begun, err)
}

func (c *soaker) do(ctx context.Context, name, method, path string, args map[string]any, out any) error {
	var body []byte
	if method == "POST" {
		body, _ = json.Marshal(args)
	}
	begun := time.Now()
	status, answer, err := c.s.http(ctx, method, path, body)
	if err == nil && status >= 300 {
		err = fmt.Errorf("%d %s", status, answer)
	}
	if err == nil && out != nil {
		err = json.Unmarshal(answer, out)
	}
	return c.took1(ctx, name, begun, err)
}

// took1 keeps how long a call took, or that it failed. What the end of the soak cut off counts as neither.
func (k *soak) took1(ctx context.Context, name string, begun time.Time, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		k.fault(name, codeIn(err.Error()))
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.took[name] = append(k.took[name], time.Since(begun))
	return nil
}

func (k *soak) fault(name, code string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.faults[name+" "+code]++
}

// codeIn finds the error code in a text.
func codeIn(text string) string {
	if _, rest, ok := strings.Cut(text, `"code":"`); ok {
		code, _, _ := strings.Cut(rest, `"`)
		return code
	}
	if _, rest, ok := strings.Cut(text, `\"code\":\"`); ok {
		code, _, _ := strings.Cut(rest, `\"`)
		return code
	}
	return text[:min(len(text), 80)]
}

// report says how long everything took and what grew.
func (k *soak) report() (string, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var t strings.Builder
	var loads []float64
	for _, s := range k.samples {
		loads = append(loads, s.values[loadReading])
	}
	slices.Sort(loads)
	fmt.Fprintf(&t, "## Soak: %d clients for %s\n\nOn %d cores; load average %.1f in the median, %.1f at most.\n\n| operation | calls | p50 | p99 |\n|---|---|---|---|\n", k.clients, k.long,
		runtime.NumCPU(), loads[len(loads)/2], loads[len(loads)-1])
	names := make([]string, 0, len(k.took))
	for name := range k.took {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		d := k.took[name]
		fmt.Fprintf(&t, "| %s | %d | %s | %s |\n", name, len(d), at(d, 50).Round(time.Millisecond), at(d, 99).Round(time.Millisecond))
	}
	t.WriteString("\n")
	if len(k.faults) == 0 {
		t.WriteString("No call failed that should have succeeded.\n")
	}
	for what, n := range k.faults {
		fmt.Fprintf(&t, "- failed %d times: %s\n", n, what)
	}
	text, flat := judge(k.samples, k.long, k.before, k.after)
	return t.String() + "\n" + text, flat
}

// http makes one call and reads its answer.
func (s *server) http(ctx context.Context, method, path string, body []byte) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.url+"/v1/"+path, strings.NewReader(string(body)))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := (&http.Client{Transport: bearer(s.key)}).Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, 8<<20))
	return res.StatusCode, answer, err
}

// soakAlone serves, soaks and reports.
func (b *bench) soakAlone(ctx context.Context) error {
	// What is kept for its time is kept for a minute: what grows then is not kept, but forgotten.
	s, err := b.serve(ctx, "--calls-in-flight", "1000", "--keep-deleted-seconds", "60", "--keep-event-seconds", "60", "--keep-audit-seconds", "60")
	if err != nil {
		return err
	}
	defer s.stop()
	text, flat, err := b.runSoak(ctx, s)
	if err != nil {
		return err
	}
	fmt.Print(text)
	if b.out != "" {
		if err := os.WriteFile(b.out, []byte(text), 0o644); err != nil { //nolint:gosec // a report for everybody
			return err
		}
	}
	if !flat {
		return errors.New("something grew, or the soak was too short to tell")
	}
	return nil
}
