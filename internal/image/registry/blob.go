package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/berthrun/berth/internal/errs"
)

// Blob fetches a blob into the file path, whose content so far is taken as its beginning, and checks size and digest. A broken transfer is gone on with
// where it broke, as often as it brings something. progress is told how many bytes came in addition, negative where they were thrown away. What is there
// of the blob stays after an error, so that a later call can go on with it; after a mismatch nothing does.
func (r *Repository) Blob(ctx context.Context, digest string, size int64, path string, progress func(n int64)) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open blob: %w", err)
	}
	defer f.Close()
	t := &transfer{r: r, f: f, digest: digest, size: size, progress: progress}
	if err := t.begin(); err != nil {
		return err
	}
	for n := 1; ; n++ {
		before := t.at
		err := t.once(ctx)
		if err == nil {
			err = t.check()
		}
		if err == nil {
			return f.Sync()
		}
		if t.at > before {
			n = 0
		}
		if e, ok := errors.AsType[*errs.Error](err); ok && e.Reason == "digest_mismatch" {
			if rerr := t.restart(); rerr != nil {
				return rerr
			}
			if t.mismatches++; t.mismatches > 1 {
				return err
			}
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case writeFailed(err):
			return err
		case n == attemptsMost || !again(err):
			return r.c.explain(r.ref, err)
		}
		if err := r.c.pause(ctx, n+1); err != nil {
			return err
		}
	}
}

// transfer is one Blob.
type transfer struct {
	r          *Repository
	f          *os.File
	digest     string
	size       int64
	at         int64 // bytes that are in the file and the sum
	sum        hash.Hash
	mismatches int
	progress   func(n int64)
}

// begin takes what is there already.
func (t *transfer) begin() error {
	t.sum = sha256.New()
	n, err := io.Copy(t.sum, io.LimitReader(t.f, t.size))
	if err != nil {
		return fmt.Errorf("read begun blob: %w", err)
	}
	t.at = n
	t.progress(n)
	return nil
}

func (t *transfer) restart() error {
	t.progress(-t.at)
	t.at, t.sum = 0, sha256.New()
	if err := t.f.Truncate(0); err != nil {
		return fmt.Errorf("begin blob again: %w", err)
	}
	return nil
}

// once makes one request for what is missing.
func (t *transfer) once(ctx context.Context) error {
	if t.at == t.size {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stalled := time.AfterFunc(t.r.c.Stall, cancel)
	defer stalled.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.r.base+"/blobs/"+t.digest, nil)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	if t.at > 0 {
		req.Header.Set("Range", "bytes="+strconv.FormatInt(t.at, 10)+"-")
	}
	resp, err := t.r.http.Do(req)
	if err != nil {
		return stallError(ctx, err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusPartialContent && strings.HasPrefix(resp.Header.Get("Content-Range"), "bytes "+strconv.FormatInt(t.at, 10)+"-"):
	case resp.StatusCode == http.StatusPartialContent, resp.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return errors.Join(errors.New("the registry gave another part"), t.restart())
	case resp.StatusCode == http.StatusOK:
		if t.at > 0 { // it gives no parts: all again
			if err := t.restart(); err != nil {
				return err
			}
		}
	default:
		return transport.CheckError(resp, http.StatusOK)
	}
	return stallError(ctx, t.copy(resp.Body, stalled))
}

// stallError says of a request that was given up on what it was.
func stallError(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("the registry sent nothing for too long: %w", os.ErrDeadlineExceeded)
	}
	return err
}

func (t *transfer) copy(body io.Reader, stalled *time.Timer) error {
	buf := make([]byte, 128<<10)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			stalled.Reset(t.r.c.Stall)
			if t.at+int64(n) > t.size {
				return errMismatch("blob", t.digest)
			}
			if _, werr := t.f.WriteAt(buf[:n], t.at); werr != nil {
				return &writeError{werr}
			}
			t.sum.Write(buf[:n])
			t.at += int64(n)
			t.progress(int64(n))
		}
		if errors.Is(err, io.EOF) {
			if t.at < t.size {
				return io.ErrUnexpectedEOF
			}
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (t *transfer) check() error {
	if got := "sha256:" + hex.EncodeToString(t.sum.Sum(nil)); got != t.digest || t.at != t.size {
		return errMismatch("blob", t.digest)
	}
	return t.f.Truncate(t.size)
}

// writeError is a failure on our side: no other attempt helps.
type writeError struct{ error }

func (e *writeError) Unwrap() error { return e.error }

func writeFailed(err error) bool {
	_, ok := errors.AsType[*writeError](err)
	return ok
}
