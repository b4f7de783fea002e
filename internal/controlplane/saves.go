package controlplane

import (
	"github.com/berthrun/berth/internal/chunk/saves"
	"github.com/berthrun/berth/internal/chunk/vault"
	"github.com/berthrun/berth/internal/nodeapi"
)

// savesNode is the node as saves are copied from and to it.
type savesNode struct {
	*nodeapi.Client
	*nodeapi.TreesClient
}

// keptFree is what snapshots and backups leave of the disk: the disks of sandboxes may be in a sparse file on it.
const keptFree = 512 << 20

// openSaves makes what keeps saves off their node.
func (p *Plane) openSaves() {
	p.saves = &saves.Keeper{
		Vault: vault.New(vault.Config{DB: p.db, Blobs: p.blobs, Logger: p.cfg.Logger, Reserve: keptFree}),
		Node:  savesNode{p.node, p.node.Trees()},
	}
}
