package template

import (
	"context"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/template/recipe"
)

func parse(in *api.BuildTemplateIn) (*recipe.Recipe, error) {
	return recipe.Parse(in.Dockerfile, recipe.Options{Target: in.Target, Args: in.BuildArgs})
}

func (s *Service) inspect(context.Context, *archive) (int64, error) { return 0, nil }

func (x *execution) selected(context.Context, recipe.Action) (string, error) {
	return "", errs.E(errs.Unavailable, "COPY is not available yet")
}

func (x *execution) put(context.Context, *stage, int64, *box, recipe.Action) error {
	return errs.E(errs.Unavailable, "COPY is not available yet")
}
