package nodeapi

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/berthrun/berth/internal/chunk"
	"github.com/berthrun/berth/internal/errs"
)

// treesProtocol is what a connection for a tree is upgraded to: first the encoded root, then a link.
const treesProtocol = "berth-trees"

// The parts of a save that are trees of their own, and the only one of a volume or of a copy of one.
const (
	PartDisk   = "disk"
	PartMemory = "memory" // and what describes the save
	PartVolume = "volume"
)

// TreeRequest names a tree on a node.
type TreeRequest struct {
	Save string `json:"save"` // the name of the runtime.Save that it belongs to; with PartVolume of a copy, bak_…, to save it, of a volume, vol_…, to load it
	Part string `json:"part"`
}

// Trees is what a node does with the files of saves and of volumes, so that they can be kept elsewhere and brought to another node.
type Trees interface {
	// SaveTree reads a tree into the vault. parent is an earlier one of the same line, or nil. errs.NotFound where the node has no such save or copy.
	SaveTree(ctx context.Context, r TreeRequest, v chunk.Vault, parent *chunk.Root) (*chunk.Root, chunk.Stats, error)
	// LoadTree makes a tree from the vault. A save is the node's once both its parts are: the disk first, then the memory, which brings the description.
	// A part that is there already is left as it is. A volume is there whole or not at all, and has no size until MakeVolume gives it one; where the node has a
	// volume of that id it is errs.AlreadyExists, as after an earlier LoadTree whose answer was lost. A full disk is errs.NoCapacity with reason "disk_full".
	LoadTree(ctx context.Context, r TreeRequest, v chunk.Vault, root *chunk.Root) error
}

// treeResult is how a link ends.
type treeResult struct {
	Root  []byte      `json:"root,omitempty"`
	Stats chunk.Stats `json:"stats"`
}

type treeBody struct {
	TreeRequest
	Load bool `json:"load,omitempty"`
	Root int  `json:"root"` // bytes of it that follow; 0 where there is none
}

// ServeTrees adds what a node does with the files of saves.
func (s *Server) ServeTrees(t Trees) {
	s.mux.HandleFunc("POST /node/v1/trees", func(w http.ResponseWriter, r *http.Request) {
		var b treeBody
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&b); err != nil || b.Root < 0 || b.Root > chunk.MaxRoot {
			writeError(w, errs.Wrap(errs.InvalidInput, err, "the body cannot be read"))
			return
		}
		hijacker, ok := w.(http.Hijacker)
		if !ok {
			writeError(w, errs.E(errs.Unavailable, "this connection cannot be upgraded"))
			return
		}
		conn, buffered, err := hijacker.Hijack()
		if err != nil {
			s.log.Error("node tree not upgraded", "error", err)
			return
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+treesProtocol+"\r\n\r\n"); err != nil {
			return
		}
		if err := s.tree(r.Context(), t, b, conn, buffered.Reader); err != nil {
			s.log.Warn("node tree not carried to its end", "error", err)
		}
	})
}

// tree saves or loads one over an upgraded connection. What goes wrong with the tree itself is told to the other side.
func (s *Server) tree(ctx context.Context, t Trees, b treeBody, conn net.Conn, in *bufio.Reader) error {
	encoded := make([]byte, b.Root)
	if _, err := io.ReadFull(in, encoded); err != nil {
		return fmt.Errorf("read root: %w", err)
	}
	v := newLinkVault(conn)
	ctx, cancel := context.WithCancel(ctx)
	received := make(chan struct{})
	go func() {
		defer close(received)
		defer cancel() // the other side has gone
		v.receive(in)
	}()
	out, err := carry(ctx, t, b, v, encoded)
	kind, body := byte(linkDone), []byte(nil)
	if err != nil {
		if errs.Is(err, errs.Internal) {
			s.log.Error("node call failed", "method", "trees", "error", err)
		}
		kind = linkFailed
		body, err = json.Marshal(toWire(err))
	} else {
		body, err = json.Marshal(out)
	}
	if err == nil {
		err = v.out.write(kind, 0, body)
	}
	_ = conn.Close()
	<-received
	return err
}

func carry(ctx context.Context, t Trees, b treeBody, v chunk.Vault, encoded []byte) (out treeResult, err error) {
	var root *chunk.Root
	if len(encoded) > 0 || b.Load {
		if root, err = chunk.DecodeRoot(encoded); err != nil {
			return out, err
		}
	}
	if b.Load {
		return out, t.LoadTree(ctx, b.TreeRequest, v, root)
	}
	made, stats, err := t.SaveTree(ctx, b.TreeRequest, v, root)
	if err != nil {
		return out, err
	}
	return treeResult{made.Encode(), stats}, nil
}

// TreesClient is what a node does with the files of saves as the control plane sees it.
type TreesClient struct{ c *Client }

var _ Trees = (*TreesClient)(nil)

// Trees gives what the node does with the files of saves.
func (c *Client) Trees() *TreesClient { return &TreesClient{c} }

// SaveTree implements Trees.
func (t *TreesClient) SaveTree(ctx context.Context, r TreeRequest, v chunk.Vault, parent *chunk.Root) (*chunk.Root, chunk.Stats, error) {
	out, err := t.call(ctx, treeBody{TreeRequest: r}, v, parent)
	if err != nil {
		return nil, chunk.Stats{}, err
	}
	root, err := chunk.DecodeRoot(out.Root)
	return root, out.Stats, err
}

// LoadTree implements Trees.
func (t *TreesClient) LoadTree(ctx context.Context, r TreeRequest, v chunk.Vault, root *chunk.Root) error {
	_, err := t.call(ctx, treeBody{TreeRequest: r, Load: true}, v, root)
	return err
}

func (t *TreesClient) call(ctx context.Context, b treeBody, v chunk.Vault, root *chunk.Root) (out treeResult, err error) {
	var encoded []byte
	if root != nil {
		encoded = root.Encode()
	}
	b.Root = len(encoded)
	body, err := json.Marshal(b)
	if err != nil {
		return out, fmt.Errorf("encode tree request: %w", err)
	}
	conn, err := t.c.dial(ctx)
	if err != nil {
		return out, unreachable(err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	up, err := upgrade(conn, "trees", treesProtocol, body)
	if err == nil && len(encoded) > 0 {
		if _, werr := up.Write(encoded); werr != nil {
			err = unreachable(werr)
		}
	}
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return out, err
	}
	result, err := serveLink(ctx, up, v)
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(result, &out); err != nil {
		return out, errs.Wrap(errs.Upstream, err, "the node's answer cannot be read")
	}
	return out, nil
}
