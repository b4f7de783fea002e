package clients

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/call"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/mcpapi"
)

// local is a host whose sandboxes are folders: commands really run and files are really there, without isolation.
type local struct {
	root string
	key  string

	mu      sync.Mutex
	boxes   map[string]*api.Sandbox
	running map[string]*process
	replays map[string][]byte
}

// process is a command with what it wrote.
type process struct {
	mu     sync.Mutex
	out    bytes.Buffer
	info   api.Process
	ended  chan struct{}
	cancel context.CancelFunc
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

// startLocal serves a local host over MCP and gives its URL and key.
func startLocal(t *testing.T) (url, key string) {
	t.Helper()
	l := &local{root: t.TempDir(), key: "berth_org_local", boxes: map[string]*api.Sandbox{}, running: map[string]*process{}, replays: map[string][]byte{}}
	handler, err := mcpapi.New(mcpapi.Config{
		Registry: l.registry(), Path: l, Version: "0.0.0-test",
		Visible: func(*caller.Caller, op.Info) bool { return true },
		Authenticate: func(_ context.Context, token string) (*caller.Caller, error) {
			if token != l.key {
				return nil, errs.E(errs.Unauthenticated, "the key is not valid")
			}
			return &caller.Caller{OrgID: id.New(id.Organization), PrincipalID: "local"}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		server.Close()
		for _, p := range l.running {
			p.cancel()
			<-p.ended
		}
	})
	return server.URL + "/mcp", l.key
}

// Do decodes, acts and keeps the result of a write under its retry key.
func (l *local) Do(ctx context.Context, o *op.Operation, input json.RawMessage, _ call.Options) (*call.Result, error) {
	in, err := o.Decode(input)
	if err != nil {
		return nil, err
	}
	key := ""
	if k, ok := in.(op.Keyed); ok {
		if key = k.RetryKey(); key == "" {
			key = id.New(id.Request)
		}
	}
	l.mu.Lock()
	kept := l.replays[o.Name+key]
	l.mu.Unlock()
	if kept != nil && key != "" {
		return &call.Result{JSON: kept, Replayed: true}, nil
	}
	out, err := o.Act(ctx, in, nil)
	if err != nil {
		return nil, err
	}
	res := &call.Result{Value: out}
	if s, ok := out.(op.Stamped); ok {
		s.SetWrite(key, true)
		again, err := op.Encode(out)
		if err != nil {
			return nil, err
		}
		l.mu.Lock()
		l.replays[o.Name+key] = again
		l.mu.Unlock()
		s.SetWrite(key, false)
	}
	res.JSON, err = op.Encode(out)
	return res, err
}

func bind[In, Out any](r *op.Registry, d op.Def[In, Out], act func(context.Context, *In) (*Out, error)) {
	op.Handle(r, d, op.Handler[In, Out]{
		Draft: func(context.Context, *In) (*op.Draft, error) { return &op.Draft{}, nil },
		Act:   func(ctx context.Context, in *In, _ *op.Draft) (*Out, error) { return act(ctx, in) },
	})
}

func (l *local) registry() *op.Registry {
	r := op.NewRegistry()
	bind(r, api.CreateSandbox, l.create)
	bind(r, api.ListSandboxes, l.list)
	bind(r, api.GetSandbox, func(_ context.Context, in *api.SandboxIn) (*api.GetSandboxOut, error) {
		box, err := l.box(in.SandboxID)
		if err != nil {
			return nil, err
		}
		return &api.GetSandboxOut{Sandbox: *box}, nil
	})
	bind(r, api.DeleteSandbox, l.delete)
	bind(r, api.Exec, l.exec)
	bind(r, api.StartProcess, l.start)
	bind(r, api.ProcessOutput, l.output)
	bind(r, api.ReadFile, l.read)
	bind(r, api.WriteFile, l.write)
	return r
}

func (l *local) box(sandboxID string) (*api.Sandbox, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b := l.boxes[sandboxID]; b != nil {
		return b, nil
	}
	return nil, errs.E(errs.NotFound, "there is no sandbox %s", sandboxID).Suggest("Call list_sandboxes.")
}

func (l *local) create(_ context.Context, in *api.CreateSandboxIn) (*api.CreateSandboxOut, error) {
	box := &api.Sandbox{ID: id.New(id.Sandbox), Name: in.Name, State: api.StateRunning, Ready: true, Reachable: true, Template: "base", Metadata: in.Metadata, CreatedAt: time.Now().UTC()}
	if err := os.Mkdir(filepath.Join(l.root, box.ID), 0o755); err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.boxes[box.ID] = box
	l.mu.Unlock()
	return &api.CreateSandboxOut{SandboxOut: api.SandboxOut{Status: "done", Ready: true, Sandbox: box}}, nil
}

func (l *local) list(context.Context, *api.ListSandboxesIn) (*api.ListSandboxesOut, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := &api.ListSandboxesOut{TotalRunning: len(l.boxes)}
	for _, b := range l.boxes {
		out.Items = append(out.Items, *b)
	}
	return out, nil
}

func (l *local) delete(_ context.Context, in *api.SandboxWaitIn) (*api.DeleteSandboxOut, error) {
	l.mu.Lock()
	delete(l.boxes, in.SandboxID)
	l.mu.Unlock()
	return &api.DeleteSandboxOut{SandboxID: in.SandboxID, Deleted: true}, os.RemoveAll(filepath.Join(l.root, in.SandboxID))
}

func (l *local) exec(ctx context.Context, in *api.ExecIn) (*api.ExecOut, error) {
	if _, err := l.box(in.SandboxID); err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, "sh", "-c", in.Command)
	c.Dir = filepath.Join(l.root, in.SandboxID)
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	err := c.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		return nil, err
	}
	code := c.ProcessState.ExitCode()
	p := &process{ended: make(chan struct{}), cancel: func() {}, info: api.Process{ID: id.New(id.Process), State: "exited", ExitCode: &code}}
	p.out.WriteString(stdout.String())
	close(p.ended)
	l.mu.Lock()
	l.running[p.info.ID] = p
	l.mu.Unlock()
	return &api.ExecOut{
		ExitCode: &code, Stdout: stdout.String(), Stderr: stderr.String(),
		StdoutBytes: int64(stdout.Len()), StderrBytes: int64(stderr.Len()), ProcessID: p.info.ID,
	}, nil
}

func (l *local) start(_ context.Context, in *api.StartProcessIn) (*api.ProcessOut, error) {
	if _, err := l.box(in.SandboxID); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{ended: make(chan struct{}), cancel: cancel}
	p.info = api.Process{ID: id.New(id.Process), SandboxID: in.SandboxID, Command: in.Command, State: "running", StartedAt: time.Now().UTC(), Background: true}
	c := exec.CommandContext(ctx, "sh", "-c", in.Command)
	c.Dir, c.Stdout = filepath.Join(l.root, in.SandboxID), p
	if err := c.Start(); err != nil {
		cancel()
		return nil, err
	}
	go func() {
		_ = c.Wait()
		code := c.ProcessState.ExitCode()
		p.mu.Lock()
		p.info.State, p.info.ExitCode = "exited", &code
		p.mu.Unlock()
		close(p.ended)
	}()
	l.mu.Lock()
	l.running[p.info.ID] = p
	l.mu.Unlock()
	return &api.ProcessOut{Process: p.info}, nil
}

func (l *local) output(ctx context.Context, in *api.ProcessOutputIn) (*api.ProcessOutputOut, error) {
	l.mu.Lock()
	p := l.running[in.ProcessID]
	l.mu.Unlock()
	if p == nil {
		return nil, errs.E(errs.NotFound, "there is no process %s", in.ProcessID)
	}
	select {
	case <-p.ended:
	case <-time.After(time.Duration(in.WaitSeconds) * time.Second):
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.out.String()
	return &api.ProcessOutputOut{
		Data: all[in.Offset:], Encoding: "utf-8", Offset: in.Offset, NextOffset: int64(len(all)), EOF: p.info.State == "exited", Process: p.info,
	}, nil
}

func (l *local) path(in api.FileIn) string {
	return filepath.Join(l.root, in.SandboxID, filepath.Join("/", in.Path))
}

func (l *local) read(_ context.Context, in *api.ReadFileIn) (*api.ReadFileOut, error) {
	b, err := os.ReadFile(l.path(in.FileIn))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errs.E(errs.NotFound, "there is no file %s", in.Path).Suggest("Call list_files.")
	}
	if err != nil {
		return nil, err
	}
	size := int64(len(b))
	end := size
	if in.Limit > 0 {
		end = min(size, in.Offset+in.Limit)
	}
	return &api.ReadFileOut{
		Data: string(b[in.Offset:end]), Encoding: "utf-8", Offset: in.Offset, NextOffset: end, EOF: end == size,
		File: api.File{Name: filepath.Base(in.Path), Path: in.Path, Type: "file", Size: size},
	}, nil
}

func (l *local) write(_ context.Context, in *api.WriteFileIn) (*api.WriteFileOut, error) {
	if _, err := l.box(in.SandboxID); err != nil {
		return nil, err
	}
	path := l.path(in.FileIn)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(path, []byte(in.Data), 0o644); err != nil {
		return nil, err
	}
	return &api.WriteFileOut{
		File: api.File{Name: filepath.Base(in.Path), Path: in.Path, Type: "file", Size: int64(len(in.Data))}, Created: true,
		SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte(in.Data))),
	}, nil
}
