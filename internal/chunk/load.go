package chunk

import (
	"context"
	"fmt"
	"io"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/errs"
)

// Target says where a tree is made.
type Target struct {
	Dir string // an empty folder, which becomes the tree's root. Nobody else may write below it meanwhile
	// MaxBytes bounds the contents of all files without holes, 0 is no bound. More is errs.LimitExceeded with reason "tree_too_large".
	MaxBytes int64
	Relaxed  bool // does not wait for the disk: a loss of power may damage the tree
}

// Load makes the tree of a root again, exactly: owners, modes, times, attributes, holes, hard links. It runs as root. Errors beside those of the vault and
// the file system: errs.InvalidInput with reason "bad_manifest" for what no Save wrote, errs.Unavailable with reason "damaged" for chunks that are not what
// they were. After an error the folder holds a part, which the caller removes.
func Load(ctx context.Context, v Vault, root *Root, to Target) error {
	dec, err := newDecoder()
	if err != nil {
		return err
	}
	defer dec.close()
	group, gctx := errgroup.WithContext(ctx)
	todo, order := make(chan *portion, workers), make(chan *portion, workers)
	group.Go(func() error {
		defer close(order)
		defer close(todo)
		m := newReader(&pieceReader{ctx: gctx, vault: v, dec: dec, left: root.Pieces})
		return portions(gctx, m, to.MaxBytes, todo, order)
	})
	for range workers {
		group.Go(func() error {
			for p := range todo {
				if err := p.fetch(gctx, v, dec); err != nil {
					return err
				}
				close(p.done)
			}
			return nil
		})
	}
	group.Go(func() error {
		t, err := newTree(to.Dir)
		if err != nil {
			return err
		}
		defer t.close()
		for p := range order {
			select {
			case <-p.done:
			case <-gctx.Done():
				return gctx.Err()
			}
			for i, r := range p.records {
				if err := gctx.Err(); err != nil {
					return err
				}
				if err := t.write(r, p.contents[i]); err != nil {
					return err
				}
			}
		}
		if gctx.Err() != nil {
			return gctx.Err()
		}
		return t.finish(to.Relaxed)
	})
	return explain(group.Wait())
}

// portion is a run of records and the contents of those that are blocks.
type portion struct {
	records  []*record
	contents [][]byte
	done     chan struct{}
}

const (
	portionBytes   = 2 << 20 // of contents
	portionRecords = 1024
)

// portions reads the manifest and hands it on in parts.
func portions(ctx context.Context, m *reader, most int64, todo, order chan<- *portion) error {
	p := &portion{}
	var size int
	var total int64
	flush := func() error {
		p.contents, p.done = make([][]byte, len(p.records)), make(chan struct{})
		for _, to := range []chan<- *portion{order, todo} {
			select {
			case to <- p:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		p, size = &portion{}, 0
		return nil
	}
	for {
		r, err := m.next()
		if err == io.EOF { //nolint:errorlint // what the vault gives may wrap it
			return flush()
		}
		if err != nil {
			return err
		}
		p.records = append(p.records, r)
		if r.isBlock() && r.Kind != recZero {
			size += int(r.Len)
			if total += r.Len; most > 0 && total > most {
				return errs.E(errs.LimitExceeded, "the saved tree holds more than %d bytes", most).Because("tree_too_large")
			}
		}
		for _, x := range r.Meta.Xattrs {
			size += len(x.Value)
		}
		if size >= portionBytes || len(p.records) >= portionRecords {
			if err := flush(); err != nil {
				return err
			}
		}
	}
}

// fetch gets and checks the contents of a portion's blocks.
func (p *portion) fetch(ctx context.Context, v Vault, dec *decoder) error {
	var ask []Hash
	seen := map[Hash]int{}
	for _, r := range p.records {
		for _, h := range r.chunks(nil) {
			if _, ok := seen[h]; !ok {
				seen[h] = len(ask)
				ask = append(ask, h)
			}
		}
	}
	if len(ask) == 0 {
		return nil
	}
	stored, err := v.Read(ctx, ask)
	if err != nil {
		return err
	}
	if len(stored) != len(ask) {
		return damaged("chunks are missing")
	}
	contents := make([][]byte, len(ask))
	for i := range ask {
		if contents[i], err = dec.open(stored[i], ask[i]); err != nil {
			return err
		}
	}
	for i, r := range p.records {
		switch r.Kind {
		case recChunk:
			p.contents[i] = contents[seen[r.Whole]]
		case recPatched:
			whole := append([]byte(nil), contents[seen[r.Base]]...)
			if !scatter(whole, r.Pages, contents[seen[r.Patch]]) || sum(whole) != r.Whole {
				return damaged("block %s cannot be put together", r.Whole)
			}
			p.contents[i] = whole
		default:
			continue
		}
		if int64(len(p.contents[i])) != r.Len {
			return bad("a block is of another length than it says")
		}
	}
	return nil
}

// wrap says at which name an error of the file system happened.
func wrap(verb, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %q: %w", verb, clip(name), err)
}
