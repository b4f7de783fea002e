// Package saves keeps the saves of sandboxes off the node that made them: their disk and their memory, as trees of chunks, and brings them to a node that is
// to use them.
//
// It does not own snapshots, which are rows of internal/snapshot, nor how chunks are kept, which internal/chunk/vault does.
package saves

import (
	"context"
	"slices"

	"github.com/berthrun/berth/internal/chunk"
	"github.com/berthrun/berth/internal/chunk/vault"
	"github.com/berthrun/berth/internal/nodeapi"
	"github.com/berthrun/berth/internal/runtime"
)

// Node is what is asked of a node.
type Node interface {
	nodeapi.Trees
	// Saves reports every save that is whole.
	Saves(ctx context.Context) ([]runtime.Save, error)
}

// Save names a save: on a node by its name, in the vault by its organization and its name.
type Save struct {
	Name  string
	OrgID string
	Line  string // of what it is a save: the sandbox's id. The newest one of a line is what the next is compared with
}

// Keeper keeps saves. Every method may be repeated.
type Keeper struct {
	Vault *vault.Store
	Node  Node
}

// The disk comes first: a node has a save once its memory folder is there, which describes it.
func parts() []string { return []string{nodeapi.PartDisk, nodeapi.PartMemory} }

func tree(s Save, part string) string { return "saves/" + s.Name + "/" + part }

// Keep copies a save from the node into the vault. Errors: errs.NotFound where the node has none, NO_CAPACITY with reason disk_full, HOST_UNAVAILABLE.
func (k *Keeper) Keep(ctx context.Context, s Save) error {
	for _, part := range parts() {
		line := ""
		if s.Line != "" {
			line = s.Line + "/" + part
		}
		_, err := k.Vault.Put(ctx, s.OrgID, tree(s, part), line, func(ctx context.Context, v chunk.Vault, parent *chunk.Root) (*chunk.Root, chunk.Stats, error) {
			return k.Node.SaveTree(ctx, nodeapi.TreeRequest{Save: s.Name, Part: part}, v, parent)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Fetch brings a save to the node where it does not have it. Errors: errs.NotFound where it is not kept, those of chunk.Load.
func (k *Keeper) Fetch(ctx context.Context, s Save) error {
	there, err := k.Node.Saves(ctx)
	if err != nil || slices.ContainsFunc(there, func(r runtime.Save) bool { return r.Name == s.Name }) {
		return err
	}
	for _, part := range parts() {
		err := k.Vault.Get(ctx, s.OrgID, tree(s, part), func(ctx context.Context, v chunk.Vault, root *chunk.Root) error {
			return k.Node.LoadTree(ctx, nodeapi.TreeRequest{Save: s.Name, Part: part}, v, root)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Drop removes what is kept of a save. What others share with it stays.
func (k *Keeper) Drop(ctx context.Context, s Save) error {
	for _, part := range parts() {
		if err := k.Vault.Drop(ctx, s.OrgID, tree(s, part)); err != nil {
			return err
		}
	}
	return nil
}
