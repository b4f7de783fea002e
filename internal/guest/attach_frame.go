package guest

import (
	"encoding/binary"
	"fmt"
	"io"
)

// The features of attached processes and forwarded ports.
const (
	FeatureAttach  = "attach"  // POST /attach: a process's streams as they are, without loss
	FeatureForward = "forward" // POST /forward?port= or ?path=&user=: a connection to a port or a socket inside
	FeatureSFTP    = "sftp"    // Start.SFTP
)

// What a connection is upgraded to.
const (
	attachUpgrade  = "berth-attach"
	forwardUpgrade = "berth-forward"
)

// The limits of an attachment.
const (
	FrameBytes  = 32 << 10  // of data in one frame
	WindowBytes = 256 << 10 // that each stream may be ahead of its reader

	maxExitFrame = 32 << 10
)

// Attach asks for a process's streams: POST /attach, upgraded to frames in both directions. With Start the process is started unless its id is
// known; else ID names one that was started before.
type Attach struct {
	ID     string `json:"id,omitempty"`
	Start  *Start `json:"start,omitempty"`
	Stdout int64  `json:"stdout,omitempty"` // the offsets to begin at: earlier bytes that are gone are passed over
	Stderr int64  `json:"stderr,omitempty"`
}

// Linger says what becomes of a process that nobody is attached to: after so long it gets HUP, and KILL where that does not end it. So does what came from
// it, but on pipes only what still has one of them as its output or errors. A process that was started without one goes on.
type Linger struct {
	AfterMS int64 `json:"afterMs"`
}

// The kinds of frames. Each is its kind, the length of what follows in four bytes, and that.
const (
	frameStdin  = 'i' // to the guest: bytes; none is the end
	frameSignal = 's' // to the guest: a signal's name
	frameResize = 'r' // to the guest: columns and rows, two bytes each
	frameCredit = 'w' // both ways: the kind of the stream's frames and how many more bytes of it may be sent, four bytes
	frameStdout = 'o' // from the guest: the offset in eight bytes, and bytes
	frameStderr = 'e' // the same
	frameExit   = 'x' // from the guest, the last one: a Process as JSON
)

const (
	frameHeader  = 5
	offsetHeader = 8
)

// frame is one that was read. Its data is the reader's until the next.
type frame struct {
	kind byte
	data []byte
}

// errFrame is what the other side must not send.
type errFrame struct{ why string }

func (e *errFrame) Error() string { return "frame: " + e.why }

// frameLimit is the longest frame of a kind that a side may get; negative is none of that kind.
func frameLimit(kind byte, fromGuest bool) int {
	switch {
	case kind == frameCredit:
		return 5
	case fromGuest && (kind == frameStdout || kind == frameStderr):
		return offsetHeader + FrameBytes
	case fromGuest && kind == frameExit:
		return maxExitFrame
	case !fromGuest && kind == frameStdin:
		return FrameBytes
	case !fromGuest && kind == frameSignal:
		return 16
	case !fromGuest && kind == frameResize:
		return 4
	}
	return -1
}

// frameReader reads frames and refuses what the protocol does not allow before it takes memory for it.
type frameReader struct {
	r         io.Reader
	fromGuest bool
	head      [frameHeader]byte
	buf       []byte
}

// next reads one frame. io.EOF is an end between two frames.
func (f *frameReader) next() (frame, error) {
	if _, err := io.ReadFull(f.r, f.head[:]); err != nil {
		return frame{}, err
	}
	kind, n := f.head[0], binary.BigEndian.Uint32(f.head[1:])
	limit := frameLimit(kind, f.fromGuest)
	switch {
	case limit < 0:
		return frame{}, &errFrame{fmt.Sprintf("unknown kind %q", kind)}
	case n > uint32(limit): //nolint:gosec // limits are small
		return frame{}, &errFrame{fmt.Sprintf("%d bytes of kind %q", n, kind)}
	}
	if cap(f.buf) < int(n) {
		f.buf = make([]byte, max(int(n), 4<<10))
	}
	f.buf = f.buf[:n]
	if _, err := io.ReadFull(f.r, f.buf); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return frame{}, err
	}
	fr := frame{kind, f.buf}
	return fr, fr.check()
}

// check refuses frames whose content is malformed.
func (f *frame) check() error {
	switch f.kind {
	case frameCredit:
		if len(f.data) != 5 || f.credit() < 1 || f.credit() > WindowBytes {
			return &errFrame{"an absurd credit"}
		}
	case frameResize:
		if len(f.data) != 4 {
			return &errFrame{"an absurd size"}
		}
	case frameStdout, frameStderr:
		if len(f.data) <= offsetHeader || f.offset() < 0 || f.offset() > maxStream {
			return &errFrame{"output without its offset"}
		}
	}
	return nil
}

func (f *frame) credit() int      { return int(binary.BigEndian.Uint32(f.data[1:])) }
func (f *frame) creditKind() byte { return f.data[0] }
func (f *frame) offset() int64    { return int64(binary.BigEndian.Uint64(f.data)) } //nolint:gosec // checked
func (f *frame) output() []byte   { return f.data[offsetHeader:] }
func (f *frame) size() (cols, rows int) {
	return int(binary.BigEndian.Uint16(f.data)), int(binary.BigEndian.Uint16(f.data[2:]))
}

// appendFrame writes a frame behind b.
func appendFrame(b []byte, kind byte, data []byte) []byte {
	b = append(b, kind)
	b = binary.BigEndian.AppendUint32(b, uint32(len(data))) //nolint:gosec // at most a frame
	return append(b, data...)
}

// appendOutput writes a frame of output behind b.
func appendOutput(b []byte, kind byte, offset int64, data []byte) []byte {
	b = append(b, kind)
	b = binary.BigEndian.AppendUint32(b, uint32(offsetHeader+len(data))) //nolint:gosec // at most a frame
	b = binary.BigEndian.AppendUint64(b, uint64(offset))                 //nolint:gosec // never negative
	return append(b, data...)
}

func creditFrame(kind byte, n int) []byte {
	var d [5]byte
	d[0] = kind
	binary.BigEndian.PutUint32(d[1:], uint32(n)) //nolint:gosec // at most a window
	return appendFrame(nil, frameCredit, d[:])
}

func resizeFrame(s Size) []byte {
	var d [4]byte
	binary.BigEndian.PutUint16(d[:], uint16(min(max(s.Cols, 0), 1<<16-1)))  //nolint:gosec // bounded
	binary.BigEndian.PutUint16(d[2:], uint16(min(max(s.Rows, 0), 1<<16-1))) //nolint:gosec // bounded
	return appendFrame(nil, frameResize, d[:])
}
