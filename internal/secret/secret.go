// Package secret owns what is stored and has to be read again, such as the passwords of registries: a data key for each organization, which is stored
// wrapped by a key that is not in the database, and values sealed with it that are bound to the row they belong to.
//
// It keeps no value itself: the sealed text is in the owner's own table. Secrets that only need to be compared are hashed elsewhere.
package secret

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
)

// Wrapper encrypts data keys with a key that the database does not hold. bound is what a key is for: it unwraps for nothing else.
type Wrapper interface {
	Wrap(ctx context.Context, key, bound []byte) ([]byte, error)
	Unwrap(ctx context.Context, wrapped, bound []byte) ([]byte, error)
}

// Tx is the part of a transaction that is needed.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Box seals and opens values.
type Box struct {
	wrapper Wrapper
	now     func() time.Time

	mu    sync.Mutex
	known map[string]cipher.AEAD // by organization
}

// New makes a box. With a nil wrapper it seals nothing: UNAVAILABLE.
func New(w Wrapper, now func() time.Time) *Box {
	if now == nil {
		now = time.Now
	}
	return &Box{wrapper: w, now: now, known: map[string]cipher.AEAD{}}
}

// version begins every sealed text.
const version = "v1."

// Seal encrypts a value of an organization for one row, such as "registry/ghcr.io". It makes the organization's key in the transaction where it has none.
func (b *Box) Seal(ctx context.Context, tx Tx, org, row string, plain []byte) (string, error) {
	key, err := b.key(ctx, tx, org, true)
	if err != nil {
		return "", err
	}
	nonce := make([]byte, key.NonceSize())
	_, _ = rand.Read(nonce)
	return version + base64.RawStdEncoding.EncodeToString(key.Seal(nonce, nonce, plain, bound(org, row))), nil
}

// Open decrypts what Seal gave for the same organization and row.
func (b *Box) Open(ctx context.Context, tx Tx, org, row, sealed string) ([]byte, error) {
	key, err := b.key(ctx, tx, org, false)
	if err != nil {
		return nil, err
	}
	text, ok := strings.CutPrefix(sealed, version)
	raw, err := base64.RawStdEncoding.DecodeString(text)
	if !ok || err != nil || len(raw) < key.NonceSize() {
		return nil, errors.New("a sealed value is of no known form")
	}
	plain, err := key.Open(nil, raw[:key.NonceSize()], raw[key.NonceSize():], bound(org, row))
	if err != nil {
		return nil, fmt.Errorf("open sealed value: %w", err)
	}
	return plain, nil
}

// bound is the data that a sealed value is tied to.
func bound(org, row string) []byte { return []byte("berth/secret/1\x00" + org + "\x00" + row) }

func keyBound(org string) []byte { return []byte("berth/datakey/1\x00" + org) }

func (b *Box) key(ctx context.Context, tx Tx, org string, create bool) (cipher.AEAD, error) {
	if b.wrapper == nil {
		return nil, errs.E(errs.Unavailable, "this deployment has no key to encrypt secrets with").Because("no_key").
			Suggest("Have the operator give it a key file.")
	}
	b.mu.Lock()
	key := b.known[org]
	b.mu.Unlock()
	if key != nil {
		return key, nil
	}
	wrapped, err := stored(ctx, tx, org)
	if err == nil && wrapped == "" && create {
		wrapped, err = b.insert(ctx, tx, org)
	}
	if err != nil {
		return nil, err
	}
	raw, err := base64.RawStdEncoding.DecodeString(wrapped)
	if err != nil || wrapped == "" {
		return nil, errors.Join(errors.New("the organization has no data key"), err)
	}
	plain, err := b.wrapper.Unwrap(ctx, raw, keyBound(org))
	if err != nil {
		return nil, fmt.Errorf("unwrap data key: %w", err)
	}
	if key, err = gcm(plain); err != nil {
		return nil, err
	}
	if !create { // what a transaction has made is only sure once it has committed
		b.mu.Lock()
		b.known[org] = key
		b.mu.Unlock()
	}
	return key, nil
}

func stored(ctx context.Context, tx Tx, org string) (wrapped string, err error) {
	err = tx.QueryRowContext(ctx, `SELECT wrapped FROM data_keys WHERE org_id = $1`, org).Scan(&wrapped)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read data key: %w", err)
	}
	return wrapped, nil
}

// insert makes a key, unless another has at the same moment: then that one counts.
func (b *Box) insert(ctx context.Context, tx Tx, org string) (string, error) {
	plain := make([]byte, 32)
	_, _ = rand.Read(plain)
	raw, err := b.wrapper.Wrap(ctx, plain, keyBound(org))
	if err != nil {
		return "", fmt.Errorf("wrap data key: %w", err)
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO data_keys (org_id, wrapped, created_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`,
		org, base64.RawStdEncoding.EncodeToString(raw), db.Micros(b.now()))
	if err != nil {
		return "", fmt.Errorf("insert data key: %w", err)
	}
	return stored(ctx, tx, org)
}

func gcm(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("use key: %w", err)
	}
	return cipher.NewGCM(block)
}
