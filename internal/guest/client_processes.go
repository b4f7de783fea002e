package guest

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Exec starts a process, or finds the one of the same id, and waits for its end, at most wait; a negative wait is without limit. A
// process that still runs afterwards goes on.
func (c *Client) Exec(ctx context.Context, in Start, wait time.Duration) (ExecResult, error) {
	k := call{method: http.MethodPost, path: "/exec", body: in, safe: true, limit: execAnswer, timeout: wait + waitMargin}
	if wait < 0 {
		k.timeout = 1<<63 - 1
	} else {
		k.query = url.Values{"waitMs": {millis(wait)}}
	}
	ended := c.seen.has(in.ID)
	var out ExecResult
	err := c.do(ctx, k, &out)
	if err == nil {
		err = c.checkProcess(&out.Process, in.ID, ended)
	}
	for _, e := range []*Excerpt{&out.Stdout, &out.Stderr} {
		if err == nil {
			err = checkExcerpt(e)
		}
	}
	if err != nil {
		return ExecResult{}, err
	}
	return out, nil
}

// StartProcess starts a process, or finds the one of the same id.
func (c *Client) StartProcess(ctx context.Context, in Start) (Process, error) {
	return c.process(ctx, in.ID, call{method: http.MethodPost, path: "/processes", body: in, safe: true})
}

// Process reads one process.
func (c *Client) Process(ctx context.Context, id string) (Process, error) {
	return c.process(ctx, id, call{method: http.MethodGet, path: processPath(id, "")})
}

// Signal sends a signal, named without SIG, to a process's group, KILL to all that came from it.
func (c *Client) Signal(ctx context.Context, op, id, name string) (Process, error) {
	return c.process(ctx, id, call{method: http.MethodPost, path: processPath(id, "/signal"), op: op, body: Signal{Name: name}})
}

// process makes a call that answers one process.
func (c *Client) process(ctx context.Context, id string, k call) (Process, error) {
	ended := c.seen.has(id)
	var out Process
	err := c.do(ctx, k, &out)
	if err == nil {
		err = c.checkProcess(&out, id, ended)
	}
	if err != nil {
		return Process{}, err
	}
	return out, nil
}

// Processes lists what is remembered, oldest first.
func (c *Client) Processes(ctx context.Context) ([]Process, error) {
	var out ProcessList
	if err := c.do(ctx, call{method: http.MethodGet, path: "/processes", limit: listAnswer}, &out); err != nil {
		return nil, err
	}
	if err := checkList(len(out.Processes), func(i int) *Process { return &out.Processes[i] }); err != nil {
		return nil, err
	}
	return out.Processes, nil
}

// checkList checks what a list says of n processes: not too many, each of them right, none twice.
func checkList(n int, at func(int) *Process) error {
	if n > MaxProcesses {
		return protocolError("it lists more processes than it may keep")
	}
	ids := make(map[string]bool, n)
	for i := range n {
		p := at(i)
		if err := checkProcess(p); err != nil {
			return err
		}
		if ids[p.ID] {
			return protocolError("it lists a process twice")
		}
		ids[p.ID] = true
	}
	return nil
}

// OutputQuery says which part of a process's output is asked for.
type OutputQuery struct {
	Stream string // stdout, stderr; empty is stdout
	Offset int64
	Limit  int           // at most and by default OutputBytes
	Wait   time.Duration // for the first new byte or the end
}

// Output reads a part of a process's output.
func (c *Client) Output(ctx context.Context, id string, q OutputQuery) (Output, error) {
	if q.Limit <= 0 || q.Limit > OutputBytes {
		q.Limit = OutputBytes
	}
	if q.Stream == "" {
		q.Stream = "stdout"
	}
	k := call{
		method: http.MethodGet, path: processPath(id, "/output"), timeout: max(q.Wait, 0) + waitMargin,
		query: url.Values{"stream": {q.Stream}, "offset": {strconv.FormatInt(q.Offset, 10)}, "limit": {strconv.Itoa(q.Limit)}, "waitMs": {millis(max(q.Wait, 0))}},
	}
	ended := c.seen.has(id)
	var out Output
	err := c.do(ctx, k, &out)
	if err == nil {
		err = c.checkProcess(&out.Process, id, ended)
	}
	if err == nil {
		err = checkOutput(&out, q.Offset, q.Limit)
	}
	if err != nil {
		return Output{}, err
	}
	return out, nil
}

// Input writes to a process's standard input and gives how many bytes were taken.
func (c *Client) Input(ctx context.Context, op, id string, in Input) (int, error) {
	var out InputWritten
	if err := c.do(ctx, call{method: http.MethodPost, path: processPath(id, "/input"), op: op, body: in}, &out); err != nil {
		return 0, err
	}
	if out.Written < 0 || out.Written > len(in.Data) {
		return 0, protocolError("it took more input than it was given")
	}
	return out.Written, nil
}

// Resize sets the size of a process's terminal.
func (c *Client) Resize(ctx context.Context, id string, size Size) error {
	return c.do(ctx, call{method: http.MethodPost, path: processPath(id, "/resize"), body: size, safe: true}, &Size{})
}

func processPath(id, rest string) string { return "/processes/" + url.PathEscape(id) + rest }

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
