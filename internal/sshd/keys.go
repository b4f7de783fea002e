package sshd

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/crypto/ssh"
)

// Keys keeps the seeds of the service's keys.
type Keys interface {
	// Seeds gives what is kept, or keeps what fresh gives and gives that. Of callers at the same time all get the same.
	Seeds(ctx context.Context, fresh func() []byte) ([]byte, error)
}

// seeds are the secrets of three ed25519 keys.
type seeds struct {
	User []byte `json:"user"` // signs the certificates of users
	Host []byte `json:"host"` // signs the certificates of hosts
	Self []byte `json:"self"` // is the server's own
}

func freshSeeds() []byte {
	var s seeds
	for _, p := range []*[]byte{&s.User, &s.Host, &s.Self} {
		*p = make([]byte, ed25519.SeedSize)
		_, _ = rand.Read(*p)
	}
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // bytes always marshal
	}
	return b
}

// load reads the keys.
func (s *Service) load() error {
	b, err := s.Keys.Seeds(context.Background(), freshSeeds)
	if err != nil {
		return fmt.Errorf("read SSH keys: %w", err)
	}
	var all seeds
	if err := json.Unmarshal(b, &all); err != nil {
		return errors.New("read SSH keys: they are damaged")
	}
	for to, seed := range map[*ssh.Signer][]byte{&s.user: all.User, &s.host: all.Host, &s.self: all.Self} {
		if len(seed) != ed25519.SeedSize {
			return errors.New("read SSH keys: they are damaged")
		}
		if *to, err = ssh.NewSignerFromSigner(ed25519.NewKeyFromSeed(seed)); err != nil {
			return fmt.Errorf("use SSH keys: %w", err)
		}
	}
	return nil
}

// FileKeys keeps the seeds in a file that only its owner reads.
type FileKeys string

// Seeds implements Keys. A file that others could read or that is damaged is an error: it is never replaced silently.
func (f FileKeys) Seeds(_ context.Context, fresh func() []byte) ([]byte, error) {
	path := string(f)
	for range 2 {
		st, err := os.Stat(path)
		if err == nil {
			if st.Mode().Perm()&0o077 != 0 {
				return nil, fmt.Errorf("%s may be read by others: chmod 600 it, or remove it so that new keys are made", path)
			}
			return os.ReadFile(path)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err := writeOnce(path, fresh()); err != nil {
			return nil, err
		}
	}
	return os.ReadFile(path)
}

// writeOnce writes a file whole unless there is one.
func writeOnce(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // made with mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		if err = os.Link(f.Name(), path); errors.Is(err, fs.ErrExist) {
			err = nil
		}
	}
	return errors.Join(err, os.Remove(f.Name()))
}

// MemoryKeys keeps the seeds as long as the program runs.
type MemoryKeys struct{ b []byte }

// Seeds implements Keys.
func (m *MemoryKeys) Seeds(_ context.Context, fresh func() []byte) ([]byte, error) {
	if m.b == nil {
		m.b = fresh()
	}
	return m.b, nil
}

func bits(key any) int {
	if k, ok := key.(*rsa.PublicKey); ok {
		return k.N.BitLen()
	}
	return 0
}
