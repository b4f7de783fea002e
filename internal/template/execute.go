package template

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/template/inputs"
	"github.com/berthrun/berth/internal/template/recipe"
)

// execution is one server's work on one build.
type execution struct {
	s       *Service
	b       *build
	log     *journal
	stages  []*stage
	sources map[string]*base
	there   map[string]bool // the saves on the node
	boxes   map[string]bool // sandboxes that it has
	others  map[string]*box // those that COPY takes files from
	files   *inputs.Tree    // of the context
	closes  []func()
}

// box is the sandbox that steps run in, one after the other.
type box struct {
	id    string
	guest *guest.Client
	token string
}

// run builds, and leaves in the build what came of it.
func (x *execution) run(ctx context.Context) error {
	x.sources, x.boxes, x.others = map[string]*base{}, map[string]bool{}, map[string]*box{}
	rec, err := read(&x.b.Recipe)
	if err != nil {
		return err
	}
	for _, w := range rec.Warnings {
		if w.Line == 0 { // of no line of the Dockerfile
			x.log.say(0, "%s", w.Message)
			continue
		}
		x.log.say(0, "line %d: %s", w.Line, w.Message)
	}
	if err := x.plan(ctx, rec); err != nil {
		return err
	}
	saves, err := x.s.Node.Saves(ctx)
	if err != nil {
		return err
	}
	x.there = map[string]bool{}
	for _, sv := range saves {
		x.there[sv.Name] = true
	}
	last := x.stages[len(x.stages)-1]
	p, err := x.ensure(ctx, last)
	if err != nil {
		return err
	}
	for _, st := range x.stages {
		if st.done == nil { // what was copied from it is there
			x.b.Cached += int64(len(st.actions))
		}
	}
	in := x.b.Recipe
	x.b.Result = result{
		Config: last.config, Prepared: last.base.prepared, Key: p.key, Image: p.image, ImageID: p.imageID, Disk: p.layer, Built: x.resources(), Internet: x.internet(),
		StartCmd: in.StartCmd, ReadyCmd: in.ReadyCmd,
	}
	if in.StartCmd == "" && in.ReadyCmd == "" {
		return nil
	}
	x.b.Result.Booted, err = x.bootUp(ctx, p, last)
	return err
}

// leave ends what is left of the build's sandboxes.
func (x *execution) leave(ctx context.Context) {
	for _, done := range x.closes {
		done()
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for sandbox := range x.boxes {
		if err := x.s.Sandboxes.End(ctx, sandbox); err != nil {
			x.s.Logger.Warn("sandbox of a build not deleted, will be found again", "sandbox", sandbox, "error", err)
		}
	}
}

// ensure gives the files that a stage ends with: what is not there of earlier builds is built.
func (x *execution) ensure(ctx context.Context, st *stage) (position, error) {
	if st.done != nil {
		return *st.done, nil
	}
	at, p, err := x.longest(ctx, st)
	if err != nil {
		return position{}, err
	}
	if at == 0 && st.from >= 0 {
		if p, err = x.ensure(ctx, x.stages[st.from]); err != nil {
			return position{}, err
		}
	}
	for i := range at {
		x.log.say(st.first+int64(i), "[%d/%d] CACHED %s", st.first+int64(i), x.b.Steps, st.actions[i].Title)
		x.b.Cached++
	}
	if err := x.tell(ctx, st.first+int64(at)-1); err != nil {
		return position{}, err
	}
	var b *box
	for i := at; i < len(st.actions); i++ {
		if p, b, err = x.step(ctx, st, i, p, b, b == nil && at > 0); err != nil {
			return position{}, err
		}
	}
	x.end(ctx, b)
	st.done = &p
	return p, nil
}

// longest finds the last step of a stage whose layer is there, and gives the number of steps up to it.
func (x *execution) longest(ctx context.Context, st *stage) (int, position, error) {
	p := st.base.position
	forced := len(st.actions) // from where on
	if x.b.Recipe.Force {
		forced = 0
	}
	for i, a := range st.actions {
		if a.Step.Force && i < forced {
			forced = i
		}
	}
	for i := len(st.actions) - 1; i >= 0; i-- {
		if !st.actions[i].Layer() {
			continue
		}
		own := ""
		if i >= forced {
			own = x.b.ID
		}
		l, err := x.s.store.cached(ctx, x.s.DB, x.b.OrgID, st.keys[i], own)
		if err != nil {
			return 0, p, err
		}
		if l == nil {
			continue
		}
		usable, err := x.use(ctx, l)
		if err != nil {
			return 0, p, err
		}
		if usable {
			p.key, p.layer = st.keys[i], l.ID
			return i + 1, p, nil
		}
	}
	return 0, p, nil
}

// use notes that a layer is in use. One that is neither on the node nor kept elsewhere is given up.
func (x *execution) use(ctx context.Context, l *layer) (bool, error) {
	if !x.there[l.ID] && !(l.Stored && x.s.Storage != nil) {
		return false, x.s.dropLayer(ctx, l)
	}
	usable := false
	err := x.s.DB.TxRelaxed(ctx, func(tx *sql.Tx) (err error) {
		usable, err = x.s.store.touch(ctx, tx, l.ID, x.now())
		return err
	})
	return usable, err
}

func (x *execution) now() int64 { return x.s.Now().UnixMicro() }

// step carries out one step above the files that there are, in the sandbox where there is one.
// What leaves no layer is as it was built before where idle says that nothing has run in this stage.
func (x *execution) step(ctx context.Context, st *stage, i int, p position, b *box, idle bool) (position, *box, error) {
	a, n := st.actions[i], st.first+int64(i)
	if err := x.tell(ctx, n); err != nil {
		return p, b, err
	}
	if !a.Layer() {
		word := ""
		if idle {
			word = "CACHED "
			x.b.Cached++
		}
		x.log.say(n, "[%d/%d] %s%s", n, x.b.Steps, word, a.Title)
		p.key = st.keys[i]
		return p, b, nil
	}
	if a.Put != nil && a.Put.From != nil && a.Put.From.Kind == recipe.FromStage {
		if _, err := x.ensure(ctx, x.stages[a.Put.From.Stage]); err != nil { // before the layer is claimed: nobody waits for two
			return p, b, err
		}
	}
	l, mine, err := x.s.claim(ctx, x.b, st.keys[i], x.b.Recipe.Force || slices.ContainsFunc(st.actions[:i+1], func(a recipe.Action) bool { return a.Step.Force }))
	if err != nil {
		return p, b, err
	}
	if !mine {
		x.log.say(n, "[%d/%d] CACHED %s", n, x.b.Steps, a.Title)
		x.end(ctx, b)
		x.b.Cached++
		p.key, p.layer = st.keys[i], l.ID
		return p, nil, nil
	}
	x.log.say(n, "[%d/%d] %s", n, x.b.Steps, a.Title)
	if b == nil {
		b, err = x.make(ctx, p, x.resources(), x.internet())
	}
	if err == nil {
		err = x.act(ctx, st, i, n, b)
	}
	if err == nil {
		err = x.save(ctx, b, l)
	}
	if err != nil {
		if derr := x.s.dropLayer(context.WithoutCancel(ctx), l); derr != nil {
			x.s.Logger.Warn("layer not given up, will be found again", "layer", l.ID, "error", derr)
		}
		return p, b, x.failed(ctx, a, n, b, err)
	}
	p.key, p.layer = st.keys[i], l.ID
	return p, b, nil
}

// failed says at which step a build failed.
func (x *execution) failed(ctx context.Context, a recipe.Action, n int64, b *box, err error) error {
	if ctx.Err() != nil || errors.Is(err, errLostLease) || errs.Is(err, errs.HostUnavailable) {
		return err
	}
	if b != nil {
		err = x.s.Sandboxes.Explain(ctx, b.id, err)
	}
	e := errs.From(err)
	if e.Code == errs.Internal {
		return fmt.Errorf("step %d: %w", n, err)
	}
	where := fmt.Sprintf("step %d", n)
	if a.Step.Line > 0 && x.b.Recipe.Dockerfile != "" {
		where = fmt.Sprintf("line %d", a.Step.Line)
	}
	c := *e
	c.Message = fmt.Sprintf("%s: %s: %s", where, clip(a.Title, 200), e.Message)
	return &c
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// tell records which step is under way.
func (x *execution) tell(ctx context.Context, n int64) error {
	x.b.Step = n
	return x.s.DB.TxRelaxed(ctx, func(tx *sql.Tx) error {
		x.s.DB.NotifyAfter(tx, topic(x.b.ID))
		return x.s.store.progress(ctx, tx, x.b)
	})
}

// roomWait is how long a build waits for its sandbox to fit into the organization's limits.
const roomWait = 5 * time.Minute

// make makes a sandbox with the files that there are.
func (x *execution) make(ctx context.Context, p position, res runtime.Resources, internet bool) (*box, error) {
	sandbox := Sandbox{
		ID: id.New(id.Sandbox), BuildID: x.b.ID, OrgID: x.b.OrgID, WorkspaceID: x.b.WorkspaceID, By: x.b.CreatedBy, PrincipalID: x.b.PrincipalID,
		Image: p.image, ImageID: p.imageID, Layer: p.layer, Resources: res, Internet: internet, For: x.s.BuildTime + time.Hour,
	}
	began, told := time.Now(), false
	for {
		x.boxes[sandbox.ID] = true
		err := x.s.Sandboxes.Make(ctx, sandbox)
		if err == nil {
			break
		}
		if !errs.Is(err, errs.LimitExceeded) || time.Since(began) > roomWait {
			return nil, err
		}
		if !told {
			told = true
			x.log.say(x.b.Step, "waiting for room: %s", errs.From(err).Message)
		}
		select {
		case <-time.After(2 * time.Second):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	g, token, err := x.s.Sandboxes.Await(ctx, sandbox.ID)
	if err != nil {
		return nil, err
	}
	return &box{id: sandbox.ID, guest: g, token: token}, nil
}

// end lets go of a sandbox. nil is fine.
func (x *execution) end(ctx context.Context, b *box) {
	if b == nil {
		return
	}
	if err := x.s.Sandboxes.End(ctx, b.id); err != nil {
		return // leave tries again
	}
	delete(x.boxes, b.id)
}

// save keeps what a step left behind.
func (x *execution) save(ctx context.Context, b *box, l *layer) error {
	if err := b.guest.Sync(ctx); err != nil { // what is not on the disk would be missing in every sandbox of the template
		return fmt.Errorf("sync disk: %w", err)
	}
	sv, err := x.s.Sandboxes.Save(ctx, b.id, l.ID, l.Memory)
	if err != nil {
		return err
	}
	l.Image, l.DiskBytes = sv.Image, sv.DiskBytes
	x.there[l.ID] = true
	return x.s.keepLayer(ctx, l)
}

// act does what a step says.
func (x *execution) act(ctx context.Context, st *stage, i int, n int64, b *box) error {
	switch a := st.actions[i]; {
	case a.Exec != nil:
		return x.exec(ctx, st, st.homes[i], n, b, a.Exec)
	case a.MakeDir != "":
		owner, nothing := x.user(st, a.As), bytes.NewReader(make([]byte, 1024)) // an archive of nothing: the folder alone
		_, err := b.guest.PutContent(ctx, guest.ContentPut{Path: a.MakeDir, User: "root", Tar: true, Owner: &owner, Length: -1}, nothing)
		return err
	default:
		return x.put(ctx, st, b, a)
	}
}

// exec runs a command to its end.
func (x *execution) exec(ctx context.Context, st *stage, home bool, n int64, b *box, e *recipe.Exec) error {
	start := guest.Start{ID: id.New(id.Process), Argv: e.Argv, Env: environment(e.Env), User: x.user(st, e.User), Stdin: []byte(e.Stdin)}
	if !home || !st.base.prepared {
		start.Cwd = e.Dir
	}
	p, tail, err := x.stream(ctx, b.guest, n, start)
	var failed *errs.Error
	switch {
	case err != nil:
		return err
	case p.OutOfMemory:
		return errs.E(errs.InvalidState, "it ran out of memory: give the build more with memoryMiB").Because("out_of_memory")
	case p.Signal != "":
		failed = errs.E(errs.InvalidState, "it was ended by the signal %s%s", p.Signal, tail)
	case p.ExitCode != 0:
		failed = errs.E(errs.InvalidState, "exit code %d%s", p.ExitCode, tail)
	default:
		return nil
	}
	if start.User != "root" && start.User != "0" && wantsRoot(tail) {
		failed = failed.Suggest("It ran as %s: put USER root before it, or use sudo where there is one.", cmp.Or(start.User, "the user of what the build began with"))
	}
	return failed.Because("step_failed").With(tailOf, tail)
}

// tailOf is the detail of an error that holds the end of what a command wrote, as it stands in the message.
const tailOf = "tail"

// wantsRoot reports whether what a command wrote at last says that it lacked rights.
func wantsRoot(tail string) bool {
	tail = strings.ToLower(tail)
	return strings.Contains(tail, "permission denied") || strings.Contains(tail, "are you root") || strings.Contains(tail, "operation not permitted")
}

// user is as whom something runs where a recipe names somebody, or nobody.
func (x *execution) user(st *stage, name string) string {
	if name == "" && !st.base.prepared {
		return "root"
	}
	return name
}

func environment(list []string) map[string]string {
	env := make(map[string]string, len(list))
	for _, e := range list {
		k, v, _ := strings.Cut(e, "=")
		env[k] = v
	}
	return env
}

// tailBytes of a command's last output are in the reason of its failure.
const tailBytes = 1024

// stream starts a process, has what it writes in the log, and waits for its end. tail is the end of what it wrote, for a reason.
func (x *execution) stream(ctx context.Context, g *guest.Client, n int64, start guest.Start) (p guest.Process, tail string, err error) {
	if p, err = g.StartProcess(ctx, start); err != nil {
		return p, "", err
	}
	var mu sync.Mutex
	var last []byte
	var all sync.WaitGroup
	fails := make([]error, 2)
	for i, name := range []string{"stdout", "stderr"} {
		all.Go(func() {
			fails[i] = x.follow(ctx, g, start.ID, name, func(data []byte, ended guest.Process) {
				mu.Lock()
				defer mu.Unlock()
				last = append(last, data...)
				last = last[max(0, len(last)-tailBytes):]
				if !ended.Running {
					p = ended
				}
				x.log.stream(n, name, data)
			})
		})
	}
	all.Wait()
	x.log.rest()
	if err := errors.Join(fails...); err != nil {
		return p, "", err
	}
	if text := strings.TrimSpace(strings.ToValidUTF8(string(last), "")); text != "" {
		tail = ": " + text
	}
	return p, tail, nil
}

// follow reads one stream of a process to its end.
func (x *execution) follow(ctx context.Context, g *guest.Client, process, name string, take func([]byte, guest.Process)) error {
	for offset := int64(0); ; {
		out, err := g.Output(ctx, process, guest.OutputQuery{Stream: name, Offset: offset, Wait: 10 * time.Second})
		if err != nil {
			return err
		}
		if lost := out.Offset - offset; lost > 0 {
			x.log.say(x.b.Step, "%d bytes of %s came too fast and are lost", lost, name)
		}
		take(out.Data, out.Process)
		offset = out.Next
		if out.EOF {
			return nil
		}
	}
}
