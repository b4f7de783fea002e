package process

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/id"
)

// What is kept of one sandbox's processes at most; the oldest go first.
const (
	mostStarted   = mostKept + guest.MaxProcesses // since its last start
	mostKept      = 2000
	mostKeptBytes = 256 << 20
)

// kindPack is the kind of the names of packs.
const kindPack id.Kind = "pack"

// kept is a process whose streams are in a pack: of each the last part without a gap.
type kept struct {
	process        api.Process
	stdout, stderr keptStream
}

// keptStream is where in a pack a stream's bytes are, what offset they begin at, and when they were written.
type keptStream struct {
	from, length, at int64
	stamps           []guest.Stamp
}

// packing writes what processes wrote into one object as it comes, so that a stop costs one file whatever ran.
type packing struct {
	key  string
	w    *io.PipeWriter // nil before the first byte
	done chan error
	size int64
	all  []*kept
}

// Keep implements sandbox.Keeper: it saves the processes of a sandbox that ends, and their streams. What came before an error is saved.
func (s *Service) Keep(ctx context.Context, orgID, sandboxID string, export func(visit func(guest.ExportRecord) error) error) error {
	p := &packing{key: packPrefix(sandboxID) + id.New(kindPack)}
	err := export(func(rec guest.ExportRecord) error {
		switch {
		case rec.Process != nil:
			p.all = append(p.all, &kept{process: show(sandboxID, *rec.Process)})
		case rec.Chunk != nil && len(p.all) > 0:
			return p.add(ctx, s.Blobs, rec.Chunk)
		}
		return nil
	})
	if perr := p.close(); perr != nil {
		return fmt.Errorf("keep output: %w", perr)
	}
	// A pause keeps what runs on, and the next one again: the packs of before have no use then.
	before, perr := s.packs(ctx, sandboxID)
	if perr != nil {
		return perr
	}
	if kerr := s.keepRows(ctx, orgID, sandboxID, p); kerr != nil {
		return kerr
	}
	if perr := s.dropPacks(ctx, sandboxID, before); perr != nil {
		s.Logger.Warn("packs without use not removed", "sandbox", sandboxID, "error", perr)
	}
	if perr := s.prune(ctx, sandboxID); perr != nil {
		s.Logger.Warn("old processes not removed", "sandbox", sandboxID, "error", perr)
	}
	return err
}

func (p *packing) add(ctx context.Context, blobs Blobs, c *guest.ExportChunk) error {
	k := p.all[len(p.all)-1]
	st := &k.stdout
	if c.Stream == "stderr" {
		st = &k.stderr
	}
	if st.length == 0 || c.Offset != st.at+st.length { // the first, or what was between is discarded
		*st = keptStream{from: p.size, at: c.Offset}
	}
	at := c.AtMicros
	if at == 0 {
		at = db.Micros(k.process.StartedAt)
	}
	if n := len(st.stamps); n == 0 || at > st.stamps[n-1][1] {
		st.stamps = append(st.stamps, guest.Stamp{c.Offset, at})
	}
	if p.w == nil {
		r, w := io.Pipe()
		p.w, p.done = w, make(chan error, 1)
		go func() {
			err := blobs.Put(ctx, p.key, r)
			_ = r.CloseWithError(err)
			p.done <- err
		}()
	}
	n, err := p.w.Write(c.Data)
	p.size += int64(n)
	st.length += int64(n)
	return err
}

// close waits until everything is stored.
func (p *packing) close() error {
	if p.w == nil {
		return nil
	}
	_ = p.w.Close()
	return <-p.done
}

func (s *Service) keepRows(ctx context.Context, orgID, sandboxID string, p *packing) error {
	if len(p.all) == 0 {
		return nil
	}
	return s.DB.Tx(ctx, func(tx *sql.Tx) error {
		for _, k := range p.all {
			info, err := json.Marshal(k.process)
			if err != nil {
				return fmt.Errorf("encode process: %w", err)
			}
			marks, err := json.Marshal([2][]guest.Stamp{k.stdout.stamps, k.stderr.stamps})
			if err != nil {
				return fmt.Errorf("encode process: %w", err)
			}
			_, err = tx.ExecContext(ctx, `INSERT INTO processes (id, org_id, sandbox_id, state, info, started_at, stdout_at, stderr_at, kept, pack,
				stdout_from, stdout_length, stderr_from, stderr_length, stamps)
				VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 1, $9, $10, $11, $12, $13, $14)
				ON CONFLICT (sandbox_id, id) DO UPDATE SET state = $4, info = $5, stdout_at = $7, stderr_at = $8, kept = 1, pack = $9,
				stdout_from = $10, stdout_length = $11, stderr_from = $12, stderr_length = $13, stamps = $14`,
				k.process.ID, orgID, sandboxID, k.process.State, string(info), db.Micros(k.process.StartedAt), k.stdout.at, k.stderr.at, p.key,
				k.stdout.from, k.stdout.length, k.stderr.from, k.stderr.length, string(marks))
			if err != nil {
				return fmt.Errorf("keep process: %w", err)
			}
		}
		return nil
	})
}

// prune removes the oldest processes of a sandbox beyond what is kept, and packs that no process is in any more.
func (s *Service) prune(ctx context.Context, sandboxID string) error {
	rows, err := s.DB.QueryContext(ctx, `SELECT id, pack, stdout_length + stderr_length FROM processes WHERE sandbox_id = $1 AND state <> 'running'
		ORDER BY started_at DESC, id DESC`, sandboxID)
	if err != nil {
		return fmt.Errorf("list kept processes: %w", err)
	}
	defer rows.Close()
	var drop, packs []string
	count, bytes := 0, int64(0)
	for rows.Next() {
		var one, pack string
		var size int64
		if err := rows.Scan(&one, &pack, &size); err != nil {
			return fmt.Errorf("list kept processes: %w", err)
		}
		count, bytes = count+1, bytes+size
		if count <= mostKept && bytes <= mostKeptBytes {
			continue
		}
		drop = append(drop, one)
		if pack != "" && !slices.Contains(packs, pack) {
			packs = append(packs, pack)
		}
	}
	if err := rows.Err(); err != nil || len(drop) == 0 {
		return err
	}
	_ = rows.Close()
	for _, one := range drop {
		if _, err := s.DB.ExecContext(ctx, `DELETE FROM processes WHERE sandbox_id = $1 AND id = $2`, sandboxID, one); err != nil {
			return fmt.Errorf("remove kept process: %w", err)
		}
	}
	return s.dropPacks(ctx, sandboxID, packs)
}

// packs gives the packs that processes of a sandbox are in.
func (s *Service) packs(ctx context.Context, sandboxID string) ([]string, error) {
	rows, err := s.DB.QueryContext(ctx, `SELECT DISTINCT pack FROM processes WHERE sandbox_id = $1 AND pack <> ''`, sandboxID)
	if err != nil {
		return nil, fmt.Errorf("list packs: %w", err)
	}
	defer rows.Close()
	var all []string
	for rows.Next() {
		var one string
		if err := rows.Scan(&one); err != nil {
			return nil, fmt.Errorf("list packs: %w", err)
		}
		all = append(all, one)
	}
	return all, rows.Err()
}

// dropPacks removes those of the packs that no process is in any more.
func (s *Service) dropPacks(ctx context.Context, sandboxID string, packs []string) error {
	if len(packs) == 0 {
		return nil
	}
	needed, err := s.packs(ctx, sandboxID)
	if err != nil {
		return err
	}
	for _, pack := range packs {
		if !slices.Contains(needed, pack) {
			if err := s.Blobs.DeletePrefix(ctx, pack); err != nil {
				return err
			}
		}
	}
	return nil
}

func packPrefix(sandboxID string) string { return "processes/" + sandboxID + "/" }
