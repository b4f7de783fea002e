package nodeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// Images is what a node does with images of registries and archives. A scope is whose an image is: what one scope has fetched serves another only once
// that one has fetched it too, so that knowing a digest is never enough.
type Images interface {
	// Resolve asks a registry for the image of a reference that this node can run. Errors: NOT_FOUND, UPSTREAM_ERROR with reason registry_denied or
	// registry, FORBIDDEN with reason registry_address, INVALID_INPUT with reason wrong_platform or not_image.
	Resolve(ctx context.Context, r ImageRequest) (ResolvedImage, error)
	// Pull brings the image of r.Digest onto the node. A repeated call goes on with what is there. progress may be called often.
	Pull(ctx context.Context, r ImageRequest, progress func(ImageProgress)) (Image, error)
	// Import takes an archive: an OCI layout, or what docker save writes. selected names one image of several; empty where there is one.
	Import(ctx context.Context, scope, selected string, archive io.Reader) (Image, error)
	// Export writes an image as the archive of an OCI layout, its bytes as they were pulled. names are the references that whoever loads it gives it.
	Export(ctx context.Context, scope, id string, names []string, w io.Writer) error
	// Push puts the image of r.Digest into a registry under the name and tag of r.Ref, as it came. What is there already is not sent; the tag changes last.
	// Errors: those of Resolve, and NOT_FOUND where the scope has no such image.
	Push(ctx context.Context, r ImageRequest, progress func(ImageProgress)) error
	// Remove takes an image from a scope and what nothing needs any more from the disk. One that is gone is fine.
	Remove(ctx context.Context, scope, id string) error
	// List names what there is.
	List(ctx context.Context) ([]ImageRecord, error)
}

// ImageRequest names an image in a registry. Auth is used for the one call and kept nowhere.
type ImageRequest struct {
	Scope  string     `json:"scope"`
	Ref    string     `json:"ref"`
	Digest string     `json:"digest,omitempty"`
	Auth   *ImageAuth `json:"auth,omitempty"`
}

// ImageAuth signs in to a registry.
type ImageAuth struct {
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
	Token    string `json:"token,omitempty"`
}

// ResolvedImage is what a reference means now.
type ResolvedImage struct {
	Digest string `json:"digest"` // of the manifest for this node's platform: the image's id
	Index  string `json:"index"`  // of what the reference names, which may list several platforms
	Size   int64  `json:"size"`   // of all that is to be fetched
}

// The phases of a pull, and of a push.
const (
	PhasePulling   = "pulling"
	PhaseUnpacking = "unpacking"
	PhasePushing   = "pushing"
)

// ImageProgress says how far a pull is.
type ImageProgress struct {
	Phase string `json:"phase"`
	Done  int64  `json:"done"` // bytes as they are in the registry
	Total int64  `json:"total"`
}

// Image is an image that is whole on the node.
type Image struct {
	ID       string      `json:"id"`       // the manifest's digest, what runtime.Spec.Image takes
	Size     int64       `json:"size"`     // as in the registry
	Unpacked int64       `json:"unpacked"` // of files' contents
	Layers   int         `json:"layers"`
	Names    []string    `json:"names,omitempty"` // that an archive gave it
	Created  time.Time   `json:"created,omitzero"`
	Config   ImageConfig `json:"config"`
}

// ImageConfig is what an image says about running it.
type ImageConfig struct {
	Env          []string          `json:"env,omitempty"`
	WorkingDir   string            `json:"workingDir,omitempty"`
	User         string            `json:"user,omitempty"`
	Entrypoint   []string          `json:"entrypoint,omitempty"`
	Cmd          []string          `json:"cmd,omitempty"`
	ExposedPorts []string          `json:"exposedPorts,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
}

// ImageRecord is one image of one scope.
type ImageRecord struct {
	Scope string    `json:"scope"`
	ID    string    `json:"id"`
	Since time.Time `json:"since"`
}

type imageBody struct {
	Scope string   `json:"scope"`
	ID    string   `json:"id"`
	Names []string `json:"names,omitempty"`
}

// pullLine is one line of the answer to a pull or a push: progress, or the end.
type pullLine struct {
	Progress *ImageProgress `json:"progress,omitempty"`
	Image    *Image         `json:"image,omitempty"`
	Error    *wireError     `json:"error,omitempty"`
	Pushed   bool           `json:"pushed,omitempty"`
}

// ServeImages adds what a node does with images.
func (s *Server) ServeImages(im Images) {
	handle(s, "images/resolve", func(ctx context.Context, r ImageRequest) (any, error) { return im.Resolve(ctx, r) })
	handle(s, "images/remove", func(ctx context.Context, b imageBody) (any, error) { return nil, im.Remove(ctx, b.Scope, b.ID) })
	handle(s, "images/list", func(ctx context.Context, _ imageBody) (any, error) { return im.List(ctx) })
	s.mux.HandleFunc("POST /node/v1/images/pull", func(w http.ResponseWriter, r *http.Request) {
		s.carryImage("images/pull", w, r, func(ctx context.Context, b ImageRequest, progress func(ImageProgress)) (pullLine, error) {
			img, err := im.Pull(ctx, b, progress)
			return pullLine{Image: &img}, err
		})
	})
	s.mux.HandleFunc("POST /node/v1/images/push", func(w http.ResponseWriter, r *http.Request) {
		s.carryImage("images/push", w, r, func(ctx context.Context, b ImageRequest, progress func(ImageProgress)) (pullLine, error) {
			return pullLine{Pushed: true}, im.Push(ctx, b, progress)
		})
	})
	s.mux.HandleFunc("POST /node/v1/images/import", func(w http.ResponseWriter, r *http.Request) {
		img, err := im.Import(r.Context(), r.URL.Query().Get("scope"), r.URL.Query().Get("select"), r.Body)
		if errs.Is(err, errs.Internal) {
			s.log.Error("node call failed", "method", "images/import", "error", err)
		}
		answer(w, img, err)
	})
	s.mux.HandleFunc("POST /node/v1/images/export", func(w http.ResponseWriter, r *http.Request) { s.exportImage(im, w, r) })
}

// carryImage pulls or pushes, and tells how far it is.
func (s *Server) carryImage(method string, w http.ResponseWriter, r *http.Request, carry func(context.Context, ImageRequest, func(ImageProgress)) (pullLine, error)) {
	var b ImageRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&b); err != nil {
		writeError(w, errs.Wrap(errs.InvalidInput, err, "the body cannot be read"))
		return
	}
	w.Header().Set("Content-Type", "application/jsonl")
	out, rc := json.NewEncoder(w), http.NewResponseController(w)
	var last time.Time
	end, err := carry(r.Context(), b, func(p ImageProgress) {
		if now := time.Now(); now.Sub(last) >= progressEvery {
			last = now
			_ = out.Encode(pullLine{Progress: &p})
			_ = rc.Flush()
		}
	})
	if err != nil {
		if errs.Is(err, errs.Internal) {
			s.log.Error("node call failed", "method", method, "error", err)
		}
		_ = out.Encode(pullLine{Error: toWire(err)})
		return
	}
	_ = out.Encode(end)
}

// progressEvery is how often progress is sent at most.
const progressEvery = 250 * time.Millisecond

func (s *Server) exportImage(im Images, w http.ResponseWriter, r *http.Request) {
	var b imageBody
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&b); err != nil {
		writeError(w, errs.Wrap(errs.InvalidInput, err, "the body cannot be read"))
		return
	}
	begun := &onceWriter{w: w}
	if err := im.Export(r.Context(), b.Scope, b.ID, b.Names, begun); err != nil {
		if !begun.any {
			writeError(w, err)
			return
		}
		s.log.Error("node call failed", "method", "images/export", "error", err)
		panic(http.ErrAbortHandler) // whoever reads must not take what there is for the whole
	}
}

// onceWriter knows whether anything was written.
type onceWriter struct {
	w   http.ResponseWriter
	any bool
}

// Write implements io.Writer.
func (o *onceWriter) Write(p []byte) (int, error) {
	if !o.any {
		o.any = true
		o.w.Header().Set("Content-Type", "application/x-tar")
	}
	return o.w.Write(p)
}

// ImagesClient is what a node does with images as the control plane sees it.
type ImagesClient struct{ c *Client }

var _ Images = (*ImagesClient)(nil)

// Images gives what the node does with images.
func (c *Client) Images() *ImagesClient { return &ImagesClient{c} }

// Resolve implements Images.
func (i *ImagesClient) Resolve(ctx context.Context, r ImageRequest) (out ResolvedImage, err error) {
	return out, i.c.post(ctx, "images/resolve", r, &out)
}

// Pull implements Images.
func (i *ImagesClient) Pull(ctx context.Context, r ImageRequest, progress func(ImageProgress)) (Image, error) {
	end, err := i.carry(ctx, "images/pull", r, progress)
	if err != nil {
		return Image{}, err
	}
	return *end.Image, nil
}

// Push implements Images.
func (i *ImagesClient) Push(ctx context.Context, r ImageRequest, progress func(ImageProgress)) error {
	_, err := i.carry(ctx, "images/push", r, progress)
	return err
}

func (i *ImagesClient) carry(ctx context.Context, method string, r ImageRequest, progress func(ImageProgress)) (pullLine, error) {
	resp, err := i.c.send(ctx, http.MethodPost, method, r)
	if err != nil {
		return pullLine{}, err
	}
	defer resp.Body.Close()
	in := json.NewDecoder(resp.Body)
	for {
		var line pullLine
		if err := in.Decode(&line); err != nil {
			if ctx.Err() != nil {
				return pullLine{}, ctx.Err()
			}
			return pullLine{}, unreachable(fmt.Errorf("read progress: %w", err))
		}
		switch {
		case line.Error != nil:
			return pullLine{}, fromWire(line.Error)
		case line.Image != nil, line.Pushed:
			return line, nil
		case line.Progress != nil:
			progress(*line.Progress)
		}
	}
}

// Import implements Images.
func (i *ImagesClient) Import(ctx context.Context, scope, selected string, archive io.Reader) (Image, error) {
	q := url.Values{"scope": {scope}, "select": {selected}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://node/node/v1/images/import?"+q.Encode(), io.NopCloser(archive))
	if err != nil {
		return Image{}, fmt.Errorf("make import request: %w", err)
	}
	resp, err := i.c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return Image{}, ctx.Err()
		}
		return Image{}, unreachable(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return Image{}, readError(resp.StatusCode, resp.Body)
	}
	var img Image
	if err := json.NewDecoder(resp.Body).Decode(&img); err != nil {
		return Image{}, errs.Wrap(errs.Upstream, err, "the node's answer cannot be read")
	}
	return img, nil
}

// Export implements Images.
func (i *ImagesClient) Export(ctx context.Context, scope, id string, names []string, w io.Writer) error {
	resp, err := i.c.send(ctx, http.MethodPost, "images/export", imageBody{Scope: scope, ID: id, Names: names})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return errors.Join(errs.E(errs.Upstream, "the image was not exported to its end"), err)
	}
	return nil
}

// Remove implements Images.
func (i *ImagesClient) Remove(ctx context.Context, scope, id string) error {
	return i.c.post(ctx, "images/remove", imageBody{Scope: scope, ID: id}, nil)
}

// List implements Images.
func (i *ImagesClient) List(ctx context.Context) (all []ImageRecord, err error) {
	return all, i.c.post(ctx, "images/list", imageBody{}, &all)
}
