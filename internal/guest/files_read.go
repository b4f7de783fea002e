//go:build linux

package guest

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
)

func (s *Server) fileRead(w http.ResponseWriter, r *http.Request) {
	fileCall(s, w, r, smallRequest, func(in *FileRead) string { return in.User }, s.read)
}

// read reads a part of a file by bytes or by lines.
func (s *Server) read(in *FileRead) (*FileData, error) {
	p, err := cleanPath(in.Path)
	if err != nil {
		return nil, err
	}
	if in.Offset < 0 || in.Limit < 0 || in.LineStart < 0 || in.LineEnd < 0 || in.LineEnd > 0 && in.LineEnd < in.LineStart {
		return nil, fail(CodeInvalid, "offsets, limits and lines count up from 0, 0, 1 and 1")
	}
	if in.Offset > 0 && (in.LineStart > 0 || in.LineEnd > 0) {
		return nil, fail(CodeInvalid, "read either by offset or by lines")
	}
	if in.Limit == 0 || in.Limit > ReadBytes {
		in.Limit = ReadBytes
	}
	f, fi, err := s.openRegular(p)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := checkMatch(p, in.IfMatch, sysStat(fi)); err != nil {
		return nil, err
	}
	out := &FileData{Info: s.info(p, fi)}
	if in.LineStart > 0 || in.LineEnd > 0 {
		err = readLines(f, max(in.LineStart, 1), in.LineEnd, in.Limit, out)
	} else {
		err = readBytes(f, in.Offset, in.Limit, out)
	}
	if err != nil {
		return nil, s.pathError(p, err)
	}
	return out, nil
}

// readBytes reads from an offset. The end is what the file gives, not what its size says: that of a file in /proc is 0.
func readBytes(f *os.File, offset, limit int64, out *FileData) error {
	buf := make([]byte, limit+1)
	n, err := f.ReadAt(buf, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	out.EOF = int64(n) <= limit
	out.Data = buf[:min(int64(n), limit)]
	out.Offset, out.Next = offset, offset+int64(len(out.Data))
	return nil
}

// readLines reads the lines from first to last, or to the end where last is 0. At the limit it stops after a whole line; of a line that is
// longer than the limit it gives the beginning.
func readLines(f *os.File, first, last, limit int64, out *FileData) error {
	buf := make([]byte, 64<<10)
	line, at := int64(1), int64(0)
	started := false
	data := make([]byte, 0, 4<<10)
	for {
		n, err := f.Read(buf)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		rest := buf[:n]
		for len(rest) > 0 {
			take := bytes.IndexByte(rest, '\n') + 1
			whole := take > 0
			if !whole {
				take = len(rest)
			}
			if line >= first {
				if !started {
					started, out.Offset = true, at
				}
				if int64(len(data)+take) > limit {
					return stopLines(data, rest[:take], limit, out)
				}
				data = append(data, rest[:take]...)
			}
			at += int64(take)
			rest = rest[take:]
			if whole {
				if line++; last > 0 && line > last {
					return endLines(f, data, len(rest) == 0, out)
				}
			}
		}
		if err != nil || n == 0 {
			if !started {
				out.Offset = at
			}
			out.EOF = true
			fill(data, out)
			return nil
		}
	}
}

// stopLines ends a read that is at its limit.
func stopLines(data, more []byte, limit int64, out *FileData) error {
	if i := bytes.LastIndexByte(data, '\n') + 1; i > 0 {
		data = data[:i]
	} else {
		data = append(data, more[:limit-int64(len(data))]...)
	}
	fill(data, out)
	return nil
}

// endLines ends a read after its last line; whether that is the end of the file may take one more read to know.
func endLines(f *os.File, data []byte, atEdge bool, out *FileData) error {
	if atEdge {
		var one [1]byte
		n, err := f.Read(one[:])
		out.EOF = n == 0 && errors.Is(err, io.EOF)
	}
	fill(data, out)
	return nil
}

// fill sets what follows from the data.
func fill(data []byte, out *FileData) {
	out.Data, out.Next = data, out.Offset+int64(len(data))
	out.Lines = int64(bytes.Count(data, []byte{'\n'}))
	if len(data) > 0 && data[len(data)-1] != '\n' {
		out.Lines++
	}
}
