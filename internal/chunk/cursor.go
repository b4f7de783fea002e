package chunk

import "io"

// cursor walks the parent's manifest beside a tree that is read in the same order. A nil cursor is a parent that has nothing there.
type cursor struct {
	m      *reader
	peeked *record
}

func (c *cursor) peek() (*record, error) {
	if c.peeked == nil {
		r, err := c.m.next()
		if err != nil {
			if err == io.EOF { //nolint:errorlint // what the vault gives may wrap it
				err = bad("it ends too early")
			}
			return nil, err
		}
		c.peeked = r
	}
	return c.peeked, nil
}

func (c *cursor) take() { c.peeked = nil }

// find gives the record of a name in the folder that the cursor is in, and goes past those before it; nil where there is none. The record is not taken.
func (c *cursor) find(name string) (*record, error) {
	for {
		r, err := c.peek()
		if err != nil || r.Kind == recUp || r.Name > name {
			return nil, err
		}
		if r.Name == name {
			return r, nil
		}
		if err := c.skip(); err != nil {
			return nil, err
		}
	}
}

// skip goes past the next record and what belongs to it.
func (c *cursor) skip() error {
	r, err := c.peek()
	if err != nil {
		return err
	}
	c.take()
	if r.Kind == recDir {
		return c.leave()
	}
	return c.pastBlocks()
}

// leave goes behind the folder that the cursor is in.
func (c *cursor) leave() error {
	for depth := 1; depth > 0; {
		r, err := c.peek()
		if err != nil {
			return err
		}
		c.take()
		switch r.Kind {
		case recDir:
			depth++
		case recUp:
			depth--
		}
	}
	return nil
}

// pastBlocks goes past what is left of the blocks of a file.
func (c *cursor) pastBlocks() error {
	for {
		r, err := c.peek()
		if err != nil || !r.isBlock() {
			return err
		}
		c.take()
	}
}

// blocks gives a file's blocks by their place.
type blocks struct {
	c  *cursor
	at int64 // of the next one
}

// block gives the parent's block at a place, nil where it has none that begins there.
func (b *blocks) block(at int64) (*record, error) {
	for b != nil {
		r, err := b.c.peek()
		if err != nil || !r.isBlock() || b.at > at {
			return nil, err
		}
		b.c.take()
		begin := b.at
		b.at += r.Len
		if begin == at {
			return r, nil
		}
	}
	return nil, nil
}
