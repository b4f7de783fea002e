package cli

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
)

// exec runs a command in a sandbox: its output goes through as it is, and its exit code is ours.
func (c *command) exec(ctx context.Context, conn *client.Client, in json.RawMessage) error {
	raw, err := conn.Do(ctx, c.info, in)
	if err != nil {
		return err
	}
	var out api.ExecOut
	var at api.SandboxIn
	if err := errors.Join(json.Unmarshal(raw, &out), json.Unmarshal(in, &at)); err != nil {
		return fmt.Errorf("decode output of %s: %w", c.info.Name, err)
	}
	if c.output == "json" {
		if err := c.print(c.info, raw); err != nil {
			return err
		}
		return ended(out.ExitCode, out.Running)
	}
	c.noteWoke(out.Woke)
	if (out.Running || out.Truncated) && out.ProcessID != "" {
		p, err := c.both(ctx, conn, api.ProcessIn{SandboxID: at.SandboxID, ProcessID: out.ProcessID})
		if err != nil {
			return err
		}
		return c.finish(p.ExitCode, p.TimedOut, p.OutOfMemory, p.State)
	}
	if _, err := io.WriteString(c.stdout, out.Stdout); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	if _, err := io.WriteString(c.stderr, out.Stderr); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	if out.Truncated {
		c.note("part of the output is left out")
	}
	return c.finish(out.ExitCode, out.TimedOut, out.OutOfMemory, "")
}

// finish ends with the exit code of what ran, and says why it ended where that is not plain.
func (c *command) finish(code *int, timedOut, outOfMemory bool, state string) error {
	switch {
	case timedOut:
		c.note("the command was killed at its time limit")
	case outOfMemory:
		c.note("the sandbox's memory was used up: the largest process of the command was killed")
	case state == "lost":
		c.note("the sandbox ended under the command")
	}
	return ended(code, false)
}

func ended(code *int, running bool) error {
	switch {
	case running:
		return nil
	case code == nil:
		return ExitError{exitFailed}
	case *code != 0:
		return ExitError{*code}
	}
	return nil
}

// both follows the two streams of a process to their ends, from what the server has kept.
func (c *command) both(ctx context.Context, conn *client.Client, p api.ProcessIn) (api.Process, error) {
	exit, err := c.followed(ctx, conn, api.FollowProcessIn{ProcessIn: p})
	if olderServer(err) {
		return c.poll(ctx, conn, p)
	}
	return api.Process{ExitCode: exit.ExitCode, TimedOut: exit.TimedOut, State: exit.State}, err
}

// followed writes the streams of a process as they come until it ends.
func (c *command) followed(ctx context.Context, conn *client.Client, in api.FollowProcessIn) (api.ExitEvent, error) {
	return conn.Follow(ctx, in, func(o client.Output) error {
		if o.Gap > 0 {
			c.gap(o.Gap, o.Stream)
		}
		w := c.stdout
		if o.Stream == "stderr" {
			w = c.stderr
		}
		if _, err := w.Write(o.Data); err != nil {
			return fmt.Errorf("write output: %w", err)
		}
		return nil
	})
}

// gap says that a part of a stream is gone, and how to have all of it.
func (c *command) gap(bytes int64, stream string) {
	hint := "the last 1 MiB of each stream is"
	if c.info.Name == api.Exec.Name {
		hint += "; exec -i passes all of it on as it comes"
	}
	c.say("%d bytes of %s were not kept: %s", bytes, stream, hint)
}

// olderServer reports whether a server of an earlier version does not know how to be followed.
func olderServer(err error) bool {
	e, ok := asError(err)
	return ok && e.Code == "INVALID_INPUT" && e.Details["path"] == "follow"
}

// poll is both by reading part after part.
func (c *command) poll(ctx context.Context, conn *client.Client, p api.ProcessIn) (api.Process, error) {
	var lock sync.Mutex // the two writers may be one file
	var errOut error
	var wait sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wait.Go(func() {
		if _, errOut = c.stream(ctx, conn, api.ProcessOutputIn{ProcessIn: p, Stream: "stderr"}, locked{&lock, c.stderr}); errOut != nil {
			cancel()
		}
	})
	last, err := c.stream(ctx, conn, api.ProcessOutputIn{ProcessIn: p, Stream: "stdout"}, locked{&lock, c.stdout})
	if err != nil {
		cancel()
	}
	wait.Wait()
	if errOut != nil && (err == nil || errors.Is(err, context.Canceled)) {
		err = errOut
	}
	return last, err
}

// stream writes one stream of a process until its end and gives the process as it was then.
func (c *command) stream(ctx context.Context, conn *client.Client, in api.ProcessOutputIn, w io.Writer) (api.Process, error) {
	in.WaitSeconds = 30
	for {
		out, err := client.Call(ctx, conn, api.ProcessOutput, in)
		if err != nil {
			return api.Process{}, err
		}
		if out.Offset > in.Offset {
			c.gap(out.Offset-in.Offset, in.Stream)
		}
		if err := writeData(w, out.Data, out.Encoding); err != nil {
			return api.Process{}, err
		}
		in.Offset = out.NextOffset
		if out.EOF {
			return out.Process, nil
		}
	}
}

// processOutput prints a part of a stream, or with --follow all of it, as it is.
func (c *command) processOutput(ctx context.Context, conn *client.Client, raw json.RawMessage) error {
	var in api.ProcessOutputIn
	if err := json.Unmarshal(raw, &in); err != nil {
		return fmt.Errorf("decode input of %s: %w", c.info.Name, err)
	}
	if c.follow && c.output == "table" {
		_, err := c.followed(ctx, conn, api.FollowProcessIn{ProcessIn: in.ProcessIn, Stream: in.Stream, StdoutOffset: in.Offset, StderrOffset: in.Offset})
		if !olderServer(err) {
			return err
		}
		if in.Stream == "" {
			in.Stream = "stdout"
		}
		_, err = c.stream(ctx, conn, in, c.stdout)
		return err
	}
	answer, err := conn.Do(ctx, c.info, raw)
	if err != nil {
		return err
	}
	if c.output == "json" {
		return c.print(c.info, answer)
	}
	var out api.ProcessOutputOut
	if err := json.Unmarshal(answer, &out); err != nil {
		return fmt.Errorf("decode output of %s: %w", c.info.Name, err)
	}
	if err := writeData(c.stdout, out.Data, out.Encoding); err != nil {
		return err
	}
	if !out.EOF {
		c.note("there may be more: --offset %d, or --follow", out.NextOffset)
	}
	return nil
}

// writeData writes bytes that came as text or base64.
func writeData(w io.Writer, data, encoding string) error {
	b := []byte(data)
	if encoding == "base64" {
		var err error
		if b, err = base64.StdEncoding.DecodeString(data); err != nil {
			return fmt.Errorf("decode content: %w", err)
		}
	}
	if _, err := w.Write(b); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

type locked struct {
	*sync.Mutex
	io.Writer
}

func (l locked) Write(b []byte) (int, error) {
	l.Lock()
	defer l.Unlock()
	return l.Writer.Write(b)
}
