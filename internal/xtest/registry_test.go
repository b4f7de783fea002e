package xtest

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/call/calltest"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/controlplane"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/image/registrytest"
	"github.com/berthrun/berth/internal/runtime/fake"
)

// TestRegistry holds every operation of a running system to what is promised of all of them, see calltest.
func TestRegistry(t *testing.T) {
	dbtest.EachURL(t, func(t *testing.T, url string) {
		images := registrytest.Start(t, registrytest.Open)
		// Nothing may sleep of itself meanwhile: it would be taken for what a call did.
		awake := func(c *controlplane.Config) {
			c.Defaults.IdleSeconds, c.Patience = 24*3600, time.Millisecond
			covered(t, c)
		}
		s := Start(t, Options{Database: url, Registry: images.Host, Fake: fake.Config{Can: fake.Everything()}, Backups: true, Change: awake})
		secret, err := s.Plane.Found(t.Context(), "another")
		if err != nil {
			t.Fatal(err)
		}
		g := &registry{s: s, images: images, db: dbtest.Open(t, url), sandbox: Sandbox(t, s.Client, api.CreateSandboxIn{Name: "shared"})}
		g.process = start(t, s.Client, g.sandbox, "exec sleep 600")
		admin, foreign := identify(t, s, s.Key), identify(t, s, secret)
		shared := g.template(t, "shared")
		held := Must(t, s.Client, api.CreateKey, api.CreateKeyIn{Name: "held", Scopes: []string{"admin"}, Confirm: []string{"write"}})
		calltest.Suite(t, calltest.Setup{
			Held: identify(t, s, held.Secret),
			Approve: func(t *testing.T, id string) {
				if got := approve(t, s, s.Client, id); got != "" {
					t.Fatalf("approve: %s", got)
				}
			},
			Registry: s.Plane.Registry(), Path: s.Plane.Path(), Want: api.All(), WantStreams: api.AllStreams(), Admin: admin, Foreign: foreign, Example: g.example, State: g.state,
			IDs: map[string]string{"ws": admin.WorkspaceID, "sbx": g.sandbox, "proc": g.process, "key": admin.KeyID, "img": g.image(t, "shared").ID, "snap": g.snapshot(t, g.sandbox), "vol": g.volume(t, "shared"), "bak": g.backup(t, g.volume(t, "kept")), "sbxt": shared.TemplateID, "bld": shared.BuildID, "cnf": g.confirmation(t).ID, "bctx": uploaded(t, s.Client, map[string]string{"file": "text"})},
		})
		g.effects(t)
	})
}

func identify(t *testing.T, s *InProcess, key string) *caller.Caller {
	t.Helper()
	c, err := s.Plane.Caller(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// registry makes what operations are tried on and looks at what they leave.
type registry struct {
	s       *InProcess
	db      *db.DB
	sandbox string // for all that happens inside one
	process string
	images  *registrytest.Registry
	made    int
	read    []string // processes that say what they read
	counted []string // processes that say when they get a signal
}

// example gives an input that succeeds, for one effect.
func (g *registry) example(t *testing.T, operation string) string {
	t.Helper()
	c := g.s.Client
	g.made++
	name := fmt.Sprintf("example-%d", g.made)
	inside := in(g.sandbox)
	own := func() api.SandboxIn {
		return in(Sandbox(t, c, api.CreateSandboxIn{Name: name}))
	}
	there := func() api.FileIn {
		Must(t, c, api.WriteFile, api.WriteFileIn{FileIn: file(g.sandbox, name), Data: "one two\n"})
		return file(g.sandbox, name)
	}
	switch operation {
	case api.CreateSandbox.Name:
		return encode(t, api.CreateSandboxIn{Name: name, Env: map[string]string{"A": "b"}, Metadata: map[string]string{"made": "here"}})
	case api.ListSandboxes.Name:
		return encode(t, api.ListSandboxesIn{Scope: "all", State: []string{api.StateRunning}})
	case api.GetSandbox.Name:
		return encode(t, inside)
	case api.SandboxMetrics.Name:
		return encode(t, api.SandboxMetricsIn{SandboxIn: inside})
	case api.SandboxLogs.Name:
		return encode(t, api.SandboxLogsIn{SandboxIn: inside, Search: "running"})
	case api.UpdateSandbox.Name:
		renamed := name + ".renamed"
		return encode(t, api.UpdateSandboxIn{SandboxIn: own(), Name: &renamed, Metadata: map[string]string{"a": "b"}})
	case api.SetSandboxTimeout.Name:
		return encode(t, api.SetTimeoutIn{SandboxIn: own(), TTLSeconds: 3600})
	case api.ExtendSandbox.Name:
		return encode(t, api.ExtendIn{SandboxIn: own(), By: "1h"})
	case api.StartSandbox.Name:
		sb := own()
		Must(t, c, api.StopSandbox, api.SandboxWaitIn{SandboxIn: sb})
		return encode(t, api.SandboxWaitIn{SandboxIn: sb})
	case api.StopSandbox.Name, api.DeleteSandbox.Name:
		return encode(t, api.SandboxWaitIn{SandboxIn: own()})
	case api.PauseSandbox.Name:
		return encode(t, api.SandboxWaitIn{SandboxIn: own()})
	case api.WakeSandbox.Name:
		sb := own()
		Must(t, c, api.PauseSandbox, api.SandboxWaitIn{SandboxIn: sb})
		return encode(t, api.SandboxWaitIn{SandboxIn: sb})
	case api.SwitchSandboxImage.Name:
		sb := own()
		Must(t, c, api.StopSandbox, api.SandboxWaitIn{SandboxIn: sb})
		return encode(t, api.SwitchImageIn{SandboxIn: sb, Template: "base"})
	case api.ForkSandbox.Name:
		return encode(t, api.ForkSandboxIn{SandboxIn: own(), Count: 2, Names: []string{name + ".one", name + ".two"}})
	case api.SnapshotSandbox.Name:
		return encode(t, api.SnapshotSandboxIn{SandboxIn: own(), Mode: api.ModeDisk, Name: name, Metadata: map[string]string{"a": "b"}})
	case api.ListSnapshots.Name:
		return encode(t, api.ListSnapshotsIn{Scope: "all"})
	case api.GetSnapshot.Name:
		return encode(t, api.SnapshotIn{SnapshotID: g.snapshot(t, g.sandbox)})
	case api.UpdateSnapshot.Name:
		renamed := name + ".renamed"
		return encode(t, api.UpdateSnapshotIn{SnapshotIn: api.SnapshotIn{SnapshotID: g.snapshot(t, g.sandbox)}, Name: &renamed, Metadata: map[string]string{"a": "b"}})
	case api.DeleteSnapshot.Name:
		return encode(t, api.DeleteSnapshotIn{SnapshotIn: api.SnapshotIn{SnapshotID: g.snapshot(t, g.sandbox)}})
	case api.ListVolumes.Name:
		return encode(t, api.ListVolumesIn{Scope: "all", PoolID: "local"})
	case api.GetVolume.Name:
		return encode(t, api.VolumeIn{VolumeID: g.volume(t, name)})
	case api.CreateVolume.Name:
		return encode(t, api.CreateVolumeIn{Name: name, SizeGiB: 2})
	case api.ResizeVolume.Name:
		return encode(t, api.ResizeVolumeIn{VolumeIn: api.VolumeIn{VolumeID: g.volume(t, name)}, SizeGiB: 3})
	case api.AttachVolume.Name:
		sb := own()
		Must(t, c, api.StopSandbox, api.SandboxWaitIn{SandboxIn: sb})
		return encode(t, api.AttachVolumeIn{VolumeIn: api.VolumeIn{VolumeID: g.volume(t, name)}, SandboxIn: sb, ReadOnly: true})
	case api.DetachVolume.Name:
		vol := api.VolumeIn{VolumeID: g.volume(t, name)}
		sb := in(Sandbox(t, c, api.CreateSandboxIn{Name: name, Volumes: []api.VolumeMount{{Volume: name}}}))
		Must(t, c, api.StopSandbox, api.SandboxWaitIn{SandboxIn: sb})
		return encode(t, api.DetachVolumeIn{VolumeIn: vol, SandboxIn: sb})
	case api.DeleteVolume.Name:
		return encode(t, api.DeleteVolumeIn{VolumeIn: api.VolumeIn{VolumeID: g.volume(t, name)}})
	case api.CreateBackup.Name:
		return encode(t, api.CreateBackupIn{VolumeIn: api.VolumeIn{VolumeID: g.volume(t, name)}})
	case api.ListBackups.Name:
		return encode(t, api.ListBackupsIn{Scope: "all"})
	case api.GetBackup.Name:
		return encode(t, api.BackupIn{BackupID: g.backup(t, g.volume(t, name))})
	case api.DeleteBackup.Name:
		return encode(t, api.DeleteBackupIn{BackupIn: api.BackupIn{BackupID: g.backup(t, g.volume(t, name))}})
	case api.SetBackupPolicy.Name:
		return encode(t, api.BackupPolicyIn{VolumeIn: api.VolumeIn{VolumeID: g.volume(t, name)}, Hour: 3, KeepDays: 14, KeepLast: 2})
	case api.TerminalTicket.Name:
		return encode(t, api.SandboxWriteIn{SandboxIn: inside})
	case api.SSH.Name:
		return encode(t, api.SSHIn{SandboxIn: inside, PublicKey: publicKey(t)})
	case api.Terminal.Name:
		return encode(t, api.TerminalIn{SandboxIn: inside})
	case api.SSHConnect.Name:
		return encode(t, inside)
	case api.Exec.Name:
		return encode(t, api.ExecIn{SandboxIn: inside, CommandIn: api.CommandIn{Command: "cat >> " + name}, Stdin: "once"})
	case api.StartProcess.Name:
		return encode(t, api.StartProcessIn{SandboxIn: inside, CommandIn: api.CommandIn{Argv: []string{"sleep", "600"}}})
	case api.ListProcesses.Name:
		return encode(t, api.ListProcessesIn{SandboxIn: inside})
	case api.GetProcess.Name:
		return encode(t, proc(g.sandbox, g.process))
	case api.ProcessOutput.Name:
		return encode(t, api.ProcessOutputIn{ProcessIn: proc(g.sandbox, g.process)})
	case api.ProcessInput.Name:
		p := Must(t, c, api.StartProcess, api.StartProcessIn{SandboxIn: inside, CommandIn: api.CommandIn{Command: "exec cat"}, OpenStdin: true}).Process.ID
		g.read = append(g.read, p)
		return encode(t, api.ProcessInputIn{ProcessIn: proc(g.sandbox, p), Data: "once\n"})
	case api.ProcessSignal.Name:
		p := start(t, c, g.sandbox, "trap 'echo once' USR1; echo ready; while :; do sleep 600 & wait $!; done")
		Must(t, c, api.ProcessOutput, api.ProcessOutputIn{ProcessIn: proc(g.sandbox, p), WaitSeconds: 30}) // its trap is set
		g.counted = append(g.counted, p)
		return encode(t, api.ProcessSignalIn{ProcessIn: proc(g.sandbox, p), Signal: "USR1"})
	case api.ReadFile.Name:
		return encode(t, api.ReadFileIn{FileIn: there()})
	case api.WriteFile.Name:
		return encode(t, api.WriteFileIn{FileIn: there(), Data: "three\n", Append: true})
	case api.EditFile.Name:
		return encode(t, api.EditFileIn{FileIn: there(), OldText: "one", NewText: "one one"})
	case api.ListFiles.Name:
		return encode(t, api.ListFilesIn{SandboxIn: inside})
	case api.StatFile.Name:
		return encode(t, api.FileStatIn{FileIn: there()})
	case api.MakeDirectory.Name:
		return encode(t, api.MakeDirectoryIn{FileIn: file(g.sandbox, name+"/deep")})
	case api.MoveFile.Name:
		return encode(t, api.MoveFileIn{SandboxIn: inside, From: there().Path, To: name + ".moved"})
	case api.RemoveFile.Name:
		return encode(t, api.RemoveFileIn{FileIn: there()})
	case api.FollowProcess.Name:
		return encode(t, api.FollowProcessIn{ProcessIn: proc(g.sandbox, g.process)})
	case api.DownloadFile.Name:
		return encode(t, there())
	case api.UploadFile.Name:
		return encode(t, api.UploadFileIn{FileIn: file(g.sandbox, name+"/uploaded"), Mode: "0600"})
	case api.ListImages.Name:
		return encode(t, api.ListImagesIn{Name: g.images.Host + "/shared"})
	case api.GetImage.Name:
		return encode(t, api.ImageIn{ImageID: g.image(t, name).ID})
	case api.PullImage.Name:
		return encode(t, api.PullImageIn{Image: g.push(t, name)})
	case api.PushImage.Name:
		return encode(t, api.PushImageIn{ImageIn: api.ImageIn{ImageID: g.image(t, name).ID}, Reference: g.images.Host + "/pushed/" + name + ":1"})
	case api.TagImage.Name:
		return encode(t, api.TagImageIn{ImageIn: api.ImageIn{ImageID: g.image(t, name).ID}, Tag: "mine"})
	case api.DeleteImage.Name:
		return encode(t, api.DeleteImageIn{ImageIn: api.ImageIn{ImageID: g.image(t, name).ID}})
	case api.ImportImage.Name:
		return encode(t, api.ImportImageIn{Image: name + ":1"})
	case api.ExportImage.Name:
		return encode(t, api.ExportImageIn{ImageIn: api.ImageIn{ImageID: g.image(t, name).ID}})
	case api.ListTemplates.Name:
		return encode(t, api.ListTemplatesIn{})
	case api.GetTemplate.Name:
		return encode(t, api.TemplateIn{TemplateID: g.template(t, name).TemplateID})
	case api.BuildTemplate.Name:
		return encode(t, api.BuildTemplateIn{Name: name, FromTemplate: "base", Steps: []api.TemplateStep{{Type: "ENV", Key: "A", Value: "b"}}})
	case api.UpdateTemplate.Name:
		ttl, data := 3600, "echo hello"
		return encode(t, api.UpdateTemplateIn{
			TemplateIn: api.TemplateIn{TemplateID: g.template(t, name).TemplateID}, TTLSeconds: &ttl, MaxTTLSeconds: &ttl, Env: map[string]string{"A": "b"}, UserData: &data,
		})
	case api.SetTemplateVolumes.Name:
		return encode(t, api.SetTemplateVolumesIn{TemplateIn: api.TemplateIn{TemplateID: g.template(t, name).TemplateID}, Volumes: []api.VolumeMount{}})
	case api.DeleteTemplate.Name:
		return encode(t, api.DeleteTemplateIn{TemplateIn: api.TemplateIn{TemplateID: g.template(t, name).TemplateID}})
	case api.GetBuild.Name:
		b := g.template(t, name)
		return encode(t, api.GetBuildIn{BuildIn: api.BuildIn{BuildID: b.BuildID}, TemplateID: b.TemplateID})
	case api.BuildLogs.Name:
		return encode(t, api.BuildLogsIn{BuildIn: api.BuildIn{BuildID: g.template(t, name).BuildID}})
	case api.ListBuilds.Name:
		return encode(t, api.ListBuildsIn{TemplateID: g.template(t, name).TemplateID, Status: []string{api.BuildReady}})
	case api.CancelBuild.Name:
		return encode(t, api.CancelBuildIn{BuildIn: api.BuildIn{BuildID: g.template(t, name).BuildID}})
	case api.UploadContext.Name:
		return "{}"
	case api.FollowBuild.Name:
		return encode(t, api.FollowBuildIn{BuildIn: api.BuildIn{BuildID: g.template(t, name).BuildID}})
	case api.SetRegistry.Name:
		return encode(t, api.SetRegistryIn{Host: name + ".example", Username: "u", Password: "p"})
	case api.ListRegistries.Name:
		return encode(t, api.ListRegistriesIn{})
	case api.DeleteRegistry.Name:
		Must(t, c, api.SetRegistry, api.SetRegistryIn{Host: name + ".example", Token: "t"})
		return encode(t, api.DeleteRegistryIn{Host: name + ".example"})
	case api.ListAudit.Name:
		return encode(t, api.ListAuditIn{Operation: api.GetSandbox.Name, Result: "ok"})
	case api.ExportAudit.Name:
		return "{}"
	case api.GetAccount.Name, api.GetLimits.Name, api.ListCapabilities.Name, api.ListPools.Name:
		return "{}"
	case api.SearchDocs.Name:
		return encode(t, api.SearchDocsIn{Query: "how do I keep files"})
	case api.ReadDoc.Name:
		return encode(t, api.ReadDocIn{Page: "files"})
	case api.ListDocs.Name:
		return "{}"
	case api.ListWorkspaces.Name:
		return encode(t, api.ListWorkspacesIn{})
	case api.ListConfirmations.Name:
		return encode(t, api.ListConfirmationsIn{State: api.ConfirmationPending})
	case api.GetConfirmation.Name:
		return encode(t, api.ConfirmationIn{ConfirmationID: g.confirmation(t).ID})
	case api.ApproveConfirmation.Name:
		waits := g.confirmation(t)
		return encode(t, api.ApproveConfirmationIn{ConfirmationIn: api.ConfirmationIn{ConfirmationID: waits.ID}, Digest: waits.Digest})
	case api.RejectConfirmation.Name:
		return encode(t, api.RejectConfirmationIn{ConfirmationIn: api.ConfirmationIn{ConfirmationID: g.confirmation(t).ID}, Note: "no"})
	case api.CreateKey.Name:
		return encode(t, api.CreateKeyIn{Name: name, Scopes: []string{"read"}})
	case api.ListKeys.Name:
		return encode(t, api.ListKeysIn{IncludeRevoked: true})
	case api.RevokeKey.Name:
		return encode(t, api.RevokeKeyIn{KeyID: Must(t, c, api.CreateKey, api.CreateKeyIn{Name: name}).Key.ID})
	case api.GetPolicies.Name:
		return encode(t, api.GetPoliciesIn{Schema: true})
	case api.PutPolicies.Name:
		return encode(t, api.PutPoliciesIn{Text: "// " + name + "\npermit(principal, action, resource);\n"})
	case api.ValidatePolicies.Name:
		return encode(t, api.ValidatePoliciesIn{Text: "permit(principal, action, resource);"})
	case api.TestPolicies.Name:
		return encode(t, api.TestPoliciesIn{Cases: []api.PolicyCase{{Principal: api.PolicyPrincipal{Type: "agent", ID: "one"}, Action: api.CreateKey.Action, Want: "deny"}}})
	}
	t.Fatalf("there is no example of %s", operation)
	return ""
}

// push puts an image into the registry.
func (g *registry) push(t *testing.T, name string) string {
	t.Helper()
	layer := registrytest.Layer(t, registrytest.Tar(t, registrytest.File("name", name)), "gzip")
	return g.images.Push(t, name+":1", registrytest.Image(t, v1.Config{}, layer))
}

// image gives one that is here.
func (g *registry) image(t *testing.T, name string) *api.Image {
	t.Helper()
	img := Must(t, g.s.Client, api.PullImage, api.PullImageIn{Image: g.push(t, name)}).Image
	if img == nil || img.State != api.ImageReady {
		t.Fatalf("pulled %+v", img)
	}
	return img
}

// snapshot takes one of a sandbox.
func (g *registry) snapshot(t *testing.T, sandbox string) string {
	t.Helper()
	return Must(t, g.s.Client, api.SnapshotSandbox, api.SnapshotSandboxIn{SandboxIn: in(sandbox)}).Snapshot.ID
}

// template builds one.
func (g *registry) template(t *testing.T, name string) *api.BuildTemplateOut {
	t.Helper()
	out := Must(t, g.s.Client, api.BuildTemplate, api.BuildTemplateIn{Name: name, FromTemplate: "base", Steps: []api.TemplateStep{{Type: "ENV", Key: "A", Value: "b"}}})
	built(t, g.s.Client, out.BuildID)
	return &out
}

func encode(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// state describes what operations may change: the rows that they own, the files of every sandbox, the processes of the shared one.
func (g *registry) state(t *testing.T) string {
	t.Helper()
	eventually(t, func() bool { // what a call had begun is done
		return len(Must(t, g.s.Client, api.ListBuilds, api.ListBuildsIn{Status: []string{api.BuildWaiting, api.BuildBuilding}}).Items) == 0
	})
	var b strings.Builder
	for _, query := range []string{
		`SELECT id, name, state, generation, boot_generation, env, metadata, idle_seconds, on_idle, on_expiry, auto_wake, wake_on_timers, persist, expires_at, stop_reason
			FROM sandboxes ORDER BY id`,
		`SELECT id, depth, pause_reason, wake_error, op_id, forked_from, snapshot_id, save_name FROM sandboxes ORDER BY id`,
		`SELECT sandbox_id, key, value FROM sandbox_labels ORDER BY sandbox_id, key`,
		`SELECT id, name, state, mode, sandbox_id, metadata FROM snapshots ORDER BY id`,
		`SELECT snapshot_id, key, value FROM snapshot_labels ORDER BY snapshot_id, key`,
		`SELECT id, name, state, size_gib, made_gib, from_backup FROM volumes ORDER BY id`,
		`SELECT sandbox_id, volume_id, path, read_only FROM sandbox_volumes ORDER BY sandbox_id, volume_id`,
		`SELECT id, volume_id, state, automatic, sha256 FROM volume_backups ORDER BY id`,
		`SELECT volume_id, hour, keep_days, keep_last FROM backup_policies ORDER BY volume_id`,
		`SELECT sandbox_id, id, state, info, kept FROM processes ORDER BY sandbox_id, id`,
		`SELECT id, name, scopes, expires_at, revoked_at, hash FROM keys ORDER BY id`,
		`SELECT org_id, version, text, created_by FROM policy_sets ORDER BY org_id, version`,
		`SELECT id, name, digest, state, error, config FROM images ORDER BY id`,
		`SELECT org_id, name, tag, image_id, local FROM image_tags ORDER BY org_id, name, tag`,
		`SELECT org_id, host, username, sealed FROM registries ORDER BY org_id, host`,
		`SELECT id, name, state, versions, defaults, volumes, sealed FROM templates ORDER BY id`,
		`SELECT id, template_id, version, recipe, cancelled FROM template_builds ORDER BY id`,
		`SELECT template_id, tag, build_id FROM template_tags ORDER BY template_id, tag`,
		`SELECT id, state, sha256 FROM build_contexts ORDER BY id`,
		`SELECT scope, key, used FROM usage WHERE used <> 0 ORDER BY scope, key`,
		`SELECT scope, key, value FROM limits ORDER BY scope, key`,
		`SELECT hash, key_id, sandbox_id FROM terminal_tickets ORDER BY hash`,
		`SELECT id, name FROM organizations ORDER BY id`,
		`SELECT id, name FROM workspaces ORDER BY id`,
		`SELECT id, type, data FROM events ORDER BY id`,
		`SELECT operation, idem_key, state, result, error FROM idempotency ORDER BY operation, idem_key`,
	} {
		dump(t, g.db, &b, query)
	}
	err := filepath.WalkDir(g.s.Dir, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir // the node's own: what it lets go of once a call has ended
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %v", path, info.Mode())
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path) //nolint:gosec // below the test's own folder
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %x", sha256.Sum256(data))
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	page := op.PageIn{Limit: 200}
	for {
		list := Must(t, g.s.Client, api.ListProcesses, api.ListProcessesIn{SandboxIn: in(g.sandbox), PageIn: page})
		for _, p := range list.Items {
			fmt.Fprintln(&b, p.ID, p.State, p.Signal)
		}
		if list.NextCursor == nil {
			return b.String()
		}
		page.Cursor = *list.NextCursor
	}
}

func dump(t *testing.T, d *db.DB, b *strings.Builder, query string) {
	t.Helper()
	rows, err := d.QueryContext(context.Background(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	names, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	cells := make([]sql.NullString, len(names))
	into := make([]any, len(names))
	for i := range cells {
		into[i] = &cells[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		for _, c := range cells {
			fmt.Fprintf(b, "%q ", c.String)
		}
		b.WriteByte('\n')
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}

// effects checks what a state cannot show at once: what was typed arrived once, signals came once, and only those of the calls that succeeded.
func (g *registry) effects(t *testing.T) {
	c := g.s.Client
	heard := 0
	for _, p := range g.read {
		Must(t, c, api.ProcessInput, api.ProcessInputIn{ProcessIn: proc(g.sandbox, p), EOF: true})
		switch got := read(t, c, g.sandbox, p, 15); got {
		case "once\n":
			heard++
		case "":
		default:
			t.Errorf("a process read %q", got)
		}
	}
	if heard != 2 { // of the call that was repeated, and of the one that was approved
		t.Errorf("%d processes got input, of %d that calls were tried on", heard, len(g.read))
	}
	heard = 0
	for _, p := range g.counted {
		Must(t, c, api.ProcessSignal, api.ProcessSignalIn{ProcessIn: proc(g.sandbox, p), Signal: "KILL"})
		switch got := read(t, c, g.sandbox, p, 15); got {
		case "ready\nonce\n":
			heard++
		case "ready\n":
		default:
			t.Errorf("a process that was signalled wrote %q", got)
		}
	}
	if heard != 2 {
		t.Errorf("%d processes got the signal, of %d that calls were tried on", heard, len(g.counted))
	}
}
