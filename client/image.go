package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/berthrun/berth/api"
)

// ImportImage sends an archive of an image, of that size where it is not negative. progress is told how many bytes were sent; it may be nil. The body is
// sent once.
func (c *Client) ImportImage(ctx context.Context, in api.ImportImageIn, archive io.Reader, size int64, progress func(bytes int64)) (*api.Image, error) {
	src := &sending{Reader: archive, progress: progress}
	resp, err := Open(ctx, c, api.ImportImage, in, http.Header{"Content-Type": {api.TarType}}, src, size)
	if src.failed != nil {
		if err == nil {
			_ = resp.Body.Close()
		}
		return nil, src.failed
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var out api.GetImageOut
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&out); err != nil {
		return nil, c.unreachable(ctx, err)
	}
	return &out.Image, nil
}

// ExportImage writes an image's archive. After an error w holds a part of it.
func (c *Client) ExportImage(ctx context.Context, in api.ExportImageIn, w io.Writer) (int64, error) {
	resp, err := Open(ctx, c, api.ExportImage, in, nil, nil, -1)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	n, err := io.Copy(w, resp.Body)
	if err != nil {
		return n, fmt.Errorf("read the archive: %w", err)
	}
	return n, nil
}
