//go:build linux

package guest

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"
)

// inputWait is how long one input waits for a process that does not read.
const inputWait = 5 * time.Second

// input is the standard input of a process that can still be written to. A nil one was not asked for.
type input struct {
	mu     sync.Mutex
	file   *os.File
	tty    bool
	closed bool
}

// write writes p and then, with eof, ends the input. It gives how much was taken: less than all of it where the process did not
// read on within inputWait.
func (in *input) write(ctx context.Context, p []byte, eof bool) (int, error) {
	if in == nil {
		return 0, fail(CodeNoStdin, "the process was started without an open standard input")
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return 0, fail(CodeEnded, "the standard input is closed")
	}
	deadline := time.Now().Add(inputWait)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	_ = in.file.SetWriteDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { _ = in.file.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	n := 0
	if len(p) > 0 {
		var err error
		if n, err = in.file.Write(p); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, fail(CodeEnded, "the process does not read its standard input any more")
		}
	}
	if eof && n == len(p) {
		return n, in.end()
	}
	return n, nil
}

// feed gives the goroutine that writes what did not fit into the pipe at the start, and closes it where that was all.
func (in *input) feed(rest []byte, eof bool) func() {
	in.mu.Lock()
	return func() {
		defer in.mu.Unlock()
		_, _ = in.file.Write(rest)
		if eof {
			in.closed = true
			_ = in.file.Close()
		}
	}
}

// end closes a pipe; on a terminal it types the end-of-file character.
func (in *input) end() error {
	if in.tty {
		_, err := in.file.Write([]byte{4})
		return err
	}
	in.closed = true
	return in.file.Close()
}

// close is called once the process has ended. A write that waits is ended by it.
func (in *input) close() {
	if in == nil || in.tty { // a terminal's file is its stream's
		return
	}
	_ = in.file.Close()
	in.mu.Lock()
	in.closed = true
	in.mu.Unlock()
}
