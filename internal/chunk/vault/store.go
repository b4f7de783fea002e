package vault

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/chunk"
	"github.com/berthrun/berth/internal/db"
)

// rows is the SQL.
type rows struct{}

// most is how many values a statement gets.
const most = 400

// list gives placeholders from $from on.
func list(from, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("$" + strconv.Itoa(from+i))
	}
	return b.String()
}

// turn takes the next number. Who takes one waits for whoever took the last one.
func (rows) turn(ctx context.Context, tx *sql.Tx) (n int64, err error) {
	if err := tx.QueryRowContext(ctx, `UPDATE chunk_turns SET turn = turn + 1 WHERE id = 1 RETURNING turn`).Scan(&n); err != nil {
		return 0, fmt.Errorf("take turn: %w", err)
	}
	return n, nil
}

// place is where a chunk is.
type place struct {
	hash       chunk.Hash
	pack, slot int64
	at, size   int64
}

// places finds chunks. told leaves out those that are not handed out any more.
func (rows) places(ctx context.Context, q db.Querier, org string, hashes []chunk.Hash, told bool) (map[chunk.Hash]place, error) {
	found := map[chunk.Hash]place{}
	for len(hashes) > 0 {
		n := min(len(hashes), most)
		args := []any{org}
		for _, h := range hashes[:n] {
			args = append(args, h[:])
		}
		hashes = hashes[n:]
		text := `SELECT c.hash, c.pack_id, c.slot, c.at, c.size FROM chunk_places c JOIN chunk_packs p ON p.id = c.pack_id
			WHERE c.org_id = $1 AND c.hash IN (` + list(2, n) + `) AND p.state = 'ready'`
		if told {
			text += ` AND p.retired = 0`
		}
		err := each(ctx, q, text, args, func(scan func(...any) error) error {
			var p place
			var h []byte
			if err := scan(&h, &p.pack, &p.slot, &p.at, &p.size); err != nil {
				return err
			}
			if len(h) != len(p.hash) {
				return errors.New("a hash of another length")
			}
			p.hash = chunk.Hash(h)
			if old, ok := found[p.hash]; !ok || p.pack > old.pack {
				found[p.hash] = p
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("find chunks: %w", err)
		}
	}
	return found, nil
}

func each(ctx context.Context, q db.Querier, text string, args []any, visit func(scan func(...any) error) error) (err error) {
	r, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for r.Next() {
		if err := visit(r.Scan); err != nil {
			return err
		}
	}
	return r.Err()
}

// ready tells of a pack's chunks.
func (rows) ready(ctx context.Context, tx *sql.Tx, org string, pack int64, entries []chunk.PackEntry) error {
	n, err := affected(tx.ExecContext(ctx, `UPDATE chunk_packs SET state = 'ready', chunks = $2 WHERE id = $1 AND state = 'writing'`, pack, len(entries)))
	if err != nil {
		return fmt.Errorf("end pack: %w", err)
	}
	if n == 0 {
		return leaseLost()
	}
	for from := 0; from < len(entries); from += most / 6 {
		part := entries[from:min(from+most/6, len(entries))]
		var text strings.Builder
		var args []any
		for i := range part {
			if i > 0 {
				text.WriteByte(',')
			}
			text.WriteString("(" + list(len(args)+1, 6) + ")")
			args = append(args, org, part[i].Hash[:], pack, from+i, part[i].At, part[i].Stored)
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO chunk_places (org_id, hash, pack_id, slot, at, size) VALUES `+text.String()+` ON CONFLICT DO NOTHING`, args...)
		if err != nil {
			return fmt.Errorf("index pack: %w", err)
		}
	}
	return nil
}

func (rows) root(ctx context.Context, q db.Querier, org, name string) (root []byte, err error) {
	err = q.QueryRowContext(ctx, `SELECT root FROM chunk_trees WHERE org_id = $1 AND name = $2`, org, name).Scan(&root)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read root: %w", err)
	}
	return root, nil
}

// newest gives the newest tree of a line, nil where there is none.
func (rows) newest(ctx context.Context, q db.Querier, org, line string) (*chunk.Root, error) {
	if line == "" {
		return nil, nil
	}
	var b []byte
	err := q.QueryRowContext(ctx, `SELECT root FROM chunk_trees WHERE org_id = $1 AND line = $2 ORDER BY created_at DESC, name LIMIT 1`, org, line).Scan(&b)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find parent: %w", err)
	}
	return chunk.DecodeRoot(b)
}

// keep writes a tree's row and those of what it needs.
func (r rows) keep(ctx context.Context, tx *sql.Tx, org string, t Tree, line string, root []byte, uses map[int64]bits) error {
	stats, err := json.Marshal(t.Stats)
	if err != nil {
		return err
	}
	n, err := affected(tx.ExecContext(ctx, `INSERT INTO chunk_trees (org_id, name, line, ref, root, stats, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING`,
		org, t.Name, line, t.Ref, root, string(stats), db.Micros(t.CreatedAt)))
	if err != nil {
		return fmt.Errorf("keep tree: %w", err)
	}
	if n == 0 {
		return errThere
	}
	ids := make([]any, 0, len(uses))
	for id := range uses {
		ids = append(ids, id)
	}
	for len(ids) > 0 {
		part := ids[:min(len(ids), most/4)]
		ids = ids[len(part):]
		var there int
		if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM chunk_packs WHERE state = 'ready' AND id IN (`+list(1, len(part))+`)`, part...).Scan(&there); err != nil {
			return fmt.Errorf("look at packs: %w", err)
		}
		if there != len(part) {
			return errors.New("a pack that the tree needs is gone")
		}
		var text strings.Builder
		var args []any
		for i, id := range part {
			if i > 0 {
				text.WriteByte(',')
			}
			text.WriteString("(" + list(len(args)+1, 4) + ")")
			args = append(args, org, t.Name, id, []byte(uses[id.(int64)]))
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO chunk_uses (org_id, name, pack_id, slots) VALUES `+text.String(), args...); err != nil {
			return fmt.Errorf("keep uses: %w", err)
		}
	}
	return nil
}

func (rows) drop(ctx context.Context, tx *sql.Tx, org, name string) error {
	if _, err := tx.ExecContext(ctx, `DELETE FROM chunk_trees WHERE org_id = $1 AND name = $2`, org, name); err != nil {
		return fmt.Errorf("drop tree: %w", err)
	}
	if _, err := tx.ExecContext(ctx, `DELETE FROM chunk_uses WHERE org_id = $1 AND name = $2`, org, name); err != nil {
		return fmt.Errorf("drop uses: %w", err)
	}
	return nil
}
