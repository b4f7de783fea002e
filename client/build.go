package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"

	"github.com/berthrun/berth/api"
)

// UploadContext sends the files of a build as a tar archive, plain or compressed. progress is told how many bytes were sent; it may be nil. The body is sent
// once.
func (c *Client) UploadContext(ctx context.Context, archive io.Reader, progress func(bytes int64)) (*api.BuildContext, error) {
	src := &sending{Reader: archive, progress: progress}
	resp, err := Open(ctx, c, api.UploadContext, api.UploadContextIn{}, http.Header{"Content-Type": {api.TarType}}, src, -1)
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
	var out api.UploadContextOut
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&out); err != nil {
		return nil, c.unreachable(ctx, err)
	}
	return &out.Context, nil
}
