package chunk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// memory is a Vault for tests.
type memory struct {
	mu    sync.Mutex
	has   map[Hash][]byte
	packs int
	bytes int64
	read  int
}

func newMemory() *memory { return &memory{has: map[Hash][]byte{}} }

func (m *memory) Have(_ context.Context, hashes []Hash) ([]bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]bool, len(hashes))
	for i, h := range hashes {
		_, out[i] = m.has[h]
	}
	return out, nil
}

func (m *memory) Add(_ context.Context, pack []byte) error {
	all, err := PackEntries(pack)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.packs++
	m.bytes += int64(len(pack))
	for _, e := range all {
		m.has[e.Hash] = bytes.Clone(pack[e.At : e.At+e.Stored])
	}
	return nil
}

func (m *memory) Read(_ context.Context, hashes []Hash) ([][]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([][]byte, len(hashes))
	for i, h := range hashes {
		b, ok := m.has[h]
		if !ok {
			return nil, errs.E(errs.NotFound, "there is no chunk %s", h)
		}
		out[i] = b
	}
	m.read += len(hashes)
	return out, nil
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root")
		}
		t.Skip("needs root: owners, devices and trusted attributes are made")
	}
}

func noise(seed uint64, n int) []byte {
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(b)
	return b
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// plant makes a tree with everything that a tree can have.
func plant(t testing.TB, dir string) {
	t.Helper()
	p := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.MkdirAll(p("a/b/c"), 0o755))
	must(t, os.WriteFile(p("a/small"), []byte("small"), 0o640))
	must(t, os.WriteFile(p("a/empty"), nil, 0o600))
	must(t, os.WriteFile(p("a/large"), noise(1, 300_001), 0o644))
	must(t, os.WriteFile(p("a/block"), noise(2, block), 0o644))
	must(t, os.WriteFile(p("a/twin"), noise(1, 300_001), 0o644))
	must(t, os.WriteFile(p("a/text"), bytes.Repeat([]byte("what compresses well\n"), 20_000), 0o644))
	must(t, os.WriteFile(p("a/\xff\xfe\n\t name"), []byte("bytes"), 0o644))
	must(t, os.WriteFile(p("a/"+strings.Repeat("n", 255)), []byte("long"), 0o644))
	f, err := os.Create(p("a/sparse"))
	must(t, err)
	for _, at := range []int64{0, 1 << 20, 10<<20 + 4096, 20<<20 - 5} {
		_, err := f.WriteAt(noise(uint64(at), 5000), at)
		must(t, err)
	}
	must(t, errors.Join(f.Truncate(30<<20+7), f.Close()))
	must(t, os.WriteFile(p("a/hole"), nil, 0o644))
	must(t, os.Truncate(p("a/hole"), 1<<40))
	must(t, os.Symlink("../../../../etc/passwd", p("a/out")))
	must(t, os.Symlink("/etc", p("a/etc")))
	must(t, os.Symlink(strings.Repeat("x", 4000), p("a/far")))
	must(t, os.Link(p("a/large"), p("a/b/large")))
	must(t, os.Link(p("a/large"), p("a/b/c/0")))
	must(t, os.Link(p("a/out"), p("a/b/out")))
	must(t, unix.Mkfifo(p("a/fifo"), 0o622))
	must(t, unix.Mknod(p("a/whiteout"), unix.S_IFCHR, 0))
	must(t, os.Link(p("a/whiteout"), p("a/b/whiteout")))
	must(t, unix.Mknod(p("a/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	must(t, unix.Mknod(p("a/socket"), unix.S_IFSOCK|0o700, 0))
	must(t, os.Chown(p("a/small"), 1234, 4_000_000_000))
	must(t, os.Lchown(p("a/out"), 77, 88))
	must(t, unix.Chmod(p("a/small"), 0o6751))
	must(t, unix.Chmod(p("a/b"), 0o1777))
	must(t, unix.Chmod(p("a/b/c"), 0o000))
	must(t, unix.Setxattr(p("a/b"), "trusted.overlay.opaque", []byte("y"), 0))
	must(t, unix.Setxattr(p("a/small"), "user.note", []byte("a\x00b"), 0))
	must(t, unix.Setxattr(p("a/small"), "user.empty", nil, 0))
	must(t, unix.Setxattr(p("a/block"), "security.capability", []byte("\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
	must(t, unix.Lsetxattr(p("a/etc"), "trusted.link", []byte("l"), 0))
	for name, at := range map[string]time.Time{
		"a/small": time.Unix(1_000_000_000, 123_456_789), "a/out": time.Unix(5, 6), "a/text": time.Unix(-1000, 7), "a/b/c": time.Unix(9, 9), "a/fifo": time.Unix(8, 1),
		"a/b": time.Unix(1_700_000_000, 999_999_999), "a": time.Unix(1, 1), "": time.Unix(2, 2),
	} {
		ts := unix.NsecToTimespec(at.UnixNano())
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, p(name), []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW))
	}
}

// look describes a tree: everything that must be the same.
func look(t testing.TB, dir string) map[string]string {
	t.Helper()
	out, inodes := map[string]string{}, map[uint64]string{}
	must(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		s := fmt.Sprintf("mode %o owner %d:%d mtime %d.%09d", st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
		case unix.S_IFREG:
			s += fmt.Sprintf(" size %d links %d", st.Size, st.Nlink)
			if st.Size < 1<<30 {
				b, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				s += " content " + sum(b).String()
			}
			if st.Size > 1<<20 && st.Blocks*512 > st.Size/4 {
				s += fmt.Sprintf(" blocks %d", st.Blocks)
			}
		case unix.S_IFLNK:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			s += " to " + to
		default:
			s += fmt.Sprintf(" links %d device %d", st.Nlink, st.Rdev)
		}
		if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			if inodes[st.Ino] == "" {
				inodes[st.Ino] = name
			}
			s += " is " + inodes[st.Ino]
		}
		buf := make([]byte, 64<<10)
		n, err := unix.Llistxattr(path, buf)
		if err != nil {
			return err
		}
		keys := strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00")
		slices.Sort(keys)
		for _, k := range keys {
			if k != "" {
				n, err := unix.Lgetxattr(path, k, buf)
				if err != nil {
					return err
				}
				s += fmt.Sprintf(" %s=%q", k, buf[:n])
			}
		}
		out[name] = s
		return nil
	}))
	return out
}

func TestTreeComesBackExactly(t *testing.T) {
	needRoot(t)
	for _, cut := range []Cut{ByPlace, ByPages} {
		t.Run("cut "+string(cut), func(t *testing.T) {
			from, to, v := t.TempDir(), t.TempDir(), newMemory()
			plant(t, from)
			root, stats, err := Save(t.Context(), v, Source{Dir: from, Cut: cut}, nil)
			must(t, err)
			if again, err := DecodeRoot(root.Encode()); err != nil || again.Ref() != root.Ref() {
				t.Fatalf("the root is another after decoding: %v", err)
			}
			must(t, Load(t.Context(), v, root, Target{Dir: to}))
			if d := cmp.Diff(look(t, from), look(t, to)); d != "" {
				t.Errorf("the tree is another one (-saved +loaded):\n%s", d)
			}
			if stats.Bytes > 4<<20 || stats.Read > 4<<20 {
				t.Errorf("holes were read: %+v", stats)
			}
			if err := Load(t.Context(), v, root, Target{Dir: to}); err == nil {
				t.Error("a tree was made in a folder that is not empty")
			}
			again, stats, err := Save(t.Context(), v, Source{Dir: from, Cut: cut, At: root.At}, root)
			if err != nil || stats.New != 0 || again.Ref() != root.Ref() {
				t.Errorf("the same tree once more: %+v, %v", stats, err)
			}
		})
	}
}
