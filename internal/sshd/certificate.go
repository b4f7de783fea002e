package sshd

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
)

const (
	certTime = 5 * time.Minute
	certSkew = time.Minute // that a client's clock may be behind

	// loginExtension holds whom a certificate logs in.
	loginExtension = "login@berth"
	domain         = ".berth"
	defaultUser    = "user"
)

// actSSH signs a key for one sandbox.
func (s *Service) actSSH(ctx context.Context, in *api.SSHIn, d *op.Draft) (*api.SSHOut, error) {
	user := in.User
	if user == "" {
		user = defaultUser
	}
	now := s.Now()
	until := now.Add(certTime)
	cert := &ssh.Certificate{
		Key: d.Data.(ssh.PublicKey), CertType: ssh.UserCert, KeyId: keyID(caller.From(ctx)), ValidPrincipals: []string{in.SandboxID},
		ValidAfter: unix(now.Add(-certSkew)), ValidBefore: unix(until),
		Permissions: ssh.Permissions{Extensions: map[string]string{
			loginExtension: user, "permit-pty": "", "permit-port-forwarding": "",
		}},
	}
	if err := cert.SignCert(rand.Reader, s.user); err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	return &api.SSHOut{
		Certificate: line(cert), KnownHosts: "@cert-authority *" + domain + " " + line(s.host.PublicKey()), User: user,
		Host: d.Resource.ID + domain, ExpiresAt: until.UTC().Truncate(time.Second),
	}, nil
}

// keyID says in a certificate for whom it was made. A connection with it has to come from the same.
func keyID(c *caller.Caller) string {
	id := c.OrgID + "/" + c.PrincipalID
	if c.KeyID != "" && c.KeyID != c.PrincipalID {
		id += "/" + c.KeyID
	}
	return id
}

func line(k ssh.PublicKey) string { return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k))) }

func unix(t time.Time) uint64 { return uint64(max(t.Unix(), 0)) } //nolint:gosec // not negative

// hostKey is what the server shows for a sandbox: its own key, certified for the sandbox's names.
func (s *Service) hostKey(r op.Resource) (ssh.Signer, error) {
	now := s.Now()
	cert := &ssh.Certificate{
		Key: s.self.PublicKey(), CertType: ssh.HostCert, KeyId: r.ID, ValidPrincipals: []string{r.ID + domain},
		ValidAfter: unix(now.Add(-time.Hour)), ValidBefore: unix(now.Add(time.Hour)),
	}
	if r.Name != "" {
		cert.ValidPrincipals = append(cert.ValidPrincipals, r.Name+domain)
	}
	if err := cert.SignCert(rand.Reader, s.host); err != nil {
		return nil, fmt.Errorf("sign host certificate: %w", err)
	}
	return ssh.NewCertSigner(cert, s.self)
}

// The reasons for which a login is refused, for the log: the client is told none.
var (
	errNoCertificate = errors.New("no certificate of ours")
	errOtherCaller   = errors.New("the certificate was made for another caller")
	errOtherUser     = errors.New("the certificate is for another user")
)

// login checks a key that a client logs in with and gives the sandbox's account.
func (s *Service) login(c *caller.Caller, sandboxID, asked string, key ssh.PublicKey) (string, error) {
	cert, ok := key.(*ssh.Certificate)
	if !ok || cert.CertType != ssh.UserCert || !bytes.Equal(cert.SignatureKey.Marshal(), s.user.PublicKey().Marshal()) {
		return "", errNoCertificate
	}
	checker := ssh.CertChecker{Clock: s.Now}
	if err := checker.CheckCert(sandboxID, cert); err != nil {
		return "", err
	}
	if cert.KeyId != keyID(c) {
		return "", errOtherCaller
	}
	user := cert.Extensions[loginExtension]
	if user == "" || user != asked {
		return "", errOtherUser
	}
	return user, nil
}
