package fake

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/runtime"
)

// What a memory file says of the programs that made it.
const (
	runtimeHash = "fake-runtime"
	guestHash   = "fake-guest"
)

// memory is a file that stands for memory, and the guest's own as it was then. The guest itself may still be there, frozen.
type memory struct {
	path    string
	content []byte
	state   *guest.State
}

// undo is what a wake that is not settled can go back to.
type undo struct {
	memory *memory
	disk   string
	spec   runtime.Spec
}

// header is what a memory file holds. Nobody can guess it.
type header struct {
	Sandbox string    `json:"sandbox"`
	Runtime string    `json:"runtime"`
	Guest   string    `json:"guest"`
	At      time.Time `json:"at"`
	Nonce   string    `json:"nonce"`
}

func unsupported() error {
	return errs.E(errs.Unavailable, "the fake driver cannot do this").Because("not_supported")
}

// change enters a sandbox that is there for a call that needs a capability.
func (d *Driver) change(ctx context.Context, can bool, id string, generation int64) (*box, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !can {
		return nil, unsupported()
	}
	return d.enter(id, generation, false)
}

// Pause implements runtime.Driver.
func (d *Driver) Pause(ctx context.Context, id string, generation int64) (runtime.Status, error) {
	b, err := d.change(ctx, d.cfg.Can.Pause, id, generation)
	if err != nil {
		return runtime.Status{}, err
	}
	defer b.mu.Unlock()
	switch st := d.statusOf(b); st.State {
	case runtime.Paused:
		return st, nil
	case runtime.Running:
	default:
		return runtime.Status{}, wrongState(st)
	}
	if err := d.cfg.Before(ctx, "pause", id); err != nil {
		return runtime.Status{}, err
	}
	b.freeze()
	return d.setDepth(b, runtime.Paused, runtime.Frozen, ""), nil
}

// Resume implements runtime.Driver.
func (d *Driver) Resume(ctx context.Context, id string, generation int64) (runtime.Status, error) {
	b, err := d.change(ctx, d.cfg.Can.Pause, id, generation)
	if err != nil {
		return runtime.Status{}, err
	}
	defer b.mu.Unlock()
	switch st := d.statusOf(b); {
	case st.State == runtime.Running:
		return st, nil
	case st.Depth != runtime.Frozen:
		return runtime.Status{}, wrongState(st)
	}
	if err := d.cfg.Before(ctx, "resume", id); err != nil {
		return runtime.Status{}, err
	}
	b.goOn()
	return d.set(b, runtime.Running, ""), nil
}

// freeze stops a sandbox whose lock is held; goOn lets it go on.
func (b *box) freeze() {
	if b.thaw == nil {
		b.gate.shut()
		b.thaw = b.guest.Freeze()
	}
}

func (b *box) goOn() {
	if b.thaw != nil {
		b.thaw()
		b.thaw = nil
		b.gate.lift()
	}
}

// Suspend implements runtime.Driver.
func (d *Driver) Suspend(ctx context.Context, id string, generation int64) (runtime.Status, error) {
	b, err := d.change(ctx, d.cfg.Can.Memory, id, generation)
	if err != nil {
		return runtime.Status{}, err
	}
	defer b.mu.Unlock()
	st := d.statusOf(b)
	switch {
	case st.Depth == runtime.OnDisk:
		return st, nil
	case st.State == runtime.Stopped:
		return runtime.Status{}, wrongState(st)
	}
	if err := d.cfg.Before(ctx, "suspend", id); err != nil {
		return runtime.Status{}, err
	}
	frozen := b.thaw != nil
	b.freeze()
	m, err := d.remember(filepath.Join(d.cfg.Dir, ".memory", id), id, b.guest.State())
	if err != nil {
		if !frozen {
			b.goOn()
		}
		return runtime.Status{}, err
	}
	b.memory = m
	d.settle(b) // only the latest is kept
	b.calls.reset()
	return d.setDepth(b, runtime.Paused, runtime.OnDisk, ""), nil
}

// remember writes a memory file.
func (d *Driver) remember(path, sandbox string, state *guest.State) (*memory, error) {
	content, err := json.Marshal(header{Sandbox: sandbox, Runtime: runtimeHash, Guest: guestHash, At: d.cfg.Now(), Nonce: rand.Text()})
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		err = os.WriteFile(path+".new", content, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return nil, fmt.Errorf("write memory: %w", err)
	}
	return &memory{path: path, content: content, state: state}, nil
}

// check reads the file as if it were needed.
func (m *memory) check() error {
	refuse := func(reason, what string) error {
		return errs.E(errs.Unavailable, "the memory of the sandbox %s", what).Because(reason)
	}
	content, err := os.ReadFile(m.path)
	if errors.Is(err, os.ErrNotExist) {
		return refuse(runtime.MemoryMissing, "is missing")
	}
	var h header
	if err != nil || json.Unmarshal(content, &h) != nil {
		return refuse(runtime.MemoryDamaged, "is damaged")
	}
	if h.Runtime != runtimeHash || h.Guest != guestHash {
		return refuse(runtime.MemoryForeign, "was made by another runtime")
	}
	if !bytes.Equal(content, m.content) {
		return refuse(runtime.MemoryDamaged, "is damaged")
	}
	return nil
}

// Wake implements runtime.Driver.
func (d *Driver) Wake(ctx context.Context, spec runtime.Spec) (runtime.Status, error) {
	if d.cfg.Can.Memory {
		if err := d.check(spec); err != nil {
			return runtime.Status{}, err
		}
	}
	b, err := d.change(ctx, d.cfg.Can.Memory, spec.ID, spec.Generation)
	if err != nil {
		return runtime.Status{}, err
	}
	defer b.mu.Unlock()
	st := d.statusOf(b)
	switch st.State {
	case runtime.Running:
		return st, nil
	case runtime.Paused:
	default:
		return runtime.Status{}, wrongState(st)
	}
	if err := d.cfg.Before(ctx, "wake", spec.ID); err != nil {
		return runtime.Status{}, err
	}
	if b.memory == nil {
		b.goOn()
		return d.set(b, runtime.Running, ""), nil
	}
	if err := b.memory.check(); err != nil {
		return runtime.Status{}, err
	}
	if !sameMounts(b.spec.Mounts, spec.Mounts) {
		return runtime.Status{}, errs.E(errs.Unavailable, "the memory of the sandbox was made with other mounts").Because(runtime.MemoryForeign)
	}
	u := &undo{memory: b.memory, disk: filepath.Join(d.cfg.Dir, ".undo", spec.ID), spec: b.spec}
	if err := d.copyDisk(b, u.disk); err != nil {
		return runtime.Status{}, err
	}
	if b.guest == nil { // it was rewound
		if err := d.boot(b, spec, b.memory.state); err != nil {
			_ = os.RemoveAll(u.disk)
			return runtime.Status{}, err
		}
	} else {
		b.goOn()
	}
	b.memory, b.undo = nil, u
	return d.set(b, runtime.Running, ""), nil
}

// Rewind implements runtime.Driver.
func (d *Driver) Rewind(ctx context.Context, id string, generation int64) (runtime.Status, error) {
	b, err := d.change(ctx, d.cfg.Can.Memory, id, generation)
	if err != nil {
		return runtime.Status{}, err
	}
	defer b.mu.Unlock()
	st := d.statusOf(b)
	switch {
	case st.Depth == runtime.OnDisk:
		return st, nil
	case b.undo == nil:
		return runtime.Status{}, errs.E(errs.InvalidState, "sandbox %s has nothing to go back to", id).Because("settled")
	}
	if err := d.cfg.Before(ctx, "rewind", id); err != nil {
		return runtime.Status{}, err
	}
	d.halt(b)
	if err := os.RemoveAll(b.root); err != nil {
		return runtime.Status{}, fmt.Errorf("remove disk: %w", err)
	}
	if err := os.Rename(b.undo.disk, b.root); err != nil {
		return runtime.Status{}, fmt.Errorf("put disk back: %w", err)
	}
	b.memory, b.spec, b.undo = b.undo.memory, b.undo.spec, nil
	return d.setDepth(b, runtime.Paused, runtime.OnDisk, ""), nil
}

// Settle implements runtime.Driver.
func (d *Driver) Settle(ctx context.Context, id string, generation int64) error {
	b, err := d.change(ctx, d.cfg.Can.Memory, id, generation)
	if err != nil {
		return err
	}
	defer b.mu.Unlock()
	if b.undo == nil {
		return nil
	}
	if err := d.cfg.Before(ctx, "settle", id); err != nil {
		return err
	}
	d.settle(b)
	return nil
}

// settle lets go of what a rewind needs; letGo of the memory of a suspended sandbox.
func (d *Driver) settle(b *box) {
	if b.undo == nil {
		return
	}
	_ = os.RemoveAll(b.undo.disk)
	if b.memory == nil || b.memory.path != b.undo.memory.path {
		_ = os.Remove(b.undo.memory.path)
	}
	b.undo = nil
	if d.statusOf(b).State == runtime.Stopped {
		d.release(b.status.ID)
	}
}

func (d *Driver) letGo(b *box) {
	if b.memory != nil {
		_ = os.Remove(b.memory.path)
		b.memory = nil
	}
}

// copyTree copies a folder with all that it holds.
func copyTree(from, to string) error {
	err := os.RemoveAll(to)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o700)
	}
	if err != nil {
		return fmt.Errorf("copy disk: %w", err)
	}
	if out, err := exec.Command("cp", "-a", "--reflink=auto", from, to).CombinedOutput(); err != nil {
		_ = os.RemoveAll(to)
		return fmt.Errorf("copy disk: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// size is that of all files in a folder.
func size(dir string) int64 {
	var n int64
	_ = filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			n += info.Size()
		}
		return nil
	})
	return n
}
