// Package sshd owns SSH into sandboxes: the keys that sign for it, certificates, and the server that speaks SSH over the HTTP API.
//
// There is no port: an SSH client's ProxyCommand carries the connection in a WebSocket. The package runs nothing itself: what a session starts is started
// by the sandbox's guest, with its rights.
package sshd

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
)

// Sandboxes gives the guests of sandboxes of the caller's organization.
type Sandboxes interface {
	// Resource gives the sandbox as authorization sees it, or errs.NotFound.
	Resource(ctx context.Context, id string) (op.Resource, error)
	// Awake gives the guest of a sandbox, which is started where it must and may be; woke says how.
	Awake(ctx context.Context, id string) (g *guest.Client, woke string, err error)
	// Explain gives the error of a call on a guest a better one where the sandbox died under it.
	Explain(ctx context.Context, id string, err error) error
}

// Callers tells whether a key is still good.
type Callers interface {
	Again(ctx context.Context, org, keyID string) (*caller.Caller, error)
}

// Config is what the service is made of. Sandboxes, Callers and Keys are required.
type Config struct {
	Sandboxes Sandboxes
	Callers   Callers
	Keys      Keys
	Version   string        // of the program, as SSH clients see it
	Recheck   time.Duration // how often an open connection's key and sandbox are looked at again; 10 s where 0
	Now       func() time.Time
	Logger    *slog.Logger
}

// Service signs keys and serves SSH.
type Service struct {
	Config
	user, host ssh.Signer // sign certificates
	self       ssh.Signer // what the server shows, certified by host
}

// New makes the service. It reads its keys, and makes them where there are none.
func New(c Config) (*Service, error) {
	if c.Recheck == 0 {
		c.Recheck = 10 * time.Second
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Service{Config: c}
	return s, s.load()
}

// Register binds the operations on SSH.
func (s *Service) Register(r *op.Registry) {
	op.Handle(r, api.SSH, op.Handler[api.SSHIn, api.SSHOut]{Draft: s.draftSSH, Act: s.actSSH})
	op.HandleStream(r, api.SSHConnect, op.StreamHandler[api.SandboxIn]{
		Draft: func(ctx context.Context, in *api.SandboxIn) (*op.Draft, error) { return s.draft(ctx, in.SandboxID) }, Serve: s.serve,
	})
}

func (s *Service) draft(ctx context.Context, sandboxID string) (*op.Draft, error) {
	r, err := s.Sandboxes.Resource(ctx, sandboxID)
	if err != nil {
		return nil, err
	}
	return &op.Draft{Resource: r}, nil
}

func (s *Service) draftSSH(ctx context.Context, in *api.SSHIn) (*op.Draft, error) {
	key, err := publicKey(in.PublicKey)
	if err != nil {
		return nil, err
	}
	d, err := s.draft(ctx, in.SandboxID)
	if err != nil {
		return nil, err
	}
	d.Data = key
	return d, nil
}

// publicKey reads a line of OpenSSH and refuses what is no plain, strong key.
func publicKey(line string) (ssh.PublicKey, error) {
	bad := func(why string) error {
		return errs.E(errs.InvalidInput, "the public key %s", why).With("path", "publicKey").
			Suggest("Give the content of a .pub file, such as one that ssh-keygen -t ed25519 makes.")
	}
	key, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil || len(options) > 0 || len(rest) > 0 {
		return nil, bad("is not one line as OpenSSH writes it")
	}
	switch key.Type() {
	case ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256:
		return key, nil
	case ssh.KeyAlgoRSA:
		if rsa, ok := key.(ssh.CryptoPublicKey); ok && bits(rsa.CryptoPublicKey()) >= 2048 {
			return key, nil
		}
		return nil, bad("is an RSA key of less than 2048 bits")
	}
	return nil, bad("is of a kind that is not taken: " + key.Type())
}
