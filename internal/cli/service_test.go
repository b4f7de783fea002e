package cli_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/call"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/httpapi"
	"github.com/berthrun/berth/internal/id"
)

const testKey = "berth_test_AAAAAAAAAAAAAAAAAAAA"

// service keeps sandboxes in memory. Its commands are processes of this machine and its files are bytes in a map.
type service struct {
	lock      sync.Mutex
	sandboxes []api.Sandbox
	files     map[string][]byte
	ended     map[string]*ended
	keys      []string // the retry keys of writes of files, in order
}

type ended struct {
	out, err bytes.Buffer
	code     int
}

// path decodes and acts: what a deployment's path of a call does besides is not the command line's business.
type path struct{}

func (path) Do(ctx context.Context, o *op.Operation, raw json.RawMessage, _ call.Options) (*call.Result, error) {
	in, err := o.Decode(raw)
	if err != nil {
		return nil, err
	}
	d, err := o.Draft(ctx, in)
	if err != nil {
		return nil, err
	}
	out, err := o.Act(ctx, in, d)
	return &call.Result{Value: out}, err
}

func (path) Stream(ctx context.Context, o *op.StreamOperation, raw json.RawMessage, s *op.Stream) error {
	in, err := o.Decode(raw)
	if err != nil {
		return err
	}
	return o.Serve(ctx, in, nil, s)
}

func startServer(more ...func(*op.Registry)) (*httptest.Server, *builds) {
	s := &service{files: map[string][]byte{}, ended: map[string]*ended{}}
	r := op.NewRegistry()
	bind(r, api.CreateSandbox, s.create)
	bind(r, api.ListSandboxes, s.list)
	bind(r, api.GetSandbox, s.get)
	bind(r, api.DeleteSandbox, s.delete)
	bind(r, api.Exec, s.exec)
	bind(r, api.ProcessOutput, s.output)
	bind(r, api.ReadFile, s.read)
	bind(r, api.WriteFile, s.write)
	bind(r, api.CreateKey, s.createKey)
	bindListed(r)
	bindPolicies(r)
	b := bindBuilds(r)
	for _, bind := range more {
		bind(r)
	}
	return httptest.NewServer(httpapi.New(httpapi.Config{
		Registry: r, Path: path{},
		Authenticate: func(_ context.Context, token string) (*caller.Caller, error) {
			if token != testKey {
				return nil, errs.E(errs.Unauthenticated, "the key is not known").Suggest("Make a new key in the console.")
			}
			return &caller.Caller{OrgID: "org_1", PrincipalID: "key_1"}, nil
		},
	})), b
}

func bind[In, Out any](r *op.Registry, def op.Def[In, Out], act func(context.Context, *In) (*Out, error)) {
	op.Handle(r, def, op.Handler[In, Out]{
		Draft: func(context.Context, *In) (*op.Draft, error) { return &op.Draft{}, nil },
		Act:   func(ctx context.Context, in *In, _ *op.Draft) (*Out, error) { return act(ctx, in) },
	})
}

func (s *service) create(_ context.Context, in *api.CreateSandboxIn) (*api.CreateSandboxOut, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	b := api.Sandbox{
		ID: id.New(id.Sandbox), Name: in.Name, State: api.StateRunning, Ready: true, Reachable: true, Template: "base", Metadata: in.Metadata,
		CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), Resources: api.Resources{VCPU: 1, MemoryMiB: 512}, AutoWake: in.AutoWake == nil || *in.AutoWake,
	}
	if in.Resources != nil {
		b.Resources = api.Resources{VCPU: in.Resources.VCPU, MemoryMiB: in.Resources.MemoryMiB}
	}
	s.sandboxes = append(s.sandboxes, b)
	return &api.CreateSandboxOut{SandboxOut: api.SandboxOut{WriteOut: op.WriteOut{IdempotencyKey: in.IdempotencyKey}, Status: "done", Ready: true, Sandbox: &b}}, nil
}

func (s *service) list(_ context.Context, in *api.ListSandboxesIn) (*api.ListSandboxesOut, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	out := &api.ListSandboxesOut{TotalRunning: len(s.sandboxes)}
	for _, b := range s.sandboxes {
		if in.Name != "" && b.Name != in.Name || len(in.State) > 0 && !slices.Contains(in.State, b.State) {
			continue
		}
		if v, ok := in.Metadata["team"]; ok && b.Metadata["team"] != v {
			continue
		}
		if in.Limit > 0 && len(out.Items) == in.Limit {
			out.NextCursor = op.EncodeCursor(nil, b.ID)
			break
		}
		out.Items = append(out.Items, b)
	}
	return out, nil
}

func (s *service) find(want string) (int, error) {
	i := slices.IndexFunc(s.sandboxes, func(b api.Sandbox) bool { return b.ID == want })
	if i < 0 {
		return 0, errs.E(errs.NotFound, "there is no such sandbox").Suggest("List sandboxes to see what there is.")
	}
	return i, nil
}

func (s *service) get(_ context.Context, in *api.SandboxIn) (*api.GetSandboxOut, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	i, err := s.find(in.SandboxID)
	if err != nil {
		return nil, err
	}
	return &api.GetSandboxOut{Sandbox: s.sandboxes[i]}, nil
}

func (s *service) delete(_ context.Context, in *api.SandboxWaitIn) (*api.DeleteSandboxOut, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	i, err := s.find(in.SandboxID)
	if err != nil {
		return nil, err
	}
	s.sandboxes = slices.Delete(s.sandboxes, i, i+1)
	return &api.DeleteSandboxOut{SandboxID: in.SandboxID, Deleted: true}, nil
}

// exec runs the command here. Output beyond 100 bytes is left out of the result and read through the process.
func (s *service) exec(ctx context.Context, in *api.ExecIn) (*api.ExecOut, error) {
	argv := in.Argv
	if in.Command != "" {
		argv = []string{"sh", "-c", in.Command}
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	for k, v := range in.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	e := &ended{}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in.Stdin), &e.out, &e.err
	if err := cmd.Run(); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			return nil, errs.E(errs.InvalidInput, "cannot be run").Because("cannot_run")
		}
		e.code = exit.ExitCode()
	}
	out := &api.ExecOut{ExitCode: &e.code, Stdout: e.out.String(), Stderr: e.err.String()}
	if e.out.Len() > 100 {
		out.Stdout, out.Truncated, out.ProcessID = out.Stdout[:10], true, id.New(id.Process)
		s.lock.Lock()
		s.ended[out.ProcessID] = e
		s.lock.Unlock()
	}
	return out, nil
}

func (s *service) output(_ context.Context, in *api.ProcessOutputIn) (*api.ProcessOutputOut, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	e := s.ended[in.ProcessID]
	if e == nil {
		return nil, errs.E(errs.NotFound, "there is no such process")
	}
	b := e.out.Bytes()
	if in.Stream == "stderr" {
		b = e.err.Bytes()
	}
	next := min(int64(len(b)), in.Offset+64)
	data, encoding := encode(b[in.Offset:next])
	return &api.ProcessOutputOut{
		Data: data, Encoding: encoding, Offset: in.Offset, NextOffset: next, EOF: next == int64(len(b)),
		Process: api.Process{ID: in.ProcessID, State: "exited", ExitCode: &e.code},
	}, nil
}

func encode(b []byte) (data, encoding string) {
	if utf8.Valid(b) {
		return string(b), "utf-8"
	}
	return base64.StdEncoding.EncodeToString(b), "base64"
}

func (s *service) read(_ context.Context, in *api.ReadFileIn) (*api.ReadFileOut, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	b, ok := s.files[in.Path]
	if !ok {
		return nil, errs.E(errs.NotFound, "there is no such file")
	}
	if in.StartLine > 0 || in.EndLine > 0 {
		if in.Cursor != "" || in.Offset > 0 {
			return nil, errs.E(errs.InvalidInput, "lines exclude offset and cursor")
		}
		all := strings.SplitAfter(strings.TrimSuffix(string(b), "\n"), "\n")
		part := all[in.StartLine-1 : min(in.EndLine, int64(len(all)))]
		end := "more"
		return &api.ReadFileOut{Data: strings.Join(part, ""), Encoding: "utf-8", Lines: int64(len(part)), Cursor: &end}, nil
	}
	if in.Cursor != "" {
		at, err := strconv.ParseInt(in.Cursor, 10, 64)
		if err != nil || in.Offset != 0 {
			return nil, errs.E(errs.InvalidCursor, "the cursor is not valid")
		}
		in.Offset = at
	}
	end := min(int64(len(b)), in.Offset+in.Limit)
	out := &api.ReadFileOut{Offset: in.Offset, NextOffset: end, EOF: end == int64(len(b)), File: stat(in.Path, b)}
	out.Data, out.Encoding = encode(b[in.Offset:end])
	if !out.EOF {
		next := strconv.FormatInt(end, 10)
		out.Cursor = &next
	}
	return out, nil
}

func (s *service) write(_ context.Context, in *api.WriteFileIn) (*api.WriteFileOut, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	b := []byte(in.Data)
	if in.Encoding == "base64" {
		var err error
		if b, err = base64.StdEncoding.DecodeString(in.Data); err != nil || len(b) > 2<<20 {
			return nil, errs.E(errs.InvalidInput, "data is not base64 of at most 2 MiB")
		}
	}
	old, there := s.files[in.Path]
	if in.IfMatch != "" && in.IfMatch != stat(in.Path, old).ETag {
		return nil, errs.E(errs.InvalidState, "the file has changed")
	}
	if in.Append {
		b = append(slices.Clone(old), b...)
	}
	s.files[in.Path] = b
	s.keys = append(s.keys, in.IdempotencyKey)
	return &api.WriteFileOut{File: stat(in.Path, b), SHA256: stat(in.Path, b).ETag, Created: !there}, nil
}

func stat(path string, b []byte) api.File {
	sum := sha256.Sum256(b)
	return api.File{Name: path, Path: path, Type: "file", Size: int64(len(b)), Mode: "0644", ETag: hex.EncodeToString(sum[:])}
}

func (s *service) createKey(_ context.Context, in *api.CreateKeyIn) (*api.CreateKeyOut, error) {
	return &api.CreateKeyOut{Key: api.Key{ID: id.New(id.Key), Name: in.Name, Scopes: in.Scopes}, Secret: "berth_shown_once"}, nil
}
