package template

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/runtime"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// world is what the service stands in.
type world struct {
	mu     sync.Mutex
	saves  map[string]bool
	making map[string]int
	stored map[string]bool
	now    time.Time
}

func (w *world) Make(context.Context, Sandbox) error { return errors.New("no sandboxes here") }
func (w *world) Await(context.Context, string) (*guest.Client, string, error) {
	return nil, "", errors.New("no sandboxes here")
}

func (w *world) Save(context.Context, string, string, bool) (runtime.Save, error) {
	return runtime.Save{}, errors.New("no sandboxes here")
}
func (w *world) Explain(_ context.Context, _ string, err error) error { return err }
func (w *world) End(context.Context, string) error                    { return nil }
func (w *world) All(context.Context) (map[string]string, error)       { return nil, nil }
func (w *world) MadeOf(_ context.Context, _ op.Tx, layer string) (int, error) {
	return w.making[layer], nil
}

func (w *world) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Saves: true, Memory: true}
}

func (w *world) Saves(context.Context) (all []runtime.Save, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range w.saves {
		all = append(all, runtime.Save{Name: name})
	}
	return all, nil
}

func (w *world) Forget(_ context.Context, name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.saves, name)
	return nil
}

func (w *world) Keep(_ context.Context, _, layer string) error { w.stored[layer] = true; return nil }
func (w *world) Fetch(context.Context, string, string) error   { return nil }
func (w *world) Drop(_ context.Context, _, layer string) error { delete(w.stored, layer); return nil }

func (w *world) Append(context.Context, op.Tx, string, string, string, string, map[string]any) error {
	return nil
}

func newWorld(t *testing.T, d *db.DB) (*world, *Service) {
	t.Helper()
	w := &world{saves: map[string]bool{}, making: map[string]int{}, stored: map[string]bool{}, now: time.Now()}
	return w, New(Config{DB: d, Sandboxes: w, Node: w, Storage: w, Events: w, Now: func() time.Time { return w.now }})
}

// planted makes a build of a template that is leased by nobody.
func planted(t *testing.T, s *Service, name string, version int64) *build {
	t.Helper()
	now := db.Micros(s.Now())
	b := &build{ID: "bld_" + name, OrgID: "org", WorkspaceID: "ws", TemplateID: "sbxt_t", Version: version, Status: api.BuildWaiting, CreatedAt: now}
	err := s.DB.Tx(t.Context(), func(tx *sql.Tx) error {
		r := &row{ID: "sbxt_t", OrgID: "org", WorkspaceID: "ws", Name: "t", State: living, CreatedAt: now, UpdatedAt: now}
		if err := s.store.insert(t.Context(), tx, r); err != nil && !errors.Is(err, errLostRace) {
			return err
		}
		return s.store.insertBuild(t.Context(), tx, b)
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// layered claims a key and keeps what was made.
func layered(t *testing.T, w *world, s *Service, b *build, key string, force bool) *layer {
	t.Helper()
	l, mine, err := s.claim(t.Context(), b, key, force)
	if err != nil || !mine {
		t.Fatalf("claim: %v, mine %v", err, mine)
	}
	w.saves[l.ID] = true
	if err := s.keepLayer(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestClaim has one build make what several want, and another take over where it is lost.
func TestClaim(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w, s := newWorld(t, d)
		one, two := planted(t, s, "one", 1), planted(t, s, "two", 2)
		l, mine, err := s.claim(t.Context(), one, "key", false)
		if err != nil || !mine {
			t.Fatalf("the first: %v, mine %v", err, mine)
		}
		type answer struct {
			l    *layer
			mine bool
			err  error
		}
		waits := make(chan answer, 1)
		go func() {
			l, mine, err := s.claim(t.Context(), two, "key", false)
			waits <- answer{l, mine, err}
		}()
		if err := s.keepLayer(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		if a := <-waits; a.err != nil || a.mine || a.l.ID != l.ID {
			t.Errorf("whoever waited: %+v", a)
		}

		// A build that fails leaves it to the next; one that was lost too, once its lease is over.
		l, _, err = s.claim(t.Context(), one, "failed", false)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.dropLayer(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		if _, mine, err := s.claim(t.Context(), two, "failed", false); err != nil || !mine {
			t.Errorf("after a failure: %v, mine %v", err, mine)
		}
		l, _, err = s.claim(t.Context(), one, "lost", false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.ExecContext(t.Context(), `UPDATE template_layers SET lease_until = 1 WHERE id = $1`, l.ID); err != nil {
			t.Fatal(err)
		}
		if _, mine, err := s.claim(t.Context(), two, "lost", false); err != nil || !mine {
			t.Errorf("after its server was lost: %v, mine %v", err, mine)
		}
		if err := s.keepLayer(t.Context(), l); !errors.Is(err, errLostLease) {
			t.Errorf("what was lost came back: %v", err)
		}

		// Forced: not what is there, and what is made takes its place.
		first := layered(t, w, s, one, "forced", false)
		second := layered(t, w, s, two, "forced", true)
		if got, err := s.store.cached(t.Context(), d, "org", "forced", ""); err != nil || got.ID != second.ID {
			t.Errorf("found %+v, %v", got, err)
		}
		if got, err := s.store.layer(t.Context(), d, first.ID); err != nil || got.State != layerOld {
			t.Errorf("the one before: %+v, %v", got, err)
		}
		if got, err := s.store.cached(t.Context(), d, "another", "forced", ""); err != nil || got != nil {
			t.Errorf("another organization has %+v, %v", got, err)
		}
	})
}

// TestCollect gives up what no template needs, never what one consists of or what a sandbox is being made of.
func TestCollect(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w, s := newWorld(t, d)
		b := planted(t, s, "built", 1)
		used := map[string]*layer{}
		for _, key := range []string{"disk", "booted", "cache", "made"} {
			used[key] = layered(t, w, s, b, key, false)
		}
		if taken, err := s.take(t.Context(), b); err != nil || !taken {
			t.Fatalf("take: %v, %v", taken, err)
		}
		b, err := s.store.build(t.Context(), d, b.ID)
		if err != nil {
			t.Fatal(err)
		}
		b.Result = result{Disk: used["disk"].ID, Booted: used["booted"].ID}
		j, err := s.openJournal(t.Context(), b.ID)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.end(t.Context(), b, j, nil); err != nil {
			t.Fatal(err)
		}
		w.saves["lay_nobody"], w.saves["snap_another"] = true, true
		w.making[used["made"].ID] = 1
		look := func() []string {
			t.Helper()
			if err := s.audit(t.Context()); err != nil {
				t.Fatal(err)
			}
			due, err := s.store.dueLayers(t.Context(), d, true)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range due {
				if err := s.advanceLayer(t.Context(), l.ID); err != nil {
					t.Fatal(err)
				}
			}
			var left []string
			for key, l := range used {
				if w.saves[l.ID] {
					left = append(left, key)
				}
			}
			slices.Sort(left)
			return left
		}
		if left := strings.Join(look(), " "); left != "booted cache disk made" || w.saves["lay_nobody"] || !w.saves["snap_another"] {
			t.Errorf("at once: %s, %v", left, w.saves)
		}
		if !w.stored[used["disk"].ID] || !w.stored[used["booted"].ID] || w.stored[used["cache"].ID] {
			t.Errorf("stored: %v", w.stored)
		}
		w.now = w.now.Add(8 * 24 * time.Hour)
		if left := strings.Join(look(), " "); left != "booted disk made" {
			t.Errorf("after a week: %s", left)
		}
		w.making = map[string]int{}
		w.now = w.now.Add(8 * 24 * time.Hour)
		if left := strings.Join(look(), " "); left != "booted disk" {
			t.Errorf("after two: %s", left)
		}
		if _, err := d.ExecContext(t.Context(), `UPDATE templates SET state = 'deleted', updated_at = $1`, db.Micros(w.now)); err != nil {
			t.Fatal(err)
		}
		if left := strings.Join(look(), " "); left != "" || len(w.stored) != 0 {
			t.Errorf("once it is deleted: %s, %v", left, w.stored)
		}
		w.now = w.now.Add(25 * time.Hour)
		look()
		if left, err := s.store.build(t.Context(), d, b.ID); err != nil || left != nil {
			t.Errorf("its build: %+v, %v", left, err)
		}
	})
}

// TestJournal keeps a log whole: in order, by lines, bounded, and readable whatever bytes a command writes.
func TestJournal(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		_, s := newWorld(t, d)
		s.LogBytes = 64 << 10
		b := planted(t, s, "logged", 1)
		j, err := s.openJournal(t.Context(), b.ID)
		if err != nil {
			t.Fatal(err)
		}
		j.say(1, "step %d", 1)
		j.stream(1, "stdout", []byte("half a "))
		j.stream(1, "stdout", []byte("line\nand \xff\x00 more"))
		j.rest()
		j.close()
		j, err = s.openJournal(t.Context(), b.ID) // as the next server does
		if err != nil {
			t.Fatal(err)
		}
		j.stream(2, "stderr", []byte(strings.Repeat("x", 100<<10)+"\n"))
		j.say(2, "the end")
		j.close()
		lines, err := s.store.lines(t.Context(), d, b.ID, 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		size, all := 0, ""
		for i, l := range lines {
			if l.Offset != int64(i) {
				t.Errorf("piece %d has the number %d", i, l.Offset)
			}
			if l.Stream == "stderr" {
				size += len(l.Text)
			} else {
				all += l.Text
			}
		}
		if want := "step 1\nhalf a line\nand \uFFFD\uFFFD morethe log is full: further output of commands is not kept\nthe end\n"; all != want || size > 64<<10 || size < 32<<10 {
			t.Errorf("kept %d bytes of output and %q, not %q", size, all, want)
		}
	})
}

// TestUnfinished: the builds of an organization that has many do not keep another's from being looked at.
func TestUnfinished(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w, s := newWorld(t, d)
		for n := range int64(201) {
			planted(t, s, fmt.Sprint("many", n), n+1)
		}
		w.now = w.now.Add(time.Minute)
		other := planted(t, s, "other", 300)
		if _, err := d.ExecContext(t.Context(), `UPDATE template_builds SET org_id = 'another' WHERE id = $1`, other.ID); err != nil {
			t.Fatal(err)
		}
		all, err := s.store.unfinished(t.Context(), d)
		if err != nil || len(all) != 200 || !slices.ContainsFunc(all, func(b *build) bool { return b.ID == other.ID }) {
			t.Errorf("%d builds without the other's, %v", len(all), err)
		}
	})
}
