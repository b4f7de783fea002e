package main

import (
	"errors"
	"os"
	"sync"
)

// mostLog is how many bytes the log has before it is put aside, over the one that was put aside before.
const mostLog = 8 << 20

// logFile is a log that never takes more than twice mostLog, however long this process lives.
type logFile struct {
	path string
	most int64

	mu   sync.Mutex
	file *os.File
	size int64
}

// openLog opens a log to write on.
func openLog(path string, most int64) (*logFile, error) {
	l := &logFile{path: path, most: most}
	return l, l.open()
}

func (l *logFile) open() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	if l.file != nil {
		_ = l.file.Close()
	}
	l.file, l.size = f, info.Size()
	return nil
}

// Write implements io.Writer. Where the log cannot be put aside it goes on as it is.
func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > 0 && l.size+int64(len(p)) > l.most && os.Rename(l.path, l.path+".old") == nil {
		_ = l.open()
	}
	n, err := l.file.Write(p)
	l.size += int64(n)
	return n, err
}
