package image

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/nodeapi"
)

// row is an image in the database.
type row struct {
	ID, OrgID, WorkspaceID, Name, Source string
	Digest, IndexDigest                  string
	State, Error, Reason, Phase          string
	Done, Size, Unpacked                 int64
	Layers                               int64
	Config                               nodeapi.ImageConfig
	BuiltAt                              int64
	CreatedBy                            op.CreatedBy
	CreatedAt, StateAt                   int64
}

const columns = `id, org_id, workspace_id, name, source, digest, index_digest, state, error, reason, phase, done_bytes, size_bytes, unpacked_bytes,
	layers, config, built_at, created_by, created_at, state_at`

type store struct{}

func scan(s interface{ Scan(...any) error }) (*row, error) {
	var r row
	var config, by string
	err := s.Scan(&r.ID, &r.OrgID, &r.WorkspaceID, &r.Name, &r.Source, &r.Digest, &r.IndexDigest, &r.State, &r.Error, &r.Reason, &r.Phase, &r.Done, &r.Size,
		&r.Unpacked, &r.Layers, &config, &r.BuiltAt, &by, &r.CreatedAt, &r.StateAt)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read image: %w", err)
	}
	if err := errors.Join(json.Unmarshal([]byte(config), &r.Config), json.Unmarshal([]byte(by), &r.CreatedBy)); err != nil {
		return nil, fmt.Errorf("read image %s: %w", r.ID, err)
	}
	return &r, nil
}

func (store) get(ctx context.Context, q op.Tx, id string) (*row, error) {
	return scan(q.QueryRowContext(ctx, `SELECT `+columns+` FROM images WHERE id = $1`, id))
}

// version finds the image of a name and digest, or of the digest of a list that it was chosen from; nil where there is none that is usable.
func (store) version(ctx context.Context, q op.Tx, org, name, digest string) (*row, error) {
	return scan(q.QueryRowContext(ctx, `SELECT `+columns+` FROM images WHERE org_id = $1 AND name = $2 AND (digest = $3 OR index_digest = $3)
		AND (state = 'pulling' OR state = 'ready') ORDER BY created_at DESC LIMIT 1`, org, name, digest))
}

// tagged finds what a tag means; nil where it means nothing.
func (s store) tagged(ctx context.Context, q op.Tx, org, name, tag string) (r *row, local bool, checkedAt int64, err error) {
	var id string
	var flag int64
	err = q.QueryRowContext(ctx, `SELECT image_id, local, checked_at FROM image_tags WHERE org_id = $1 AND name = $2 AND tag = $3`, org, name, tag).
		Scan(&id, &flag, &checkedAt)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, false, 0, nil
	}
	if err != nil {
		return nil, false, 0, fmt.Errorf("read tag: %w", err)
	}
	r, err = s.get(ctx, q, id)
	if err == nil && r != nil && r.State != api.ImagePulling && r.State != api.ImageReady {
		r = nil
	}
	return r, flag == 1, checkedAt, err
}

func (store) tag(ctx context.Context, tx op.Tx, org, name, tag, imageID string, local bool, at int64) error {
	flag := 0
	if local {
		flag = 1
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO image_tags (org_id, name, tag, image_id, local, checked_at) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (org_id, name, tag) DO UPDATE SET image_id = excluded.image_id, local = excluded.local, checked_at = excluded.checked_at`,
		org, name, tag, imageID, flag, at)
	if err != nil {
		return fmt.Errorf("write tag: %w", err)
	}
	return nil
}

func (store) untag(ctx context.Context, tx op.Tx, imageID string) error {
	if _, err := tx.ExecContext(ctx, `DELETE FROM image_tags WHERE image_id = $1`, imageID); err != nil {
		return fmt.Errorf("remove tags: %w", err)
	}
	return nil
}

// tags gives an image's tags: those of its own name as they are, others with their name.
func (store) tags(ctx context.Context, q op.Tx, r *row) ([]string, error) {
	rows, err := q.QueryContext(ctx, `SELECT name, tag FROM image_tags WHERE image_id = $1 ORDER BY name, tag`, r.ID)
	if err != nil {
		return nil, fmt.Errorf("list tags: %w", err)
	}
	defer rows.Close()
	var all []string
	for rows.Next() {
		var name, tag string
		if err := rows.Scan(&name, &tag); err != nil {
			return nil, fmt.Errorf("read tag: %w", err)
		}
		if name != r.Name {
			tag = name + ":" + tag
		}
		all = append(all, tag)
	}
	return all, rows.Err()
}

// insert makes a row; false where the version is there already.
func (store) insert(ctx context.Context, tx op.Tx, r *row) (bool, error) {
	config, err := json.Marshal(r.Config)
	if err != nil {
		return false, fmt.Errorf("encode image: %w", err)
	}
	by, err := json.Marshal(r.CreatedBy)
	if err != nil {
		return false, fmt.Errorf("encode image: %w", err)
	}
	res, err := tx.ExecContext(ctx, `INSERT INTO images (`+columns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)
		ON CONFLICT DO NOTHING`,
		r.ID, r.OrgID, r.WorkspaceID, r.Name, r.Source, r.Digest, r.IndexDigest, r.State, r.Error, r.Reason, r.Phase, r.Done, r.Size, r.Unpacked, r.Layers,
		string(config), r.BuiltAt, string(by), r.CreatedAt, r.StateAt)
	if err != nil {
		return false, fmt.Errorf("insert image: %w", err)
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

// move changes an image's state from the given one, with all that comes with it; false where it is in another.
func (store) move(ctx context.Context, tx op.Tx, r *row, from string) (bool, error) {
	config, err := json.Marshal(r.Config)
	if err != nil {
		return false, fmt.Errorf("encode image: %w", err)
	}
	res, err := tx.ExecContext(ctx, `UPDATE images SET state = $1, error = $2, reason = $3, phase = $4, done_bytes = $5, size_bytes = $6, unpacked_bytes = $7,
		layers = $8, config = $9, built_at = $10, state_at = $11 WHERE id = $12 AND state = $13`,
		r.State, r.Error, r.Reason, r.Phase, r.Done, r.Size, r.Unpacked, r.Layers, string(config), r.BuiltAt, r.StateAt, r.ID, from)
	if err != nil {
		return false, fmt.Errorf("change image: %w", err)
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

func (store) progress(ctx context.Context, tx op.Tx, id, phase string, done int64) error {
	_, err := tx.ExecContext(ctx, `UPDATE images SET phase = $1, done_bytes = $2 WHERE id = $3 AND state = 'pulling'`, phase, done, id)
	if err != nil {
		return fmt.Errorf("record progress: %w", err)
	}
	return nil
}

func (store) remove(ctx context.Context, tx op.Tx, id string) error {
	if _, err := tx.ExecContext(ctx, `DELETE FROM images WHERE id = $1`, id); err != nil {
		return fmt.Errorf("remove image: %w", err)
	}
	return nil
}

// sharing counts the other images of an organization that are the same bytes under another name.
func (store) sharing(ctx context.Context, q op.Tx, r *row) (n int, err error) {
	err = q.QueryRowContext(ctx, `SELECT COUNT(*) FROM images WHERE org_id = $1 AND digest = $2 AND id <> $3 AND (state = 'pulling' OR state = 'ready')`,
		r.OrgID, r.Digest, r.ID).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count images: %w", err)
	}
	return n, nil
}

func (store) list(ctx context.Context, q op.Tx, org, name string, before int64, beforeID string, limit int) ([]*row, error) {
	return collect(q.QueryContext(ctx, `SELECT `+columns+` FROM images WHERE org_id = $1 AND state <> 'deleted' AND (name = $2 OR $2 = '')
		AND (CAST($3 AS BIGINT) = 0 OR created_at < $3 OR (created_at = $3 AND id < $4)) ORDER BY created_at DESC, id DESC LIMIT $5`,
		org, name, before, beforeID, limit))
}

// moving gives the images of all organizations that something is to be done for.
func (store) moving(ctx context.Context, q op.Tx, endedBefore int64) ([]*row, error) {
	return collect(q.QueryContext(ctx, `SELECT `+columns+` FROM images WHERE state = 'pulling' OR state = 'deleting'
		OR ((state = 'failed' OR state = 'deleted') AND state_at < $1)`, endedBefore))
}

// wanted reports whether any image of an organization needs a digest.
func (store) wanted(ctx context.Context, q op.Tx, org, digest string) (bool, error) {
	var n int
	err := q.QueryRowContext(ctx, `SELECT COUNT(*) FROM images WHERE org_id = $1 AND digest = $2 AND state <> 'failed' AND state <> 'deleted'`, org, digest).Scan(&n)
	if err != nil {
		return false, fmt.Errorf("count images: %w", err)
	}
	return n > 0, nil
}

var collect = db.Collect("list images", scan)
