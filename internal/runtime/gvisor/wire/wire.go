// Package wire owns what the gVisor driver and the process that holds its sandboxes say to each other over a Unix socket: HTTP/1.1 with JSON
// bodies, a stream of events, and one call that hands over descriptors.
//
// It knows neither end: the driver is its parent package, the process is supervisor.
package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/runtime"
)

// Protocol is the version of this conversation. A driver speaks to a process of the same version only.
const Protocol = 2

// The paths of volumes and their copies. Volumes and Copies are GETs, the others POSTs with a JSON body.
const (
	PathMakeVolume   = "/v1/volumes/make"   // Ref → {}
	PathRemoveVolume = "/v1/volumes/remove" // Ref → {}
	PathVolumes      = "/v1/volumes"        // GET → []runtime.Volume
	PathCopyVolume   = "/v1/copies/make"    // Ref → {}
	PathForgetCopy   = "/v1/copies/forget"  // Ref → {}
	PathCopies       = "/v1/copies"         // GET → []string
)

// The other paths. All but Hello, List, Saves and Watch are POSTs with a JSON body.
const (
	PathHello    = "/v1/hello"   // GET → Hello
	PathList     = "/v1/list"    // GET → []runtime.Status
	PathWatch    = "/v1/watch"   // GET → one Event a line, until either side ends it
	PathCreate   = "/v1/create"  // runtime.Spec → runtime.Status
	PathStart    = "/v1/start"   // runtime.Spec → runtime.Status
	PathStop     = "/v1/stop"    // Ref → runtime.Status
	PathDelete   = "/v1/delete"  // Ref → {}
	PathGet      = "/v1/get"     // Ref → runtime.Status
	PathStats    = "/v1/stats"   // Ref → runtime.Stats
	PathUpdate   = "/v1/update"  // Ref → {}
	PathPause    = "/v1/pause"   // Ref → runtime.Status
	PathResume   = "/v1/resume"  // Ref → runtime.Status
	PathSuspend  = "/v1/suspend" // Ref → runtime.Status
	PathWake     = "/v1/wake"    // runtime.Spec → runtime.Status
	PathRewind   = "/v1/rewind"  // Ref → runtime.Status
	PathSettle   = "/v1/settle"  // Ref → {}
	PathSave     = "/v1/save"    // Ref → runtime.Save
	PathClone    = "/v1/clone"   // Clone → runtime.Status
	PathSaves    = "/v1/saves"   // GET → []runtime.Save
	PathForget   = "/v1/forget"  // Ref → {}
	PathRebase   = "/v1/rebase"  // Rebase → runtime.Status
	PathDial     = "/v1/dial"    // Ref → 101, with DialDescriptors in its ancillary data
	PathShutdown = "/shutdown"   // ends the process; with ?sandboxes=delete every sandbox first
)

// DialDescriptors come with the answer to a dial: the connected TCP socket, and a pidfd of the sandbox that becomes readable when it dies.
const DialDescriptors = 2

// Instance tells the interfaces and groups of a root folder, an absolute path without links, from those of another on the same machine.
func Instance(root string) string {
	sum := sha256.Sum256([]byte(root))
	return hex.EncodeToString(sum[:])[:5]
}

// Hello is what the process says of itself.
type Hello struct {
	Protocol      int       `json:"protocol"`
	Stamp         string    `json:"stamp"`         // gVisor's version stamp
	RuntimeSHA256 string    `json:"runtimeSha256"` // of its own program
	GuestSHA256   string    `json:"guestSha256"`   // of the guest that it mounts
	PID           int       `json:"pid"`
	StartedAt     time.Time `json:"startedAt"`
	Root          string    `json:"root"`
	Subnet        string    `json:"subnet"`
	Cgroups       string    `json:"cgroups"`  // v1, v2, or none
	Disk          string    `json:"disk"`     // the kind of copy-on-write
	Quota         bool      `json:"quota"`    // disk limits are enforced
	Snapshot      bool      `json:"snapshot"` // copies of a disk take no time
	Warnings      []string  `json:"warnings,omitempty"`
}

// Ref names a sandbox or a volume and what to do with it. Fields that a call does not use are zero.
type Ref struct {
	ID         string              `json:"id"`
	Generation int64               `json:"generation,omitempty"`
	GraceMS    int64               `json:"graceMs,omitempty"`
	Port       int                 `json:"port,omitempty"`
	Resources  runtime.Resources   `json:"resources,omitzero"`
	Name       string              `json:"name,omitempty"` // of a save or a copy
	Save       runtime.SaveOptions `json:"save,omitzero"`
	SizeGiB    int64               `json:"sizeGiB,omitempty"` // of a volume
}

// Clone asks for a sandbox made of a save.
type Clone struct {
	Spec    runtime.Spec         `json:"spec"`
	Name    string               `json:"name"`
	Options runtime.CloneOptions `json:"options,omitzero"`
}

// Rebase asks for another disk of a stopped sandbox.
type Rebase struct {
	Spec    runtime.Spec          `json:"spec"`
	Options runtime.RebaseOptions `json:"options,omitzero"`
}

// Error is the body of every answer that is not 2xx.
type Error struct {
	Code         errs.Code `json:"code"`
	Message      string    `json:"message"`
	Reason       string    `json:"reason,omitempty"`
	Suggestion   string    `json:"suggestion,omitempty"`
	RetryAfterMS int64     `json:"retryAfterMs,omitempty"`
	Cause        string    `json:"cause,omitempty"` // for the log of the driver, never for a caller
}

// FromError makes the body for an error.
func FromError(err error) Error {
	e := errs.From(err)
	out := Error{Code: e.Code, Message: e.Message, Reason: e.Reason, Suggestion: e.Suggestion, RetryAfterMS: e.RetryAfter.Milliseconds()}
	if full := err.Error(); full != e.Message {
		out.Cause = full
	}
	return out
}

// Err gives the error that a body stands for, its cause kept for logs.
func (e Error) Err() error {
	out := errs.E(e.Code, "%s", e.Message)
	if e.Cause != "" {
		out = errs.Wrap(e.Code, causeError(e.Cause), "%s", e.Message)
	}
	out.Reason, out.Suggestion, out.RetryAfter = e.Reason, e.Suggestion, time.Duration(e.RetryAfterMS)*time.Millisecond
	return out
}

type causeError string

func (c causeError) Error() string { return string(c) }
