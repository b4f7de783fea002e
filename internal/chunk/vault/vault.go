// Package vault owns where the chunks of saved trees are: packs in object storage, the index of chunks, leases and what is collected, in the database.
//
// Everything belongs to an organization: a chunk that another one has is not found, so that neither time nor ids tell what others keep. The package does
// not know what trees hold or who may ask for them; internal/chunk reads and writes them, on the node that has the files.
//
// A tree is there once its row is, and its row is written after all its packs are durable. What nobody may lose is protected thus: a tree's row stands beside
// rows that name every pack it needs; whoever saves or reads holds a lease, which has a number; a pack that no tree needs is first no longer handed out, then
// gets a later number, and is deleted only when no lease with a smaller number is left. No clock decides that: a lease that has expired is removed first, and
// a save whose lease is gone fails instead of ending.
package vault

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/berthrun/berth/internal/blob"
	"github.com/berthrun/berth/internal/chunk"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
)

// Config says what a Store needs.
type Config struct {
	DB     *db.DB
	Blobs  *blob.Store
	Logger *slog.Logger
	// Lease is how long a save or a read that stops to answer keeps others' garbage. 0 is two minutes.
	Lease time.Duration
	// Grace is how long chunks that no tree needs are kept, so that a save that was interrupted finds what it had stored. 0 is one hour, less than 0 is none.
	Grace time.Duration
	// Reserve is how many bytes of the place of objects stay free for others, such as the disks of sandboxes: a save that would take them is NO_CAPACITY with
	// reason disk_full. 0 is none.
	Reserve int64
	// Every is how often Run collects. 0 is ten minutes.
	Every time.Duration
}

// Store keeps trees. Its methods may be called concurrently, by several servers too.
type Store struct {
	cfg   Config
	store rows
}

// New makes a store.
func New(cfg Config) *Store {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Lease == 0 {
		cfg.Lease = 2 * time.Minute
	}
	if cfg.Grace == 0 {
		cfg.Grace = time.Hour
	}
	if cfg.Every == 0 {
		cfg.Every = 10 * time.Minute
	}
	return &Store{cfg: cfg}
}

// Tree is what is known of a saved tree.
type Tree struct {
	Name      string
	Ref       string // names its content: two trees with the same one are the same
	Stats     chunk.Stats
	CreatedAt time.Time
}

// Save reads a tree where it is, and keeps it in v: chunk.Save, here or on a node. parent is nil where there is none.
type Save func(ctx context.Context, v chunk.Vault, parent *chunk.Root) (*chunk.Root, chunk.Stats, error)

// Load makes a tree where it is to be, from v: chunk.Load, here or on a node.
type Load func(ctx context.Context, v chunk.Vault, root *chunk.Root) error

var (
	orgPattern  = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	namePattern = regexp.MustCompile(`^[A-Za-z0-9_./-]{1,200}$`)
)

func check(org, name string) error {
	if !orgPattern.MatchString(org) || !namePattern.MatchString(name) {
		return errs.E(errs.InvalidInput, "%q is no name of a saved tree", name)
	}
	return nil
}

func notFound(name string) error { return errs.E(errs.NotFound, "there is no saved tree %q", name) }

// Put keeps a tree under a name, which its organization has once. The newest tree of the same line, such as a sandbox's disk, is the parent from which
// what is unchanged is taken; without a line there is none.
// A repeated Put of a name gives what is there. Without an error the tree is durable; after one there is none of that name, and another Put goes on with
// the chunks that were stored.
func (s *Store) Put(ctx context.Context, org, name, line string, save Save) (Tree, error) {
	if err := check(org, name); err != nil {
		return Tree{}, err
	}
	if t, err := s.Stat(ctx, org, name); !errs.Is(err, errs.NotFound) {
		return t, err
	}
	se, err := s.begin(ctx, org)
	if err != nil {
		return Tree{}, err
	}
	defer se.end()
	parent, err := s.store.newest(ctx, s.cfg.DB, org, line)
	if err != nil {
		return Tree{}, err
	}
	root, stats, err := save(se.ctx, se, parent)
	if err != nil {
		return Tree{}, se.cause(err)
	}
	at, err := s.cfg.DB.Now(ctx, s.cfg.DB)
	if err != nil {
		return Tree{}, err
	}
	t := Tree{Name: name, Ref: root.Ref(), Stats: stats, CreatedAt: at}
	if err := se.commit(t, line, root.Encode()); errors.Is(err, errThere) {
		return s.Stat(ctx, org, name)
	} else if err != nil {
		return Tree{}, err
	}
	return t, nil
}

// Get has a tree made from what is kept. errs.NotFound where there is none of that name; else the errors of load. What it reads stays until it is done,
// though the tree may be dropped meanwhile.
func (s *Store) Get(ctx context.Context, org, name string, load Load) error {
	if err := check(org, name); err != nil {
		return err
	}
	se, err := s.begin(ctx, org)
	if err != nil {
		return err
	}
	defer se.end()
	b, err := s.store.root(ctx, s.cfg.DB, org, name)
	if err != nil {
		return err
	}
	if b == nil {
		return notFound(name)
	}
	root, err := chunk.DecodeRoot(b)
	if err != nil {
		return err
	}
	if err := load(se.ctx, se, root); err != nil {
		return se.cause(err)
	}
	return nil
}

// Stat tells what is known of a tree; errs.NotFound where there is none.
func (s *Store) Stat(ctx context.Context, org, name string) (Tree, error) {
	t := Tree{Name: name}
	var stats string
	var at int64
	err := s.cfg.DB.QueryRowContext(ctx, `SELECT ref, stats, created_at FROM chunk_trees WHERE org_id = $1 AND name = $2`, org, name).Scan(&t.Ref, &stats, &at)
	if errors.Is(err, sql.ErrNoRows) {
		return Tree{}, notFound(name)
	}
	if err == nil {
		err = json.Unmarshal([]byte(stats), &t.Stats)
	}
	if err != nil {
		return Tree{}, fmt.Errorf("read tree: %w", err)
	}
	t.CreatedAt = db.Time(at)
	return t, nil
}

// Drop forgets a tree. Collect removes what only it needed. One that is not there is fine.
func (s *Store) Drop(ctx context.Context, org, name string) error {
	if err := check(org, name); err != nil {
		return err
	}
	return s.cfg.DB.Tx(ctx, func(tx *sql.Tx) error { return s.store.drop(ctx, tx, org, name) })
}

// Run collects now and then until the context ends.
func (s *Store) Run(ctx context.Context) error {
	tick := time.NewTicker(s.cfg.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if _, err := s.Collect(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Logger.Warn("chunks not collected", "error", err)
		}
	}
}
