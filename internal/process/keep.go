package process

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/guest"
)

// keeping is a process whose streams are being read: of each the last part without a gap.
type keeping struct {
	process        *guest.Process
	stdout, stderr part
}

type part struct {
	offset int64
	data   []byte
}

func (p *part) add(c *guest.ExportChunk) {
	if c.Offset != p.offset+int64(len(p.data)) {
		p.offset, p.data = c.Offset, nil
	}
	p.data = append(p.data, c.Data...)
}

// Keep implements sandbox.Keeper: it saves the processes of a sandbox that stops, and their streams. What came before an error is saved.
func (s *Service) Keep(ctx context.Context, orgID, sandboxID string, export func(visit func(guest.ExportRecord) error) error) error {
	var k keeping
	err := export(func(rec guest.ExportRecord) error {
		switch {
		case rec.Process != nil:
			if err := s.keep(ctx, orgID, sandboxID, &k); err != nil {
				return err
			}
			k = keeping{process: rec.Process}
		case rec.Chunk != nil && rec.Chunk.Stream == "stderr":
			k.stderr.add(rec.Chunk)
		case rec.Chunk != nil:
			k.stdout.add(rec.Chunk)
		}
		return nil
	})
	if kerr := s.keep(ctx, orgID, sandboxID, &k); kerr != nil {
		return kerr
	}
	return err
}

func (s *Service) keep(ctx context.Context, orgID, sandboxID string, k *keeping) error {
	if k.process == nil {
		return nil
	}
	p := show(sandboxID, *k.process)
	for stream, data := range map[string][]byte{"stdout": k.stdout.data, "stderr": k.stderr.data} {
		if err := s.Blobs.Put(ctx, blobKey(sandboxID, p.ID, stream), bytes.NewReader(data)); err != nil {
			return fmt.Errorf("keep output: %w", err)
		}
	}
	info, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode process: %w", err)
	}
	_, err = s.DB.ExecContext(ctx, `INSERT INTO processes (id, org_id, sandbox_id, state, info, started_at, stdout_at, stderr_at, kept)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 1)
		ON CONFLICT (id) DO UPDATE SET state = $4, info = $5, stdout_at = $7, stderr_at = $8, kept = 1`,
		p.ID, orgID, sandboxID, p.State, string(info), db.Micros(p.StartedAt), k.stdout.offset, k.stderr.offset)
	if err != nil {
		return fmt.Errorf("keep process: %w", err)
	}
	return nil
}
