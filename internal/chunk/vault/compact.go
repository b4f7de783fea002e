package vault

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	mathbits "math/bits"
	"slices"

	"github.com/berthrun/berth/internal/chunk"
)

// errNotMoved says that packs stay as they are.
var errNotMoved = errors.New("not moved")

// sparsePack is a pack of which little is needed.
type sparsePack struct {
	id     int64
	needed bits
}

// sparse finds packs of which less than half the chunks are needed, by organization, the oldest first.
func (s *Store) sparse(ctx context.Context) (map[string][]sparsePack, error) {
	out := map[string][]sparsePack{}
	var p sparsePack
	var org string
	var chunks int64
	end := func() {
		var n int
		for _, b := range p.needed {
			n += mathbits.OnesCount8(b)
		}
		if p.id != 0 && int64(n)*2 < chunks {
			out[org] = append(out[org], p)
		}
	}
	err := each(ctx, s.cfg.DB, `SELECT p.id, p.org_id, p.chunks, u.slots FROM chunk_packs p JOIN chunk_uses u ON u.pack_id = p.id
		WHERE p.state = 'ready' ORDER BY p.id`, nil, func(scan func(...any) error) error {
		var id, n int64
		var of string
		var slots []byte
		if err := scan(&id, &of, &n, &slots); err != nil {
			return err
		}
		if id != p.id {
			end()
			p, org, chunks = sparsePack{id: id}, of, n
		}
		p.needed = p.needed.or(slots)
		return nil
	})
	end()
	return out, err
}

// move copies the needed chunks of the first packs into a new one and has their trees need that one instead. It gives how many packs it took.
func (s *Store) move(ctx context.Context, org string, packs []sparsePack) (int, error) {
	se, err := s.begin(ctx, org)
	if err != nil {
		return 0, err
	}
	defer se.end()
	var made chunk.Packer
	to := map[int64]map[int64]int64{} // old pack and slot: new slot
	var next int64
	n := 0
	for _, p := range packs {
		if made.Full() {
			break
		}
		n++
		slots, err := s.copy(se.ctx, org, p, &made, &next)
		if err != nil {
			return n, err
		}
		to[p.id] = slots
	}
	pack := made.Take()
	if len(pack) == 0 {
		return n, errNotMoved // another collector has moved all of them meanwhile
	}
	entries, err := chunk.PackEntries(pack)
	if err != nil {
		return n, err
	}
	id, err := s.write(se.ctx, org, se.turn, pack)
	if err != nil {
		return n, err
	}
	return n, s.cfg.DB.Tx(se.ctx, func(tx *sql.Tx) error {
		if err := s.store.ready(se.ctx, tx, org, id, entries); err != nil {
			return err
		}
		return s.store.rebind(se.ctx, tx, org, id, to)
	})
}

// copy puts the needed chunks of a pack into another.
func (s *Store) copy(ctx context.Context, org string, p sparsePack, to *chunk.Packer, next *int64) (map[int64]int64, error) {
	var all []place
	err := each(ctx, s.cfg.DB, `SELECT hash, slot, at, size FROM chunk_places WHERE pack_id = $1 ORDER BY slot`, []any{p.id}, func(scan func(...any) error) error {
		var c place
		var h []byte
		if err := scan(&h, &c.slot, &c.at, &c.size); err != nil {
			return err
		}
		if p.needed.has(c.slot) && len(h) == len(c.hash) {
			c.hash = chunk.Hash(h)
			all = append(all, c)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slots := map[int64]int64{}
	for _, c := range all {
		b, err := s.read(ctx, org, p.id, c.at, c.size)
		if err != nil {
			return nil, err
		}
		to.Add(c.hash, b)
		slots[c.slot] = *next
		*next++
	}
	return slots, nil
}

// rebind has trees that need chunks of some packs need them of another one. A tree that came meanwhile and needs what was not copied stays with the old pack.
func (rows) rebind(ctx context.Context, tx *sql.Tx, org string, pack int64, to map[int64]map[int64]int64) error {
	type use struct {
		name  string
		pack  int64
		slots bits
	}
	var all []use
	for old := range to {
		err := each(ctx, tx, `SELECT name, slots FROM chunk_uses WHERE pack_id = $1 AND org_id = $2`, []any{old, org}, func(scan func(...any) error) error {
			u := use{pack: old}
			var b []byte
			err := scan(&u.name, &b)
			u.slots = b
			all = append(all, u)
			return err
		})
		if err != nil {
			return err
		}
	}
	slices.SortFunc(all, func(a, b use) int { return cmpString(a.name, b.name) })
	made := map[string]bits{}
	for _, u := range all {
		moved, ok := remap(u.slots, to[u.pack])
		if !ok {
			continue
		}
		// Holds off a Drop, which would not see what is added here.
		n, err := affected(tx.ExecContext(ctx, `UPDATE chunk_trees SET ref = ref WHERE org_id = $1 AND name = $2`, org, u.name))
		if err != nil {
			return err
		}
		if n == 0 {
			continue
		}
		if n, err = affected(tx.ExecContext(ctx, `DELETE FROM chunk_uses WHERE org_id = $1 AND name = $2 AND pack_id = $3`, org, u.name, u.pack)); err != nil {
			return err
		}
		if n > 0 {
			made[u.name] = made[u.name].or(moved)
		}
	}
	for name, slots := range made {
		_, err := tx.ExecContext(ctx, `INSERT INTO chunk_uses (org_id, name, pack_id, slots) VALUES ($1, $2, $3, $4)`, org, name, pack, []byte(slots))
		if err != nil {
			return fmt.Errorf("rebind tree: %w", err)
		}
	}
	return nil
}

func cmpString(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// remap gives the new slots; false where one was not copied.
func remap(old bits, to map[int64]int64) (out bits, ok bool) {
	for i := range int64(len(old)) * 8 {
		if old.has(i) {
			n, ok := to[i]
			if !ok {
				return nil, false
			}
			out = out.set(n)
		}
	}
	return out, true
}
