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

// openSaves makes what keeps saves off their node.
func (p *Plane) openSaves() {
	p.saves = &saves.Keeper{
		Vault: vault.New(vault.Config{DB: p.db, Blobs: p.blobs, Logger: p.cfg.Logger}),
		Node:  savesNode{p.node, p.node.Trees()},
	}
}
