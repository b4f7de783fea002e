package template

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strconv"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
	"github.com/berthrun/berth/internal/template/recipe"
)

// position is a state of files: a layer, or an image alone.
type position struct {
	key            string
	layer          string // empty: the image is all that there is
	image, imageID string
}

// base is what a stage begins with.
type base struct {
	position
	config   recipe.Config
	prepared bool // of an image that the node has prepared: whoever is not named is its own user, not root
	built    runtime.Resources
	parent   string // the build of a template
}

// stage is a stage of a build with the keys of what its steps leave behind.
type stage struct {
	n       int
	first   int64 // the number of its first step
	base    base
	from    int // the stage that it goes on from, -1: none
	actions []recipe.Action
	homes   []bool // of each action: no folder was named to work in
	keys    []string
	key     string
	config  recipe.Config
	done    *position // once it is built
}

// read makes a recipe of what a build was asked for.
func read(in *api.BuildTemplateIn) (*recipe.Recipe, error) {
	sources := 0
	for _, s := range []string{in.FromImage, in.FromTemplate, in.Dockerfile} {
		if s != "" {
			sources++
		}
	}
	if sources != 1 {
		return nil, errs.E(errs.InvalidInput, "give exactly one of fromImage, fromTemplate and dockerfile").
			Suggest("fromTemplate: base is what sandboxes begin with otherwise.").With("path", "fromImage")
	}
	if in.Dockerfile != "" {
		if len(in.Steps) > 0 {
			return nil, errs.E(errs.InvalidInput, "steps and dockerfile exclude each other").Suggest("Write the steps into the dockerfile.").With("path", "steps")
		}
		return parse(in)
	}
	if len(in.BuildArgs) > 0 || in.Target != "" {
		return nil, errs.E(errs.InvalidInput, "buildArgs and target are of a dockerfile").With("path", "buildArgs")
	}
	from := recipe.Source{Kind: recipe.FromTemplate, Ref: in.FromTemplate}
	if in.FromImage != "" {
		from = recipe.Source{Kind: recipe.FromImage, Ref: in.FromImage}
	}
	steps := make([]recipe.Plain, len(in.Steps))
	for i, st := range in.Steps {
		steps[i] = recipe.Plain(st)
	}
	return recipe.FromSteps(from, steps)
}

// plan works out the keys of all that the stages leave behind, without running anything.
func (x *execution) plan(ctx context.Context, r *recipe.Recipe) error {
	number := int64(1)
	for i := range r.Stages {
		st := &stage{n: i, first: number, from: -1}
		src := r.Stages[i].From
		if src.Kind == recipe.FromStage {
			st.from = src.Stage
			st.base = x.stages[src.Stage].base
			st.key = x.stages[src.Stage].key
		} else {
			b, err := x.source(ctx, src)
			if err != nil {
				return err
			}
			st.base, st.key = *b, b.key
		}
		w := r.Walk(i, st.base.config)
		for {
			home := w.Config().Dir == ""
			a, more, err := w.Next()
			if err != nil {
				return err
			}
			if !more {
				break
			}
			content := ""
			if a.Put != nil {
				if content, err = x.content(ctx, a); err != nil {
					return err
				}
			}
			st.key = a.Key(st.key, content)
			st.actions, st.homes, st.keys = append(st.actions, a), append(st.homes, home), append(st.keys, st.key)
			number++
		}
		st.config = w.Config()
		x.stages = append(x.stages, st)
	}
	x.b.Steps = number - 1
	return nil
}

// source finds what a stage, or a COPY, begins with.
func (x *execution) source(ctx context.Context, src recipe.Source) (*base, error) {
	name := string(src.Kind) + " " + src.Ref
	if b := x.sources[name]; b != nil {
		return b, nil
	}
	b, err := x.find(ctx, src)
	if err != nil {
		return nil, err
	}
	x.sources[name] = b
	return b, nil
}

func (x *execution) find(ctx context.Context, src recipe.Source) (*base, error) {
	s, b := x.s, x.b
	switch src.Kind {
	case recipe.FromImage:
		x.log.say(0, "image %s", src.Ref)
		img, err := s.Images.Pull(ctx, b.OrgID, b.WorkspaceID, b.CreatedBy, src.Ref)
		if err != nil {
			return nil, x.orTemplate(ctx, src.Ref, err)
		}
		return &base{
			position: position{key: recipe.BaseKey(src.Kind, img.Digest), image: img.Digest, imageID: img.ID},
			config:   recipe.Config{Env: slices.Clone(img.Env), Dir: img.WorkingDir, User: img.User},
		}, nil
	case recipe.FromTemplate:
		t, err := s.resolve(ctx, b.OrgID, b.WorkspaceID, src.Ref)
		if err != nil {
			return nil, err
		}
		if t == nil {
			image, err := s.Images.Prepared(ctx, src.Ref)
			if err != nil {
				return nil, err
			}
			if image == "" {
				return nil, errNoTemplate(src.Ref)
			}
			return &base{position: position{key: recipe.BaseKey(src.Kind, "prepared "+image), image: image}, prepared: true}, nil
		}
		return &base{
			position: position{key: t.Result.Key, layer: t.Result.Disk, image: t.Result.Image, imageID: t.Result.ImageID},
			config:   t.Result.Config, prepared: t.Result.Prepared, built: t.Result.Built, parent: t.ID,
		}, nil
	case recipe.FromScratch:
		return nil, errs.E(errs.InvalidInput, "a template cannot begin with nothing").Because("from_scratch").Suggest("Begin with a small image, such as debian:13-slim or alpine.")
	}
	return nil, errs.E(errs.InvalidInput, "%s is not a source that this can begin with", src.Kind)
}

// orTemplate adds to an image's error that there is a template of this name, where there is one: that is what FROM base means elsewhere.
func (x *execution) orTemplate(ctx context.Context, ref string, err error) error {
	t, terr := x.s.resolve(ctx, x.b.OrgID, x.b.WorkspaceID, ref)
	if terr != nil {
		return err
	}
	if t == nil {
		if image, perr := x.s.Images.Prepared(ctx, ref); perr != nil || image == "" {
			return err
		}
	}
	e := *errs.From(err)
	return (&e).Suggest("%s is also a template's name: FROM template://%s, or fromTemplate, begins with that.", ref, ref)
}

// content is what stands in a key for the files that a COPY takes: those of the context by what is in them, those of other stages by what made them.
func (x *execution) content(ctx context.Context, a recipe.Action) (string, error) {
	switch from := a.Put.From; {
	case from == nil && len(a.Put.Sources) == 0:
		return "", nil
	case from == nil:
		return x.selected(ctx, a)
	case from.Kind == recipe.FromStage:
		return x.stages[from.Stage].key, nil
	default:
		b, err := x.source(ctx, *from)
		if err != nil {
			return "", err
		}
		return b.key, nil
	}
}

// bootKey is the key of a layer with memory: of the files and all that what is started in it depends on.
func (x *execution) bootKey(p position, st *stage) string {
	h := sha256.New()
	field := func(s string) {
		var b [8]byte
		binary.BigEndian.PutUint64(b[:], uint64(len(s)))
		h.Write(b[:])
		h.Write([]byte(s))
	}
	res := x.resources()
	for _, s := range []string{
		"berth booted 1", p.key, x.b.Recipe.StartCmd, x.b.Recipe.ReadyCmd, strconv.FormatFloat(res.VCPU, 'f', 3, 64), strconv.FormatInt(res.MemoryMiB, 10),
		strconv.FormatInt(res.DiskGiB, 10), strconv.FormatBool(x.internet()), st.config.User, st.config.Dir, strconv.Itoa(len(st.config.Env)),
	} {
		field(s)
	}
	for _, e := range slices.Sorted(slices.Values(st.config.Env)) {
		field(e)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// resources are those of the build's sandboxes, and of the template's that ask for none.
func (x *execution) resources() runtime.Resources {
	res, in := x.s.Defaults, x.b.Recipe
	if b := x.stages[len(x.stages)-1].base.built; b.MemoryMiB > 0 {
		res = b
	}
	if in.CPUCount > 0 {
		res.VCPU = in.CPUCount
	}
	if in.MemoryMiB > 0 {
		res.MemoryMiB = in.MemoryMiB
	}
	if in.DiskGiB > 0 {
		res.DiskGiB = in.DiskGiB
	}
	for _, st := range x.stages { // what it is made of has to fit
		res.DiskGiB = max(res.DiskGiB, st.base.built.DiskGiB)
	}
	return res
}

func (x *execution) internet() bool {
	n := x.b.Recipe.Network
	return n == nil || n.Internet == nil || *n.Internet
}

func errNoTemplate(ref string) error {
	return errs.E(errs.NotFound, "there is no template %s", ref).Suggest("list_templates shows which exist; base always does.").With("path", "fromTemplate")
}
