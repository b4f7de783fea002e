package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
)

// readDoc prints a page's text as it is, all of it from --offset on.
func (c *command) readDoc(ctx context.Context, conn *client.Client, in map[string]any) error {
	for {
		raw, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode input of %s: %w", c.info.Name, err)
		}
		answer, err := conn.Do(ctx, c.info, raw)
		if err != nil {
			return err
		}
		var out api.ReadDocOut
		if err := json.Unmarshal(answer, &out); err != nil {
			return fmt.Errorf("decode output of %s: %w", c.info.Name, err)
		}
		if _, err := io.WriteString(c.app.stdout, out.Text); err != nil {
			return err
		}
		if out.NextOffset == 0 {
			return nil
		}
		in["offset"] = out.NextOffset
	}
}
