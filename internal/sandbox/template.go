package sandbox

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// Template is a build of a template as a create sees it, with what the template gives to those who ask for nothing; 0 and empty where it says nothing.
type Template struct {
	Name, BuildID    string
	ChangedAt        int64  // its defaults, in microseconds
	Image, ImageID   string // that its disk lies above
	Disk             string // a save of its files; empty: the image is all that there is
	Booted, Token    string // a save with memory in which its start command runs, and the token of the guest in it
	Built            runtime.Resources
	Resources        runtime.Resources
	Internet         *bool
	TTL, MaxTTL      int
	IdleSeconds      *int
	OnIdle, OnExpiry string
	Volumes          []api.VolumeMount // that each sandbox mounts
}

// TemplateRun is what a template says about running a sandbox of it.
type TemplateRun struct {
	Env           []string          // name=value, of the build
	Own           map[string]string // of the template, over those
	User, WorkDir string            // empty: the guest's own default
	StartCmd      string            // to be started at every boot
	UserData      string            // a script that a new sandbox runs once
	MaxTTL        int               // seconds that a sandbox may have left; 0: any
	Disk          string            // a save of the build's files; empty: the image is all that there is
}

// Templates are those that organizations have built. A layer is a save on the node.
type Templates interface {
	// Template gives one of the caller's organization by name, name:tag or id; nil where it has none such.
	Template(ctx context.Context, ref string) (*Template, error)
	// Usable refuses, in the transaction that takes a build into use, one whose layers are not there any more.
	Usable(ctx context.Context, tx op.Tx, buildID, layer string) error
	// Fetch brings a layer to the node. Errors with HOST_UNAVAILABLE may pass.
	Fetch(ctx context.Context, layer string) error
	// Running says how sandboxes of a build are run.
	Running(ctx context.Context, buildID string) (TemplateRun, error)
}

// layered reports whether a new sandbox is made of a template's layer.
func (r *row) layered() bool { return strings.HasPrefix(r.SaveName, string(id.Layer)+"_") }

// template gives the template that a create names, nil where it names a prepared image, one of a registry or a snapshot.
func (s *Service) template(ctx context.Context, in *api.CreateSandboxIn) (*Template, error) {
	if s.Templates == nil || in.Template == "" || in.Image != "" || in.SnapshotID != "" || in.FromDisk {
		return nil, nil
	}
	return s.Templates.Template(ctx, in.Template)
}

// uses is what a template's name means now.
func (t *Template) uses() map[string]string {
	return map[string]string{"build": t.BuildID, "template as of": db.Time(t.ChangedAt).Format(time.RFC3339Nano)}
}

// setTemplate has a new sandbox come up as its template says.
func (s *Service) setTemplate(ctx context.Context, r *row, in *api.CreateSandboxIn, t *Template) error {
	r.uses = t.uses()
	r.Template, r.BuildID, r.Image, r.ImageID = t.Name, t.BuildID, t.Image, t.ImageID
	if in.Network == nil || in.Network.Internet == nil {
		r.Internet = t.Internet == nil || *t.Internet
	}
	if in.TTLSeconds == 0 && t.TTL > 0 {
		r.TTLSeconds = int64(t.TTL)
	}
	if t.MaxTTL > 0 && r.TTLSeconds > int64(t.MaxTTL) {
		if in.TTLSeconds > 0 {
			return errs.E(errs.LimitExceeded, "sandboxes of %s live at most %d seconds", t.Name, t.MaxTTL).Because("template_ttl").
				Suggest("Ask for a shorter ttlSeconds.").With("path", "ttlSeconds").With("most", t.MaxTTL)
		}
		r.TTLSeconds = int64(t.MaxTTL)
	}
	r.ExpiresAt = r.CreatedAt + r.TTLSeconds*int64(time.Second/time.Microsecond)
	if in.IdlePauseSeconds == nil && t.IdleSeconds != nil {
		r.IdleSeconds = int64(*t.IdleSeconds)
	}
	if in.OnIdle == "" && t.OnIdle != "" && (t.OnIdle != "pause" || s.Driver.Capabilities().Memory) {
		r.OnIdle = t.OnIdle
	}
	if in.OnExpiry == "" && t.OnExpiry != "" && (t.OnExpiry != "pause" || s.Driver.Capabilities().Memory) {
		r.OnExpiry = t.OnExpiry
	}
	d := s.Defaults.Resources
	if t.Resources.VCPU > 0 {
		d.VCPU = t.Resources.VCPU
	}
	if t.Resources.MemoryMiB > 0 {
		d.MemoryMiB = t.Resources.MemoryMiB
	}
	d.DiskGiB = max(t.Resources.DiskGiB, t.Built.DiskGiB, d.DiskGiB)
	if err := s.setResources(ctx, r, in, d); err != nil {
		return err
	}
	if r.DiskGiB < t.Built.DiskGiB {
		return errs.E(errs.InvalidInput, "the template's disk has %d GiB", t.Built.DiskGiB).Because("template_disk").
			Suggest("Ask for at least that much.").With("path", "resources.diskGiB").With("least", t.Built.DiskGiB)
	}
	if len(t.Volumes) > 0 {
		with := *in
		with.Volumes = mounts(t.Volumes, in.Volumes)
		if err := s.setVolumes(r, &with); err != nil {
			return err
		}
	}
	// What was booted comes back only with the size that it had, and without volumes.
	if t.Booted != "" && !r.mounted && r.VCPUMilli == milli(t.Built.VCPU) && r.MemoryMiB == t.Built.MemoryMiB && s.Driver.Capabilities().Memory {
		r.SaveName, r.SaveToken = t.Booted, t.Token
	} else if t.Disk != "" {
		r.SaveName, r.FromDisk = t.Disk, true
	}
	return nil
}

// mounts gives a template's volumes and those of a create, which go before where both have a volume or a path.
func mounts(template, own []api.VolumeMount) []api.VolumeMount {
	all := slices.Clone(own)
	for _, m := range template {
		if !slices.ContainsFunc(own, func(o api.VolumeMount) bool { return o.Volume == m.Volume || o.Path == m.Path && m.Path != "" }) {
			all = append(all, m)
		}
	}
	return all
}

// longest refuses to give a sandbox more time than its template allows.
func (s *Service) longest(ctx context.Context, r *row, left time.Duration) error {
	if r.BuildID == "" || s.Templates == nil {
		return nil
	}
	run, err := s.Templates.Running(ctx, r.BuildID)
	if err != nil || run.MaxTTL == 0 || left <= time.Duration(run.MaxTTL)*time.Second {
		return err
	}
	return errs.E(errs.LimitExceeded, "sandboxes of %s have at most %d seconds left", r.Template, run.MaxTTL).Because("template_ttl").
		Suggest("Ask for less.").With("most", run.MaxTTL)
}

// asTemplate gives a guest what the sandbox's template says about running it.
func (s *Service) asTemplate(ctx context.Context, r *row, c *guest.Configure) error {
	run, err := s.Templates.Running(ctx, r.BuildID)
	if err != nil {
		return err
	}
	own := maps.Clone(orEmpty(run.Own))
	maps.Copy(own, r.Env)
	c.Env = withDefaults(run.Env, own)
	c.User, c.WorkDir = run.User, run.WorkDir
	return nil
}

// fromLayer makes a new sandbox of its template's layer. Where the memory of one that was booted cannot be used any more, as after an upgrade, the sandbox
// boots on the template's files: what was running is started again.
func (s *Service) fromLayer(ctx context.Context, r *row, spec runtime.Spec) error {
	_, err := s.Driver.Clone(ctx, spec, r.SaveName, runtime.CloneOptions{FromDisk: r.FromDisk})
	if err == nil || r.FromDisk || !runtime.MemoryUnusable(reasonOf(err)) && !errs.Is(err, errs.NotFound) {
		return err
	}
	run, rerr := s.Templates.Running(ctx, r.BuildID)
	if rerr != nil {
		return rerr
	}
	s.Logger.Info("what a template keeps running cannot be used: the sandbox boots", "sandbox", r.ID, "layer", r.SaveName, "error", err)
	if err := s.store.unboot(ctx, s.DB, r, run.Disk); err != nil {
		return err
	}
	if run.Disk == "" {
		_, err = s.Driver.Create(ctx, spec)
		return err
	}
	if err := s.Templates.Fetch(ctx, run.Disk); err != nil {
		return err
	}
	_, err = s.Driver.Clone(ctx, spec, run.Disk, runtime.CloneOptions{FromDisk: true})
	return err
}

// unboot has a new sandbox boot on a template's files instead of coming back from its memory.
func (s store) unboot(ctx context.Context, q op.Tx, r *row, disk string) error {
	if _, err := q.ExecContext(ctx, `UPDATE sandboxes SET save_name = $1, save_token = '', from_disk = $2 WHERE id = $3 AND generation = $4`, disk, db.Flag(disk != ""), r.ID, r.Generation); err != nil {
		return fmt.Errorf("forget what a sandbox was to be made of: %w", err)
	}
	r.SaveName, r.SaveToken, r.FromDisk = disk, "", disk != ""
	return nil
}

// startOwn starts what a sandbox's template has it run: its start command where it was booted, and its user data where it is new.
func (s *Service) startOwn(ctx context.Context, r *row) error {
	if r.BuildID == "" || r.Purpose != "" || s.Templates == nil {
		return nil
	}
	run, err := s.Templates.Running(ctx, r.BuildID)
	if err != nil {
		return err
	}
	g := s.guest(r.ID, r.Generation, r.GuestToken)
	isNew := r.State == api.StateCreating
	if booted := !isNew || r.SaveToken == "" || r.FromDisk; booted && run.StartCmd != "" {
		st := guest.Start{ID: derived(r, "start"), Command: run.StartCmd, Background: true}
		if _, err := g.StartProcess(ctx, st); err != nil {
			return fmt.Errorf("start the template's command: %w", err)
		}
	}
	if isNew && run.UserData != "" && r.SnapshotID == "" && r.ForkedFrom == "" {
		st := guest.Start{ID: derived(r, "userData"), Command: userData, User: "root", Cwd: "/", Stdin: []byte(run.UserData), Background: true}
		if _, err := g.StartProcess(ctx, st); err != nil {
			return fmt.Errorf("start the template's user data: %w", err)
		}
	}
	return nil
}

// userData runs the script that it reads, whose first line may name what runs it. Nobody else may read it; what the script makes, others may, as usual.
const userData = `umask 077; f=$(mktemp) && cat >"$f" && chmod 700 "$f" && umask 022 && { "$f"; c=$?; rm -f "$f"; exit $c; }`

// derived is the id of a process that a boot starts: the same however often the boot is tried.
func derived(r *row, what string) string {
	sum := sha256.Sum256([]byte(fmt.Sprintf("%s/%d/%s", r.ID, r.Generation, what)))
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	b := make([]byte, 20)
	for i := range b {
		b[i] = letters[int(sum[i])%len(letters)]
	}
	return string(id.Process) + "_" + string(b)
}
