//go:build linux

package guest

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// pattern is the text that the spool's tests write: at every offset it is known.
func pattern(from, n int64) []byte {
	out := make([]byte, 0, n+16)
	for at := from / 8 * 8; int64(len(out)) < n+8; at += 8 {
		out = fmt.Appendf(out, "%07x\n", at/8%(1<<28))
	}
	return out[from%8 : from%8+n]
}

func TestSpool(t *testing.T) {
	for name, tt := range map[string]struct {
		total    int64
		chunk    int64
		earliest int64
	}{
		"nothing":         {0, 1, 0},
		"a little":        {100, 7, 0},
		"first growth":    {5000, 900, 0},
		"exactly full":    {SpoolBytes, 4096, 0},
		"one more":        {SpoolBytes + 1, 4093, 1},
		"odd chunks":      {3*SpoolBytes + 12345, 60001, 2*SpoolBytes + 12345},
		"one huge write":  {2*SpoolBytes + 5, 2*SpoolBytes + 5, SpoolBytes + 5},
		"huge after some": {3*SpoolBytes + 10, SpoolBytes + 5, 2*SpoolBytes + 10},
	} {
		t.Run(name, func(t *testing.T) {
			s := &spool{budget: &budget{}}
			for at := int64(0); at < tt.total; at += tt.chunk {
				s.write(pattern(at, min(tt.chunk, tt.total-at)))
			}
			_, _, earliest, total := s.read(0, 1)
			if d := cmp.Diff([]int64{tt.earliest, tt.total}, []int64{earliest, total}); d != "" {
				t.Fatal(d)
			}
			for _, offset := range []int64{0, 1, tt.earliest - 1, tt.earliest, tt.earliest + 100, tt.total - 1, tt.total, tt.total + 5} {
				if offset < 0 {
					continue
				}
				data, from, _, _ := s.read(offset, 5000)
				if want := min(max(offset, tt.earliest), tt.total); from != want {
					t.Errorf("read(%d) begins at %d, want %d", offset, from, want)
				}
				if want := pattern(from, min(5000, tt.total-from)); !bytes.Equal(data, want) {
					t.Errorf("read(%d) gave %d wrong bytes", offset, len(data))
				}
			}
			e := s.excerpt()
			head := min(tt.total, HeadTailBytes)
			tail := min(tt.total-head, HeadTailBytes)
			if !bytes.Equal(e.Head, pattern(0, head)) || !bytes.Equal(e.Tail, pattern(tt.total-tail, tail)) || e.Total != tt.total {
				t.Errorf("excerpt has %d and %d of %d bytes, or others than it should", len(e.Head), len(e.Tail), e.Total)
			}
			held := s.budget.used.Load()
			if held > SpoolBytes+HeadTailBytes || tt.total < 1000 && held > spoolFirst {
				t.Errorf("it holds %d bytes", held)
			}
			s.drop()
			if s.budget.used.Load() != 0 || s.size() != tt.total {
				t.Errorf("after drop it holds %d bytes and counts %d", s.budget.used.Load(), s.size())
			}
			s.write([]byte("after"))
			if data, from, _, _ := s.read(0, 100); string(data) != "after" || from != tt.total {
				t.Errorf("after drop it gives %q at %d", data, from)
			}
		})
	}
}

// However many processes write, what is kept of them is bounded, and each keeps something.
func TestSpoolsAreBounded(t *testing.T) {
	b := &budget{}
	spools := make([]*spool, 500)
	block := pattern(0, 2*SpoolBytes)
	for i := range spools {
		spools[i] = &spool{budget: b}
		spools[i].write(block)
	}
	if most := int64(spoolHard + len(spools)*(spoolFloor+HeadTailBytes)); b.used.Load() > most {
		t.Errorf("%d bytes are held, want at most %d", b.used.Load(), most)
	}
	for i, s := range spools {
		if s.kept < spoolFloor {
			t.Fatalf("the spool %d keeps %d bytes", i, s.kept)
		}
	}
}

// The oldest ended processes' output goes first.
func TestOldOutputGoesFirst(t *testing.T) {
	r := newRig(t)
	var ids []string
	for range spoolSoft/SpoolBytes + 8 {
		ids = append(ids, r.exec(Start{Command: "head -c 1200000 /dev/zero"}).Process.ID)
	}
	first, err := r.Output(t.Context(), ids[0], OutputQuery{})
	if err != nil {
		t.Fatal(err)
	}
	last, err := r.Output(t.Context(), ids[len(ids)-1], OutputQuery{})
	if err != nil {
		t.Fatal(err)
	}
	if len(first.Data) != 0 || first.Offset != 1200000 || !first.EOF || len(last.Data) != OutputBytes || last.Offset != 1200000-SpoolBytes {
		t.Errorf("first %d at %d, last %d at %d", len(first.Data), first.Offset, len(last.Data), last.Offset)
	}
}

// Symptom 33: output is kept while nobody listens, and a process is not held up by a reader that is slow or absent.
func TestOutputWithoutAReader(t *testing.T) {
	r := newRig(t)
	p := r.start(Start{Command: "for i in $(seq 1 50000); do echo line $i; done; echo err >&2"})
	r.ended(p.ID)
	var all []byte
	for offset := int64(0); ; {
		o, err := r.Output(t.Context(), p.ID, OutputQuery{Offset: offset})
		if err != nil {
			t.Fatal(err)
		}
		all, offset = append(all, o.Data...), o.Next
		if o.EOF {
			break
		}
	}
	var want strings.Builder
	for i := 1; i <= 50000; i++ {
		fmt.Fprintln(&want, "line", i)
	}
	if string(all) != want.String() {
		t.Errorf("%d bytes, want %d", len(all), want.Len())
	}
	if o, err := r.Output(t.Context(), p.ID, OutputQuery{Stream: "stderr"}); err != nil || string(o.Data) != "err\n" || !o.EOF {
		t.Errorf("stderr = %q, %v", o.Data, err)
	}
}

// Readers are woken by the first byte and by the end, not by looking again and again; each gets everything.
func TestReadersWait(t *testing.T) {
	r := newRig(t)
	p := r.start(Start{Command: "while read l; do echo $l; done", OpenStdin: true})
	var wg sync.WaitGroup
	got := make([]string, 8)
	for i := range got {
		wg.Go(func() {
			for offset := int64(0); ; {
				o, err := r.Output(t.Context(), p.ID, OutputQuery{Offset: offset, Wait: time.Minute})
				if err != nil {
					t.Error(err)
					return
				}
				got[i] += string(o.Data)
				if offset = o.Next; o.EOF {
					return
				}
			}
		})
	}
	for i := range 20 {
		if _, err := r.Input(t.Context(), "", p.ID, Input{Data: fmt.Appendf(nil, "%d\n", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Input(t.Context(), "", p.ID, Input{EOF: true}); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	want := "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n15\n16\n17\n18\n19\n"
	for i := range got {
		if got[i] != want {
			t.Errorf("reader %d got %q", i, got[i])
		}
	}
}

// A wait ends at its time, without data.
func TestOutputWaitEnds(t *testing.T) {
	r := newRig(t)
	p := r.start(Start{Command: "sleep 1000"})
	o, err := r.Output(t.Context(), p.ID, OutputQuery{Wait: 20 * time.Millisecond})
	if err != nil || len(o.Data) != 0 || o.EOF || !o.Process.Running {
		t.Errorf("output = %+v, %v", o, err)
	}
	res, err := r.Exec(t.Context(), Start{ID: p.ID}, 20*time.Millisecond)
	if err != nil || !res.Process.Running {
		t.Errorf("exec = %+v, %v", res.Process, err)
	}
}

// Symptom 16, 14: what was read of a process does not depend on connections: another client reads on.
func TestAnotherClientReadsOn(t *testing.T) {
	r := newRig(t)
	p := r.start(Start{Command: "echo one; read x; echo two", OpenStdin: true})
	r.until(p.ID, "one\n")
	r.Client.Close()
	if _, err := r.Input(t.Context(), "", p.ID, Input{Data: []byte("go\n")}); err != nil {
		t.Fatal(err)
	}
	o, err := r.Output(t.Context(), p.ID, OutputQuery{Offset: 4, Wait: time.Minute})
	if err != nil || string(o.Data) != "two\n" {
		t.Errorf("output = %q, %v", o.Data, err)
	}
}

// What a process writes does not cost memory, and goes at speed.
func TestMuchOutput(t *testing.T) {
	r := newRig(t)
	size := int64(3 << 30)
	if testing.Short() {
		size = 64 << 20
	}
	begin := time.Now()
	res := r.exec(Start{Command: fmt.Sprintf("head -c %d /dev/zero; echo the end", size)})
	t.Logf("%d MiB in %s", size>>20, time.Since(begin))
	if res.Stdout.Total != size+8 || !bytes.HasSuffix(res.Stdout.Tail, []byte("\x00the end\n")) || len(res.Stdout.Head) != HeadTailBytes {
		t.Errorf("total %d", res.Stdout.Total)
	}
	if held := r.server.budget.used.Load(); held > SpoolBytes+HeadTailBytes {
		t.Errorf("it holds %d bytes", held)
	}
}
