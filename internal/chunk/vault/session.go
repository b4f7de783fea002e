package vault

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/chunk"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
)

// errThere says that a tree of the name was kept meanwhile.
var errThere = errors.New("the tree is there")

func leaseLost() error {
	return errs.E(errs.Unavailable, "saving or reading took too long without an answer").Because("lease_lost").Suggest("Try again: what was stored is found.")
}

// session is one save or one read. It implements chunk.Vault.
type session struct {
	s      *Store
	org    string
	turn   int64 // of its lease
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu   sync.Mutex
	uses map[int64]bits // chunks of packs that the tree needs
}

// bits is a set of slots of a pack.
type bits []byte

func (b bits) set(n int64) bits {
	for int64(len(b)) <= n/8 {
		b = append(b, 0)
	}
	b[n/8] |= 1 << (n % 8)
	return b
}

func (b bits) has(n int64) bool { return n/8 < int64(len(b)) && b[n/8]&(1<<(n%8)) != 0 }

func (b bits) or(o bits) bits {
	for len(b) < len(o) {
		b = append(b, 0)
	}
	for i := range o {
		b[i] |= o[i]
	}
	return b
}

// begin takes a lease, and renews it until end.
func (s *Store) begin(ctx context.Context, org string) (*session, error) {
	se := &session{s: s, org: org, uses: map[int64]bits{}}
	err := s.cfg.DB.Tx(ctx, func(tx *sql.Tx) error {
		now, err := s.cfg.DB.Now(ctx, tx)
		if err != nil {
			return err
		}
		if se.turn, err = s.store.turn(ctx, tx); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO chunk_leases (turn, org_id, expires_at) VALUES ($1, $2, $3)`, se.turn, org, db.Micros(now.Add(s.cfg.Lease)))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("take lease: %w", err)
	}
	se.ctx, se.cancel = context.WithCancelCause(ctx)
	se.wg.Go(se.renew)
	return se, nil
}

func (se *session) renew() {
	tick := time.NewTicker(se.s.cfg.Lease / 4)
	defer tick.Stop()
	for {
		select {
		case <-se.ctx.Done():
			return
		case <-tick.C:
		}
		var n int64
		err := se.s.cfg.DB.TxRelaxed(se.ctx, func(tx *sql.Tx) error {
			now, err := se.s.cfg.DB.Now(se.ctx, tx)
			if err != nil {
				return err
			}
			n, err = affected(tx.ExecContext(se.ctx, `UPDATE chunk_leases SET expires_at = $2 WHERE turn = $1`, se.turn, db.Micros(now.Add(se.s.cfg.Lease))))
			return err
		})
		if err == nil && n == 0 {
			se.cancel(leaseLost())
			return
		}
		if err != nil && se.ctx.Err() == nil {
			se.s.cfg.Logger.Warn("lease not renewed", "error", err)
		}
	}
}

// end gives the lease back. What it did not finish is collected.
func (se *session) end() {
	se.cancel(nil)
	se.wg.Wait()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(se.ctx), 10*time.Second)
	defer cancel()
	if _, err := se.s.cfg.DB.ExecContext(ctx, `DELETE FROM chunk_leases WHERE turn = $1`, se.turn); err != nil {
		se.s.cfg.Logger.Warn("lease not given back, it will expire", "error", err)
	}
}

// cause prefers why the session ended to the error that this led to.
func (se *session) cause(err error) error {
	if why := context.Cause(se.ctx); why != nil && errors.Is(err, context.Canceled) {
		return why
	}
	return err
}

// use records that a chunk is needed.
func (se *session) use(pack, slot int64) {
	se.mu.Lock()
	defer se.mu.Unlock()
	se.uses[pack] = se.uses[pack].set(slot)
}

// Have implements chunk.Vault.
func (se *session) Have(ctx context.Context, hashes []chunk.Hash) ([]bool, error) {
	found, err := se.s.store.places(ctx, se.s.cfg.DB, se.org, hashes, true)
	if err != nil {
		return nil, err
	}
	out := make([]bool, len(hashes))
	for i, h := range hashes {
		if p, ok := found[h]; ok {
			out[i] = true
			se.use(p.pack, p.slot)
		}
	}
	return out, nil
}

func key(org string, pack int64) string {
	return "chunks/" + org + "/" + strconv.FormatInt(pack, 16) + ".pack"
}

// Add implements chunk.Vault. The pack's row comes first, so that an object without one never exists; its chunks are told of once the object is durable.
func (se *session) Add(ctx context.Context, pack []byte) error {
	entries, err := chunk.PackEntries(pack)
	if err != nil {
		return err
	}
	if err := se.s.room(int64(len(pack))); err != nil {
		return err
	}
	id, err := se.s.write(ctx, se.org, se.turn, pack)
	if err != nil {
		return err
	}
	err = se.s.cfg.DB.Tx(ctx, func(tx *sql.Tx) error { return se.s.store.ready(ctx, tx, se.org, id, entries) })
	if err != nil {
		return err
	}
	for slot := range entries {
		se.use(id, int64(slot))
	}
	return nil
}

// room refuses what would take the reserve.
func (s *Store) room(bytes int64) error {
	if s.cfg.Reserve <= 0 {
		return nil
	}
	free, err := s.cfg.Blobs.Free()
	if err == nil && free-bytes < s.cfg.Reserve {
		err = errs.E(errs.NoCapacity, "the disk is full").Because("disk_full").Suggest("Delete snapshots, backups or sandboxes that are not needed.").
			With("freeMiB", free>>20).With("reserveMiB", s.cfg.Reserve>>20)
	}
	return err
}

// write stores a pack's object.
func (s *Store) write(ctx context.Context, org string, lease int64, pack []byte) (id int64, err error) {
	err = s.cfg.DB.Tx(ctx, func(tx *sql.Tx) error {
		now, err := s.cfg.DB.Now(ctx, tx)
		if err != nil {
			return err
		}
		if id, err = s.store.turn(ctx, tx); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO chunk_packs (id, org_id, state, lease, bytes, created_at) VALUES ($1, $2, 'writing', $3, $4, $5)`,
			id, org, lease, len(pack), db.Micros(now))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("begin pack: %w", err)
	}
	return id, s.cfg.Blobs.Put(ctx, key(org, id), bytes.NewReader(pack))
}

// readGap is how much between two chunks of a pack is read too, instead of beginning anew.
const readGap = 64 << 10

// Read implements chunk.Vault.
func (se *session) Read(ctx context.Context, hashes []chunk.Hash) ([][]byte, error) {
	found, err := se.s.store.places(ctx, se.s.cfg.DB, se.org, hashes, false)
	if err != nil {
		return nil, err
	}
	list := make([]place, 0, len(found))
	for _, h := range hashes {
		p, ok := found[h]
		if !ok {
			return nil, errs.E(errs.NotFound, "there is no chunk %s", h)
		}
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b place) int { return cmp.Or(cmp.Compare(a.pack, b.pack), cmp.Compare(a.at, b.at)) })
	got := map[chunk.Hash][]byte{}
	for len(list) > 0 {
		n, end := 1, list[0].at+list[0].size
		for n < len(list) && list[n].pack == list[0].pack && list[n].at <= end+readGap && list[n].at-list[0].at < int64(chunk.MaxPack) {
			end = max(end, list[n].at+list[n].size)
			n++
		}
		b, err := se.s.read(ctx, se.org, list[0].pack, list[0].at, end-list[0].at)
		if err != nil {
			return nil, err
		}
		for _, p := range list[:n] {
			got[p.hash] = b[p.at-list[0].at:][:p.size]
		}
		list = list[n:]
	}
	out := make([][]byte, len(hashes))
	for i, h := range hashes {
		out[i] = got[h]
	}
	return out, nil
}

func (s *Store) read(ctx context.Context, org string, pack, at, n int64) ([]byte, error) {
	r, err := s.cfg.Blobs.GetRange(ctx, key(org, pack), at, n)
	if err == nil {
		defer r.Close()
		b := make([]byte, n)
		if _, err = io.ReadFull(r, b); err == nil {
			return b, nil
		}
	}
	if errs.Is(err, errs.NotFound) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return nil, errs.E(errs.Unavailable, "the saved tree is damaged: an object of it is missing or not whole").Because("damaged").Suggest("Use another snapshot.")
	}
	return nil, fmt.Errorf("read pack: %w", err)
}

// commit writes the tree's row and what it needs. It fails when the lease is gone.
func (se *session) commit(t Tree, line string, root []byte) error {
	se.mu.Lock()
	defer se.mu.Unlock()
	ctx, s := se.ctx, se.s
	return s.cfg.DB.Tx(ctx, func(tx *sql.Tx) error {
		now, err := s.cfg.DB.Now(ctx, tx)
		if err != nil {
			return err
		}
		n, err := affected(tx.ExecContext(ctx, `DELETE FROM chunk_leases WHERE turn = $1 AND expires_at > $2`, se.turn, db.Micros(now)))
		if err != nil {
			return fmt.Errorf("end lease: %w", err)
		}
		if n == 0 {
			return leaseLost()
		}
		return s.store.keep(ctx, tx, se.org, t, line, root, se.uses)
	})
}

func affected(r sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}
