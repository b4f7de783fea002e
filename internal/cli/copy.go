package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/tarball"
)

// copier is one run of files cp.
type copier struct {
	*app
	user string
	conn *client.Client
	bar  *progress
}

// place is one side of a copy: a path on this machine, or in a sandbox where sandbox is set.
type place struct{ sandbox, path string }

// copied is what a copy says with -o json.
type copied struct {
	To      string   `json:"to"`
	Entries int      `json:"entries"`
	Bytes   int64    `json:"bytes"`
	Skipped []string `json:"skipped,omitempty"`
}

func (a *app) copyCommand() *cobra.Command {
	c := &copier{app: a}
	cmd := &cobra.Command{
		Use: "cp [flags] SRC DST", DisableFlagsInUseLine: true, Short: "Copy files and folders to, from and between sandboxes",
		Long: "Copies a file, or a folder with all that is in it, like scp and docker cp. SANDBOX:PATH is a path in a sandbox, by its id or name; relative ones start at /workspace.\n\n" +
			"Into a directory that exists SRC is copied under its own name; SRC/. copies what is in a folder. Modes, empty folders and symlinks are kept, owners are not; a symlink that leads out of " +
			"a folder from a sandbox is left out. A file's interrupted download goes on when the command is repeated. - is standard input or output, of one file.",
		Example: "  berth files cp ./site build:/workspace/site\n  berth files cp build:report.pdf .\n  berth files cp one:data/. two:/data",
		Args:    cobra.ArbitraryArgs, ValidArgsFunction: a.completePlace,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("%s needs SRC and DST", cmd.CommandPath())
			}
			ctx, cancel := a.context(cmd)
			defer cancel()
			return c.run(ctx, args[0], args[1])
		},
	}
	cmd.Flags().StringVar(&c.user, "user", "", "with whose rights in the sandbox (default: user)")
	return cmd
}

var sandboxName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$|^sbx_[a-z0-9]{20}$`)

// parsePlace reads SANDBOX:PATH or a path. One that begins with . or / is never a sandbox's.
func parsePlace(arg string) (place, error) {
	name, rest, ok := strings.Cut(arg, ":")
	if !ok || strings.HasPrefix(arg, ".") || strings.Contains(name, "/") {
		if arg == "" {
			return place{}, usagef("a path is empty")
		}
		return place{path: arg}, nil
	}
	if !sandboxName.MatchString(name) {
		return place{}, usagef("%q is no sandbox's name or id; for a file of that name write ./%s", clip(plain(name)), clip(plain(arg)))
	}
	if err := isText(rest); err != nil {
		return place{}, err
	}
	if rest == "" {
		rest = "."
	}
	return place{name, rest}, nil
}

func (c *copier) run(ctx context.Context, from, to string) error {
	src, err := parsePlace(from)
	if err != nil {
		return err
	}
	dst, err := parsePlace(to)
	if err != nil {
		return err
	}
	if src.sandbox == "" && dst.sandbox == "" {
		return usagef("neither side is a sandbox's: write SANDBOX:PATH")
	}
	if c.conn, err = c.connect(); err != nil {
		return err
	}
	for _, p := range []*place{&src, &dst} {
		if p.sandbox != "" {
			if p.sandbox, err = sandboxID(ctx, c.conn, p.sandbox); err != nil {
				return err
			}
		}
	}
	c.bar = newProgress(c.stderr)
	defer c.bar.close()
	var out copied
	switch {
	case dst.sandbox == "":
		out, err = c.down(ctx, src, dst.path)
	case src.sandbox == "":
		out, err = c.up(ctx, src.path, dst)
	default:
		out, err = c.across(ctx, src, dst)
	}
	c.bar.close()
	for _, name := range out.Skipped {
		c.note("left out: %s", plain(name))
	}
	if err == nil && c.output == "json" {
		return writeJSON(c.stdout, out)
	}
	return err
}

func (c *copier) file(p place) api.FileIn {
	return api.FileIn{SandboxIn: api.SandboxIn{SandboxID: p.sandbox}, Path: p.path, User: c.user}
}

// stat describes a path in a sandbox, through a symlink to a directory; nil where there is nothing.
func (c *copier) stat(ctx context.Context, p place) (*api.File, error) {
	out, err := client.Call(ctx, c.conn, api.StatFile, api.FileStatIn{FileIn: c.file(p)})
	if client.CodeOf(err) == "NOT_FOUND" {
		e, ok := asError(err)
		if ok && strings.Contains(e.Message, "sandbox") {
			return nil, err
		}
		if ok {
			c.noteWoke(e.Details["woke"])
		}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	c.noteWoke(out.Woke)
	if out.File.Type == "symlink" {
		_, err := client.Call(ctx, c.conn, api.ListFiles, api.ListFilesIn{SandboxIn: api.SandboxIn{SandboxID: p.sandbox}, Path: p.path, User: c.user, Limit: 1})
		if out.File.Type = "file"; err == nil {
			out.File.Type = "directory"
		}
	}
	return &out.File, nil
}

// inside gives the target in a sandbox: below a directory that exists the source's own name, unless only what is in a folder is copied.
func (c *copier) inside(ctx context.Context, dst place, name string, contents bool) (place, error) {
	if contents {
		return dst, nil
	}
	f, err := c.stat(ctx, dst)
	if err != nil {
		return dst, err
	}
	if f != nil && f.Type == "directory" || f == nil && strings.HasSuffix(dst.path, "/") {
		dst.path = strings.TrimSuffix(dst.path, "/") + "/" + name
	}
	return dst, nil
}

// contentsOf reports whether a path stands for what is in a folder.
func contentsOf(p string) bool { return p == "." || p == "/" || strings.HasSuffix(p, "/.") }

func (c *copier) up(ctx context.Context, src string, dst place) (copied, error) {
	if src == "-" {
		c.bar.begin("standard input", 0, 0)
		return c.send(ctx, dst, c.stdin, "", client.UploadOptions{})
	}
	fi, err := os.Stat(src)
	if err != nil {
		return copied{}, err
	}
	abs, err := filepath.Abs(src)
	if err != nil {
		return copied{}, err
	}
	name := filepath.Base(abs)
	if !utf8.ValidString(name) && !contentsOf(filepath.ToSlash(src)) {
		return copied{}, usagef("the name %q is no text: copy the folder that it is in", name)
	}
	if dst, err = c.inside(ctx, dst, name, fi.IsDir() && contentsOf(filepath.ToSlash(src))); err != nil {
		return copied{}, err
	}
	if fi.IsDir() {
		return c.sendFolder(ctx, dst, src)
	}
	f, err := os.Open(src)
	if err != nil {
		return copied{}, err
	}
	defer f.Close()
	o := client.UploadOptions{}
	if fi.Mode().IsRegular() {
		o.Size = fi.Size()
	}
	c.bar.begin(name, fi.Size(), 0)
	return c.send(ctx, dst, f, fmt.Sprintf("%04o", fi.Mode().Perm()), o)
}

func (c *copier) send(ctx context.Context, dst place, body io.Reader, mode string, o client.UploadOptions) (copied, error) {
	if o.Progress == nil {
		o.Progress = c.bar.at
	}
	out, err := c.conn.Upload(ctx, api.UploadFileIn{FileIn: c.file(dst), Mode: mode}, body, o)
	if err != nil {
		return copied{}, err
	}
	if out.Woke != "" {
		c.bar.close()
		c.noteWoke(out.Woke)
	}
	return copied{To: out.File.Path, Entries: max(out.Entries, 1), Bytes: out.Bytes}, nil
}

func (c *copier) sendFolder(ctx context.Context, dst place, src string) (copied, error) {
	name := src
	if abs, err := filepath.Abs(src); err == nil {
		name = abs
	}
	src += "/." // what a link leads to, not the link
	total, err := sizeOf(src)
	if err != nil {
		return copied{}, err
	}
	c.bar.begin(filepath.Base(name), total, 0)
	r, w := io.Pipe()
	packed := make(chan tarball.Stats, 1)
	go func() {
		st, err := tarball.Pack(w, src, c.bar.at)
		_ = w.CloseWithError(err)
		packed <- st
	}()
	out, err := c.send(ctx, dst, r, "", client.UploadOptions{Folder: true, Progress: func(int64) {}}) // what is packed counts, as its total does
	_ = r.CloseWithError(errors.New("the upload has ended"))
	out.Skipped = (<-packed).Skipped
	return out, err
}

// sizeOf is how many bytes the files of a folder have.
func sizeOf(dir string) (total int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Type().IsRegular() {
			if fi, err := d.Info(); err == nil {
				total += fi.Size()
			}
		}
		return nil
	})
	return total, err
}

// across copies between two sandboxes, through this program.
func (c *copier) across(ctx context.Context, src, dst place) (copied, error) {
	f, err := c.stat(ctx, src)
	if err != nil {
		return copied{}, err
	}
	if f == nil {
		return copied{}, notThere(src)
	}
	folder := f.Type == "directory"
	if dst, err = c.inside(ctx, dst, path.Base(f.Path), folder && contentsOf(src.path)); err != nil {
		return copied{}, err
	}
	if folder {
		body, err := c.conn.DownloadFolder(ctx, c.file(src))
		if err != nil {
			return copied{}, err
		}
		defer body.Close()
		c.noteWoke(body.Woke)
		c.bar.begin(f.Name, 0, 0)
		return c.send(ctx, dst, struct{ io.Reader }{body}, "", client.UploadOptions{Folder: true})
	}
	body, err := c.conn.Download(ctx, c.file(src), 0, "")
	if err != nil {
		return copied{}, err
	}
	defer body.Close()
	c.noteWoke(body.Woke)
	c.bar.begin(f.Name, body.Size, 0)
	return c.send(ctx, dst, struct{ io.Reader }{body}, f.Mode, client.UploadOptions{Size: body.Size})
}

func notThere(p place) error {
	return &client.Error{Code: "NOT_FOUND", Message: "there is no " + p.path + " in the sandbox", Suggestion: "berth files list shows what is there."}
}
