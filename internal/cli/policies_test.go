package cli_test

import (
	"context"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/policy"
)

// bindPolicies keeps one version of policies in memory; what is checked and decided is by the package that servers use.
func bindPolicies(r *op.Registry) {
	schema, err := policy.Registered()
	if err != nil {
		panic(err)
	}
	held := api.Policies{Text: policy.Default(), Shipped: schema.Shipped()}
	bind(r, api.GetPolicies, func(_ context.Context, in *api.GetPoliciesIn) (*api.GetPoliciesOut, error) {
		out := &api.GetPoliciesOut{Policies: held}
		if in.Schema {
			out.Schema = schema.Text()
		}
		return out, nil
	})
	bind(r, api.PutPolicies, func(_ context.Context, in *api.PutPoliciesIn) (*api.PutPoliciesOut, error) {
		if _, err := schema.Checked(in.Text); err != nil {
			return nil, err
		}
		if in.ExpectedVersion != nil && *in.ExpectedVersion != held.Version {
			return nil, errs.E(errs.InvalidState, "the policies have been changed: version %d holds", held.Version).Because("version")
		}
		held.Text, held.Version = in.Text, held.Version+1
		return &api.PutPoliciesOut{Policies: held}, nil
	})
	bind(r, api.ValidatePolicies, func(_ context.Context, in *api.ValidatePoliciesIn) (*api.ValidatePoliciesOut, error) {
		problems := schema.Check(in.Text)
		return &api.ValidatePoliciesOut{Valid: len(problems) == 0, Problems: problems}, nil
	})
	bind(r, api.TestPolicies, func(_ context.Context, in *api.TestPoliciesIn) (*api.TestPoliciesOut, error) {
		set, err := schema.Load(held.Text)
		if err != nil {
			return nil, err
		}
		return set.Try(in.Cases, "org_1", time.Now())
	})
}
