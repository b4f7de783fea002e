package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/client"
	"github.com/berthrun/berth/internal/tarball"
)

// down copies out of a sandbox. What is in a sandbox is not trusted: nothing is written but below the target.
func (c *copier) down(ctx context.Context, src place, dst string) (copied, error) {
	if dst == "-" {
		return c.print(ctx, src)
	}
	f, err := c.stat(ctx, src)
	if err != nil {
		return copied{}, err
	}
	if f == nil {
		return copied{}, notThere(src)
	}
	folder := f.Type == "directory"
	fi, err := os.Stat(dst)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return copied{}, err
	}
	if there := err == nil; (there && fi.IsDir() || !there && strings.HasSuffix(dst, "/")) && !(folder && contentsOf(src.path)) {
		name := path.Base(f.Path)
		if !filepath.IsLocal(name) || filepath.Base(name) != name {
			return copied{}, usagef("the sandbox names the file %q: give the target's whole path", name)
		}
		if !there {
			if err := os.MkdirAll(dst, 0o755); err != nil {
				return copied{}, err
			}
		}
		dst = filepath.Join(dst, name)
	}
	if folder {
		return c.fetchFolder(ctx, src, f, dst)
	}
	return c.fetch(ctx, src, f, dst)
}

func (c *copier) print(ctx context.Context, src place) (copied, error) {
	body, err := c.conn.Download(ctx, c.file(src), 0, "")
	if err != nil {
		return copied{}, err
	}
	defer body.Close()
	c.noteWoke(body.Woke)
	n, err := io.CopyBuffer(struct{ io.Writer }{c.stdout}, struct{ io.Reader }{body}, make([]byte, copyBytes))
	return copied{To: "-", Entries: 1, Bytes: n}, err
}

const copyBytes = 256 << 10

func (c *copier) fetchFolder(ctx context.Context, src place, f *api.File, dst string) (copied, error) {
	body, err := c.conn.DownloadFolder(ctx, c.file(src))
	if err != nil {
		return copied{}, err
	}
	defer body.Close()
	c.noteWoke(body.Woke)
	if err := os.MkdirAll(dst, 0o755); err != nil {
		return copied{}, err
	}
	c.bar.begin(f.Name, 0, 0)
	st, err := tarball.Unpack(struct{ io.Reader }{body}, dst, tarball.Options{Progress: c.bar.at})
	return copied{To: dst, Entries: st.Entries, Bytes: st.Bytes, Skipped: st.Skipped}, err
}

// fetch copies a file under another name beside the target and renames it. What a run before left of the same file is gone on from.
func (c *copier) fetch(ctx context.Context, src place, f *api.File, dst string) (copied, error) {
	sum := sha256.Sum256([]byte(src.sandbox + "\x00" + f.Path + "\x00" + f.ETag))
	part := filepath.Join(filepath.Dir(dst), "."+filepath.Base(dst)+"."+hex.EncodeToString(sum[:6])+".part")
	out, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return copied{}, err
	}
	defer out.Close()
	have, err := out.Seek(0, io.SeekEnd)
	if err != nil {
		return copied{}, err
	}
	etag := ""
	if have > 0 {
		etag = f.ETag
	}
	body, err := c.conn.Download(ctx, c.file(src), have, etag)
	if err != nil {
		if have == 0 {
			_ = os.Remove(part)
		}
		return copied{}, err
	}
	defer body.Close()
	c.noteWoke(body.Woke)
	c.bar.begin(f.Name, body.Size, have)
	if err := c.pull(out, body, have); err != nil {
		if e, ok := asError(err); ok && e.Reason == "changed" {
			_ = os.Remove(part)
		} else {
			c.bar.close()
			c.note("repeat the command to go on from byte %d", body.Offset())
		}
		return copied{}, err
	}
	mode, err := strconv.ParseUint(f.Mode, 8, 32)
	if err != nil {
		mode = 0o644
	}
	err = errors.Join(out.Chmod(fs.FileMode(mode)&0o777), out.Sync(), out.Close())
	if err == nil {
		err = os.Rename(part, dst)
	}
	if err != nil {
		return copied{}, fmt.Errorf("write %s: %w", dst, err)
	}
	return copied{To: dst, Entries: 1, Bytes: body.Size}, nil
}

func (c *copier) pull(out io.Writer, body *client.Content, have int64) error {
	buf := make([]byte, copyBytes)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			if _, err := out.Write(buf[:n]); err != nil {
				return err
			}
			have += int64(n)
			c.bar.at(have)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
