package guest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"
)

// The bounds of an export.
const (
	exportLine  = 256 << 10
	exportBytes = 256 << 20
)

// Export reads all that the guest remembers of processes, record by record.
func (c *Client) Export(ctx context.Context, visit func(ExportRecord) error) error {
	return c.export(ctx, call{method: http.MethodGet, path: "/processes/export", timeout: longTimeout}, visit)
}

// ShutdownExport is Shutdown that gives what Export gives, once everything has ended.
func (c *Client) ShutdownExport(ctx context.Context, grace time.Duration, visit func(ExportRecord) error) error {
	in := Shutdown{GraceMS: grace.Milliseconds(), Export: true}
	return c.export(ctx, call{method: http.MethodPost, path: "/shutdown", body: in, timeout: grace + longTimeout}, visit)
}

func (c *Client) export(ctx context.Context, k call, visit func(ExportRecord) error) error {
	inner, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	res, err := c.send(inner, k)
	if err != nil {
		return c.transportError(ctx, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		body, err := io.ReadAll(io.LimitReader(res.Body, smallAnswer))
		if err != nil {
			return c.transportError(ctx, err)
		}
		return answeredError(res.StatusCode, body)
	}
	err = DecodeExport(res.Body, visit)
	if broken, ok := errors.AsType[*readError](err); ok {
		return c.transportError(ctx, broken.err)
	}
	return err
}

// readError marks that the stream broke off, in contrast to one that is wrong.
type readError struct{ err error }

func (e *readError) Error() string { return "the export broke off: " + e.err.Error() }
func (e *readError) Unwrap() error { return e.err }

// DecodeExport reads a stream of ExportRecords and calls visit with each process and chunk; End is checked and not visited. It refuses
// what the protocol does not allow: too much, chunks out of order, a process twice. Without its end the stream is an error, though what
// was visited before is good.
func DecodeExport(r io.Reader, visit func(ExportRecord) error) error {
	lines := bufio.NewScanner(io.LimitReader(r, exportBytes))
	lines.Buffer(make([]byte, 0, 64<<10), exportLine)
	d := exportDecoder{ids: map[string]bool{}}
	for lines.Scan() {
		var rec ExportRecord
		if err := json.Unmarshal(lines.Bytes(), &rec); err != nil {
			return protocolError("a line of the export is not JSON")
		}
		if err := d.check(&rec); err != nil {
			return err
		}
		if d.ended {
			return nil
		}
		if err := visit(rec); err != nil {
			return err
		}
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return protocolError("a line of the export is longer than %d bytes", exportLine)
	} else if err != nil {
		return &readError{err}
	}
	return &readError{io.ErrUnexpectedEOF}
}

// exportDecoder is what was read so far.
type exportDecoder struct {
	ids     map[string]bool
	process *Process
	stream  string
	next    int64
	at      int64
	kept    int
	ended   bool
}

func (d *exportDecoder) check(rec *ExportRecord) error {
	switch {
	case rec.Process != nil && rec.Chunk == nil && rec.End == nil:
		if err := checkProcess(rec.Process); err != nil {
			return err
		}
		if d.ids[rec.Process.ID] || len(d.ids) >= MaxProcesses {
			return protocolError("the export has a process twice, or too many")
		}
		d.ids[rec.Process.ID] = true
		d.process, d.stream, d.next, d.kept, d.at = rec.Process, "stdout", 0, 0, 0
	case rec.Chunk != nil && rec.Process == nil && rec.End == nil:
		return d.chunk(rec.Chunk)
	case rec.End != nil && rec.Process == nil && rec.Chunk == nil:
		if rec.End.Processes != len(d.ids) {
			return protocolError("the export does not have the processes that it says")
		}
		d.ended = true
	default:
		return protocolError("a record of the export is not one of a process, a chunk or the end")
	}
	return nil
}

func (d *exportDecoder) chunk(c *ExportChunk) error {
	if d.process == nil || c.Stream != "stdout" && c.Stream != "stderr" {
		return protocolError("a chunk of the export belongs to nothing")
	}
	if c.Stream != d.stream {
		if c.Stream == "stdout" {
			return protocolError("the export's streams are out of order")
		}
		d.stream, d.next, d.kept, d.at = c.Stream, 0, 0, 0
	}
	if len(c.Data) == 0 || len(c.Data) > OutputBytes || c.Offset < d.next || c.Offset > maxStream {
		return protocolError("a chunk of the export has an absurd size or place")
	}
	if c.AtMicros != 0 && (c.AtMicros < d.at || c.AtMicros < earliest.UnixMicro() || c.AtMicros > latest.UnixMicro()) {
		return protocolError("a chunk of the export has an absurd time")
	}
	d.at = max(d.at, c.AtMicros)
	d.next = c.Offset + int64(len(c.Data))
	if d.kept += len(c.Data); d.kept > SpoolBytes+HeadTailBytes {
		return protocolError("the export has more of a stream than is kept")
	}
	return nil
}
