package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
)

// stage is how far something is that the server carries on by itself.
type stage struct {
	name        string // for the bar
	done, total int64  // bytes
	ended       bool
	failed      *client.Error
	out         any // the operation's output as it is now
}

// carried are the operations that begin what takes its time. Each looks at what the call gave, and again until it has ended.
var carried = map[string]func(ctx context.Context, conn *client.Client, out json.RawMessage) (func(ctx context.Context) (stage, error), error){
	api.PullImage.Name:    carriedPull,
	api.PushImage.Name:    carriedPush,
	api.CreateBackup.Name: carriedBackup, api.CreateVolume.Name: carriedVolume,
}

// lookEvery is how often it is looked how far something is.
const lookEvery = 300 * time.Millisecond

// carry waits for what an operation began, with a bar on a terminal, and prints what came of it. It goes on without whoever waits.
func (c *command) carry(ctx context.Context, conn *client.Client, out json.RawMessage) error {
	look, err := carried[c.info.Name](ctx, conn, out)
	if err != nil || look == nil {
		return errors.Join(err, c.print(c.info, out))
	}
	bar := newProgress(c.stderr)
	defer bar.close()
	for first := true; ; first = false {
		s, err := look(ctx)
		if err != nil {
			return err
		}
		if first {
			bar.begin(s.name, s.total, s.done)
		}
		bar.of(s.total)
		bar.at(s.done)
		if s.ended {
			bar.close()
			if s.failed != nil {
				return s.failed
			}
			raw, err := json.Marshal(s.out)
			if err != nil {
				return fmt.Errorf("encode output: %w", err)
			}
			return c.print(c.info, raw)
		}
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return fmt.Errorf("no longer waited for; it goes on, and berth %s get shows how far it is: %w", plural(c.info.Name), ctx.Err())
		}
	}
}

const mebi = 1 << 20

func carriedPull(_ context.Context, conn *client.Client, raw json.RawMessage) (func(context.Context) (stage, error), error) {
	var out api.ImageOut
	if err := json.Unmarshal(raw, &out); err != nil || out.Image == nil {
		return nil, err // held back
	}
	return func(ctx context.Context) (stage, error) {
		got, err := client.Call(ctx, conn, api.GetImage, api.ImageIn{ImageID: out.Image.ID})
		if err != nil {
			return stage{}, err
		}
		img := got.Image
		out.Image = &img
		s := stage{name: img.Name, total: int64(img.SizeMiB * mebi), ended: img.State != api.ImagePulling, out: out}
		if s.done = s.total; img.Progress != nil {
			s.name += " (" + img.Progress.Phase + ")"
			s.done = s.total * int64(img.Progress.Percent) / 100
		}
		if img.State == api.ImageFailed {
			s.failed = &client.Error{Code: "UPSTREAM_ERROR", Message: img.Error, Reason: img.Reason}
		}
		return s, nil
	}, nil
}

func carriedPush(_ context.Context, conn *client.Client, raw json.RawMessage) (func(context.Context) (stage, error), error) {
	var out api.PushImageOut
	if err := json.Unmarshal(raw, &out); err != nil || out.Push == nil {
		return nil, err // held back
	}
	return func(ctx context.Context) (stage, error) {
		got, err := client.Call(ctx, conn, api.GetImage, api.ImageIn{ImageID: out.ImageID})
		if err != nil {
			return stage{}, err
		}
		p := *out.Push
		for _, one := range got.Image.Pushes {
			if one.Reference == p.Reference {
				p = one
			}
		}
		out.Push = &p
		s := stage{name: p.Reference, total: int64(p.SizeMiB * mebi), ended: p.State != api.PushPushing, out: out}
		if s.done = s.total; p.Progress != nil {
			s.done = s.total * int64(p.Progress.Percent) / 100
		}
		if p.State == api.PushFailed {
			s.failed = &client.Error{Code: "UPSTREAM_ERROR", Message: p.Error, Reason: p.Reason}
		}
		return s, nil
	}, nil
}
