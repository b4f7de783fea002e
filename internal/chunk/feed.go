package chunk

import (
	"context"
	"math/bits"
)

const (
	arenaSize  = 2 << 20 // contents in one batch
	batchItems = 2048
	batchBytes = 1 << 20 // of records in one batch
	batches    = 4       // there are no more at once
)

// item is one record of the manifest on its way: what the walker found, then what becomes of it.
type item struct {
	record []byte  // of what is ready to be written
	zero   int64   // a run of zeros
	known  *record // a block taken from the parent
	block  []byte  // content that is to be found or stored
	prev   *record // the parent's block at the same place

	whole Hash
	adds  [2]addition // at most a chunk, or a patch
}

type addition struct {
	hash   Hash
	stored []byte
}

// batch is a run of items.
type batch struct {
	arena   []byte
	used    int
	items   []item
	bytes   int
	encoded []byte
	done    chan struct{}
}

// feeder collects what a walker finds into batches and hands them on. Their number bounds the memory.
type feeder struct {
	ctx   context.Context
	free  chan *batch
	todo  chan<- *batch // to those who work on batches
	order chan<- *batch // to the one who takes them in order
	now   *batch
	given int // batches handed on
}

func newFeeder(ctx context.Context, todo, order chan<- *batch) *feeder {
	f := &feeder{ctx: ctx, free: make(chan *batch, batches), todo: todo, order: order}
	for range batches {
		f.free <- &batch{}
	}
	return f
}

// current gives the batch that is filled.
func (f *feeder) current() (*batch, error) {
	if f.now == nil {
		select {
		case f.now = <-f.free:
		case <-f.ctx.Done():
			return nil, f.ctx.Err()
		}
		b := f.now
		if b.arena == nil {
			b.arena = make([]byte, arenaSize)
		}
		b.used, b.bytes, b.encoded, b.done = 0, 0, b.encoded[:0], make(chan struct{})
		clear(b.items)
		b.items = b.items[:0]
	}
	return f.now, nil
}

// flush hands the batch on.
func (f *feeder) flush() error {
	b := f.now
	if b == nil {
		return nil
	}
	f.now = nil
	f.given++
	for _, to := range []chan<- *batch{f.order, f.todo} {
		select {
		case to <- b:
		case <-f.ctx.Done():
			return f.ctx.Err()
		}
	}
	return nil
}

func (f *feeder) add(it item) error {
	b, err := f.current()
	if err != nil {
		return err
	}
	b.items = append(b.items, it)
	b.bytes += len(it.record)
	if len(b.items) >= batchItems || b.bytes >= batchBytes {
		return f.flush()
	}
	return nil
}

func (f *feeder) record(r *record) error { return f.add(item{record: r.append(nil)}) }

func (f *feeder) known(r *record) error {
	if r.Kind == recZero {
		return f.zero(r.Len)
	}
	if r.Kind == recInline {
		return f.record(r)
	}
	return f.add(item{known: r})
}

func (f *feeder) zero(n int64) error {
	if b := f.now; b != nil && len(b.items) > 0 && b.items[len(b.items)-1].zero > 0 {
		b.items[len(b.items)-1].zero += n
		return nil
	}
	return f.add(item{zero: n})
}

// room gives space for contents, which content hands on, whole or in parts.
func (f *feeder) room(n int64) ([]byte, error) {
	b, err := f.current()
	if err == nil && b.used+int(n) > len(b.arena) {
		if err = f.flush(); err == nil {
			b, err = f.current()
		}
	}
	if err != nil {
		return nil, err
	}
	b.used += int(n)
	return b.arena[b.used-int(n) : b.used : b.used], nil
}

// content hands on a block that lies in what room gave last. Where given has changed since, that room is no more.
func (f *feeder) content(buf []byte, prev *record) error { return f.add(item{block: buf, prev: prev}) }

// diff says in which pages two contents of one length differ.
func diff(a, b []byte) (pages uint64) {
	for i := 0; i*page < len(a); i++ {
		from, to := i*page, min((i+1)*page, len(a))
		if string(a[from:to]) != string(b[from:to]) {
			pages |= 1 << i
		}
	}
	return pages
}

// gather gives the content of some pages, one behind the other.
func gather(content []byte, pages uint64) []byte {
	out := make([]byte, 0, bits.OnesCount64(pages)*page)
	for i := 0; i*page < len(content); i++ {
		if pages&(1<<i) != 0 {
			out = append(out, content[i*page:min((i+1)*page, len(content))]...)
		}
	}
	return out
}

// scatter puts gathered pages back; false where there are not as many as there should be.
func scatter(content []byte, pages uint64, patch []byte) bool {
	for i := 0; i*page < len(content); i++ {
		if pages&(1<<i) != 0 {
			to := content[i*page : min((i+1)*page, len(content))]
			if len(patch) < len(to) {
				return false
			}
			patch = patch[copy(to, patch):]
		}
	}
	return len(patch) == 0
}
