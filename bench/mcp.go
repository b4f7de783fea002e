package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sync/errgroup"
)

// clients is how many call at the same time, each with a key of its own and a connection of its own.
const clients = 8

// helloFlag makes this program the peer: the SDK's own server with one tool, stateless, answering in JSON.
const helloFlag = "hello-server"

// hello serves until the process is ended. Its address is the first line that it prints.
func hello() error {
	server := mcp.NewServer(&mcp.Implementation{Name: "hello", Version: "1"}, nil)
	type args struct {
		Name string `json:"name"`
	}
	mcp.AddTool(server, &mcp.Tool{Name: "greet", Description: "Says hello."}, func(_ context.Context, _ *mcp.CallToolRequest, a args) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "Hello, " + a.Name}}}, nil, nil
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("http://%s\n", ln.Addr())
	return http.Serve(ln, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true})) //nolint:gosec // a peer on loopback
}

// peer starts the hello server as a process of its own.
func peer() (url string, stop func(), err error) {
	cmd := exec.Command("/proc/self/exe", "-"+helloFlag)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	line := make([]byte, 64)
	n, err := out.Read(line)
	if err != nil {
		stop()
		return "", nil, err
	}
	return string(bytes.TrimSpace(line[:n])), stop, nil
}

// caller calls one endpoint with one key over one connection. It reads each answer whole and checks that it is a result, and no more, so that both
// sides' clients cost the same.
type mcpCaller struct {
	url, key string
	client   *http.Client
}

func newCaller(url, key string) *mcpCaller {
	return &mcpCaller{url, key, &http.Client{Transport: &http.Transport{DisableCompression: true}}}
}

func (c *mcpCaller) post(ctx context.Context, method string, params any) ([]byte, error) {
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Mcp-Protocol-Version", "2025-11-25")
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	res, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK || !bytes.Contains(answer, []byte(`"result":`)) || bytes.Contains(answer, []byte(`"isError":true`)) {
		return nil, fmt.Errorf("%s: %d %.300s", method, res.StatusCode, answer)
	}
	return answer, nil
}

// work is what all callers do for a while. It gives the time of one call: the time that it took divided by the calls that were made in it.
func work(ctx context.Context, callers []*mcpCaller, method string, params any, d time.Duration) (time.Duration, error) {
	g, ctx := errgroup.WithContext(ctx)
	counts := make([]int, len(callers))
	begin := time.Now()
	for i, c := range callers {
		g.Go(func() error {
			for time.Since(begin) < d {
				if _, err := c.post(ctx, method, params); err != nil {
					return err
				}
				counts[i]++
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	total := 0
	for _, n := range counts {
		total += n
	}
	return time.Since(begin) / time.Duration(total), nil
}

// mcp measures reads through MCP beside the SDK's own server, in turns.
func (b *bench) mcp(ctx context.Context, s *server, _ string) error {
	sandbox, err := s.sandbox(ctx, 512)
	if err != nil {
		return err
	}
	defer s.delete(ctx, sandbox) //nolint:errcheck // the server goes too
	url, stop, err := peer()
	if err != nil {
		return err
	}
	defer stop()
	var ours, theirs []*mcpCaller
	for i := range clients {
		key, err := s.makeKey(ctx, fmt.Sprintf("bench-%d", i))
		if err != nil {
			return err
		}
		ours, theirs = append(ours, newCaller(s.mcpURL, key)), append(theirs, newCaller(url, ""))
	}
	call := func(tool string, args map[string]any) map[string]any {
		return map[string]any{"name": tool, "arguments": args}
	}
	for _, row := range []struct {
		what, method    string
		params, thereby any
		peer            string
	}{
		{"`get_sandbox` through MCP", "tools/call", call("get_sandbox", map[string]any{"sandboxId": sandbox}), call("greet", map[string]any{"name": "bench"}), "the SDK's hello server, `greet`"},
		{"`tools/list` through MCP", "tools/list", map[string]any{}, map[string]any{}, "the SDK's hello server, one tool"},
	} {
		var mine, other []time.Duration
		for i := range b.turns + 1 {
			m, err := work(ctx, ours, row.method, row.params, b.turn)
			if err != nil {
				return err
			}
			o, err := work(ctx, theirs, row.method, row.thereby, b.turn)
			if err != nil {
				return err
			}
			if i > 0 { // the first of each warms up
				mine, other = append(mine, m), append(other, o)
			}
		}
		b.addRate(fmt.Sprintf("%s, %d clients", row.what, clients), mine, row.peer, other, 0.8)
	}
	return nil
}

// addRate adds a row of times of one call, judged by how many calls a second ours does of theirs.
func (b *bench) addRate(what string, ours []time.Duration, peer string, theirs []time.Duration, least float64) {
	r := row{what: what, ours: ours, peer: peer, theirs: theirs, must: fmt.Sprintf("≥ %.1f × the calls", least), rate: true}
	r.met = 1/r.ratio() >= least
	b.rows = append(b.rows, r)
}

// makeKey makes a key through the HTTP API.
func (s *server) makeKey(ctx context.Context, name string) (string, error) {
	body, err := json.Marshal(map[string]any{"name": name, "scopes": []string{"read", "write"}})
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/keys", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := (&http.Client{Transport: bearer(s.key)}).Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	var out struct{ Secret string }
	if err := json.NewDecoder(res.Body).Decode(&out); err != nil || out.Secret == "" {
		return "", errors.Join(err, fmt.Errorf("make a key: %s", res.Status))
	}
	return out.Secret, nil
}
