package chunk

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"math/bits"
	"time"

	"golang.org/x/sync/errgroup"
)

// workers is how many batches are hashed and compressed at once.
const workers = 2

// errStale says that a chunk of the parent's is not kept any more, so that a file that was not read has to be.
var errStale = errors.New("a chunk of the parent is gone")

// Save reads a tree and keeps it in the vault. parent is an earlier tree of the same lineage, or nil. When Save returns without an error everything that the
// root needs is durable. After an error the vault may have chunks that nobody needs; the next Save of the same tree finds them there.
func Save(ctx context.Context, v Vault, src Source, parent *Root) (*Root, Stats, error) {
	root, stats, err := save(ctx, v, src, parent)
	if errors.Is(err, errStale) {
		src.Trust = false
		root, stats, err = save(ctx, v, src, parent)
	}
	return root, stats, explain(err)
}

func save(ctx context.Context, v Vault, src Source, parent *Root) (*Root, Stats, error) {
	now := src.Now
	if now == nil {
		now = time.Now
	}
	at := src.At
	if at.IsZero() {
		at = now()
	}
	dec, err := newDecoder()
	if err != nil {
		return nil, Stats{}, err
	}
	defer dec.close()
	group, gctx := errgroup.WithContext(ctx)
	todo, order := make(chan *batch, batches), make(chan *batch, batches)
	feed := newFeeder(gctx, todo, order)
	w := &walker{ctx: gctx, cut: src.Cut, trust: src.Trust, links: map[inode]uint64{}, out: feed, crc: crc32.MakeTable(crc32.Castagnoli)}
	group.Go(func() error {
		defer close(order)
		defer close(todo)
		var c *cursor
		if parent != nil {
			before := parent.At.Add(-trustAge)
			w.before = stamp{Sec: before.Unix(), Nsec: uint32(before.Nanosecond())} //nolint:gosec // below 1e9
			c = &cursor{m: newReader(&pieceReader{ctx: gctx, vault: v, dec: dec, left: parent.Pieces})}
		}
		if err := w.tree(src.Dir, c); err != nil {
			return err
		}
		return feed.flush()
	})
	for range workers {
		group.Go(func() error {
			enc, err := newCoder()
			if err != nil {
				return err
			}
			defer enc.close()
			for b := range todo {
				if err := work(gctx, v, b, enc, dec); err != nil {
					return err
				}
				close(b.done)
			}
			return nil
		})
	}
	o := &output{ctx: gctx, vault: v, group: group, adding: make(chan struct{}, workers), spare: make(chan []byte, workers)}
	group.Go(func() error { return o.run(order, feed.free) })
	if err := group.Wait(); err != nil {
		return nil, Stats{}, err
	}
	stats := w.stats
	stats.Chunks, stats.New, stats.Stored = o.chunks, o.added, o.stored
	root := &Root{At: at, Entries: stats.Entries, Bytes: stats.Bytes, Pieces: o.pieces}
	if len(root.Encode()) > MaxRoot {
		return nil, Stats{}, fmt.Errorf("the manifest has too many pieces")
	}
	return root, stats, nil
}

// work finds out what of a batch is there already and makes ready what is not.
func work(ctx context.Context, v Vault, b *batch, enc *coder, dec *decoder) error {
	var ask []Hash
	for i := range b.items {
		it := &b.items[i]
		switch {
		case it.known != nil:
			ask = it.known.chunks(ask)
		case it.block != nil && isZero(it.block):
			it.zero, it.block = int64(len(it.block)), nil
		case it.block != nil:
			it.whole = sha256.Sum256(it.block)
			ask = append(ask, it.whole)
			if it.prev != nil {
				ask = it.prev.chunks(ask)
			}
		}
	}
	had := map[Hash]bool{}
	if len(ask) > 0 {
		there, err := v.Have(ctx, ask)
		if err != nil {
			return err
		}
		for i, h := range ask {
			had[h] = had[h] || there[i]
		}
	}
	all := func(r *record) bool {
		for _, h := range r.chunks(nil) {
			if !had[h] {
				return false
			}
		}
		return true
	}
	var patched []*item
	for i := range b.items {
		it := &b.items[i]
		switch {
		case it.known != nil:
			if !all(it.known) {
				return errStale
			}
			it.record = it.known.append(nil)
		case it.block == nil:
		case it.prev != nil && it.prev.Whole == it.whole && all(it.prev):
			it.record = it.prev.append(nil)
		case had[it.whole]:
			it.record = (&record{Kind: recChunk, Len: int64(len(it.block)), Whole: it.whole}).append(nil)
		case it.prev != nil && all(it.prev) && len(it.block) > page:
			patched = append(patched, it)
		default:
			b.store(it, enc)
		}
	}
	return b.patch(ctx, v, patched, enc, dec)
}

// store makes a chunk of a block.
func (b *batch) store(it *item, enc *coder) {
	it.record = (&record{Kind: recChunk, Len: int64(len(it.block)), Whole: it.whole}).append(nil)
	it.adds[0] = addition{it.whole, b.encode(it.block, enc)}
}

func (b *batch) encode(content []byte, enc *coder) []byte {
	at := len(b.encoded)
	b.encoded = enc.append(b.encoded, content)
	return b.encoded[at:len(b.encoded):len(b.encoded)]
}

// patch keeps blocks of which little changed as what changed, the others whole.
func (b *batch) patch(ctx context.Context, v Vault, items []*item, enc *coder, dec *decoder) error {
	if len(items) == 0 {
		return nil
	}
	bases := make([]Hash, len(items))
	for i, it := range items {
		if bases[i] = it.prev.Whole; it.prev.Kind == recPatched {
			bases[i] = it.prev.Base
		}
	}
	stored, err := v.Read(ctx, bases)
	if err != nil {
		return err
	}
	var patches []Hash
	for i, it := range items {
		base, err := dec.open(stored[i], bases[i])
		if err != nil {
			return err
		}
		pages := uint64(1<<63 - 1)
		if len(base) == len(it.block) {
			pages = diff(it.block, base)
		}
		if bits.OnesCount64(pages)*patchParts > (len(it.block)+page-1)/page || pages == 0 {
			b.store(it, enc)
			continue
		}
		content := gather(it.block, pages)
		r := &record{Kind: recPatched, Len: int64(len(it.block)), Whole: it.whole, Base: bases[i], Pages: pages, Patch: sha256.Sum256(content)}
		it.record, it.adds[0] = r.append(nil), addition{r.Patch, b.encode(content, enc)}
		patches = append(patches, r.Patch)
	}
	if len(patches) == 0 {
		return nil
	}
	there, err := v.Have(ctx, patches) // where an earlier Save did not come to its end
	if err != nil {
		return err
	}
	had := map[Hash]bool{}
	for i, h := range patches {
		had[h] = there[i]
	}
	for _, it := range items {
		if had[it.adds[0].hash] {
			it.adds[0] = addition{}
		}
	}
	return nil
}

// output writes the manifest and fills packs, in the order of the tree.
type output struct {
	ctx    context.Context
	vault  Vault
	group  *errgroup.Group
	adding chan struct{} // bounds the packs that are on their way
	spare  chan []byte   // the memory of packs that have arrived

	zero   int64 // zeros not written yet
	piece  []byte
	ready  [][]byte // pieces not stored yet
	pieces []Hash
	enc    *coder
	pack   Packer
	recent [4]map[Hash]struct{} // what the last packs hold: another worker may not have known it yet

	chunks, added, stored int64
}

func (o *output) run(order <-chan *batch, free chan<- *batch) (err error) {
	if o.enc, err = newCoder(); err != nil {
		return err
	}
	defer o.enc.close()
	o.recent[0] = map[Hash]struct{}{}
	for b := range order {
		select {
		case <-b.done:
		case <-o.ctx.Done():
			return o.ctx.Err()
		}
		for i := range b.items {
			if err := o.take(&b.items[i]); err != nil {
				return err
			}
		}
		free <- b
	}
	if err := o.ctx.Err(); err != nil { // the walker gave up
		return err
	}
	o.endPiece()
	if err := o.storePieces(); err != nil {
		return err
	}
	return o.givePack()
}

func (o *output) take(it *item) error {
	if it.zero > 0 {
		o.zero += it.zero
		return nil
	}
	if o.zero > 0 {
		if err := o.write((&record{Kind: recZero, Len: o.zero}).append(nil)); err != nil {
			return err
		}
		o.zero = 0
	}
	if it.block != nil || it.known != nil {
		o.chunks++
	}
	for _, a := range it.adds {
		if a.stored != nil {
			if err := o.keep(a.hash, a.stored); err != nil {
				return err
			}
		}
	}
	return o.write(it.record)
}

// keep puts a chunk into the pack, unless one of the last packs has it.
func (o *output) keep(h Hash, stored []byte) error {
	for _, m := range o.recent {
		if _, ok := m[h]; ok {
			return nil
		}
	}
	o.recent[0][h] = struct{}{}
	o.added++
	o.pack.Add(h, stored)
	if o.pack.Full() {
		return o.givePack()
	}
	return nil
}

func (o *output) givePack() error {
	pack := o.pack.Take()
	if pack == nil {
		return nil
	}
	copy(o.recent[1:], o.recent[:])
	o.recent[0] = map[Hash]struct{}{}
	o.stored += int64(len(pack))
	select {
	case o.adding <- struct{}{}:
	case <-o.ctx.Done():
		return o.ctx.Err()
	}
	o.group.Go(func() error {
		defer func() { <-o.adding }()
		err := o.vault.Add(o.ctx, pack)
		select {
		case o.spare <- pack:
		default:
		}
		return err
	})
	select {
	case b := <-o.spare:
		o.pack.Reuse(b)
	default:
	}
	return nil
}

// The manifest's pieces end behind records that say so, so that what comes or goes in one place leaves the other pieces as they are.
const (
	leastPiece = 4 << 10
	meanPiece  = 16 << 10
	mostPiece  = 64 << 10
)

func (o *output) write(rec []byte) error {
	o.piece = append(o.piece, rec...)
	h := fnv.New64a()
	_, _ = h.Write(rec)
	if len(o.piece) >= mostPiece || len(o.piece) >= leastPiece && h.Sum64()%meanPiece < uint64(len(rec)) {
		o.endPiece()
		if len(o.ready) >= piecesAhead {
			return o.storePieces()
		}
	}
	return nil
}

func (o *output) endPiece() {
	for p := o.piece; len(p) > 0; {
		n := min(len(p), mostPiece)
		o.ready = append(o.ready, p[:n:n])
		p = p[n:]
	}
	o.piece = nil
}

func (o *output) storePieces() error {
	if len(o.ready) == 0 {
		return nil
	}
	hashes := make([]Hash, len(o.ready))
	for i, p := range o.ready {
		hashes[i] = sha256.Sum256(p)
	}
	there, err := o.vault.Have(o.ctx, hashes)
	if err != nil {
		return err
	}
	for i, p := range o.ready {
		o.chunks++
		if there[i] {
			continue
		}
		if err := o.keep(hashes[i], o.enc.append(nil, p)); err != nil {
			return err
		}
	}
	o.pieces = append(o.pieces, hashes...)
	o.ready = nil
	return nil
}
