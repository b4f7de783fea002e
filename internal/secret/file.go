package secret

import (
	"context"
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// keyFile wraps with a key in a file.
type keyFile struct{ aead cipher.AEAD }

// File gives the wrapper of a key file: 64 hexadecimal digits, readable by nobody but its owner. One that is missing is made. Several servers of one
// database share the file's content.
func File(path string) (Wrapper, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		b, err = makeKeyFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read key file: %w", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o077 != 0 {
		return nil, errs.E(errs.InvalidConfig, "the key file %s can be read by others", path).Suggest("chmod 600 %s", path)
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(b)))
	if err != nil || len(key) != 32 {
		return nil, errs.E(errs.InvalidConfig, "the key file %s does not hold 64 hexadecimal digits", path).
			Suggest("Put back the one that the database's secrets were stored with.")
	}
	aead, err := gcm(key)
	if err != nil {
		return nil, err
	}
	return &keyFile{aead}, nil
}

// makeKeyFile makes a file that is whole under its name, and takes the one that another process has made at the same moment.
func makeKeyFile(path string) ([]byte, error) {
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	f, err := os.CreateTemp(filepath.Dir(path), ".key-") // 0600
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // it has another name by now
	_, err = f.WriteString(hex.EncodeToString(key) + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if d, err := os.Open(filepath.Dir(path)); err == nil {
		_ = d.Sync()
		_ = d.Close()
	}
	return os.ReadFile(path)
}

// Wrap implements Wrapper.
func (k *keyFile) Wrap(_ context.Context, key, bound []byte) ([]byte, error) {
	nonce := make([]byte, k.aead.NonceSize())
	_, _ = rand.Read(nonce)
	return k.aead.Seal(nonce, nonce, key, bound), nil
}

// Unwrap implements Wrapper.
func (k *keyFile) Unwrap(_ context.Context, wrapped, bound []byte) ([]byte, error) {
	n := k.aead.NonceSize()
	if len(wrapped) < n {
		return nil, errors.New("a wrapped key is too short")
	}
	plain, err := k.aead.Open(nil, wrapped[:n], wrapped[n:], bound)
	if err != nil {
		return nil, errors.New("the key file is not the one that this database's secrets were stored with")
	}
	return plain, nil
}
