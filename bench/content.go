package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
)

// contentBytes is what is moved each way.
const contentBytes = 64 << 20

// content: a file up and down through the HTTP API, beside `runsc exec cat` through pipes.
func (b *bench) content(ctx context.Context, s *server, rootfs string) error {
	sandbox, err := s.sandbox(ctx, 1024)
	if err != nil {
		return err
	}
	defer s.delete(ctx, sandbox) //nolint:errcheck // the server goes too
	r, err := b.newRaw(rootfs, 2000)
	if err != nil {
		return err
	}
	defer r.end()
	if err := r.run(ctx); err != nil {
		return err
	}
	c, err := client.New(s.url, s.key, client.Attempts(1))
	if err != nil {
		return err
	}
	data := make([]byte, contentBytes)
	var seed [32]byte
	_, _ = rand.NewChaCha8(seed).Read(data)
	at := api.FileIn{SandboxIn: api.SandboxIn{SandboxID: sandbox}, Path: "/workspace/bench", User: "root"}
	up := func() error {
		_, err := c.Upload(ctx, api.UploadFileIn{FileIn: at}, bytes.NewReader(data), client.UploadOptions{Size: contentBytes})
		return err
	}
	down := func() error {
		d, err := c.Download(ctx, at, 0, "")
		if err != nil {
			return err
		}
		defer d.Close()
		return drain(d)
	}
	var ours, theirs [2][]time.Duration
	for i := range b.rounds + 1 {
		for way, fn := range [2][2]func() error{{up, func() error { return r.put(ctx, data) }}, {down, func() error { return r.get(ctx) }}} {
			d, err := timed(fn[0])
			if err != nil {
				return err
			}
			p, err := timed(fn[1])
			if err != nil {
				return err
			}
			if i > 0 {
				ours[way], theirs[way] = append(ours[way], d), append(theirs[way], p)
			}
		}
	}
	b.add("64 MiB file up, hashed and on the disk", ours[0], "`runsc exec` of `cat > file` and `sync file`, through a pipe", theirs[0], 1.0)
	b.add("64 MiB file down", ours[1], "`runsc exec cat file` through a pipe", theirs[1], 1.0)
	return nil
}

// drain reads all that was sent and checks how much it is.
func drain(r io.Reader) error {
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r}, make([]byte, 256<<10))
	if err == nil && n != contentBytes {
		err = fmt.Errorf("%d bytes came", n)
	}
	return err
}

// put writes a file through the pipe of a command.
func (r *raw) put(ctx context.Context, data []byte) error {
	c := r.command(ctx, "exec", r.id, "sh", "-c", "cat > /bench && sync /bench")
	w, err := c.StdinPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	_, err = w.Write(data)
	return errors.Join(err, w.Close(), c.Wait())
}

// get reads a file through the pipe of a command.
func (r *raw) get(ctx context.Context) error {
	c := r.command(ctx, "exec", r.id, "cat", "/bench")
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	return errors.Join(drain(out), c.Wait())
}
