package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/berthrun/berth/api"
)

// UploadContext sends the files of a build as a tar archive, plain or compressed, of that size where it is not negative. progress is told how many bytes were
// sent; it may be nil. The body is sent once.
func (c *Client) UploadContext(ctx context.Context, archive io.Reader, size int64, progress func(bytes int64)) (*api.BuildContext, error) {
	src := &sending{Reader: archive, progress: progress}
	resp, err := Open(ctx, c, api.UploadContext, api.UploadContextIn{}, http.Header{"Content-Type": {api.TarType}}, src, size)
	if src.failed != nil {
		if err == nil {
			_ = resp.Body.Close()
		}
		return nil, src.failed
	}
	if err != nil {
		return nil, err
	}
	return c.buildContext(ctx, resp)
}

// KnownContext gives the archive with that SHA-256, in hexadecimal digits, where it was sent before and is still there; nil where it is not.
func (c *Client) KnownContext(ctx context.Context, sha256 string) (*api.BuildContext, error) {
	resp, err := Open(ctx, c, api.UploadContext, api.UploadContextIn{SHA256: sha256}, http.Header{"Content-Type": {api.TarType}}, nil, 0)
	if e, ok := errors.AsType[*Error](err); ok && e.Reason == "unknown" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return c.buildContext(ctx, resp)
}

func (c *Client) buildContext(ctx context.Context, resp *http.Response) (*api.BuildContext, error) {
	defer resp.Body.Close()
	var out api.UploadContextOut
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&out); err != nil {
		return nil, c.unreachable(ctx, err)
	}
	return &out.Context, nil
}
