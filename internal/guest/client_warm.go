package guest

import (
	"context"
	"net/http"

	"github.com/berthrun/berth/internal/errs"
)

// Warm has a guest do once what the first command of a sandbox does for all after it. One of an earlier version does not.
func (c *Client) Warm(ctx context.Context) error {
	if err := c.Supports(ctx, FeatureWarm); err != nil {
		if errs.From(err).Reason == "guest_feature" {
			return nil
		}
		return err
	}
	return c.do(ctx, call{method: http.MethodPost, path: "/warm", safe: true}, &struct{}{})
}
