// Package file owns the files in sandboxes as operations: reading, writing, editing, listing and moving them with a user's rights.
//
// It does not own sandboxes' states: it asks for a guest, and gets one or a reason why not. The file system is the guest's.
package file

import (
	"context"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
)

// Sandboxes gives the guests of sandboxes of the caller's organization.
type Sandboxes interface {
	// Resource gives the sandbox as authorization sees it, or errs.NotFound.
	Resource(ctx context.Context, id string) (op.Resource, error)
	// Awake gives the guest of a sandbox, which is started where it must and may be; woke says how.
	Awake(ctx context.Context, id string) (g *guest.Client, woke string, err error)
	// Explain gives the error of a call on a guest a better one where the sandbox died under it.
	Explain(ctx context.Context, id string, err error) error
}

// Service carries out the operations on files.
type Service struct {
	sandboxes Sandboxes
}

// New makes the service.
func New(s Sandboxes) *Service { return &Service{sandboxes: s} }

// Register binds the operations on files.
func (s *Service) Register(r *op.Registry) {
	bind(s, r, api.ReadFile, func(in *api.ReadFileIn) string { return in.SandboxID }, read)
	bind(s, r, api.WriteFile, func(in *api.WriteFileIn) string { return in.SandboxID }, write)
	bind(s, r, api.EditFile, func(in *api.EditFileIn) string { return in.SandboxID }, edit)
	bind(s, r, api.ListFiles, func(in *api.ListFilesIn) string { return in.SandboxID }, list)
	bind(s, r, api.StatFile, func(in *api.FileStatIn) string { return in.SandboxID }, stat)
	bind(s, r, api.MakeDirectory, func(in *api.MakeDirectoryIn) string { return in.SandboxID }, mkdir)
	bind(s, r, api.MoveFile, func(in *api.MoveFileIn) string { return in.SandboxID }, move)
	bind(s, r, api.RemoveFile, func(in *api.RemoveFileIn) string { return in.SandboxID }, remove)
	s.registerStreams(r)
}

// session is one call on a guest.
type session struct {
	g    *guest.Client
	once string // the id of this one effect
	woke string
}

// bind binds an operation that needs nothing but a sandbox's guest.
func bind[In, Out any](s *Service, r *op.Registry, def op.Def[In, Out], sandbox func(*In) string, do func(context.Context, session, *In) (*Out, error)) {
	op.Handle(r, def, op.Handler[In, Out]{
		Draft: func(ctx context.Context, in *In) (*op.Draft, error) {
			res, err := s.sandboxes.Resource(ctx, sandbox(in))
			if err != nil {
				return nil, err
			}
			return &op.Draft{Resource: res}, nil
		},
		Act: func(ctx context.Context, in *In, d *op.Draft) (*Out, error) {
			g, woke, err := s.sandboxes.Awake(ctx, sandbox(in))
			if err != nil {
				return nil, err
			}
			out, err := do(ctx, session{g: g, once: d.Once, woke: woke}, in)
			if err != nil {
				return nil, errs.Woke(s.sandboxes.Explain(ctx, sandbox(in), err), woke)
			}
			return out, nil
		},
	})
}

// show is a guest's file as callers see it.
func show(f guest.FileInfo) api.File {
	return api.File{
		Name: f.Name, Path: f.Path, Type: f.Type, Size: f.Size, Mode: f.Mode, User: f.User, Group: f.Group,
		ModifiedAt: f.ModifiedAt.UTC(), Target: f.Target, ETag: f.ETag,
	}
}
