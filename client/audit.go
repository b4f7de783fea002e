package client

import (
	"context"
	"fmt"
	"io"

	"github.com/berthrun/berth/api"
)

// ExportAudit writes the audit log as JSON Lines, the oldest row first. After an error w holds a part of it, which may end within a line.
func (c *Client) ExportAudit(ctx context.Context, in api.ExportAuditIn, w io.Writer) (int64, error) {
	resp, err := Open(ctx, c, api.ExportAudit, in, nil, nil, -1)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	n, err := io.Copy(w, resp.Body)
	if err != nil {
		return n, fmt.Errorf("read the audit log: %w", err)
	}
	return n, nil
}
