package httpapi

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/errs"
)

const (
	// stallTime is how long a stream's reader or writer may make no progress.
	stallTime = time.Minute
	// stallBytes is the least that counts as progress of a large write.
	stallBytes = 256 << 10
	// unreadTime is how long the rest of a body that was refused is waited for.
	unreadTime = 2 * time.Second
)

// stream is the handler of one stream's route.
func (s *server) stream(o *op.StreamOperation) http.HandlerFunc {
	in := streamInput(o.Stream)
	return func(w http.ResponseWriter, r *http.Request) {
		rec := w.(*recorder)
		rec.operation = o.Name
		c, err := s.authenticateStream(rec, r, o)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		raw, err := in.read(w, r)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		conn := &connection{recorder: rec, rc: http.NewResponseController(rec.ResponseWriter), stall: s.stall, remote: r.RemoteAddr}
		sent := *r
		sent.Body = &body{ReadCloser: r.Body, conn: conn}
		err = s.Path.Stream(caller.With(r.Context(), c), o, raw, &op.Stream{W: conn, R: sent.WithContext(r.Context())})
		conn.end(r.ContentLength != 0 && !sent.Body.(*body).ended)
		switch {
		case err == nil || conn.hijacked:
		case rec.status == 0:
			s.fail(w, r, finer(err))
		default:
			if r.Context().Err() == nil && errs.CodeOf(err) == errs.Internal {
				s.Logger.ErrorContext(r.Context(), "stream failed inside the server", "operation", rec.operation, "request_id", rec.requestID, "error", err)
			}
			panic(http.ErrAbortHandler) // breaks the connection off
		}
	}
}

// authenticateStream finds out who opens a stream: by a key, or where there is none and the stream takes one, by a ticket.
func (s *server) authenticateStream(rec *recorder, r *http.Request, o *op.StreamOperation) (*caller.Caller, error) {
	if len(r.Header.Values("Authorization")) > 0 || o.In.Properties["ticket"] == nil || s.Ticket == nil || !r.URL.Query().Has("ticket") {
		return s.authenticate(rec, r)
	}
	found, err := s.Ticket(r.Context(), r.URL.Query().Get("ticket"), r.PathValue("p0"))
	if err != nil {
		return nil, err
	}
	return s.known(rec, r, found), nil
}

// finer gives errors that HTTP has a status of its own for that status.
func finer(err error) error {
	switch e := errs.From(err); {
	case e.Code == errs.InvalidState && e.Reason == "changed":
		return statusError{http.StatusPreconditionFailed, err}
	case e.Code == errs.InvalidInput && e.Reason == "range":
		return statusError{http.StatusRequestedRangeNotSatisfiable, err}
	}
	return err
}

// either serves an operation and the stream that shares its route: the stream where its argument says so.
func (s *server) either(o *op.StreamOperation, operation http.HandlerFunc) http.HandlerFunc {
	stream, name := s.stream(o), o.Stream.When
	return func(w http.ResponseWriter, r *http.Request) {
		values, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil || !values.Has(name) {
			operation(w, r)
			return
		}
		given := values[name]
		if len(given) != 1 || given[0] != "true" && given[0] != "false" {
			w.(*recorder).operation = o.Name
			s.fail(w, r, invalid(name, "must be true or false"))
			return
		}
		values.Del(name)
		u := *r.URL
		u.RawQuery = values.Encode()
		less := *r
		less.URL = &u
		if given[0] == "true" {
			stream(w, &less)
			return
		}
		operation(w, &less)
	}
}

// streamInput is the input of a stream: all of it in the path and the query, the body is bytes.
func streamInput(info op.StreamInfo) input {
	in := inputOf(info.Info)
	in.query, in.keyed, in.bytes = true, false, info.Kind == op.Upload
	return in
}

// connection is what a stream writes to: it cuts off a reader that makes no progress.
type connection struct {
	*recorder
	rc       *http.ResponseController
	stall    time.Duration
	remote   string // the caller's address
	hijacked bool
}

// unread gives the error of a write that failed because the caller has gone, or does not read: nothing failed inside the server then.
func (c *connection) unread(err error) error {
	if e, ok := errors.AsType[*net.OpError](err); ok && (e.Op == "write" || e.Addr != nil && e.Addr.String() == c.remote) {
		return errs.Wrap(errs.InvalidInput, err, "the answer was not read").Because("not_read")
	}
	return err
}

func (c *connection) Write(b []byte) (n int, err error) {
	for len(b) > stallBytes && err == nil {
		var m int
		m, err = c.write(b[:stallBytes])
		n, b = n+m, b[m:]
	}
	if err != nil {
		return n, err
	}
	m, err := c.write(b)
	return n + m, err
}

func (c *connection) write(b []byte) (int, error) {
	_ = c.rc.SetWriteDeadline(time.Now().Add(c.stall)) // not every writer has deadlines
	n, err := c.recorder.Write(b)
	return n, c.unread(err)
}

// ReadFrom lets the kernel move bytes from connection to connection where it can. What it is given at once should be no more than stallBytes.
func (c *connection) ReadFrom(r io.Reader) (int64, error) {
	from, ok := c.ResponseWriter.(io.ReaderFrom)
	if !ok {
		return io.Copy(struct{ io.Writer }{c}, r)
	}
	if c.status == 0 {
		c.status = http.StatusOK
	}
	_ = c.rc.SetWriteDeadline(time.Now().Add(c.stall))
	n, err := from.ReadFrom(r)
	c.bytes += n
	return n, c.unread(err)
}

// Flush sends what is written.
func (c *connection) Flush() {
	_ = c.rc.SetWriteDeadline(time.Now().Add(c.stall))
	if c.status == 0 {
		c.status = http.StatusOK
	}
	_ = c.rc.Flush() // a reader that has gone is seen at the next write
}

// Hijack takes the connection over: it has no deadlines then but those that its new owner sets.
func (c *connection) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := c.rc.Hijack()
	if err == nil {
		_ = conn.SetDeadline(time.Time{})
		c.hijacked, c.status = true, http.StatusSwitchingProtocols
	}
	return conn, rw, err
}

// end bounds what the server has still to do: to send what is buffered, and to read on in a body that nobody wanted. Afterwards Fresh takes the deadlines
// away.
func (c *connection) end(unread bool) {
	if c.hijacked {
		return
	}
	_ = c.rc.SetWriteDeadline(time.Now().Add(c.stall))
	if unread {
		c.Header().Set("Connection", "close")
		_ = c.rc.SetReadDeadline(time.Now().Add(unreadTime))
	}
}

// body is a request's body that cuts off a writer that makes no progress.
type body struct {
	io.ReadCloser
	conn  *connection
	ended bool
}

func (b *body) Read(p []byte) (int, error) {
	_ = b.conn.rc.SetReadDeadline(time.Now().Add(b.conn.stall))
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.ended = true
		_ = b.conn.rc.SetReadDeadline(time.Time{}) // it would end what watches whether the caller goes away
	}
	return n, err
}
