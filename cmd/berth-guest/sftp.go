package main

import (
	"errors"
	"io"
	"os"

	"github.com/pkg/sftp"
)

// serveSFTP serves the files that this process's account reaches, on standard input and output, relative paths from where it was started. (The library's own
// working directory would make the targets of symlinks absolute.)
func serveSFTP() error {
	s, err := sftp.NewServer(standard{os.Stdin, os.Stdout})
	if err != nil {
		return err
	}
	if err := s.Serve(); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// standard is standard input and output as one stream.
type standard struct {
	io.Reader
	io.Writer
}

// Close implements io.Closer.
func (standard) Close() error { return errors.Join(os.Stdin.Close(), os.Stdout.Close()) }
