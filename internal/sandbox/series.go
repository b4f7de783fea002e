package sandbox

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/db"
)

// sample is one reading of a sandbox: what it used since the one before, and what it holds.
type sample struct {
	at        int64 // microseconds: the end of the span
	span      int64 // milliseconds that cpu was used in
	cpu       int64 // microseconds of CPU time in the span
	memory    int64 // KiB
	disk      int64 // KiB
	processes int64 // inside; -1 where the guest was not asked
}

// percent is the CPU time of the span, of one core.
func (p sample) percent() float64 { return float64(p.cpu) / float64(p.span) / 10 }

const minute = int64(time.Minute / time.Microsecond)

// packed is one stored row: the samples of a sandbox's minute.
type packed struct {
	sandbox string
	minute  int64 // microseconds
	text    string
}

// pack writes samples as the text of their minutes: numbers, the time in milliseconds after the minute's beginning first.
func pack(sandbox string, samples []sample) []packed {
	var all []packed
	for _, p := range samples {
		m := p.at - p.at%minute
		i := slices.IndexFunc(all, func(q packed) bool { return q.minute == m })
		if i < 0 {
			i = len(all)
			all = append(all, packed{sandbox: sandbox, minute: m})
		}
		all[i].text += fmt.Sprintf("%d,%d,%d,%d,%d,%d;", (p.at-m)/1000, p.span, p.cpu, p.memory, p.disk, p.processes)
	}
	return all
}

// unpack reads a minute's samples. What it cannot read is left out.
func unpack(minute int64, text string) []sample {
	var all []sample
	for part := range strings.SplitSeq(strings.TrimSuffix(text, ";"), ";") {
		var n [6]int64
		fields := strings.Split(part, ",")
		ok := len(fields) == len(n)
		for i := 0; ok && i < len(n); i++ {
			var err error
			n[i], err = strconv.ParseInt(fields[i], 10, 64)
			ok = err == nil
		}
		if ok && n[1] > 0 {
			all = append(all, sample{at: minute + n[0]*1000, span: n[1], cpu: n[2], memory: n[3], disk: n[4], processes: n[5]})
		}
	}
	return all
}

// storedAtOnce bounds the rows of one statement.
const storedAtOnce = 100

// storeReadings adds samples to the minutes' rows.
func (s store) storeReadings(ctx context.Context, tx op.Tx, all []packed) error {
	for part := range slices.Chunk(all, storedAtOnce) {
		var values []string
		var args []any
		for i, p := range part {
			values = append(values, fmt.Sprintf("($%d, $%d, $%d)", 3*i+1, 3*i+2, 3*i+3))
			args = append(args, p.sandbox, p.minute, p.text)
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO sandbox_readings (sandbox_id, at, samples) VALUES `+strings.Join(values, ", ")+`
			ON CONFLICT (sandbox_id, at) DO UPDATE SET samples = sandbox_readings.samples || excluded.samples`, args...)
		if err != nil {
			return fmt.Errorf("store readings: %w", err)
		}
	}
	return nil
}

// readings gives a sandbox's stored samples whose span reaches into the time from start to end, in their order.
func (s store) readings(ctx context.Context, q op.Tx, id string, start, end int64) ([]sample, error) {
	rows, err := q.QueryContext(ctx, `SELECT at, samples FROM sandbox_readings WHERE sandbox_id = $1 AND at > $2 AND at <= $3 ORDER BY at`, id, start-2*minute, end)
	if err != nil {
		return nil, fmt.Errorf("read readings: %w", err)
	}
	defer rows.Close()
	var all []sample
	for rows.Next() {
		var at int64
		var text string
		if err := rows.Scan(&at, &text); err != nil {
			return nil, fmt.Errorf("read readings: %w", err)
		}
		all = append(all, unpack(at, text)...)
	}
	return all, rows.Err()
}

// lastReading gives a sandbox's latest stored sample, nil where there is none.
func (s store) lastReading(ctx context.Context, q op.Tx, id string) (*sample, error) {
	var at int64
	var text string
	err := q.QueryRowContext(ctx, `SELECT at, samples FROM sandbox_readings WHERE sandbox_id = $1 ORDER BY at DESC LIMIT 1`, id).Scan(&at, &text)
	if err == sql.ErrNoRows { //nolint:errorlint // database/sql gives it as it is
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the last reading: %w", err)
	}
	all := unpack(at, text)
	if len(all) == 0 {
		return nil, nil
	}
	return &all[len(all)-1], nil
}

// dropReadings removes a sandbox's samples.
func (s store) dropReadings(ctx context.Context, q op.Tx, id string) error {
	if _, err := q.ExecContext(ctx, `DELETE FROM sandbox_readings WHERE sandbox_id = $1`, id); err != nil {
		return fmt.Errorf("drop readings: %w", err)
	}
	return nil
}

// oldReadings removes the samples from before a time, a part at once so that nobody waits long for the database.
func (s store) oldReadings(ctx context.Context, d *db.DB, before int64) error {
	for {
		res, err := d.ExecContext(ctx, `DELETE FROM sandbox_readings WHERE (sandbox_id, at) IN (SELECT sandbox_id, at FROM sandbox_readings WHERE at < $1 LIMIT 2000)`, before)
		if err != nil {
			return fmt.Errorf("remove old readings: %w", err)
		}
		if n, err := res.RowsAffected(); err != nil || n < 2000 {
			return err
		}
	}
}

// sampled is what the sampler needs of a running sandbox.
type sampled struct {
	id, token       string
	boot, startedAt int64
	vcpuMilli       int64
}

func (s store) sampled(ctx context.Context, q op.Tx) ([]sampled, error) {
	rows, err := q.QueryContext(ctx, `SELECT id, guest_token, boot_generation, started_at, vcpu_milli FROM sandboxes WHERE state = 'running'`)
	if err != nil {
		return nil, fmt.Errorf("list running sandboxes: %w", err)
	}
	defer rows.Close()
	var all []sampled
	for rows.Next() {
		var r sampled
		if err := rows.Scan(&r.id, &r.token, &r.boot, &r.startedAt, &r.vcpuMilli); err != nil {
			return nil, fmt.Errorf("list running sandboxes: %w", err)
		}
		all = append(all, r)
	}
	return all, rows.Err()
}
