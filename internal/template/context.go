package template

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/draft"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/id"
	"github.com/berthrun/berth/internal/template/recipe"
)

const (
	contextFor  = 24 * time.Hour // after its last use
	contextMost = 4 << 30        // bytes of one archive
)

// archive is an uploaded context in the database.
type archive struct {
	ID, OrgID         string
	State             string // receiving, ready
	Bytes, Entries    int64
	SHA256            string
	CreatedAt, UsedAt int64
}

func (store) archive(ctx context.Context, q op.Tx, id string) (*archive, error) {
	var a archive
	err := q.QueryRowContext(ctx, `SELECT id, org_id, state, bytes, entries, sha256, created_at, used_at FROM build_contexts WHERE id = $1`, id).
		Scan(&a.ID, &a.OrgID, &a.State, &a.Bytes, &a.Entries, &a.SHA256, &a.CreatedAt, &a.UsedAt)
	return one(&a, err, "context")
}

func contextKey(org, id string) string { return "contexts/" + org + "/" + id }

func errNoContext(id string) error {
	return errs.E(errs.NotFound, "there is no context %s", id).Suggest("Upload it again: it is removed a day after it was last used.").With("path", "contextId")
}

// serveUpload keeps an archive.
func (s *Service) serveUpload(ctx context.Context, in *api.UploadContextIn, _ *op.Draft, st *op.Stream) error {
	if in.SHA256 != "" && st.R.ContentLength == 0 {
		return s.serveKnown(ctx, in.SHA256, st)
	}
	c, now := caller.From(ctx), db.Micros(s.Now())
	a := &archive{ID: id.New(id.BuildContext), OrgID: c.OrgID, CreatedAt: now, UsedAt: now}
	by, err := op.Encode(draft.By(c))
	if err != nil {
		return err
	}
	// The row comes first: what was begun and never ended is found and removed.
	if _, err := s.DB.ExecContext(ctx, `INSERT INTO build_contexts (id, org_id, workspace_id, state, created_by, created_at, used_at) VALUES ($1, $2, $3, 'receiving', $4, $5, $5)`,
		a.ID, c.OrgID, c.WorkspaceID, string(by), now); err != nil {
		return fmt.Errorf("insert context: %w", err)
	}
	sum := sha256.New()
	body := &bounded{r: io.TeeReader(st.R.Body, sum), left: contextMost}
	if err := s.Blobs.Put(ctx, contextKey(c.OrgID, a.ID), body); err != nil {
		s.dropContext(context.WithoutCancel(ctx), a)
		return err
	}
	a.Bytes, a.SHA256 = contextMost-body.left, hex.EncodeToString(sum.Sum(nil))
	if in.SHA256 != "" && in.SHA256 != a.SHA256 {
		err = errs.E(errs.InvalidInput, "the archive has another SHA-256 than was said: %s", a.SHA256).Because("checksum").Suggest("Send it again.")
	} else {
		a.Entries, err = s.inspect(ctx, a)
	}
	if err != nil {
		s.dropContext(context.WithoutCancel(ctx), a)
		return err
	}
	if _, err := s.DB.ExecContext(ctx, `UPDATE build_contexts SET state = 'ready', bytes = $1, entries = $2, sha256 = $3 WHERE id = $4`, a.Bytes, a.Entries, a.SHA256, a.ID); err != nil {
		return fmt.Errorf("record context: %w", err)
	}
	return a.answer(st)
}

// serveKnown gives an archive of the caller's organization that was uploaded before. Whoever knows its hash has its content.
func (s *Service) serveKnown(ctx context.Context, sum string, st *op.Stream) error {
	a := &archive{SHA256: sum, UsedAt: db.Micros(s.Now())}
	err := s.DB.Tx(ctx, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, `UPDATE build_contexts SET used_at = $1 WHERE id = (SELECT id FROM build_contexts WHERE org_id = $2 AND sha256 = $3 AND state = 'ready'
			ORDER BY used_at DESC, id LIMIT 1) RETURNING id, bytes, entries`, a.UsedAt, caller.From(ctx).OrgID, sum).Scan(&a.ID, &a.Bytes, &a.Entries)
	})
	if errors.Is(err, sql.ErrNoRows) {
		return errs.E(errs.NotFound, "no archive with this SHA-256 is here").Because("unknown").Suggest("Upload it.")
	}
	if err != nil {
		return fmt.Errorf("find context: %w", err)
	}
	return a.answer(st)
}

func (a *archive) answer(st *op.Stream) error {
	b, err := op.Encode(&api.UploadContextOut{Context: api.BuildContext{
		ID: a.ID, Bytes: a.Bytes, Entries: a.Entries, SHA256: a.SHA256, ExpiresAt: db.Time(a.UsedAt).Add(contextFor),
	}})
	if err != nil {
		return err
	}
	st.W.Header().Set("Content-Type", "application/json")
	_, err = st.W.Write(b)
	return err
}

// bounded refuses a body that is too large.
type bounded struct {
	r    io.Reader
	left int64
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errs.E(errs.LimitExceeded, "the archive has more than %d MiB", contextMost>>20).Because("too_large").Suggest("Leave out what the build does not need, with a .dockerignore.")
	}
	return n, err
}

// useContext notes that a context of the caller's organization is in use.
func (s *Service) useContext(ctx context.Context, tx op.Tx, id string) error {
	a, err := s.store.archive(ctx, tx, id)
	if err != nil {
		return err
	}
	if c := caller.From(ctx); a == nil || c == nil || a.OrgID != c.OrgID || a.State != "ready" {
		return errNoContext(id)
	}
	if _, err := tx.ExecContext(ctx, `UPDATE build_contexts SET used_at = $1 WHERE id = $2`, db.Micros(s.Now()), id); err != nil {
		return fmt.Errorf("note use of context: %w", err)
	}
	return nil
}

// checkSources refuses, before anything is written, what a build would not find.
func (s *Service) checkSources(ctx context.Context, c *caller.Caller, in *api.BuildTemplateIn, r *recipe.Recipe) error {
	if in.ContextID != "" {
		a, err := s.store.archive(ctx, s.DB, in.ContextID)
		if err != nil {
			return err
		}
		if a == nil || a.OrgID != c.OrgID || a.State != "ready" {
			return errNoContext(in.ContextID)
		}
	}
	check := func(src *recipe.Source) error {
		switch src.Kind {
		case recipe.FromImage:
			return s.Images.CheckReference(src.Ref)
		case recipe.FromTemplate:
			b, err := s.resolve(ctx, c.OrgID, c.WorkspaceID, src.Ref)
			if err != nil || b != nil {
				return err
			}
			image, err := s.Images.Prepared(ctx, src.Ref)
			if err == nil && image == "" {
				err = errNoTemplate(src.Ref)
			}
			return err
		case recipe.FromScratch:
			return errs.E(errs.InvalidInput, "a template cannot begin with nothing").Because("from_scratch").Suggest("Begin with a small image, such as debian:13-slim or alpine.")
		}
		return nil
	}
	for _, st := range r.Stages {
		if err := check(&st.From); err != nil {
			return err
		}
		for _, step := range st.Steps {
			switch {
			case step.Files == nil:
			case step.Files.From != nil:
				if err := check(step.Files.From); err != nil {
					return err
				}
			case len(step.Files.Sources) > 0 && in.ContextID == "":
				return errs.E(errs.InvalidInput, "%s takes files from the context, and contextId is absent", step.Text).
					Suggest("Send the files as a tar archive to POST /v1/builds/context, which answers with the contextId; berth templates build does so itself. Small files a RUN can write.").With("path", "contextId")
			}
		}
	}
	return nil
}

// dropContexts removes the archives that were not used for a while.
func (s *Service) dropContexts(ctx context.Context) error {
	old, err := collect(func(sc scanner) (*archive, error) {
		var a archive
		return &a, sc.Scan(&a.ID, &a.OrgID)
	})(s.DB.QueryContext(ctx, `SELECT id, org_id FROM build_contexts WHERE used_at < $1
		AND NOT EXISTS (SELECT 1 FROM template_builds b WHERE b.context_id = build_contexts.id AND b.status IN ('waiting', 'building')) LIMIT 100`, db.Micros(s.Now().Add(-contextFor))))
	if err != nil {
		return err
	}
	for _, a := range old {
		s.dropContext(ctx, a)
	}
	return nil
}

func (s *Service) dropContext(ctx context.Context, a *archive) {
	err := s.Blobs.Delete(ctx, contextKey(a.OrgID, a.ID))
	if err == nil || errs.Is(err, errs.NotFound) {
		err = s.DB.Tx(ctx, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `DELETE FROM build_contexts WHERE id = $1`, a.ID)
			return err
		})
	}
	if err != nil {
		s.Logger.Warn("context not removed, will be found again", "context", a.ID, "error", err)
	}
}
