package template

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/template/inputs"
	"github.com/berthrun/berth/internal/template/recipe"
)

func parse(in *api.BuildTemplateIn) (*recipe.Recipe, error) {
	return recipe.Parse(in.Dockerfile, recipe.Options{Target: in.Target, Args: in.BuildArgs})
}

// inspect reads an archive to its end, and gives how many entries it has.
func (s *Service) inspect(ctx context.Context, a *archive) (int64, error) {
	t, done, err := s.openContext(ctx, a)
	if err != nil {
		return 0, err
	}
	defer done()
	return int64(t.Len()), nil
}

// openContext reads an archive. done lets go of it.
func (s *Service) openContext(ctx context.Context, a *archive) (t *inputs.Tree, done func(), err error) {
	r, err := s.Blobs.Get(ctx, contextKey(a.OrgID, a.ID))
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	return s.tree(ctx, r, inputs.Options{})
}

// tree reads an archive into a file that nobody else sees. done lets go of it.
func (s *Service) tree(ctx context.Context, r io.Reader, o inputs.Options) (t *inputs.Tree, done func(), err error) {
	spool, err := os.CreateTemp(s.Folder, "berth-build-")
	if err != nil {
		return nil, nil, fmt.Errorf("make file for a build's files: %w", err)
	}
	_ = os.Remove(spool.Name()) // it is gone with whoever reads it
	if t, err = inputs.Read(ctx, r, spool, o); err != nil {
		_ = spool.Close()
		return nil, nil, err
	}
	return t, func() { _ = spool.Close() }, nil
}

// context gives the build's files, which are read once.
func (x *execution) context(ctx context.Context) (*inputs.Tree, error) {
	if x.files != nil {
		return x.files, nil
	}
	a, err := x.s.store.archive(ctx, x.s.DB, x.b.ContextID)
	if err != nil {
		return nil, err
	}
	if a == nil || a.OrgID != x.b.OrgID {
		return nil, errNoContext(x.b.ContextID)
	}
	t, done, err := x.s.openContext(ctx, a)
	if err != nil {
		return nil, err
	}
	x.files = t
	x.closes = append(x.closes, done)
	return t, nil
}

func query(p *recipe.Put) inputs.Query {
	return inputs.Query{Sources: p.Sources, Exclude: p.Exclude, Parents: p.Parents, Unpack: p.Unpack}
}

// selected is the digest of what a COPY takes from the context.
func (x *execution) selected(ctx context.Context, a recipe.Action) (string, error) {
	t, err := x.context(ctx)
	if err != nil {
		return "", err
	}
	sel, err := t.Select(ctx, query(a.Put))
	if err != nil {
		return "", x.placed(a, err)
	}
	return sel.Digest(), nil
}

// placed says at which step what cannot be copied was to be.
func (x *execution) placed(a recipe.Action, err error) error {
	var e *errs.Error
	if !errors.As(err, &e) || a.Step.Line == 0 {
		return err
	}
	where := "step"
	if x.b.Recipe.Dockerfile != "" {
		where = "line"
	}
	c := *e
	c.Message = fmt.Sprintf("%s %d: %s: %s", where, a.Step.Line, clip(a.Title, 200), e.Message)
	return &c
}

// put copies files into a sandbox.
func (x *execution) put(ctx context.Context, st *stage, b *box, a recipe.Action) error {
	p := a.Put
	owner := p.Owner
	if owner == "" && !(st.base.prepared && x.b.Recipe.Dockerfile == "") {
		owner = "root"
	}
	if len(p.Sources) > 0 {
		t, done, err := x.origin(ctx, p)
		if err != nil {
			return err
		}
		defer done()
		sel, err := t.Select(ctx, query(p))
		if err != nil {
			return err
		}
		if err := x.send(ctx, b, p, sel, owner); err != nil {
			return err
		}
	}
	if len(p.Inline) == 0 {
		return nil
	}
	t, done, err := x.inline(ctx, p)
	if err != nil {
		return err
	}
	defer done()
	names := make([]string, len(p.Inline))
	for i, f := range p.Inline {
		names[i] = f.Name
	}
	sel, err := t.Select(ctx, inputs.Query{Sources: names})
	if err != nil {
		return err
	}
	return x.send(ctx, b, p, sel, owner)
}

// inline makes a tree of the files that a Dockerfile holds itself.
func (x *execution) inline(ctx context.Context, p *recipe.Put) (*inputs.Tree, func(), error) {
	r, w := io.Pipe()
	go func() {
		t := tar.NewWriter(w)
		var err error
		for _, f := range p.Inline {
			if err = t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(path.Clean("/"+f.Name), "/"), Mode: 0o644, Size: int64(len(f.Data))}); err == nil {
				_, err = io.WriteString(t, f.Data)
			}
			if err != nil {
				break
			}
		}
		if err == nil {
			err = t.Close()
		}
		_ = w.CloseWithError(err)
	}()
	defer r.Close()
	return x.s.tree(ctx, r, inputs.Options{})
}

// send unpacks what is selected in a sandbox. The folder is found there, through its symlinks; nothing of it is on the host under a name of the build's.
func (x *execution) send(ctx context.Context, b *box, p *recipe.Put, sel *inputs.Selection, owner string) error {
	dir, place := p.Dest, inputs.Place{Dest: "/", Folder: true, Mode: p.Mode}
	if !p.DestDir {
		there, err := folder(ctx, b.guest, p.Dest)
		if err != nil {
			return err
		}
		if !there {
			dir, place = path.Dir(p.Dest), inputs.Place{Dest: "/" + path.Base(p.Dest), Mode: p.Mode}
		}
	}
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(sel.WriteTar(w, place)) }()
	defer r.Close()
	_, err := b.guest.PutContent(ctx, guest.ContentPut{Path: dir, User: "root", Tar: true, Owner: &owner, Length: -1}, r)
	return err
}

// folder reports whether a path in a sandbox is a folder, or a symlink to one.
func folder(ctx context.Context, g *guest.Client, at string) (bool, error) {
	fi, err := g.Stat(ctx, at, "root")
	switch {
	case errs.Is(err, errs.NotFound):
		return false, nil
	case err != nil || fi.Type != "symlink":
		return err == nil && fi.Type == "directory", err
	}
	c, err := g.Content(ctx, guest.ContentQuery{Path: at, User: "root", Tar: true}) // which a folder has
	if err != nil {
		return false, nil
	}
	return true, c.Close()
}

// origin gives the files that a COPY takes from: the context's, or those of another stage or image.
func (x *execution) origin(ctx context.Context, p *recipe.Put) (*inputs.Tree, func(), error) {
	if p.From == nil {
		t, err := x.context(ctx)
		return t, func() {}, err
	}
	b, err := x.other(ctx, *p.From)
	if err != nil {
		return nil, nil, err
	}
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(x.fetch(ctx, b.guest, p.Sources, w)) }()
	defer r.Close()
	return x.s.tree(ctx, r, inputs.Options{SkipSpecial: true})
}

// other gives a sandbox with the files of another stage, or of what a COPY names, which stays until the build ends.
func (x *execution) other(ctx context.Context, from recipe.Source) (*box, error) {
	var p position
	if from.Kind == recipe.FromStage {
		var err error
		if p, err = x.ensure(ctx, x.stages[from.Stage]); err != nil {
			return nil, err
		}
	} else {
		src, err := x.source(ctx, from)
		if err != nil {
			return nil, err
		}
		p = src.position
	}
	if b := x.others[p.key]; b != nil {
		return b, nil
	}
	b, err := x.make(ctx, p, x.resources(), false)
	if err == nil {
		x.others[p.key] = b
	}
	return b, err
}

// fetch writes a tar stream of what the sources name in a sandbox, under the names that they have there.
func (x *execution) fetch(ctx context.Context, g *guest.Client, sources []string, w io.Writer) error {
	t := tar.NewWriter(w)
	seen := map[string]bool{}
	for _, src := range sources {
		at := fixed(src)
		if seen[at] {
			continue
		}
		seen[at] = true
		if err := fetchOne(ctx, g, at, t); err != nil {
			return err
		}
	}
	return t.Close()
}

// fixed is the part of a source in front of its first pattern: an absolute path.
func fixed(src string) string {
	at := "/"
	for part := range strings.SplitSeq(strings.Trim(path.Clean("/"+src), "/"), "/") {
		if strings.ContainsAny(part, `*?[\`) {
			break
		}
		at = path.Join(at, part)
	}
	return at
}

func fetchOne(ctx context.Context, g *guest.Client, at string, t *tar.Writer) error {
	name := strings.TrimPrefix(at, "/")
	c, err := g.Content(ctx, guest.ContentQuery{Path: at, User: "root", Tar: true})
	if err == nil {
		defer c.Close()
		return retar(name, c, t)
	}
	if errs.Is(err, errs.NotFound) {
		return errs.E(errs.InvalidInput, "there is no %s to copy from", at).Because("missing")
	}
	f, ferr := g.Content(ctx, guest.ContentQuery{Path: at, User: "root", Length: -1})
	if ferr != nil {
		return errors.Join(err, ferr)
	}
	defer f.Close()
	mode := int64(0o644)
	if _, serr := fmt.Sscanf(f.Info.Mode, "%o", &mode); serr != nil {
		mode = 0o644
	}
	if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode & 0o7777, Size: f.Length, Format: tar.FormatPAX}); err != nil {
		return fmt.Errorf("copy %s: %w", at, err)
	}
	_, err = io.Copy(t, f)
	return err
}

// retar passes a stream on with names below a folder.
func retar(below string, r io.Reader, t *tar.Writer) error {
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read files to copy: %w", err)
		}
		dir := strings.HasSuffix(h.Name, "/")
		h.Name = path.Join(below, h.Name)
		if h.Name == "." || h.Name == "" {
			continue
		}
		if dir {
			h.Name += "/"
		}
		if h.Typeflag == tar.TypeLink {
			h.Linkname = path.Join(below, h.Linkname)
		}
		h.Format = tar.FormatPAX
		if err := t.WriteHeader(h); err != nil {
			return fmt.Errorf("copy %s: %w", h.Name, err)
		}
		if _, err := io.Copy(t, in); err != nil { //nolint:gosec // what reads it bounds it
			return err
		}
	}
}
