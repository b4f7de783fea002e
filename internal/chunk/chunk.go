// Package chunk owns how trees of files are cut into chunks, described by a manifest, and made again from both: the snapshots of sandboxes and their
// memory, backups of volumes.
//
// Save reads a tree and gives chunks that are not there yet, in packs, to a Vault; Load writes the tree from a Vault. Both stream, with bounded memory.
// The package knows no database and no object storage: internal/chunk/vault is the Vault of the control plane. Save and Load run on the node that has the
// files, as root. Why chunks are cut as they are is told in docs/adr/0006-chunks.md.
package chunk

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// The sizes of chunks, in bytes.
const (
	page       = 4 << 10   // what changes in place at once: pages of memory and of most databases
	block      = 64 << 10  // of a file cut by place
	maxChunk   = 128 << 10 // of any chunk's content
	inline     = 512       // a file of at most so many bytes stands in the manifest
	patchParts = 4         // a block of which at most 1/patchParts of its pages changed is kept as those pages
)

// Hash is the SHA-256 of a chunk's content.
type Hash [sha256.Size]byte

// String gives the hash in hexadecimal digits.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// Vault is where chunks are kept, as one Save or one Load sees it. Its methods may be called concurrently.
type Vault interface {
	// Have reports for each hash whether its chunk is kept. What it reports stays kept until the Save or Load has ended, and counts as used by what is saved.
	Have(ctx context.Context, hashes []Hash) ([]bool, error)
	// Add keeps a pack, as PackEntries reads it. Once it returns the pack is durable and its chunks are had. The bytes are not used after it returned.
	Add(ctx context.Context, pack []byte) error
	// Read gives chunks in the form that packs have them in, in the order asked for. A chunk that is not kept is errs.NotFound.
	Read(ctx context.Context, hashes []Hash) ([][]byte, error)
}

// Cut says where files are cut.
type Cut string

// The ways to cut.
const (
	// ByPlace cuts every 64 KiB from a file's beginning on. Of a block that changed in a few pages since the last manifest only those pages are kept.
	ByPlace Cut = ""
	// ByPages cuts between pages of 4 KiB by what they hold, for images of memory, where everything behind a page that came or went is at another place.
	ByPages Cut = "pages"
)

// Source is a tree to save. It must not change meanwhile: a file that does is errs.InvalidState with reason "changed".
type Source struct {
	Dir string // its root
	Cut Cut
	// Trust takes a regular file for unchanged, without reading it, whose name, size, inode number, mtime and ctime are those of the parent's manifest and
	// whose ctime is at least two seconds before the parent's At. It is safe where the tree is a copy-on-write copy of the tree that the parent was made of,
	// or that tree itself: then every change of a file is in its ctime, which nobody in a sandbox can set. Modification times alone are never trusted.
	Trust bool
	// At is when the tree stopped to change: for a copy, when the copy was made. The zero time is now, which is right for a tree that is not a copy.
	At  time.Time
	Now func() time.Time // nil: time.Now
}

// Stats say what a Save did.
type Stats struct {
	Entries int64 `json:"entries"` // files, folders and everything else in the tree
	Bytes   int64 `json:"bytes"`   // of files' contents without holes
	Chunks  int64 `json:"chunks"`  // that the tree consists of, the manifest's own too
	New     int64 `json:"new"`     // of them, those that were not there
	Stored  int64 `json:"stored"`  // bytes of the packs that were added
	Read    int64 `json:"read"`    // bytes of files that were read; the rest was known to be unchanged
}

func bad(format string, args ...any) *errs.Error {
	return errs.E(errs.InvalidInput, "the saved tree cannot be read: "+format, args...).Because("bad_manifest")
}

func damaged(format string, args ...any) *errs.Error {
	return errs.E(errs.Unavailable, "the saved tree is damaged: "+format, args...).Because("damaged").Suggest("Use another snapshot.")
}

// explain gives an error of the file system its code.
func explain(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if _, ok := errors.AsType[*errs.Error](err); ok {
		return err
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return errs.Wrap(errs.NoCapacity, err, "the disk is full").Because("disk_full").Suggest("Delete snapshots or sandboxes that are not needed.")
	}
	return err
}
