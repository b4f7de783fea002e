package process

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/guest"
)

// record is a process in the database. kept says that its streams are in a pack.
type record struct {
	info           api.Process
	kept           bool
	pack           string
	stdout, stderr keptStream
}

// stream gives one of the two.
func (r *record) stream(name string) *keptStream {
	if name == "stderr" {
		return &r.stderr
	}
	return &r.stdout
}

// remember writes a process's row; one that is there stays.
func (s *Service) remember(ctx context.Context, q op.Tx, orgID string, p api.Process) error {
	info, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode process: %w", err)
	}
	_, err = q.ExecContext(ctx, `INSERT INTO processes (id, org_id, sandbox_id, state, info, started_at) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (sandbox_id, id) DO NOTHING`, p.ID, orgID, p.SandboxID, p.State, string(info), db.Micros(p.StartedAt))
	if err != nil {
		return fmt.Errorf("insert process: %w", err)
	}
	// A stop removes what is too much; a sandbox that is never stopped needs a bound too. What still runs of these the guest knows.
	_, err = q.ExecContext(ctx, `DELETE FROM processes WHERE id IN (SELECT id FROM processes WHERE sandbox_id = $1 AND kept = 0
		ORDER BY started_at DESC, id DESC LIMIT 100 OFFSET $2)`, p.SandboxID, mostStarted)
	if err != nil {
		return fmt.Errorf("remove oldest processes: %w", err)
	}
	return nil
}

func (s *Service) forgetOne(ctx context.Context, sandboxID, id string) error {
	_, err := s.DB.ExecContext(ctx, `DELETE FROM processes WHERE sandbox_id = $1 AND id = $2 AND kept = 0 AND state = 'running'`, sandboxID, id)
	return err
}

const recordColumns = `state, info, kept, pack, stdout_at, stdout_from, stdout_length, stderr_at, stderr_from, stderr_length, stamps`

func scanRecord(row interface{ Scan(...any) error }) (record, error) {
	var r record
	var state, info, marks string
	if err := row.Scan(&state, &info, &r.kept, &r.pack, &r.stdout.at, &r.stdout.from, &r.stdout.length, &r.stderr.at, &r.stderr.from, &r.stderr.length, &marks); err != nil {
		return r, err
	}
	if marks != "" {
		var both [2][]guest.Stamp
		if err := json.Unmarshal([]byte(marks), &both); err != nil {
			return r, fmt.Errorf("read process: %w", err)
		}
		r.stdout.stamps, r.stderr.stamps = both[0], both[1]
	}
	if err := json.Unmarshal([]byte(info), &r.info); err != nil {
		return r, fmt.Errorf("read process: %w", err)
	}
	r.info.State = state
	return r, nil
}

func (s *Service) stored(ctx context.Context, sandboxID, processID string) (record, error) {
	r, err := scanRecord(s.DB.QueryRowContext(ctx, `SELECT `+recordColumns+` FROM processes WHERE id = $1 AND sandbox_id = $2`, processID, sandboxID))
	if errors.Is(err, sql.ErrNoRows) {
		return r, errNoProcess(processID)
	}
	if err != nil {
		return r, fmt.Errorf("read process: %w", err)
	}
	return r, nil
}

func (s *Service) storedAll(ctx context.Context, sandboxID string) ([]record, error) {
	rows, err := s.DB.QueryContext(ctx, `SELECT `+recordColumns+` FROM processes WHERE sandbox_id = $1 ORDER BY started_at DESC, id DESC LIMIT 2000`, sandboxID)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer rows.Close()
	var all []record
	for rows.Next() {
		r, err := scanRecord(rows)
		if err != nil {
			return nil, fmt.Errorf("list processes: %w", err)
		}
		all = append(all, r)
	}
	return all, rows.Err()
}

// storedOutput reads a stream that was kept when its sandbox stopped.
func (s *Service) storedOutput(ctx context.Context, in *api.ProcessIn, stream string, offset int64, limit int, live bool) (reading, error) {
	r, err := s.stored(ctx, in.SandboxID, in.ProcessID)
	if err != nil {
		return reading{}, err
	}
	p := asLost(r.info, live)
	if !r.kept {
		return reading{process: p, offset: offset, next: offset, earliest: offset, eof: p.State != "running"}, nil
	}
	st := r.stream(stream)
	end := st.at + st.length
	from := min(max(offset, st.at), end)
	to := min(from+int64(limit), end)
	data, err := s.readKept(ctx, r.pack, st, from, to)
	if err != nil {
		return reading{}, err
	}
	return reading{process: p, data: data, offset: from, next: to, earliest: st.at, eof: to == end && p.State != "running"}, nil
}

// readKept reads the bytes of a kept stream between two of its offsets, which must be kept.
func (s *Service) readKept(ctx context.Context, pack string, st *keptStream, from, to int64) ([]byte, error) {
	if from >= to {
		return nil, nil
	}
	body, err := s.Blobs.GetRange(ctx, pack, st.from+from-st.at, to-from)
	if err != nil {
		return nil, fmt.Errorf("read kept output: %w", err)
	}
	defer body.Close()
	data := make([]byte, to-from)
	if _, err := io.ReadFull(body, data); err != nil {
		return nil, fmt.Errorf("read kept output: %w", err)
	}
	return data, nil
}

// Lost implements sandbox.Keeper: what is said to run ended with its sandbox.
func (s *Service) Lost(ctx context.Context, sandboxID string) error {
	if _, err := s.DB.ExecContext(ctx, `UPDATE processes SET state = 'lost' WHERE sandbox_id = $1 AND state = 'running'`, sandboxID); err != nil {
		return fmt.Errorf("mark lost processes: %w", err)
	}
	return nil
}

// Forget implements sandbox.Keeper.
func (s *Service) Forget(ctx context.Context, sandboxID string) error {
	if _, err := s.DB.ExecContext(ctx, `DELETE FROM processes WHERE sandbox_id = $1`, sandboxID); err != nil {
		return fmt.Errorf("forget processes: %w", err)
	}
	return s.Blobs.DeletePrefix(ctx, packPrefix(sandboxID))
}
