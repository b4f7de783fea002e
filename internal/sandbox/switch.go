package sandbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/runtime"
)

// kindSwitch is the kind of what holds a sandbox that gets another image.
const kindSwitch id.Kind = "switch"

// keptFolder is what a sandbox keeps of its disk when it gets another image.
const keptFolder = guest.DefaultWorkDir

// How a switch ended; until then it is pending.
const (
	switchDone   = "done"
	switchFailed = "failed"
)

// target is what a sandbox is switched to.
type target struct {
	Template, BuildID        string
	Image, ImageRef, ImageID string
	Save                     string // of the template's files; empty: the image is all that there is

	uses map[string]string // what the template's name means; not stored
}

// switching is a switch as it is stored.
type switching struct {
	SandboxID, OpID, State, Error string
	Target                        target
	Boots                         bool
	At                            int64
}

func switchOf(d *op.Draft) string {
	_, rest, _ := strings.Cut(d.Once, "_")
	return string(kindSwitch) + "_" + rest
}

// switches reports whether a sandbox is to get another image.
func (r *row) switches() bool { return strings.HasPrefix(r.OpID, string(kindSwitch)+"_") }

func (s *Service) draftSwitch(ctx context.Context, in *api.SwitchImageIn) (*op.Draft, error) {
	r, err := s.find(ctx, s.DB, in.SandboxID)
	if err != nil {
		return nil, err
	}
	if in.Image == "" && in.Template == "" {
		return nil, errs.E(errs.InvalidInput, "give the image or the template to switch to").With("path", "image")
	}
	to, err := s.target(ctx, r, &api.CreateSandboxIn{Image: in.Image, Template: in.Template})
	if err != nil {
		return nil, err
	}
	return &op.Draft{Resource: r.resource(), Uses: to.uses, Data: to}, nil
}

// target is what a sandbox is to be of.
func (s *Service) target(ctx context.Context, r *row, in *api.CreateSandboxIn) (target, error) {
	t, err := s.template(ctx, in)
	switch {
	case err != nil:
		return target{}, err
	case t != nil && r.DiskGiB < t.Built.DiskGiB:
		return target{}, errs.E(errs.InvalidInput, "the template's disk has %d GiB, and the sandbox's %d", t.Built.DiskGiB, r.DiskGiB).Because("template_disk").
			Suggest("Create a sandbox of the template instead.").With("path", "template")
	case t != nil:
		return target{Template: t.Name, BuildID: t.BuildID, Image: t.Image, ImageID: t.ImageID, Save: t.Disk, uses: t.uses()}, nil
	}
	to := &row{Template: in.Template}
	err = s.setImage(ctx, to, in)
	return target{Template: to.Template, Image: to.Image, ImageRef: to.ImageRef}, err
}

func (s *Service) intentSwitch(ctx context.Context, tx op.Tx, in *api.SwitchImageIn, d *op.Draft) error {
	return decided(func() error {
		r, err := s.find(ctx, tx, in.SandboxID)
		if err != nil {
			return err
		}
		switch decide(verbSwitch, r.State) {
		case do:
		case busy:
			return errBusy(r)
		default:
			return errInvalidState(r, verbSwitch)
		}
		if err := s.store.hold(ctx, tx, r, switchOf(d)); err != nil {
			return err
		}
		if r.State == api.StateStopped {
			// The node tells two switches of one stopped sandbox apart by its generation.
			if _, err := tx.ExecContext(ctx, `UPDATE sandboxes SET generation = generation + 1 WHERE id = $1`, r.ID); err != nil {
				return fmt.Errorf("begin switch: %w", err)
			}
		}
		if to := d.Data.(target); to.BuildID != "" {
			if err := s.Templates.Usable(ctx, tx, to.BuildID, to.Save); err != nil {
				return err
			}
		}
		to, err := json.Marshal(d.Data)
		if err != nil {
			return fmt.Errorf("encode switch: %w", err)
		}
		boots := 0
		if r.State == api.StateRunning {
			boots = 1
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO sandbox_switches (sandbox_id, op_id, state, target, build_id, boots, at) VALUES ($1, $2, 'pending', $3, $4, $5, $6)
			ON CONFLICT (sandbox_id) DO UPDATE SET op_id = excluded.op_id, state = excluded.state, target = excluded.target, build_id = excluded.build_id, boots = excluded.boots, error = '', at = excluded.at`,
			r.ID, switchOf(d), string(to), d.Data.(target).BuildID, boots, db.Micros(s.Now()))
		if err != nil {
			return fmt.Errorf("begin switch: %w", err)
		}
		return nil
	})
}

func (s *Service) actSwitch(ctx context.Context, in *api.SwitchImageIn, d *op.Draft) (*api.SandboxOut, error) {
	until := time.Now().Add(op.Remaining(ctx, time.Duration(in.Wait())*time.Second))
	s.nudge(in.SandboxID)
	r, err := db.Settled(ctx, s.DB, topic(in.SandboxID), time.Until(until), op.Yield, func(ctx context.Context) (*row, error) {
		r, err := s.store.get(ctx, s.DB, in.SandboxID)
		if err == nil && r == nil {
			err = errNotFound(in.SandboxID)
		}
		return r, err
	}, func(r *row) bool { return r.OpID != switchOf(d) && !moving(r.State) || goes(r) })
	if err != nil {
		return nil, err
	}
	if goes(r) {
		return nil, errNotFound(r.ID)
	}
	sw, err := s.store.switching(ctx, s.DB, r.ID)
	if err != nil {
		return nil, err
	}
	if sw != nil && sw.OpID == switchOf(d) && sw.State == switchFailed {
		f := readFailure(sw.Error)
		return nil, errs.E(f.Code, "the sandbox keeps its image: %s", f.Message).Because(f.Reason).With("sandboxId", r.ID)
	}
	return s.out(r), nil
}

// switchWait bounds a switch.
const switchWait = time.Hour

// switchStep makes the next step of a sandbox that is to get another image; done says that there was one, or that it cannot be made yet.
func (s *Service) switchStep(ctx context.Context, r *row) (done bool, err error) {
	if !r.switches() {
		return false, nil
	}
	sw, err := s.store.switching(ctx, s.DB, r.ID)
	if err != nil {
		return true, err
	}
	if sw == nil || sw.OpID != r.OpID {
		return true, s.store.release(ctx, s.DB, r.ID, r.OpID)
	}
	switch r.State {
	case api.StateRunning, api.StateStopped, api.StateStarting:
	case api.StatePaused, api.StateFailed:
		return true, s.endSwitch(ctx, r, sw, errs.E(errs.InvalidState, "the sandbox is %s meanwhile", r.State).Because(r.State))
	default:
		return false, nil // on its way to one of them
	}
	if err := s.switchNow(ctx, r, sw); err != nil {
		late := s.Now().After(db.Time(sw.At).Add(switchWait))
		if ctx.Err() != nil || isLostRace(err) || !late && (errs.Is(err, errs.HostUnavailable) || errs.Is(err, errs.Busy) || errs.Is(err, errs.Internal)) {
			return true, err
		}
		s.Logger.Warn("a sandbox does not get its image", "sandbox", r.ID, "error", err)
		return true, s.endSwitch(ctx, r, sw, err)
	}
	return true, nil
}

func (s *Service) switchNow(ctx context.Context, r *row, sw *switching) error {
	to := *r
	to.Template, to.BuildID, to.Image, to.ImageRef, to.ImageID = sw.Target.Template, sw.Target.BuildID, sw.Target.Image, sw.Target.ImageRef, sw.Target.ImageID
	if to.ImageRef != "" && to.Image == "" {
		// While it runs: it is away no longer than it takes to make the disk.
		wctx, cancel := context.WithTimeout(ctx, max(db.Time(sw.At).Add(switchWait).Sub(s.Now()), time.Second))
		defer cancel()
		img, err := s.resolve(wctx, &to)
		if err != nil {
			return err
		}
		to.Image = img.Digest
	}
	if err := s.pinSwitch(ctx, r, sw, to.ImageID); err != nil {
		return err
	}
	if r.State == api.StateRunning {
		r.StopReason, r.cause = "requested", "switch"
		return s.move(ctx, r, api.StateStopping)
	}
	if sw.Target.Save != "" {
		if err := s.Templates.Fetch(ctx, sw.Target.Save); err != nil {
			return err
		}
	}
	if _, err := s.Driver.Rebase(ctx, to.spec(), runtime.RebaseOptions{Save: sw.Target.Save, Keep: keptFolder}); err != nil {
		return err
	}
	return s.DB.Tx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE sandboxes SET template = $1, image = $2, image_ref = $3, image_id = $4, build_id = $5, snapshot_id = '' WHERE id = $6 AND state = $7 AND generation = $8`,
			to.Template, to.Image, to.ImageRef, to.ImageID, to.BuildID, r.ID, r.State, r.Generation)
		if err != nil {
			return fmt.Errorf("switch image: %w", err)
		}
		if n, _ := res.RowsAffected(); n == 0 {
			return errLostRace
		}
		data := map[string]any{"template": to.Template, "image": to.ImageRef, "digest": to.Image}
		if err := s.Events.Append(ctx, tx, r.OrgID, r.WorkspaceID, "sandbox.switched", r.ID, data); err != nil {
			return err
		}
		return s.switchedTx(ctx, tx, r, sw, switchDone, "")
	})
}

// pinSwitch records the version of the image that a sandbox is to get, so that it is not deleted meanwhile.
func (s *Service) pinSwitch(ctx context.Context, r *row, sw *switching, imageID string) error {
	if imageID == "" {
		return nil
	}
	return s.DB.Tx(ctx, func(tx *sql.Tx) error {
		usable, err := s.Pulled.Usable(ctx, tx, imageID)
		if err != nil {
			return err
		}
		if !usable {
			return errs.E(errs.NotFound, "the image %s was deleted", imageID).Because("image")
		}
		if _, err := tx.ExecContext(ctx, `UPDATE sandbox_switches SET image_id = $1 WHERE sandbox_id = $2 AND op_id = $3`, imageID, r.ID, sw.OpID); err != nil {
			return fmt.Errorf("fix image: %w", err)
		}
		return nil
	})
}

// resolve gives a row's image once it is on the node.
func (s *Service) resolve(ctx context.Context, to *row) (PulledImage, error) {
	if to.ImageID == "" {
		id, err := s.Pulled.Resolve(ctx, to.OrgID, to.WorkspaceID, to.CreatedBy, to.ImageRef)
		if err != nil {
			return PulledImage{}, err
		}
		to.ImageID = id
	}
	return s.Pulled.Await(ctx, to.ImageID)
}

// endSwitch records that a sandbox keeps its image, and has it go on as it was.
func (s *Service) endSwitch(ctx context.Context, r *row, sw *switching, why error) error {
	e := errs.From(why)
	text, err := json.Marshal(failure{Code: e.Code, Reason: e.Reason, Message: e.Message})
	if err != nil {
		return fmt.Errorf("encode failure: %w", err)
	}
	return s.DB.Tx(ctx, func(tx *sql.Tx) error { return s.switchedTx(ctx, tx, r, sw, switchFailed, string(text)) })
}

// switchedTx ends a switch. A sandbox that ran before runs again.
func (s *Service) switchedTx(ctx context.Context, tx op.Tx, r *row, sw *switching, state, why string) error {
	if _, err := tx.ExecContext(ctx, `UPDATE sandbox_switches SET state = $1, error = $2 WHERE sandbox_id = $3 AND op_id = $4`, state, why, r.ID, sw.OpID); err != nil {
		return fmt.Errorf("end switch: %w", err)
	}
	if _, err := tx.ExecContext(ctx, `UPDATE sandboxes SET op_id = '' WHERE id = $1 AND op_id = $2`, r.ID, sw.OpID); err != nil {
		return fmt.Errorf("end switch: %w", err)
	}
	s.DB.NotifyAfter(tx, topic(r.ID))
	if sw.Boots && r.State == api.StateStopped {
		again := *r // the transaction may run more than once
		again.cause = "switch"
		return s.moveTx(ctx, tx, &again, api.StateStarting)
	}
	return nil
}

// switching gives a sandbox's last switch, nil where there was none.
func (store) switching(ctx context.Context, q op.Tx, sandboxID string) (*switching, error) {
	sw := &switching{SandboxID: sandboxID}
	var to string
	var boots int64
	err := q.QueryRowContext(ctx, `SELECT op_id, state, target, boots, error, at FROM sandbox_switches WHERE sandbox_id = $1`, sandboxID).
		Scan(&sw.OpID, &sw.State, &to, &boots, &sw.Error, &sw.At)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal([]byte(to), &sw.Target)
	}
	if err != nil {
		return nil, fmt.Errorf("read switch: %w", err)
	}
	sw.Boots = boots == 1
	return sw, nil
}
