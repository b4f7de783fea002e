package nodeapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/chunk"
	"github.com/berthrun/berth/internal/errs"
)

// A link carries a chunk.Vault from the control plane, which has it, to a node, which has the files: messages of one byte for what they are, four for the
// number of the request that they belong to, four for the length of what follows. Numbers are big-endian.
const (
	linkHave   = 'h' // hashes → a byte for each, 1 where it is had
	linkAdd    = 'a' // a pack → nothing
	linkRead   = 'r' // hashes → for each its length in four bytes and its stored form
	linkDone   = 'd' // the result, as JSON; nothing follows
	linkFailed = 'f' // an error, as JSON: of the request, or from the node of the whole
	linkAnswer = 'o' // of a request

	linkHead = 9
	// maxLink bounds a message: a pack, or the chunks of a read.
	maxLink = 64 << 20
)

type linkMessage struct {
	kind    byte
	request uint32
	body    []byte
}

// linkWriter writes whole messages.
type linkWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *linkWriter) write(kind byte, request uint32, parts ...[]byte) error {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if n > maxLink {
		return fmt.Errorf("a message of %d bytes is too long for a link", n)
	}
	head := make([]byte, linkHead)
	head[0] = kind
	binary.BigEndian.PutUint32(head[1:], request)
	binary.BigEndian.PutUint32(head[5:], uint32(n)) //nolint:gosec // bounded
	l.mu.Lock()
	defer l.mu.Unlock()
	buffers := net.Buffers(append([][]byte{head}, parts...))
	_, err := buffers.WriteTo(l.w)
	return err
}

func readLink(r io.Reader) (linkMessage, error) {
	var head [linkHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return linkMessage{}, err
	}
	n := binary.BigEndian.Uint32(head[5:])
	if n > maxLink {
		return linkMessage{}, errs.E(errs.Upstream, "a message of %d bytes came", n)
	}
	var body bytes.Buffer // grows with what comes, not with what is said to come
	if _, err := io.CopyN(&body, r, int64(n)); err != nil {
		return linkMessage{}, err
	}
	return linkMessage{head[0], binary.BigEndian.Uint32(head[1:]), body.Bytes()}, nil
}

func packHashes(hashes []chunk.Hash) []byte {
	b := make([]byte, 0, len(hashes)*len(chunk.Hash{}))
	for i := range hashes {
		b = append(b, hashes[i][:]...)
	}
	return b
}

func unpackHashes(b []byte) ([]chunk.Hash, error) {
	if len(b)%len(chunk.Hash{}) != 0 {
		return nil, errs.E(errs.Upstream, "a part of a hash came")
	}
	out := make([]chunk.Hash, len(b)/len(chunk.Hash{}))
	for i := range out {
		out[i] = chunk.Hash(b[i*len(chunk.Hash{}):])
	}
	return out, nil
}

// linkRequests is how many requests of a node are worked on at once.
const linkRequests = 3

// serveLink answers a node's requests from a vault until the node says that it is done, and gives its result.
func serveLink(ctx context.Context, conn net.Conn, v chunk.Vault) (result []byte, err error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(linkRequests)
	in, out := bufio.NewReaderSize(conn, 64<<10), &linkWriter{w: conn}
	for {
		m, err := readLink(in)
		if err == nil && (m.kind == linkDone || m.kind == linkFailed) {
			_ = group.Wait() // answers that it did not wait for
			if m.kind == linkFailed {
				return nil, linkError(m.body)
			}
			return m.body, nil
		}
		if err != nil {
			_ = group.Wait()
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, unreachable(err)
		}
		group.Go(func() error { return answerLink(gctx, m, v, out) })
	}
}

func answerLink(ctx context.Context, m linkMessage, v chunk.Vault, out *linkWriter) error {
	parts, err := askVault(ctx, m, v)
	if err == nil {
		return out.write(linkAnswer, m.request, parts...)
	}
	b, merr := json.Marshal(toWire(err))
	if merr != nil {
		return merr
	}
	return out.write(linkFailed, m.request, b)
}

func askVault(ctx context.Context, m linkMessage, v chunk.Vault) ([][]byte, error) {
	if m.kind == linkAdd {
		return nil, v.Add(ctx, m.body)
	}
	hashes, err := unpackHashes(m.body)
	if err != nil {
		return nil, err
	}
	switch m.kind {
	case linkHave:
		had, err := v.Have(ctx, hashes)
		b := make([]byte, len(had))
		for i := range had {
			if had[i] {
				b[i] = 1
			}
		}
		return [][]byte{b}, err
	case linkRead:
		stored, err := v.Read(ctx, hashes)
		var parts [][]byte
		for _, s := range stored {
			parts = append(parts, binary.BigEndian.AppendUint32(nil, uint32(len(s))), s) //nolint:gosec // of a chunk
		}
		return parts, err
	}
	return nil, errs.E(errs.Upstream, "an unknown request came")
}

func linkError(body []byte) error {
	var e wireError
	if err := json.Unmarshal(body, &e); err != nil {
		return errs.Wrap(errs.Upstream, err, "an unknown error came")
	}
	return fromWire(&e)
}

// linkVault is the vault as the node sees it.
type linkVault struct {
	out *linkWriter

	mu      sync.Mutex
	next    uint32
	waiting map[uint32]chan linkMessage
	broken  error
}

var _ chunk.Vault = (*linkVault)(nil)

func newLinkVault(conn io.Writer) *linkVault {
	return &linkVault{out: &linkWriter{w: conn}, waiting: map[uint32]chan linkMessage{}}
}

// receive hands answers to those who wait, until the connection ends.
func (l *linkVault) receive(r io.Reader) {
	in := bufio.NewReaderSize(r, 64<<10)
	for {
		m, err := readLink(in)
		l.mu.Lock()
		if err != nil {
			l.broken = unreachable(err)
			for id, c := range l.waiting {
				close(c)
				delete(l.waiting, id)
			}
			l.mu.Unlock()
			return
		}
		if c := l.waiting[m.request]; c != nil {
			c <- m
			delete(l.waiting, m.request)
		}
		l.mu.Unlock()
	}
}

func (l *linkVault) ask(ctx context.Context, kind byte, body []byte) ([]byte, error) {
	c := make(chan linkMessage, 1)
	l.mu.Lock()
	if l.broken != nil {
		l.mu.Unlock()
		return nil, l.broken
	}
	l.next++
	id := l.next
	l.waiting[id] = c
	l.mu.Unlock()
	if err := l.out.write(kind, id, body); err != nil {
		return nil, unreachable(err)
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case m, ok := <-c:
		switch {
		case !ok:
			return nil, l.broken
		case m.kind == linkFailed:
			return nil, linkError(m.body)
		}
		return m.body, nil
	}
}

// Have implements chunk.Vault.
func (l *linkVault) Have(ctx context.Context, hashes []chunk.Hash) ([]bool, error) {
	b, err := l.ask(ctx, linkHave, packHashes(hashes))
	if err == nil && len(b) != len(hashes) {
		err = errs.E(errs.Upstream, "an answer for other chunks came")
	}
	if err != nil {
		return nil, err
	}
	out := make([]bool, len(b))
	for i := range b {
		out[i] = b[i] == 1
	}
	return out, nil
}

// Add implements chunk.Vault.
func (l *linkVault) Add(ctx context.Context, pack []byte) error {
	_, err := l.ask(ctx, linkAdd, pack)
	return err
}

// Read implements chunk.Vault.
func (l *linkVault) Read(ctx context.Context, hashes []chunk.Hash) ([][]byte, error) {
	b, err := l.ask(ctx, linkRead, packHashes(hashes))
	if err != nil {
		return nil, err
	}
	out := make([][]byte, len(hashes))
	for i := range out {
		if len(b) < 4 {
			return nil, errShortLink()
		}
		n := binary.BigEndian.Uint32(b)
		if b = b[4:]; uint64(n) > uint64(len(b)) {
			return nil, errShortLink()
		}
		out[i], b = b[:n], b[n:]
	}
	return out, nil
}

func errShortLink() error {
	return errs.Wrap(errs.Upstream, errors.New("too short"), "an answer with fewer chunks came")
}
