package xtest

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/controlplane"
	"github.com/berthrun/berth/internal/db/dbtest"
	"github.com/berthrun/berth/internal/runtime"
)

func named(name string) api.CreateSandboxIn { return api.CreateSandboxIn{Name: name} }

func TestNames(t *testing.T) {
	eachLife(t, nil, func(t *testing.T, l *life) {
		c := l.Client
		t.Run("unique in a workspace", func(t *testing.T) {
			id := Sandbox(t, c, named("one"))
			if e := refusal(t, c, api.CreateSandbox, named("one")); e.Code != "ALREADY_EXISTS" || e.Suggestion == "" {
				t.Errorf("another one: %+v", e)
			}
			other := Sandbox(t, c, named("other"))
			name := "one"
			if code := Code(t, c, api.UpdateSandbox, api.UpdateSandboxIn{SandboxIn: in(other), Name: &name}); code != "ALREADY_EXISTS" {
				t.Errorf("renamed to it: %q", code)
			}
			if out := Must(t, c, api.UpdateSandbox, api.UpdateSandboxIn{SandboxIn: in(id), Name: &name}); out.Sandbox.Name != name {
				t.Errorf("renamed to its own: %+v", out.Sandbox)
			}
			secret, err := l.Plane.Found(t.Context(), "another")
			if err != nil {
				t.Fatal(err)
			}
			Sandbox(t, l.With(t, secret), named("one"))
		})
		t.Run("free once it is deleted", func(t *testing.T) {
			first := Sandbox(t, c, named("again"))
			Must(t, c, api.DeleteSandbox, waiting(first, 0))
			if second := Sandbox(t, c, named("again")); second == first {
				t.Error("it is the deleted one")
			}
		})
		t.Run("one of many that ask at once", func(t *testing.T) {
			var made atomic.Int32
			together(8, func(int) {
				switch out, err := within(c, api.CreateSandbox, named("raced")); client.CodeOf(err) {
				case "":
					made.Add(1)
					t.Cleanup(func() { Must(t, c, api.DeleteSandbox, waiting(out.Sandbox.ID, 30)) })
				case "ALREADY_EXISTS":
				default:
					t.Errorf("%v", err)
				}
			})
			if made.Load() != 1 {
				t.Errorf("%d were made", made.Load())
			}
		})
		t.Run("getOrCreate", func(t *testing.T) {
			want := api.CreateSandboxIn{Name: "shared", GetOrCreate: true, WaitIn: wait(30)}
			ids := make([]string, 8)
			together(len(ids), func(i int) {
				out, err := within(c, api.CreateSandbox, want)
				if err != nil || !out.Ready {
					t.Errorf("%+v, %v", out, err)
					return
				}
				ids[i] = out.Sandbox.ID
			})
			if slices.Sort(ids); ids[0] != ids[len(ids)-1] {
				t.Errorf("they got %v", ids)
			}
			l.stop(t, ids[0])
			if out := Must(t, c, api.CreateSandbox, want); out.Sandbox.ID != ids[0] || !out.Ready {
				t.Errorf("a stopped one: %+v", out.Sandbox)
			}
			Must(t, c, api.DeleteSandbox, waiting(ids[0], 30))
			if code := Code(t, c, api.CreateSandbox, api.CreateSandboxIn{GetOrCreate: true}); code != "INVALID_INPUT" {
				t.Errorf("without a name: %q", code)
			}
		})
		t.Run("one key asked with at once", func(t *testing.T) {
			want := api.CreateSandboxIn{WriteIn: op.WriteIn{IdempotencyKey: "one-key"}, WaitIn: wait(30)}
			ids := make([]string, 8)
			together(len(ids), func(i int) {
				out, err := within(c, api.CreateSandbox, want)
				if err != nil {
					t.Errorf("%v", err)
					return
				}
				ids[i] = out.Sandbox.ID
			})
			if slices.Sort(ids); ids[0] != ids[len(ids)-1] {
				t.Errorf("they got %v", ids)
			}
			Must(t, c, api.DeleteSandbox, waiting(ids[0], 30))
		})
	})
}

func TestQuotas(t *testing.T) {
	limits := map[string]int64{"sandboxes.running": 2, "sandboxes.total": 4, "memory.running": 4096, "vcpu.running": 8000, "disk.total": 60}
	eachLife(t, func(c *controlplane.Config) { c.Limits = limits }, func(t *testing.T, l *life) {
		c := l.Client
		small := func() api.CreateSandboxIn {
			in := idling(0)
			in.Resources = &api.ResourcesIn{MemoryMiB: 256, VCPU: 1, DiskGiB: 10}
			return in
		}
		over := func(t *testing.T, e *client.Error, key string) {
			t.Helper()
			if e.Code != "LIMIT_EXCEEDED" || e.Details["key"] != key || e.Details["limit"] != float64(limits[key]) || e.Suggestion == "" {
				t.Errorf("want the limit on %s, got %+v", key, e)
			}
		}
		first, second := Sandbox(t, c, small()), Sandbox(t, c, small())
		if diff := cmp.Diff(map[string]int64{"sandboxes.running": 2, "sandboxes.total": 2, "memory.running": 512, "vcpu.running": 2000, "disk.total": 20, "volumes.total": 0}, used(t, c)); diff != "" {
			t.Errorf("used (-want +got):\n%s", diff)
		}
		over(t, refusal(t, c, api.CreateSandbox, small()), "sandboxes.running")
		l.stop(t, first)
		if diff := cmp.Diff(map[string]int64{"sandboxes.running": 1, "sandboxes.total": 2, "memory.running": 256, "vcpu.running": 1000, "disk.total": 20, "volumes.total": 0}, used(t, c)); diff != "" {
			t.Errorf("with one stopped (-want +got):\n%s", diff)
		}
		third := Sandbox(t, c, small())
		over(t, refusal(t, c, api.StartSandbox, waiting(first, 0)), "sandboxes.running")
		over(t, refusal(t, c, api.Exec, api.ExecIn{SandboxIn: in(first), CommandIn: api.CommandIn{Command: "true"}}), "sandboxes.running")
		if sb := l.get(t, first); sb.State != api.StateStopped {
			t.Errorf("it was started: %+v", sb)
		}
		l.Driver.Kill(second, runtime.ReasonKilled)
		l.becomes(t, second, api.StateStopped)
		l.stop(t, third)
		for key, want := range map[string]api.ResourcesIn{"memory.running": {MemoryMiB: 4097}, "vcpu.running": {VCPU: 9}} {
			r := small()
			r.Resources = &want
			over(t, refusal(t, c, api.CreateSandbox, r), key)
		}
		for _, size := range []int64{9, 31} {
			r := small()
			r.Resources.DiskGiB = size
			if e := refusal(t, c, api.CreateSandbox, r); e.Code != "LIMIT_EXCEEDED" || e.Reason != "disk_size" {
				t.Errorf("a disk of %d GiB: %+v", size, e)
			}
		}
		r := small()
		r.Resources.DiskGiB = 30
		fourth := Sandbox(t, c, r)
		over(t, refusal(t, c, api.CreateSandbox, small()), "disk.total")
		Must(t, c, api.DeleteSandbox, waiting(fourth, 30))
		Sandbox(t, c, small())
		over(t, refusal(t, c, api.CreateSandbox, small()), "sandboxes.total")
		before := used(t, c)
		if err := l.Plane.Recount(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, used(t, c)); diff != "" {
			t.Errorf("the count says otherwise (-used +counted):\n%s", diff)
		}
		for _, id := range []string{first, second, third} {
			Must(t, c, api.DeleteSandbox, waiting(id, 30))
		}
		var made atomic.Int32
		together(8, func(int) {
			switch out, err := within(c, api.CreateSandbox, small()); client.CodeOf(err) {
			case "":
				made.Add(1)
				Must(t, c, api.StopSandbox, waiting(out.Sandbox.ID, 30))
				t.Cleanup(func() { Must(t, c, api.DeleteSandbox, waiting(out.Sandbox.ID, 30)) })
			case "LIMIT_EXCEEDED":
			default:
				t.Errorf("%v", err)
			}
		})
		got := used(t, c)
		if made.Load() < 1 || made.Load() > 3 || got["sandboxes.total"] != int64(made.Load())+1 || got["sandboxes.running"] != 1 {
			t.Errorf("%d were made at once, used: %v", made.Load(), got)
		}
		if err := l.Plane.Recount(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(got, used(t, c)); diff != "" {
			t.Errorf("after many at once the count says otherwise (-used +counted):\n%s", diff)
		}
	})
}

func TestList(t *testing.T) {
	eachLife(t, often, func(t *testing.T, l *life) {
		mine := l.Client
		theirs := l.With(t, Must(t, mine, api.CreateKey, api.CreateKeyIn{Name: "colleague"}).Secret)
		create := func(c *client.Client, name string, labels map[string]string) string {
			l.pass(time.Second) // so that each has its own moment
			return Sandbox(t, c, api.CreateSandboxIn{Name: name, Metadata: labels})
		}
		a := create(mine, "a", map[string]string{"team": "web", "env": "test"})
		b := create(mine, "b", map[string]string{"team": "web"})
		x := create(theirs, "x", map[string]string{"team": "web", "env": "test"})
		later := l.now()
		d := create(mine, "d", nil)
		l.stop(t, b)
		secret, err := l.Plane.Found(t.Context(), "another")
		if err != nil {
			t.Fatal(err)
		}
		stranger := l.With(t, secret)
		Sandbox(t, stranger, named("a"))

		for name, tt := range map[string]struct {
			c       *client.Client
			in      api.ListSandboxesIn
			want    []string
			running int
		}{
			"mine":               {mine, api.ListSandboxesIn{}, []string{d, b, a}, 2},
			"theirs":             {theirs, api.ListSandboxesIn{Scope: "mine"}, []string{x}, 1},
			"all":                {mine, api.ListSandboxesIn{Scope: "all"}, []string{d, x, b, a}, 3},
			"oldest":             {mine, api.ListSandboxesIn{Scope: "all", Order: "oldest"}, []string{a, b, x, d}, 3},
			"running":            {mine, api.ListSandboxesIn{State: []string{"running"}}, []string{d, a}, 2},
			"stopped or failed":  {mine, api.ListSandboxesIn{State: []string{"stopped", "failed"}, Scope: "all"}, []string{b}, 3},
			"by name":            {mine, api.ListSandboxesIn{Name: "a", Scope: "all"}, []string{a}, 3},
			"by label":           {mine, api.ListSandboxesIn{Metadata: map[string]string{"team": "web"}, Scope: "all"}, []string{x, b, a}, 3},
			"by labels":          {mine, api.ListSandboxesIn{Metadata: map[string]string{"team": "web", "env": "test"}, Scope: "all"}, []string{x, a}, 3},
			"by no such label":   {mine, api.ListSandboxesIn{Metadata: map[string]string{"team": "ops"}}, nil, 2},
			"by template":        {mine, api.ListSandboxesIn{Template: "base"}, []string{d, b, a}, 2},
			"by no such":         {mine, api.ListSandboxesIn{Template: "other"}, nil, 2},
			"started after":      {mine, api.ListSandboxesIn{StartedAfter: &later, Scope: "all"}, []string{d}, 3},
			"everything at once": {mine, api.ListSandboxesIn{StartedAfter: &later, State: []string{"running"}, Name: "d", Template: "base", Order: "oldest"}, []string{d}, 2},
		} {
			out := Must(t, tt.c, api.ListSandboxes, tt.in)
			if diff := cmp.Diff(tt.want, idsOf(out.Items)); diff != "" || out.TotalRunning != tt.running || out.NextCursor != nil {
				t.Errorf("%s: running %d, want %d; next %v; (-want +got):\n%s", name, out.TotalRunning, tt.running, out.NextCursor, diff)
			}
		}
		eventually(t, func() bool { return Must(t, mine, api.ListSandboxes, api.ListSandboxesIn{}).Items[0].Usage != nil })
		if out := Must(t, mine, api.ListSandboxes, api.ListSandboxesIn{}); out.Items[1].Usage != nil {
			t.Errorf("a reading belongs to the running ones: %+v", out.Items)
		}

		for _, order := range []string{"newest", "oldest"} {
			t.Run("pages, "+order, func(t *testing.T) {
				want := []string{d, x, b, a}
				if order == "oldest" {
					slices.Reverse(want)
				}
				ask := api.ListSandboxesIn{Scope: "all", Order: order, PageIn: op.PageIn{Limit: 1}}
				var got []string
				for {
					out := Must(t, mine, api.ListSandboxes, ask)
					got = append(got, idsOf(out.Items)...)
					if out.NextCursor == nil {
						break
					}
					ask.Cursor = *out.NextCursor
					if len(got) == 1 { // one that is made meanwhile shifts nothing
						other := ask
						other.Order = map[string]string{"newest": "oldest", "oldest": "newest"}[order]
						other.State = []string{"running"}
						if code := Code(t, mine, api.ListSandboxes, other); code != "INVALID_CURSOR" {
							t.Errorf("with other filters: %q", code)
						}
					}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
		for _, cursor := range []string{"x", "!!", "e30", "bnVsbA"} {
			if code := Code(t, mine, api.ListSandboxes, api.ListSandboxesIn{PageIn: op.PageIn{Cursor: cursor}}); code != "INVALID_CURSOR" {
				t.Errorf("cursor %q: %q", cursor, code)
			}
		}
	})
}

func idsOf(items []api.Sandbox) (all []string) {
	for _, sb := range items {
		all = append(all, sb.ID)
	}
	return all
}

// TestTwoControlPlanes lets two serve the same sandboxes: what one does the other sees, and neither does a thing twice.
func TestTwoControlPlanes(t *testing.T) {
	l := newLife(t, dbtest.Postgres(t), nil)
	peer := l.Peer(t)
	clients := []*client.Client{l.Client, peer.Client}

	t.Run("a life in turns", func(t *testing.T) {
		id := Sandbox(t, l.Client, idling(60))
		generation := l.get(t, id).Generation
		if out := Exec(t, peer.Client, id, "echo one > file; echo there"); out.Stdout != "there\n" {
			t.Errorf("exec by the other: %+v", out)
		}
		p := start(t, l.Client, id, "echo said; exec sleep 600")
		if got := Must(t, peer.Client, api.ProcessOutput, api.ProcessOutputIn{ProcessIn: proc(id, p), WaitSeconds: 10}); got.Data != "said\n" {
			t.Errorf("output by the other: %+v", got)
		}
		for range 3 {
			together(8, func(i int) {
				if out, err := within(clients[i%2], api.StopSandbox, waiting(id, 30)); err != nil || out.Sandbox.State != api.StateStopped {
					t.Errorf("stop: %+v, %v", out.Sandbox, err)
				}
			})
			together(8, func(i int) {
				if out, err := within(clients[i%2], api.StartSandbox, waiting(id, 30)); err != nil || !out.Ready {
					t.Errorf("start: %+v, %v", out.Sandbox, err)
				}
			})
			generation += 4
		}
		if got := l.get(t, id).Generation; got != generation {
			t.Errorf("generation %d, want %d: it moved more than once", got, generation)
		}
		if got := read(t, peer.Client, id, p, 0); got != "said\n" {
			t.Errorf("what was kept: %q", got)
		}
		if out := Exec(t, peer.Client, id, "cat file"); out.Stdout != "one\n" {
			t.Errorf("the disk: %+v", out)
		}
		l.pass(2 * time.Minute)
		if sb := l.becomes(t, id, api.StateStopped); sb.StopReason != "idle" || sb.Generation != generation+2 {
			t.Errorf("idled: %+v", sb)
		}
		if out := Exec(t, peer.Client, id, "true"); out.Woke != "boot" {
			t.Errorf("woken by the other: %+v", out)
		}
		l.Driver.Kill(id, runtime.ReasonOutOfMemory)
		for _, c := range clients {
			eventually(t, func() bool {
				sb := Must(t, c, api.GetSandbox, in(id)).Sandbox
				return sb.State == api.StateStopped && sb.StopReason == runtime.ReasonOutOfMemory
			})
		}
		together(8, func(i int) {
			if out, err := within(clients[i%2], api.DeleteSandbox, waiting(id, 30)); err != nil || !out.Deleted {
				t.Errorf("delete: %+v, %v", out, err)
			}
		})
		l.gone(t, id)
	})
	t.Run("one name, one sandbox", func(t *testing.T) {
		ids := make([]string, 8)
		together(len(ids), func(i int) {
			out, err := within(clients[i%2], api.CreateSandbox, api.CreateSandboxIn{Name: "shared", GetOrCreate: true, WaitIn: wait(30)})
			if err != nil {
				t.Errorf("%v", err)
				return
			}
			ids[i] = out.Sandbox.ID
		})
		if slices.Sort(ids); ids[0] != ids[len(ids)-1] {
			t.Errorf("they got %v", ids)
		}
		Must(t, peer.Client, api.DeleteSandbox, waiting(ids[0], 30))
	})
	t.Run("one key, one effect", func(t *testing.T) {
		id := Sandbox(t, l.Client, idling(0))
		for n := range 10 {
			want := api.ExecIn{
				WriteIn: op.WriteIn{IdempotencyKey: fmt.Sprintf("exec-%d", n)}, SandboxIn: in(id), CommandIn: api.CommandIn{Command: fmt.Sprintf("echo ran >> n%d; echo said", n)},
			}
			together(4, func(i int) {
				if out, err := within(clients[i%2], api.Exec, want); err != nil || out.Stdout != "said\n" {
					t.Errorf("%+v, %v", out, err)
				}
			})
			if got := Must(t, l.Client, api.ReadFile, api.ReadFileIn{FileIn: file(id, fmt.Sprintf("n%d", n))}); got.Data != "ran\n" {
				t.Errorf("it ran so: %q", got.Data)
			}
		}
	})
	t.Run("a revoked key ends everywhere", func(t *testing.T) {
		key := Must(t, l.Client, api.CreateKey, api.CreateKeyIn{Name: "short"})
		there := peer.With(t, key.Secret)
		Must(t, there, api.GetAccount, api.None{})
		Must(t, l.Client, api.RevokeKey, api.RevokeKeyIn{KeyID: key.Key.ID})
		if code := Code(t, l.With(t, key.Secret), api.GetAccount, api.None{}); code != "UNAUTHENTICATED" {
			t.Errorf("where it was revoked: %q", code)
		}
		begin := time.Now()
		eventually(t, func() bool { return Code(t, there, api.GetAccount, api.None{}) == "UNAUTHENTICATED" })
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("the other one took %v", took)
		}
	})
	t.Run("events are numbered without gaps", func(t *testing.T) { numbered(t, l.db, "events") })
	t.Run("the audit log is one whole chain", func(t *testing.T) { chained(t, l.db, "audit") })
}
