package sshd

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/berthrun/berth/internal/errs"
)

// port connects to a port of the sandbox itself. Other hosts are what programs inside reach, under the sandbox's own network rules.
func (c *connection) port(ctx context.Context, nc ssh.NewChannel) {
	var to struct {
		Host       string
		Port       uint32
		OriginHost string
		OriginPort uint32
	}
	if err := ssh.Unmarshal(nc.ExtraData(), &to); err != nil || to.Port == 0 || to.Port > 65535 {
		_ = nc.Reject(ssh.ConnectionFailed, "a port is 1 to 65535")
		return
	}
	if !c.own(to.Host) {
		_ = nc.Reject(ssh.Prohibited, "only localhost of the sandbox is forwarded to")
		return
	}
	inside, err := c.guest.Forward(ctx, int(to.Port))
	forward(ctx, nc, inside, err)
}

// socket connects to a UNIX socket of the sandbox, with the rights of who logged in (PROTOCOL of OpenSSH, 2.4).
func (c *connection) socket(ctx context.Context, nc ssh.NewChannel) {
	var to struct {
		Path     string
		Reserved string
		Number   uint32
	}
	if err := ssh.Unmarshal(nc.ExtraData(), &to); err != nil {
		_ = nc.Reject(ssh.ConnectionFailed, "a socket is named by its path")
		return
	}
	inside, err := c.guest.ForwardSocket(ctx, to.Path, c.user)
	forward(ctx, nc, inside, err)
}

// forward answers a channel with a connection into the sandbox, or with why there is none, and carries bytes both ways.
func forward(ctx context.Context, nc ssh.NewChannel, inside net.Conn, err error) {
	if err != nil {
		_ = nc.Reject(ssh.ConnectionFailed, errs.From(err).Message)
		return
	}
	defer inside.Close()
	stop := context.AfterFunc(ctx, func() { _ = inside.Close() })
	defer stop()
	ch, requests, err := nc.Accept()
	if err != nil {
		return
	}
	defer ch.Close()
	go ssh.DiscardRequests(requests)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := io.Copy(inside, ch); err != nil || inside.(interface{ CloseWrite() error }).CloseWrite() != nil {
			_ = inside.Close()
		}
	})
	wg.Go(func() {
		_, err := io.Copy(ch, inside)
		if err != nil || ch.CloseWrite() != nil {
			_ = ch.Close()
		}
	})
	wg.Wait()
}

// own reports whether a name is the sandbox itself.
func (c *connection) own(host string) bool {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	switch host {
	case "", "localhost", "localhost4", "localhost6", c.resource.ID, c.resource.ID + domain:
		return true
	}
	if c.resource.Name != "" && (host == c.resource.Name || host == c.resource.Name+domain) {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && (ip.IsLoopback() || ip.IsUnspecified())
}
