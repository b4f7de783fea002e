package volume

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime/fake"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// sandboxes are those of one organization; some are stopped.
type sandboxes struct {
	mu      sync.Mutex
	stopped map[string]bool
	flushed []string
}

// Resource implements Sandboxes.
func (s *sandboxes) Resource(_ context.Context, id string) (op.Resource, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.stopped[id]; !ok {
		return op.Resource{}, errs.E(errs.NotFound, "there is no sandbox %s", id)
	}
	return op.Resource{ID: id}, nil
}

// Stopped implements Sandboxes.
func (s *sandboxes) Stopped(_ context.Context, _ op.Tx, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped[id] {
		return errs.E(errs.InvalidState, "it runs").Because(api.StateRunning)
	}
	return nil
}

// Flush implements Sandboxes.
func (s *sandboxes) Flush(_ context.Context, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushed = append(s.flushed, id)
}

// shelf keeps backups in memory: the one file "text" of each.
type shelf struct {
	mu     sync.Mutex
	node   *fake.Driver
	kept   map[string]string
	before func(ctx context.Context, method, id string) error // of each call; its error is the call's
}

func (s *shelf) begin(ctx context.Context, method, id string) error {
	s.mu.Lock()
	before := s.before
	s.mu.Unlock()
	if before != nil {
		return before(ctx, method, id)
	}
	return nil
}

func (s *shelf) set(before func(ctx context.Context, method, id string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = before
}

// Keep implements Storage.
func (s *shelf) Keep(ctx context.Context, b Stored, tell func(int64)) (Kept, error) {
	if err := s.begin(ctx, "keep", b.ID); err != nil {
		return Kept{}, err
	}
	text, err := os.ReadFile(filepath.Join(s.node.VolumeFolder(b.ID), "text"))
	if errors.Is(err, os.ErrNotExist) {
		if _, serr := os.Stat(s.node.VolumeFolder(b.ID)); serr != nil {
			return Kept{}, errs.E(errs.NotFound, "there is no such copy")
		}
		err = nil
	}
	if err != nil {
		return Kept{}, err
	}
	tell(int64(len(text)))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept[b.ID] = string(text)
	return Kept{Files: 1, Content: int64(len(text)), Added: 1, SHA256: "sum of " + string(text)}, nil
}

// Load implements Storage.
func (s *shelf) Load(ctx context.Context, b Stored, volume string, tell func(int64)) error {
	if err := s.begin(ctx, "load", volume); err != nil {
		return err
	}
	s.mu.Lock()
	text, ok := s.kept[b.ID]
	s.mu.Unlock()
	if !ok {
		return errs.E(errs.NotFound, "there is no such backup")
	}
	tell(int64(len(text)))
	dir := s.node.VolumeFolder(volume)
	return errors.Join(os.MkdirAll(dir, 0o777), os.WriteFile(filepath.Join(dir, "text"), []byte(text), 0o600))
}

// Drop implements Storage.
func (s *shelf) Drop(_ context.Context, b Stored) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.kept, b.ID)
	return nil
}

// used sums what is taken, under a limit.
type used struct {
	mu    sync.Mutex
	limit int64 // of GiB; 0: none
	now   map[string]int64
}

// Take implements Quota.
func (u *used) Take(_ context.Context, _ op.Tx, _ string, delta map[string]int64) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.limit > 0 && u.now["disk.total"]+delta["disk.total"] > u.limit {
		return errs.E(errs.LimitExceeded, "too much")
	}
	for k, v := range delta {
		u.now[k] += v
	}
	return nil
}

type silent struct{}

// Append implements Events.
func (silent) Append(context.Context, op.Tx, string, string, string, string, map[string]any) error {
	return nil
}

// bed is a service with what it works on. Its clock stands until it is moved.
type bed struct {
	*Service
	t         *testing.T
	node      *fake.Driver
	shelf     *shelf
	sandboxes *sandboxes
	used      *used
	registry  *op.Registry
	ctx       context.Context // of a caller
	nodeDoes  func(ctx context.Context, method, id string) error

	mu  sync.Mutex
	now time.Time
}

func newBed(t *testing.T, d *db.DB) *bed {
	t.Helper()
	b := &bed{
		t: t, sandboxes: &sandboxes{stopped: map[string]bool{}}, used: &used{now: map[string]int64{}}, registry: op.NewRegistry(),
		now: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC),
	}
	b.node = fake.New(fake.Config{Dir: t.TempDir(), Can: fake.Everything(), Before: func(ctx context.Context, method, id string) error {
		b.mu.Lock()
		does := b.nodeDoes
		b.mu.Unlock()
		if does != nil {
			return does(ctx, method, id)
		}
		return nil
	}})
	t.Cleanup(func() { _ = b.node.Close() })
	b.shelf = &shelf{node: b.node, kept: map[string]string{}}
	b.Service = New(Config{
		DB: d, Sandboxes: b.sandboxes, Node: b.node, Storage: b.shelf, Quota: b.used, Events: silent{}, Pool: "local", Tick: 10 * time.Millisecond, Measure: 20 * time.Millisecond,
		Now: func() time.Time {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.now
		},
	})
	b.Register(b.registry)
	b.ctx = caller.With(t.Context(), &caller.Caller{OrgID: "org_a", WorkspaceID: "ws_a", PrincipalID: "key_a", KeyID: "key_a"})
	return b
}

// after moves the clock.
func (b *bed) after(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = b.now.Add(d)
}

// does has calls of the node do something first.
func (b *bed) does(f func(ctx context.Context, method, id string) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nodeDoes = f
}

// run runs the service until the end of the test, or until what it gives is called.
func (b *bed) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = b.Run(ctx)
	}()
	stop = func() {
		cancel()
		<-ended
	}
	b.t.Cleanup(stop)
	return stop
}

// do calls an operation as the path of a call does.
func do[In, Out any](b *bed, def op.Def[In, Out], in In) (*Out, error) {
	b.t.Helper()
	raw, err := json.Marshal(in)
	if err != nil {
		b.t.Fatal(err)
	}
	o := b.registry.Get(def.Name)
	decoded, err := o.Decode(raw)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	d, err := o.Draft(ctx, decoded)
	if err != nil {
		return nil, err
	}
	d.Once = id.New("once")
	if err := b.DB.Tx(ctx, func(tx *sql.Tx) error { return o.Intent(ctx, tx, decoded, d) }); err != nil {
		return nil, err
	}
	out, err := o.Act(ctx, decoded, d)
	if err != nil {
		return nil, err
	}
	return out.(*Out), nil
}

func must[In, Out any](b *bed, def op.Def[In, Out], in In) *Out {
	b.t.Helper()
	out, err := do(b, def, in)
	if err != nil {
		b.t.Fatalf("%s: %v", def.Name, err)
	}
	return out
}

// made creates a volume that is ready.
func (b *bed) made(name string) *api.Volume {
	b.t.Helper()
	v := must(b, api.CreateVolume, api.CreateVolumeIn{Name: name, SizeGiB: 2}).Volume
	if v == nil || v.State != api.VolumeReady {
		b.t.Fatalf("made %+v", v)
	}
	return v
}

func (b *bed) volume(id string) api.Volume {
	b.t.Helper()
	return must(b, api.GetVolume, api.VolumeIn{VolumeID: id}).Volume
}

func (b *bed) backups(volume string) []api.Backup {
	b.t.Helper()
	return must(b, api.ListBackups, api.ListBackupsIn{VolumeID: volume, Scope: "all"}).Items
}

// becomes waits until something is so.
func (b *bed) becomes(what string, is func() bool) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			b.t.Fatalf("never: %s", what)
		}
	}
}

// write puts the file "text" onto a volume.
func (b *bed) write(volume, text string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.node.VolumeFolder(volume), "text"), []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) read(volume string) string {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(b.node.VolumeFolder(volume), "text"))
	if err != nil {
		b.t.Fatal(err)
	}
	return string(text)
}

func (b *bed) onNode(volume string) bool {
	_, err := os.Stat(b.node.VolumeFolder(volume))
	return err == nil
}

// wants checks an error's code and reason.
func wants(t *testing.T, err error, code errs.Code, reason string) {
	t.Helper()
	if e := errs.From(err); err == nil || e.Code != code || e.Reason != reason {
		t.Errorf("got %v, want %s, reason %s", err, code, reason)
	}
}

func waitIn(seconds int) op.WaitIn { return op.WaitIn{WaitSeconds: &seconds} }

// failing gives the error of a call.
func failing[In, Out any](b *bed, def op.Def[In, Out], in In) error {
	b.t.Helper()
	_, err := do(b, def, in)
	return err
}
