package template

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/template/inputs"
	"github.com/berthrun/berth/internal/template/recipe"
)

func parse(in *api.BuildTemplateIn) (*recipe.Recipe, error) {
	return recipe.Parse(in.Dockerfile, recipe.Options{Target: in.Target, Args: in.BuildArgs})
}

// inspect reads an archive to its end, and gives how many entries it has.
func (s *Service) inspect(ctx context.Context, a *archive) (int64, error) {
	t, done, err := s.openContext(ctx, a)
	if err != nil {
		return 0, err
	}
	defer done()
	return int64(t.Len()), nil
}

// openContext reads an archive. done lets go of it.
func (s *Service) openContext(ctx context.Context, a *archive) (t *inputs.Tree, done func(), err error) {
	r, err := s.Blobs.Get(ctx, contextKey(a.OrgID, a.ID))
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	return s.tree(ctx, r, inputs.Options{})
}

// tree reads an archive into a file that nobody else sees. done lets go of it.
func (s *Service) tree(ctx context.Context, r io.Reader, o inputs.Options) (t *inputs.Tree, done func(), err error) {
	spool, err := os.CreateTemp(s.Folder, "berth-build-")
	if err != nil {
		return nil, nil, fmt.Errorf("make file for a build's files: %w", err)
	}
	_ = os.Remove(spool.Name()) // it is gone with whoever reads it
	if t, err = inputs.Read(ctx, r, spool, o); err != nil {
		_ = spool.Close()
		return nil, nil, err
	}
	return t, func() { _ = spool.Close() }, nil
}

func (x *execution) selected(context.Context, recipe.Action) (string, error) {
	return "", errs.E(errs.Unavailable, "COPY is not available yet")
}

func (x *execution) put(context.Context, *stage, int64, *box, recipe.Action) error {
	return errs.E(errs.Unavailable, "COPY is not available yet")
}
