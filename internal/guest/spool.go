//go:build linux

package guest

import (
	"sync"
	"sync/atomic"
	"time"
)

// The memory that spools of all processes together may hold. Beyond spoolSoft the oldest ended processes' are let go; beyond spoolHard
// no spool grows above spoolFloor.
const (
	spoolSoft  = 48 << 20
	spoolHard  = 64 << 20
	spoolFloor = 64 << 10
	spoolFirst = 4 << 10 // of a stream's first allocation

	attachedSpool = 256 << 10 // of a stream that only whoever is attached wants
)

// budget counts what spools hold.
type budget struct {
	used atomic.Int64
}

// take reserves n bytes, or reports that the limit is reached.
func (b *budget) take(n int, must bool) bool {
	if now := b.used.Add(int64(n)); now > spoolHard && !must {
		b.used.Add(int64(-n))
		return false
	}
	return true
}

func (b *budget) give(n int) { b.used.Add(int64(-n)) }

// tight reports whether ended processes should be let go.
func (b *budget) tight() bool { return b.used.Load() > spoolSoft }

// spool keeps the last SpoolBytes of one stream and, once those do not reach back to its beginning, its first HeadTailBytes. Writing to it
// never waits for a reader.
type spool struct {
	budget *budget
	limit  int // of the ring; SpoolBytes where 0

	mu     sync.Mutex
	ring   []byte // grows by doubling up to SpoolBytes
	kept   int    // bytes of the ring that are filled
	at     int    // where the next byte goes
	head   []byte // only once the ring has dropped bytes
	total  int64
	stamps stamps
	now    func() time.Time // nil: no stamps
	wake   chan struct{}    // closed at the next change; nil while nobody waits

	followers map[*follower]struct{}
	moved     chan struct{} // closed when a follower moves or goes; nil while nobody waits
}

// follower is a reader from whom nothing may be lost: while there are followers, no more is written than the one that is furthest has room for.
type follower struct{ at int64 }

// write appends p.
func (s *spool) write(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(p) == 0 {
		return
	}
	s.grow(len(p))
	if s.kept+len(p) > len(s.ring) && s.head == nil && s.total == int64(s.kept) {
		s.keepHead(p)
	}
	if s.now != nil {
		s.stamps.add(s.total, s.now().UnixMicro())
	}
	s.total += int64(len(p))
	if len(p) > len(s.ring) {
		p = p[len(p)-len(s.ring):]
	}
	n := copy(s.ring[s.at:], p)
	copy(s.ring, p[n:])
	s.at = (s.at + len(p)) % len(s.ring)
	s.kept = min(s.kept+len(p), len(s.ring))
	s.notify()
}

// grow makes room for n more bytes where the limits allow it.
func (s *spool) grow(n int) {
	want := min(s.kept+n, s.most())
	size := max(len(s.ring), spoolFirst)
	for size < want {
		size *= 2
	}
	for size > len(s.ring) && !s.budget.take(size-len(s.ring), size <= spoolFloor) {
		size /= 2
	}
	if size <= len(s.ring) {
		return
	}
	ring := make([]byte, size)
	copy(ring, s.last(s.kept))
	s.ring, s.at = ring, s.kept%size
}

func (s *spool) most() int {
	if s.limit > 0 {
		return s.limit
	}
	return SpoolBytes
}

// keepHead saves the beginning of the stream before the ring drops it. It is called while the ring still holds everything.
func (s *spool) keepHead(p []byte) {
	head := s.last(s.kept)
	if len(head) > HeadTailBytes {
		head = head[:HeadTailBytes]
	}
	if room := HeadTailBytes - len(head); room > 0 {
		head = append(head, p[:min(room, len(p))]...)
	}
	s.budget.take(len(head), true)
	s.head = head
}

// last copies the last n of the bytes that are kept.
func (s *spool) last(n int) []byte {
	n = min(n, s.kept)
	return s.slice(s.kept-n, n)
}

// slice copies n of the kept bytes from the i-th on.
func (s *spool) slice(i, n int) []byte {
	out := make([]byte, n)
	if n == 0 {
		return out
	}
	from := (s.at - s.kept + i + len(s.ring)) % len(s.ring)
	c := copy(out, s.ring[from:min(from+n, len(s.ring))])
	copy(out[c:], s.ring)
	return out
}

// read gives at most limit bytes from the offset on, and the offset of the first: a later one where what was asked for is gone, the end
// where it is beyond it.
func (s *spool) read(offset int64, limit int) (data []byte, from, earliest, total int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	earliest = s.total - int64(s.kept)
	from = min(max(offset, earliest), s.total)
	n := int(min(int64(limit), s.total-from))
	if n > 0 {
		data = s.slice(int(from-earliest), n)
	}
	return data, from, earliest, s.total
}

// excerpt gives the beginning and the end.
func (s *spool) excerpt() Excerpt {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := Excerpt{Total: s.total}
	if s.total == int64(s.kept) {
		e.Head = s.slice(0, min(s.kept, HeadTailBytes))
	} else {
		e.Head = append([]byte{}, s.head...)
	}
	e.Tail = s.last(int(min(HeadTailBytes, s.total-int64(len(e.Head)))))
	return e
}

// headAndRing gives all that is kept: the beginning where it was saved apart, and the ring with its offset and stamps.
func (s *spool) headAndRing() (head, ring []byte, ringAt int64, marks stamps) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ringAt = s.total - int64(s.kept)
	return append([]byte(nil), s.head...), s.last(s.kept), ringAt, s.stamps.from(ringAt)
}

// size is the number of bytes ever written.
func (s *spool) size() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

// changed gives a channel that is closed at the next change. A reader takes it before it looks, so that it misses nothing.
func (s *spool) changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wake == nil {
		s.wake = make(chan struct{})
	}
	return s.wake
}

// poke wakes the readers without a change of the bytes.
func (s *spool) poke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify()
}

func (s *spool) notify() {
	if s.wake != nil {
		close(s.wake)
		s.wake = nil
	}
}

// drop lets go of the bytes and keeps the count.
func (s *spool) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.budget.give(len(s.ring) + len(s.head))
	s.ring, s.head, s.kept, s.at, s.stamps = nil, nil, 0, 0, nil
}

// follow adds a follower that begins at an offset, or where the bytes from there on are gone or not yet written, at the nearest that there is.
func (s *spool) follow(at int64) *follower {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &follower{min(max(at, s.total-int64(s.kept)), s.total)}
	if s.followers == nil {
		s.followers = map[*follower]struct{}{}
	}
	s.followers[f] = struct{}{}
	return f
}

func (s *spool) unfollow(f *follower) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.followers, f)
	s.notifyMoved()
}

func (s *spool) position(f *follower) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return f.at
}

func (s *spool) advance(f *follower, to int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.at = to
	s.notifyMoved()
}

func (s *spool) notifyMoved() {
	if s.moved != nil {
		close(s.moved)
		s.moved = nil
	}
}

// room says how many of n bytes can be written without taking from the furthest follower what it has not read. Where none can, moved is closed once
// that may have changed.
func (s *spool) room(n int) (room int, moved <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.followers) == 0 {
		return n, nil
	}
	furthest := s.total - int64(s.kept)
	for f := range s.followers {
		furthest = max(furthest, f.at)
	}
	s.grow(n)
	if room = min(n, len(s.ring)-int(s.total-furthest)); room > 0 {
		return room, nil
	}
	if s.moved == nil {
		s.moved = make(chan struct{})
	}
	return 0, s.moved
}
