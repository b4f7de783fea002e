package saves

import (
	"context"
	"sync/atomic"

	"github.com/berthrun/berth/internal/chunk"
	"github.com/berthrun/berth/internal/chunk/vault"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/nodeapi"
)

// Backup names a backup of a volume: on a node the copy that has its name, in the vault its organization and its name.
type Backup struct {
	Name, OrgID string
	Volume      string // of what it is one: the newest of a volume is what the next is compared with
}

func (b Backup) tree() string { return "backups/" + b.Name }

// KeepVolume copies what a copy of a volume holds from the node into the vault. tell is told of bytes that have been looked at. Errors are those of Keep.
func (k *Keeper) KeepVolume(ctx context.Context, b Backup, tell func(done int64)) (vault.Tree, error) {
	return k.Vault.Put(ctx, b.OrgID, b.tree(), b.Volume, func(ctx context.Context, v chunk.Vault, parent *chunk.Root) (*chunk.Root, chunk.Stats, error) {
		return k.Node.SaveTree(ctx, nodeapi.TreeRequest{Save: b.Name, Part: nodeapi.PartVolume}, &counted{Vault: v, tell: tell, asks: true}, parent)
	})
}

// LoadVolume makes a volume of what is kept. Where it is there, an earlier call made it, whole. Errors are those of Fetch.
func (k *Keeper) LoadVolume(ctx context.Context, b Backup, volume string, tell func(done int64)) error {
	return k.Vault.Get(ctx, b.OrgID, b.tree(), func(ctx context.Context, v chunk.Vault, root *chunk.Root) error {
		err := k.Node.LoadTree(ctx, nodeapi.TreeRequest{Save: volume, Part: nodeapi.PartVolume}, &counted{Vault: v, tell: tell}, root)
		if errs.Is(err, errs.AlreadyExists) {
			return nil
		}
		return err
	})
}

// DropVolume removes what is kept of a backup. What others share with it stays.
func (k *Keeper) DropVolume(ctx context.Context, b Backup) error {
	return k.Vault.Drop(ctx, b.OrgID, b.tree())
}

// counted tells how far a tree is, by the chunks that are asked for. It is about right: chunks are of different sizes.
type counted struct {
	chunk.Vault
	tell func(done int64)
	asks bool // whether chunks are there; else for what is in them
	done atomic.Int64
}

// aboutChunk is about how many bytes of files a chunk stands for.
const aboutChunk = 64 << 10

func (c *counted) count(n int) { c.tell(c.done.Add(int64(n) * aboutChunk)) }

// Have implements chunk.Vault.
func (c *counted) Have(ctx context.Context, hashes []chunk.Hash) ([]bool, error) {
	there, err := c.Vault.Have(ctx, hashes)
	if err == nil && c.asks {
		c.count(len(hashes))
	}
	return there, err
}

// Read implements chunk.Vault.
func (c *counted) Read(ctx context.Context, hashes []chunk.Hash) ([][]byte, error) {
	stored, err := c.Vault.Read(ctx, hashes)
	if err == nil && !c.asks {
		c.count(len(hashes))
	}
	return stored, err
}
