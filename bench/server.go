package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// server is a Berth of its own, in a temporary folder.
type server struct {
	cmd     *exec.Cmd
	dir     string
	session *mcp.ClientSession
	url     string
	mcpURL  string
	key     string
	debug   string // the socket of its private listener
}

func (b *bench) serve(ctx context.Context, more ...string) (*server, error) {
	dir, err := os.MkdirTemp("", "berth-bench-")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "ready.json")
	cmd := exec.Command(b.berth, "dev", "--port", "0", "--ready-file", file, "--images", b.base, //nolint:gosec // the program under test
		"--calls-per-minute", "-1", "--limit", "sandboxes.running=-1", "--limit", "memory.running=-1",
		"--debug-listen", "unix:"+filepath.Join(dir, "debug.sock"), "--ready-memory-mib", "0")
	cmd.Args = append(cmd.Args, more...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &server{cmd: cmd, dir: dir, debug: filepath.Join(dir, "debug.sock")}
	var ready struct{ URL, MCPURL, Key string }
	for {
		data, err := os.ReadFile(file)
		if err == nil {
			if err := json.Unmarshal(data, &ready); err != nil {
				s.stop()
				return nil, err
			}
			break
		}
		if ctx.Err() != nil || !errors.Is(err, os.ErrNotExist) {
			s.stop()
			return nil, errors.Join(ctx.Err(), err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	s.url, s.mcpURL, s.key = ready.URL, ready.MCPURL, ready.Key
	if s.session, err = s.connect(ctx); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// connect opens a session with the server's MCP endpoint.
func (s *server) connect(ctx context.Context) (*mcp.ClientSession, error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "berth-bench", Version: "1"}, nil)
	session, err := client.Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint: s.mcpURL, HTTPClient: &http.Client{Transport: bearer(s.key)}, DisableStandaloneSSE: true,
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return session, nil
}

// bearer adds a key to every request.
type bearer string

// RoundTrip implements http.RoundTripper.
func (k bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(k))
	return http.DefaultTransport.RoundTrip(r)
}

func (s *server) stop() {
	if s.session != nil {
		_ = s.session.Close()
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
	_ = os.RemoveAll(s.dir)
}

// call calls a tool and reads its structured result.
func (s *server) call(ctx context.Context, tool string, args map[string]any, out any) error {
	return callTool(ctx, s.session, tool, args, out)
}

func callTool(ctx context.Context, session *mcp.ClientSession, tool string, args map[string]any, out any) error {
	res, err := session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		return err
	}
	if res.IsError {
		text, _ := json.Marshal(res.Content)
		return fmt.Errorf("%s: %s", tool, text)
	}
	data, err := json.Marshal(res.StructuredContent)
	if err != nil || out == nil {
		return err
	}
	return json.Unmarshal(data, out)
}

type sandboxOut struct {
	Ready   bool
	Sandbox struct{ ID string }
}

func (s *server) sandbox(ctx context.Context, memoryMiB int) (string, error) {
	var out sandboxOut
	err := s.call(ctx, "create_sandbox", map[string]any{"resources": map[string]any{"memoryMiB": memoryMiB}}, &out)
	if err == nil && !out.Ready {
		err = errors.New("the sandbox is not ready")
	}
	return out.Sandbox.ID, err
}

func (s *server) true(ctx context.Context, sandbox string) error {
	var out struct {
		ExitCode *int
	}
	if err := s.call(ctx, "run_command", map[string]any{"sandboxId": sandbox, "command": "true"}, &out); err != nil {
		return err
	}
	if out.ExitCode == nil || *out.ExitCode != 0 {
		return errors.New("true failed")
	}
	return nil
}

func (s *server) delete(ctx context.Context, sandbox string) error {
	return s.call(ctx, "delete_sandbox", map[string]any{"sandboxId": sandbox}, nil)
}
