package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/errs"
	sources "github.com/berthrun/berth/internal/template/inputs"
	"github.com/berthrun/berth/internal/template/recipe"
)

// building are the flags of templates.build that are no members of its input.
type building struct {
	file   string
	noWait bool
}

// known are the names that other tools have for flags of templates.build, by which its flags go.
var known = map[string]string{"build-args": "build-arg", "force": "no-cache", "tag": "name"}

func (b *building) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&b.file, "file", "f", "", "the Dockerfile, - for standard input (default: Dockerfile in FOLDER)")
	f.BoolVar(&b.noWait, "no-wait", false, "do not follow the build")
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if other, ok := known[name]; ok {
			name = other
		}
		return pflag.NormalizedName(name)
	})
}

const buildHelp = `Builds a template, or a new version of one, from a folder with a Dockerfile, from an image or from another template.

FOLDER (default: the current one) holds the Dockerfile and the files that COPY takes. It is packed without what its .dockerignore names and sent, and the
build's log is shown until it ends. Steps that were built before are not run again. Ctrl-C cancels the build. A build that fails leaves the version before
in use.`

const buildExample = `  berth templates build -t web .
  berth templates build -t web:2 -f deploy/Dockerfile --build-arg VERSION=2 --target prod .
  berth templates build -t api --start-cmd "node server.js" --ready-cmd "curl -f localhost:8080" .
  berth templates build -t tools --from-template base --input steps.json`

// buildTemplate sends what a build needs, starts it, and follows it to its end.
func (c *command) buildTemplate(cmd *cobra.Command, in map[string]any) error {
	folder, _ := in["folder"].(string)
	delete(in, "folder")
	if folder == "-" && c.build.file == "" { // docker build -
		folder, c.build.file = "", "-"
	}
	dockerfile, err := c.readDockerfile(cmd, in, folder)
	if err != nil {
		return err
	}
	if _, err := c.encode(in); err != nil { // before anything is sent
		return err
	}
	conn, err := c.connect()
	if err != nil {
		return err
	}
	ctx, cancel := c.context(cmd)
	defer cancel()
	if takes, err := takesFiles(in); err != nil {
		return err
	} else if takes && in["contextId"] == nil {
		if in["contextId"], err = c.sendFolder(ctx, conn, first(folder, "."), dockerfile); err != nil {
			return err
		}
	}
	raw, err := c.encode(in)
	if err != nil {
		return err
	}
	answer, err := conn.Do(ctx, c.info, raw)
	if err != nil {
		if cmd.Context().Err() != nil {
			c.note("the build may have begun: berth builds list shows it, berth builds cancel ends it")
		}
		return err
	}
	var out api.BuildTemplateOut
	if err := json.Unmarshal(answer, &out); err != nil {
		return fmt.Errorf("decode output of %s: %w", c.info.Name, err)
	}
	if out.BuildID == "" || c.build.noWait {
		err := c.print(c.info, answer)
		if err == nil && out.BuildID != "" {
			c.note("it goes on; berth builds logs %s --follow shows how", out.BuildID)
		}
		return err
	}
	return c.followBuild(ctx, cmd.Context(), conn, out)
}

// readDockerfile puts the Dockerfile's text into the input, unless that says otherwise what the build begins with, and gives the file's name.
func (c *command) readDockerfile(cmd *cobra.Command, in map[string]any, folder string) (string, error) {
	for _, other := range []string{"dockerfile", "fromImage", "fromTemplate"} {
		if in[other] != nil {
			if cmd.Flags().Changed("file") {
				return "", usagef("-f and --%s exclude each other", kebab(other))
			}
			return "", nil
		}
	}
	name := first(c.build.file, filepath.Join(first(folder, "."), "Dockerfile"))
	text, err := readAll(name, c.stdin)
	if _, serr := os.Stat(first(folder, ".")); c.build.file == "" && errors.Is(serr, os.ErrNotExist) {
		return "", usagef("there is no folder %s", folder)
	}
	if errors.Is(err, os.ErrNotExist) && c.build.file == "" {
		return "", usagef("there is no %s: name it with -f, or give --from-template or --from-image", name)
	}
	if errors.Is(err, os.ErrNotExist) {
		return "", usagef("there is no %s: -f is a path from the current folder, as any other", name)
	}
	if err != nil {
		return "", err
	}
	if len(text) == 0 {
		return "", usagef("the Dockerfile %s is empty", name)
	}
	in["dockerfile"] = string(text)
	if name == "-" {
		name = ""
	}
	return name, nil
}

// takesFiles reports whether a build copies files of its folder. A Dockerfile that cannot be built is refused here, before they are sent.
func takesFiles(in map[string]any) (bool, error) {
	raw, err := json.Marshal(in)
	if err != nil {
		return false, fmt.Errorf("encode input: %w", err)
	}
	var b api.BuildTemplateIn
	if err := json.Unmarshal(raw, &b); err != nil {
		return false, usagef("the input makes no sense: %v", err)
	}
	for _, s := range b.Steps {
		if strings.EqualFold(s.Type, string(recipe.Copy)) {
			return true, nil
		}
	}
	if b.Dockerfile == "" {
		return false, nil
	}
	r, err := recipe.Parse(b.Dockerfile, recipe.Options{Target: b.Target, Args: b.BuildArgs})
	if err != nil {
		return false, err
	}
	for _, st := range r.Stages {
		for _, s := range st.Steps {
			if s.Files != nil && s.Files.From == nil && len(s.Files.Sources) > 0 {
				return true, nil
			}
		}
	}
	return false, nil
}

// sendFolder packs a folder and sends it, unless the server has the same already, and gives the id under which a build finds it.
func (c *command) sendFolder(ctx context.Context, conn *client.Client, folder, dockerfile string) (string, error) {
	ignore, err := sources.FindIgnore(folder, dockerfile)
	if err != nil {
		return "", err
	}
	began, sum := time.Now(), &summing{Hash: sha256.New(), ctx: ctx}
	packed, err := pack(sum, folder, ignore)
	if err != nil {
		return "", err
	}
	for _, name := range packed.Skipped {
		c.note("left out, it is no file, folder or symlink: %s", plain(name))
	}
	known, err := conn.KnownContext(ctx, hex.EncodeToString(sum.Sum(nil)))
	if err != nil {
		return "", err
	}
	verb := "the server has"
	if known == nil {
		verb = "sent"
		if known, err = c.send(ctx, conn, folder, ignore, sum.n); err != nil {
			return "", err
		}
	}
	what := "files and folders"
	if packed.Entries == 1 {
		what = "file or folder"
	}
	c.note("%s %d %s, %s, in %s", verb, packed.Entries, what, size(packed.Bytes), brief(time.Since(began)))
	return known.ID, nil
}

// summing hashes and counts what is written, until its context ends.
type summing struct {
	hash.Hash
	n   int64
	ctx context.Context //nolint:containedctx // of the one packing that it is for
}

// Write implements io.Writer.
func (s *summing) Write(p []byte) (int, error) {
	s.n += int64(len(p))
	_, _ = s.Hash.Write(p)
	return len(p), s.ctx.Err()
}

// send packs a folder again, for the way. about is how many bytes that will be, unless the folder changes.
func (c *command) send(ctx context.Context, conn *client.Client, folder string, ignore sources.Ignore, about int64) (*api.BuildContext, error) {
	bar := newProgress(c.stderr)
	bar.begin("sending "+folder, about, 0)
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := pack(w, folder, ignore)
		w.CloseWithError(err)
	}()
	sent, err := conn.UploadContext(ctx, r, -1, bar.at)
	_ = r.Close() // the packing ends too, wherever it is
	<-done
	bar.close()
	return sent, err
}

func pack(w io.Writer, folder string, ignore sources.Ignore) (sources.Packed, error) {
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return sources.Packed{}, err
	}
	packed, err := sources.Pack(z, folder, sources.PackOptions{Ignore: ignore})
	if err != nil {
		return packed, errors.Join(err, z.Close())
	}
	return packed, z.Close()
}

const cancelFor = 10 * time.Second // how long an interrupted program tries to cancel a build

// followBuild shows a build's log until it ends, and says what came of it. Interrupted, it cancels the build.
func (c *command) followBuild(ctx, program context.Context, conn *client.Client, out api.BuildTemplateOut) error {
	log := &buildLog{w: c.stderr, bold: isTerminal(c.stderr)}
	if c.quiet {
		log.w = io.Discard
	}
	in := api.BuildLogsIn{BuildIn: api.BuildIn{BuildID: out.BuildID}, Limit: 1000, WaitSeconds: 20}
	for {
		part, err := client.Call(ctx, conn, api.BuildLogs, in)
		if err != nil {
			if program.Err() != nil {
				return c.cancelBuild(program, conn, out, err)
			}
			c.note("the build %s goes on; berth builds logs %s shows how", out.BuildID, out.BuildID)
			return err
		}
		for _, l := range part.Lines {
			log.add(l)
		}
		in.Offset = part.NextOffset
		if !part.End {
			continue
		}
		log.end()
		if part.Status != api.BuildReady {
			return errs.E(errs.InvalidState, "the build failed: %s", first(part.Reason, part.Status)).Because("build_failed").
				Suggest("Correct it and build again: what was built up to there is kept. berth builds logs %s has the whole log.", out.BuildID)
		}
		return c.builtTemplate(ctx, conn, out)
	}
}

func (c *command) cancelBuild(program context.Context, conn *client.Client, out api.BuildTemplateOut, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(program), cancelFor)
	defer cancel()
	if _, cerr := client.Call(ctx, conn, api.CancelBuild, api.CancelBuildIn{BuildIn: api.BuildIn{BuildID: out.BuildID}}); cerr != nil {
		c.say("the build %s could not be cancelled: %s", out.BuildID, plain(cerr.Error()))
		return err
	}
	c.note("the build %s was cancelled", out.BuildID)
	return err
}

// builtTemplate says what was built and how it is used.
func (c *command) builtTemplate(ctx context.Context, conn *client.Client, out api.BuildTemplateOut) error {
	if c.quiet {
		_, err := fmt.Fprintln(c.stdout, out.TemplateID)
		return err
	}
	got, err := client.Call(ctx, conn, api.GetBuild, api.GetBuildIn{BuildIn: api.BuildIn{BuildID: out.BuildID}})
	if err != nil {
		return err
	}
	b := got.Build
	if c.output == "json" {
		return writeJSON(c.stdout, b)
	}
	took := ""
	if b.FinishedAt != nil {
		took = ", in " + brief(b.FinishedAt.Sub(b.CreatedAt))
	}
	_, err = fmt.Fprintf(c.stdout, "%s  %s version %d  (%d of %d steps cached%s)\n", b.TemplateID, plain(b.Name), b.Version, b.Cached, b.Steps, took)
	c.note("use it: berth sandboxes create --template %s", plain(b.Name))
	return err
}

// readBuildLog prints a build's log, with --follow until the build ends.
func (c *command) readBuildLog(ctx context.Context, conn *client.Client, raw json.RawMessage) error {
	var in api.BuildLogsIn
	if err := json.Unmarshal(raw, &in); err != nil {
		return fmt.Errorf("decode input: %w", err)
	}
	log := &buildLog{w: c.stdout, bold: isTerminal(c.stdout)}
	for {
		if c.follow {
			in.WaitSeconds = 20
		}
		part, err := client.Call(ctx, conn, api.BuildLogs, in)
		if err != nil {
			return err
		}
		for _, l := range part.Lines {
			log.add(l)
		}
		if part.End {
			log.end()
		}
		in.Offset = part.NextOffset
		if !c.follow || part.End {
			if !c.follow && !part.End {
				c.note("there may be more from --offset %d on; -f goes on until the build ends", in.Offset)
			}
			return nil
		}
	}
}

// buildLog writes a build's log for a person: its own lines as they are, what commands write below them, and how long each step took.
type buildLog struct {
	w     io.Writer
	bold  bool
	step  int64
	since time.Time // when the step began
	ran   bool      // the step wrote something, or took time
	last  time.Time
	of    string // "[2/10]"
}

func (b *buildLog) add(l api.BuildLine) {
	own := l.Stream == "build"
	b.last = l.At
	if own && l.Step != b.step {
		b.end()
		b.step, b.since, b.ran = l.Step, l.At, !strings.Contains(l.Text, " CACHED ")
		b.of, _, _ = strings.Cut(plain(strings.TrimSpace(l.Text)), " ")
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(l.Text, "\n"), "\n") {
		if i := strings.LastIndexByte(strings.TrimSuffix(line, "\r"), '\r'); i >= 0 { // a bar that a program draws: how it was at last
			line = line[i+1:]
		}
		line = plain(line)
		switch {
		case !own:
			line = "    " + line
		case b.bold && l.Step > 0:
			line = "\x1b[1m" + line + "\x1b[0m"
		}
		fmt.Fprintln(b.w, line)
	}
}

// end says how long the step took that was under way, where that is worth a line.
func (b *buildLog) end() {
	if took := b.last.Sub(b.since); b.step > 0 && b.ran && took >= 100*time.Millisecond {
		fmt.Fprintf(b.w, "%s done in %s\n", b.of, brief(took))
	}
	b.step = 0
}

// brief is a duration for a person.
func brief(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}
