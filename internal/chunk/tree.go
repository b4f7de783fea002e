package chunk

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

func sum(b []byte) Hash { return sha256.Sum256(b) }

// tree makes files. A name is only ever made in an open folder that was itself made here, so that there is nothing to follow.
type tree struct {
	root   *os.File
	open   []level // the folders that are open, the root first
	file   int     // that is written; -1 where none is
	entry  *record // of the file
	left   int64
	at     int64
	links  int    // folder of the first name of everything that has several
	staged string // its name in the root
	linked uint64
	done   bool
}

type level struct {
	fd int
	r  *record
}

func newTree(dir string) (*tree, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open folder to make the tree in: %w", err)
	}
	t := &tree{root: os.NewFile(uintptr(fd), dir), file: -1, links: -1}
	if names, err := t.root.Readdirnames(1); len(names) > 0 {
		return nil, errors.Join(fmt.Errorf("make tree: %s is not empty", dir), err, t.root.Close())
	}
	return t, nil
}

func (t *tree) close() {
	for i := len(t.open) - 1; i > 0; i-- {
		_ = unix.Close(t.open[i].fd)
	}
	for _, fd := range []int{t.file, t.links} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	_ = t.root.Close()
}

// top is the folder in which names are made.
func (t *tree) top() int { return t.open[len(t.open)-1].fd }

func (t *tree) write(r *record, content []byte) error {
	switch r.Kind {
	case recDir:
		return t.folder(r)
	case recUp:
		return t.up()
	case recFile:
		return wrap("make", r.Name, t.begin(r))
	case recSymlink, recNode:
		return wrap("make", r.Name, t.node(r))
	case recLink:
		return wrap("link", r.Name, unix.Linkat(t.links, strconv.FormatUint(r.Link, 10), t.top(), r.Name, 0))
	case recInline:
		content = r.Inline
	}
	return wrap("write", t.entry.Name, t.block(r, content))
}

func (t *tree) folder(r *record) error {
	if len(t.open) == 0 {
		t.open = append(t.open, level{int(t.root.Fd()), r}) //nolint:gosec // a descriptor
		return nil
	}
	if err := unix.Mkdirat(t.top(), r.Name, 0o700); err != nil {
		return wrap("make", r.Name, err)
	}
	fd, err := unix.Openat(t.top(), r.Name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return wrap("open", r.Name, err)
	}
	t.open = append(t.open, level{fd, r})
	return nil
}

// up ends a folder: its own data come last, since what is made in it changes its time.
func (t *tree) up() error {
	l := t.open[len(t.open)-1]
	t.open = t.open[:len(t.open)-1]
	if len(t.open) == 0 {
		return t.unstage(l)
	}
	defer unix.Close(l.fd)
	return wrap("finish", l.r.Name, finish(l.fd, "", &l.r.Meta))
}

// stage gives a folder that a name of everything with several names is kept in until the end, so that further ones need no path.
func (t *tree) stage() error {
	if t.links >= 0 {
		return nil
	}
	var b [16]byte
	_, _ = rand.Read(b[:])
	t.staged = ".berth-" + hex.EncodeToString(b[:])
	root := t.open[0].fd
	err := unix.Mkdirat(root, t.staged, 0o700)
	if err == nil {
		t.links, err = unix.Openat(root, t.staged, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	}
	return wrap("make", t.staged, err)
}

// linkable keeps a name of what was just made for those that follow.
func (t *tree) linkable(r *record) error {
	if !r.Meta.Linked {
		return nil
	}
	if err := t.stage(); err != nil {
		return err
	}
	t.linked++
	return unix.Linkat(t.top(), r.Name, t.links, strconv.FormatUint(t.linked-1, 10), 0)
}

// unstage removes the staged names and finishes the root.
func (t *tree) unstage(root level) error {
	for n := range t.linked {
		if err := unix.Unlinkat(t.links, strconv.FormatUint(n, 10), 0); err != nil {
			return wrap("remove", t.staged, err)
		}
	}
	if t.links >= 0 {
		if err := unix.Unlinkat(root.fd, t.staged, unix.AT_REMOVEDIR); err != nil {
			return wrap("remove", t.staged, err)
		}
	}
	t.done = true
	return wrap("finish", "", finish(root.fd, "", &root.r.Meta))
}

// finish waits until all is on the disk.
func (t *tree) finish(relaxed bool) error {
	if !t.done {
		return bad("it ends too early")
	}
	if relaxed {
		return nil
	}
	if err := unix.Syncfs(int(t.root.Fd())); err != nil { //nolint:gosec // a descriptor
		return fmt.Errorf("sync tree: %w", err)
	}
	return nil
}

func (t *tree) node(r *record) error {
	var err error
	if r.Kind == recSymlink {
		err = unix.Symlinkat(r.Target, t.top(), r.Name)
	} else {
		err = unix.Mknodat(t.top(), r.Name, r.Meta.Mode&unix.S_IFMT|0o600, int(r.Rdev)) //nolint:gosec // as the kernel gave it
	}
	if err == nil {
		err = finish(t.top(), r.Name, &r.Meta)
	}
	if err == nil {
		err = t.linkable(r)
	}
	return err
}

func (t *tree) begin(r *record) error {
	fd, err := unix.Openat(t.top(), r.Name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	t.file, t.entry, t.left, t.at = fd, r, r.Size, 0
	if err := t.linkable(r); err != nil {
		return err
	}
	if r.Size == 0 {
		return t.endFile()
	}
	return unix.Ftruncate(fd, r.Size)
}

// block writes a block's content; pages of zeros stay holes.
func (t *tree) block(r *record, content []byte) error {
	at := t.at
	for len(content) > 0 {
		n := min(page, len(content))
		if isZero(content[:n]) {
			content, at = content[n:], at+int64(n)
			continue
		}
		for n < len(content) && !isZero(content[n:min(n+page, len(content))]) {
			n = min(n+page, len(content))
		}
		for run := content[:n]; len(run) > 0; {
			m, err := unix.Pwrite(t.file, run, at)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return err
			}
			run, at = run[max(m, 0):], at+int64(max(m, 0))
		}
		content = content[n:]
	}
	t.at += r.Len
	if t.left -= r.Len; t.left == 0 {
		return t.endFile()
	}
	return nil
}

func (t *tree) endFile() error {
	fd := t.file
	t.file = -1
	err := finish(fd, "", &t.entry.Meta)
	return errors.Join(err, unix.Close(fd))
}

// finish sets what a name in an open folder has beside its content, or with an empty name what the open file itself has. The owner comes first: changing it
// takes set-user-id bits and capabilities away. The time comes last.
func finish(fd int, name string, m *meta) error {
	at := []unix.Timespec{{Sec: m.Sec, Nsec: int64(m.Nsec)}, {Sec: m.Sec, Nsec: int64(m.Nsec)}}
	path := "/proc/self/fd/" + strconv.Itoa(fd)
	link := m.Mode&unix.S_IFMT == unix.S_IFLNK
	var err error
	if name == "" {
		err = unix.Fchown(fd, int(m.UID), int(m.GID))
		if err == nil {
			err = unix.Fchmod(fd, m.Mode&0o7777)
		}
	} else {
		path += "/" + name
		err = unix.Fchownat(fd, name, int(m.UID), int(m.GID), unix.AT_SYMLINK_NOFOLLOW)
		if err == nil && !link {
			err = unix.Fchmodat(fd, name, m.Mode&0o7777, 0) // it was just made, and is no link
		}
	}
	for _, x := range m.Xattrs {
		if err != nil {
			break
		}
		if name == "" {
			err = unix.Fsetxattr(fd, x.Name, x.Value, 0)
		} else {
			err = unix.Lsetxattr(path, x.Name, x.Value, 0)
		}
		if err != nil {
			err = fmt.Errorf("set attribute %s: %w", clip(x.Name), err)
		}
	}
	if err != nil {
		return err
	}
	if name == "" {
		return unix.UtimesNanoAt(unix.AT_FDCWD, path, at, 0)
	}
	return unix.UtimesNanoAt(fd, name, at, unix.AT_SYMLINK_NOFOLLOW)
}
