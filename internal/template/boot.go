package template

import (
	"context"
	"errors"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/id"
)

const (
	readyWait  = 5 * time.Minute // for a start command to be ready
	readyEvery = 200 * time.Millisecond
	readyEach  = 30 * time.Second // for one asking
	startRest  = 3 * time.Second  // that a start command gets where nothing says when it is ready
)

// bootUp boots a sandbox with the files of the template, starts what it starts, and keeps it as it is then: sandboxes of the template come up with it running.
// Where the node cannot keep memory nothing is kept and they start it themselves; that it comes up is seen here nevertheless.
func (x *execution) bootUp(ctx context.Context, p position, st *stage) (string, error) {
	keeps := x.s.Node.Capabilities().Memory
	l, mine, err := x.s.claim(ctx, x.b, x.bootKey(p, st), x.b.Recipe.Force)
	if err == nil && !mine {
		usable, uerr := x.use(ctx, l)
		if uerr != nil {
			return "", uerr
		}
		if usable && l.Memory {
			x.log.say(0, "booted (from an earlier build)")
			return l.ID, nil
		}
		if usable {
			return "", nil
		}
		l, mine, err = x.s.claim(ctx, x.b, x.bootKey(p, st), x.b.Recipe.Force)
	}
	if err != nil {
		return "", err
	}
	if !mine {
		return l.ID, nil
	}
	l.Memory = keeps
	b, err := x.make(ctx, p, x.resources(), x.internet())
	if err == nil {
		l.Token = b.token
		err = x.start(ctx, b, st)
	}
	if err == nil {
		err = x.save(ctx, b, l)
	}
	if err != nil {
		if derr := x.s.dropLayer(context.WithoutCancel(ctx), l); derr != nil {
			x.s.Logger.Warn("layer not given up, will be found again", "layer", l.ID, "error", derr)
		}
		if b != nil && ctx.Err() == nil {
			err = x.s.Sandboxes.Explain(ctx, b.id, err)
		}
		return "", err
	}
	x.end(ctx, b)
	if !keeps {
		return "", nil
	}
	return l.ID, nil
}

// start starts the start command and waits until what it starts is ready.
func (x *execution) start(ctx context.Context, b *box, st *stage) error {
	in := x.b.Recipe
	// The guest is told what sandboxes of the template will be told, so that what is started has it.
	env := environment(st.config.Env)
	if _, err := b.guest.Configure(ctx, guest.Configure{Env: env, User: x.user(st, st.config.User), WorkDir: st.config.Dir}); err != nil {
		return err
	}
	process := ""
	var read func()
	if in.StartCmd != "" {
		x.log.say(0, "start: %s", clip(in.StartCmd, 500))
		process = id.New(id.Process)
		if _, err := b.guest.StartProcess(ctx, guest.Start{ID: process, Command: in.StartCmd, Background: true}); err != nil {
			return err
		}
		read = x.tail(ctx, b.guest, process)
	}
	err := x.untilReady(ctx, b, process)
	if read != nil {
		read()
	}
	return err
}

// tail has what the start command writes in the log until the returned function is called.
func (x *execution) tail(ctx context.Context, g *guest.Client, process string) (stop func()) {
	tctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{}, 2)
	for _, name := range []string{"stdout", "stderr"} {
		go func() {
			defer func() { done <- struct{}{} }()
			_ = x.follow(tctx, g, process, name, func(data []byte, _ guest.Process) { x.log.stream(0, name, data) })
		}()
	}
	return func() {
		cancel()
		<-done
		<-done
		x.log.rest()
	}
}

func (x *execution) untilReady(ctx context.Context, b *box, process string) error {
	in := x.b.Recipe
	wait := readyWait
	if in.ReadyCmd == "" {
		wait = startRest
	}
	rctx, cancel := context.WithTimeoutCause(ctx, wait, errs.E(errs.Timeout, "the ready command has not succeeded within %v", wait).Because("not_ready"))
	defer cancel()
	last := ""
	for {
		if process != "" {
			p, err := b.guest.Process(rctx, process)
			if err == nil && !p.Running && p.ExitCode != 0 {
				return errs.E(errs.InvalidState, "the start command ended with exit code %d", p.ExitCode).Because("start_failed").Suggest("get_build_logs shows what it wrote.")
			}
		}
		if in.ReadyCmd != "" {
			res, err := b.guest.Exec(rctx, guest.Start{ID: id.New(id.Process), Command: in.ReadyCmd, TimeoutMS: readyEach.Milliseconds()}, readyEach)
			if err == nil && !res.Process.Running && res.Process.ExitCode == 0 {
				x.log.say(0, "ready")
				return nil
			}
			if err == nil {
				last = clip(string(res.Stderr.Head)+string(res.Stdout.Head), 500)
			} else if rctx.Err() == nil {
				return err
			}
		}
		select {
		case <-rctx.Done():
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case in.ReadyCmd == "":
				return nil
			}
			err := context.Cause(rctx)
			var e *errs.Error
			if last != "" && errors.As(err, &e) {
				return errs.E(errs.Timeout, "%s; it last wrote: %s", e.Message, last).Because("not_ready")
			}
			return err
		case <-time.After(readyEvery):
		}
	}
}
