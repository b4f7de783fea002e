package api

import "github.com/berthrun/berth/api/op"

// Pool is machines that sandboxes run on.
type Pool struct {
	ID        string      `json:"poolId" doc:"local is this machine."`
	Driver    string      `json:"driver" doc:"What runs sandboxes there."`
	Nodes     int         `json:"nodes"`
	VCPU      int         `json:"vcpu" doc:"Cores of all nodes; 0 where unknown."`
	MemoryMiB int64       `json:"memoryMiB" doc:"Memory of all nodes; 0 where unknown."`
	Ready     []ReadyKind `json:"ready" doc:"What was booted before anybody asked, and what is wanted."`
}

// ReadyKind is what a pool keeps ready of one kind. A create of that kind takes one instead of booting.
type ReadyKind struct {
	Image     string  `json:"image" doc:"Name of the image, or its id."`
	VCPU      float64 `json:"vcpu"`
	MemoryMiB int64   `json:"memoryMiB"`
	DiskGiB   int64   `json:"diskGiB"`
	Internet  bool    `json:"internet"`
	Ready     int     `json:"ready" doc:"That a create gets at once."`
	Making    int     `json:"making"`
	Target    int     `json:"target" doc:"That are wanted, by the creates of the last quarter of an hour."`
	Taken     int64   `json:"taken" doc:"Creates that got one since the server began."`
	Missed    int64   `json:"missed" doc:"Creates that found none."`
	Seed      bool    `json:"seed" doc:"Others are brought back from a save instead of booting."`
}

// ListPoolsIn is the input of pools.list.
type ListPoolsIn struct{ op.PageIn }

// ListPoolsOut is the output of pools.list.
type ListPoolsOut struct {
	op.PageOut
	Items []Pool `json:"items"`
}

// ListPools is the operation on pools.
var ListPools = op.Def[ListPoolsIn, ListPoolsOut]{
	Name: "pools.list", Route: "GET /v1/pools", Action: "compute:pools:read", Tool: "list_pools",
	Hints: op.Read | op.Idempotent, Toolset: SetAccount, Title: "List pools",
	Doc: "Lists the pools of machines and the sandboxes that each keeps ready, so that a create need not wait for a boot.",
}
