package mcpapi

import (
	"io"
	"net/http"
	"time"
)

// bounded is an answer whose client has to keep taking it in: a part that it leaves unread for too long ends the connection, and with it the call.
type bounded struct {
	http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration
	wrote    bool
}

func newBounded(w http.ResponseWriter, patience time.Duration) *bounded {
	return &bounded{ResponseWriter: w, control: http.NewResponseController(w), patience: patience}
}

// Write implements http.ResponseWriter.
func (b *bounded) Write(p []byte) (int, error) {
	b.hurry()
	b.wrote = true
	return b.ResponseWriter.Write(p)
}

// Flush implements http.Flusher.
func (b *bounded) Flush() {
	b.hurry()
	_ = b.control.Flush() // a client that is gone is noticed by its context
}

func (b *bounded) hurry() {
	_ = b.control.SetWriteDeadline(time.Now().Add(b.patience)) // what cannot have one is a test's recorder
}

// finish sends what is left and lets the connection's next answer have a time of its own.
func (b *bounded) finish() {
	if b.wrote {
		b.Flush()
	}
	_ = b.control.SetWriteDeadline(time.Time{})
}

// readAll reads a body that has to come within the time. Where it does not, the connection is past it for good: what follows on it is not read.
func (b *bounded) readAll(r io.Reader) ([]byte, error) {
	_ = b.control.SetReadDeadline(time.Now().Add(b.patience))
	body, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	_ = b.control.SetReadDeadline(time.Time{})
	return body, nil
}
