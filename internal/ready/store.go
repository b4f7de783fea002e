package ready

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
)

// The states of rows.
const (
	making   = "making"
	ready    = "ready"
	dropping = "dropping"
)

// takes is how often a create tries to take one before it goes without: on PostgreSQL two that choose the same one see it only when they meet.
const takes = 3

// Take gives a ready sandbox of a kind to the transaction, nil where there is none. Once that commits, the sandbox belongs to whoever took it; else it is
// ready again.
func (p *Pool) Take(ctx context.Context, tx op.Tx, k Kind) (*Member, error) {
	if !p.on() {
		return nil, nil
	}
	for range takes {
		m := &Member{}
		err := tx.QueryRowContext(ctx, `DELETE FROM ready_sandboxes WHERE state = 'ready' AND id = (
			SELECT id FROM ready_sandboxes WHERE image = $1 AND vcpu_milli = $2 AND memory_mib = $3 AND disk_gib = $4 AND internet = $5 AND state = 'ready'
			ORDER BY at LIMIT 1) RETURNING id, token`, k.Image, k.VCPUMilli, k.MemoryMiB, k.DiskGiB, db.Flag(k.Internet)).Scan(&m.ID, &m.Token)
		if err == nil {
			return m, nil
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return nil, fmt.Errorf("take ready sandbox: %w", err)
		}
		if p.cfg.DB.Dialect() == db.SQLite {
			break
		}
	}
	return nil, nil
}

// Seed gives the save from which a sandbox of a kind is brought back instead of booting, nil where there is none.
func (p *Pool) Seed(ctx context.Context, k Kind) (*Member, error) {
	if !p.on() {
		return nil, nil
	}
	m := &Member{}
	err := p.cfg.DB.QueryRowContext(ctx, `SELECT name, token FROM ready_seeds WHERE state = 'ready' AND image = $1 AND vcpu_milli = $2 AND memory_mib = $3 AND internet = $4`,
		k.Image, k.VCPUMilli, k.MemoryMiB, db.Flag(k.Internet)).Scan(&m.ID, &m.Token)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read seed: %w", err)
	}
	return m, nil
}

// Spoiled says that a seed could not be used: it is made again.
func (p *Pool) Spoiled(ctx context.Context, name string) error {
	_, err := p.cfg.DB.ExecContext(ctx, `UPDATE ready_seeds SET state = 'dropping' WHERE name = $1`, name)
	if err != nil {
		return fmt.Errorf("give up seed: %w", err)
	}
	return nil
}

// Owned names the sandboxes and the saves on nodes that are the pool's: they have no row elsewhere. A sandbox that was taken is not among them any more:
// read these first, then the rows of sandboxes, and none is in neither.
func (p *Pool) Owned(ctx context.Context) (sandboxes, saves map[string]bool, err error) {
	if sandboxes, err = p.names(ctx, `SELECT id FROM ready_sandboxes`); err != nil {
		return nil, nil, err
	}
	saves, err = p.names(ctx, `SELECT name FROM ready_seeds`)
	return sandboxes, saves, err
}

func (p *Pool) names(ctx context.Context, query string, args ...any) (map[string]bool, error) {
	rows, err := p.cfg.DB.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("list ready sandboxes: %w", err)
	}
	defer rows.Close()
	out := map[string]bool{}
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, fmt.Errorf("list ready sandboxes: %w", err)
		}
		out[name] = true
	}
	return out, rows.Err()
}

type counted struct{ ready, making int }

func (p *Pool) counts(ctx context.Context) (map[Kind]counted, error) {
	rows, err := p.cfg.DB.QueryContext(ctx, `SELECT image, vcpu_milli, memory_mib, disk_gib, internet, state, COUNT(*) FROM ready_sandboxes
		WHERE state <> 'dropping' GROUP BY image, vcpu_milli, memory_mib, disk_gib, internet, state`)
	if err != nil {
		return nil, fmt.Errorf("count ready sandboxes: %w", err)
	}
	defer rows.Close()
	out := map[Kind]counted{}
	for rows.Next() {
		var k Kind
		var state string
		var n int
		if err := rows.Scan(&k.Image, &k.VCPUMilli, &k.MemoryMiB, &k.DiskGiB, &k.Internet, &state, &n); err != nil {
			return nil, fmt.Errorf("count ready sandboxes: %w", err)
		}
		c := out[k]
		if state == ready {
			c.ready += n
		} else {
			c.making += n
		}
		out[k] = c
	}
	return out, rows.Err()
}

// seeds gives the names of those that can be used.
func (p *Pool) seeds(ctx context.Context) (map[Kind]string, error) {
	rows, err := p.cfg.DB.QueryContext(ctx, `SELECT image, vcpu_milli, memory_mib, internet, name FROM ready_seeds WHERE state = 'ready'`)
	if err != nil {
		return nil, fmt.Errorf("list seeds: %w", err)
	}
	defer rows.Close()
	out := map[Kind]string{}
	for rows.Next() {
		var k Kind
		var name string
		if err := rows.Scan(&k.Image, &k.VCPUMilli, &k.MemoryMiB, &k.Internet, &name); err != nil {
			return nil, fmt.Errorf("list seeds: %w", err)
		}
		out[k] = name
	}
	return out, rows.Err()
}

// renewAfter is how old the time of a seed's last use may be.
const renewAfter = time.Hour

// renew notes that a seed is of use.
func (p *Pool) renew(ctx context.Context, k Kind) error {
	now := p.cfg.Now()
	_, err := p.cfg.DB.ExecContext(ctx, `UPDATE ready_seeds SET at = $1 WHERE state = 'ready' AND image = $2 AND vcpu_milli = $3 AND memory_mib = $4 AND internet = $5 AND at < $6`,
		db.Micros(now), k.Image, k.VCPUMilli, k.MemoryMiB, db.Flag(k.Internet), db.Micros(now.Add(-renewAfter)))
	if err != nil {
		return fmt.Errorf("renew seed: %w", err)
	}
	return nil
}

// giveUp has the seeds removed that were last of use before a time.
func (p *Pool) giveUp(ctx context.Context, before time.Time) error {
	if _, err := p.cfg.DB.ExecContext(ctx, `UPDATE ready_seeds SET state = 'dropping' WHERE state = 'ready' AND at < $1`, db.Micros(before)); err != nil {
		return fmt.Errorf("give up seeds: %w", err)
	}
	return nil
}

// begin writes down that a sandbox of a kind is being made, before anything of it is.
func (p *Pool) begin(ctx context.Context, k Kind, id, token string) error {
	_, err := p.cfg.DB.ExecContext(ctx, `INSERT INTO ready_sandboxes (id, state, image, vcpu_milli, memory_mib, disk_gib, internet, token, at)
		VALUES ($1, 'making', $2, $3, $4, $5, $6, $7, $8)`, id, k.Image, k.VCPUMilli, k.MemoryMiB, k.DiskGiB, db.Flag(k.Internet), token, db.Micros(p.cfg.Now()))
	if err != nil {
		return fmt.Errorf("begin ready sandbox: %w", err)
	}
	return nil
}

// beginSeed writes down that a seed is being made. Another server may be doing so: then it is false.
func (p *Pool) beginSeed(ctx context.Context, k Kind, name, token string) (bool, error) {
	res, err := p.cfg.DB.ExecContext(ctx, `INSERT INTO ready_seeds (name, state, image, vcpu_milli, memory_mib, internet, token, at)
		VALUES ($1, 'making', $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING`, name, k.Image, k.VCPUMilli, k.MemoryMiB, db.Flag(k.Internet), token, db.Micros(p.cfg.Now()))
	if err != nil {
		return false, fmt.Errorf("begin seed: %w", err)
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

// set moves a row from one state to another; false where it is in another or gone.
func (p *Pool) set(ctx context.Context, table, id, from, to string) (bool, error) {
	query := `UPDATE ready_sandboxes SET state = $3, at = $4 WHERE id = $1 AND state = $2`
	if table == seedsTable {
		query = `UPDATE ready_seeds SET state = $3, at = $4 WHERE name = $1 AND state = $2`
	}
	res, err := p.cfg.DB.ExecContext(ctx, query, id, from, to, db.Micros(p.cfg.Now()))
	if err != nil {
		return false, fmt.Errorf("change ready sandbox: %w", err)
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

const (
	sandboxesTable = "ready_sandboxes"
	seedsTable     = "ready_seeds"
)

// abandon gives up what was being made when this began: whoever made it has ended, and until it is gone another one would not be made. Where another server
// makes it just now, that finds it given up.
func (p *Pool) abandon(ctx context.Context) error {
	for _, query := range []string{
		`UPDATE ready_sandboxes SET state = 'dropping' WHERE state = 'making'`,
		`UPDATE ready_seeds SET state = 'dropping' WHERE state = 'making'`,
	} {
		if _, err := p.cfg.DB.ExecContext(ctx, query); err != nil {
			return fmt.Errorf("give up what was being made: %w", err)
		}
	}
	return nil
}

// stale gives the rows that nobody works on any more: those that were being made for longer than anything takes, and those to be removed.
func (p *Pool) stale(ctx context.Context, table string) (map[string]bool, error) {
	before := db.Micros(p.cfg.Now().Add(-makeTime - time.Minute))
	if table == seedsTable {
		return p.names(ctx, `SELECT name FROM ready_seeds WHERE state = 'dropping' OR state = 'making' AND at < $1`, before)
	}
	return p.names(ctx, `SELECT id FROM ready_sandboxes WHERE state = 'dropping' OR state = 'making' AND at < $1`, before)
}

func (p *Pool) forget(ctx context.Context, table, id string) error {
	query := `DELETE FROM ready_sandboxes WHERE id = $1 AND state <> 'ready'`
	if table == seedsTable {
		query = `DELETE FROM ready_seeds WHERE name = $1 AND state <> 'ready'`
	}
	if _, err := p.cfg.DB.ExecContext(ctx, query, id); err != nil {
		return fmt.Errorf("forget ready sandbox: %w", err)
	}
	return nil
}

// oldest gives a ready sandbox of a kind, the oldest; empty where there is none.
func (p *Pool) oldest(ctx context.Context, k Kind) (string, error) {
	var id string
	err := p.cfg.DB.QueryRowContext(ctx, `SELECT id FROM ready_sandboxes WHERE image = $1 AND vcpu_milli = $2 AND memory_mib = $3 AND disk_gib = $4 AND internet = $5
		AND state = 'ready' ORDER BY at LIMIT 1`, k.Image, k.VCPUMilli, k.MemoryMiB, k.DiskGiB, db.Flag(k.Internet)).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read ready sandbox: %w", err)
	}
	return id, nil
}
