package sshd

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/crypto/ssh"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/guest"
)

const (
	loginTime = 30 * time.Second
	pingEvery = 20 * time.Second
	// maxChannels is how many sessions and forwarded connections one SSH connection holds.
	maxChannels = 256
)

// serve speaks SSH over a WebSocket until the connection ends.
func (s *Service) serve(ctx context.Context, in *api.SandboxIn, d *op.Draft, st *op.Stream) error {
	if !strings.EqualFold(st.R.Header.Get("Upgrade"), "websocket") {
		return errs.E(errs.InvalidInput, "this is a WebSocket").Because("not_websocket").Suggest("Connect with: berth sandboxes ssh.")
	}
	if st.R.Header.Get("Origin") != "" { // no page of ours connects here
		return errs.E(errs.Forbidden, "this connection comes from a web page").Because("cross_origin").Suggest("Connect from a program.")
	}
	g, _, err := s.Sandboxes.Awake(ctx, in.SandboxID)
	if err != nil {
		return err
	}
	ws, err := websocket.Accept(st.W, st.R, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return errs.Wrap(errs.InvalidInput, err, "the WebSocket handshake is not right").Because("not_websocket")
	}
	ws.SetReadLimit(1 << 20)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn := websocket.NetConn(context.WithoutCancel(ctx), ws, websocket.MessageBinary)
	c := &connection{Service: s, resource: d.Resource, guest: g, caller: caller.From(ctx), ws: ws}
	stop := context.AfterFunc(ctx, func() { _ = ws.CloseNow() })
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { c.watch(ctx, cancel) })
	err = c.serve(ctx, conn)
	_ = ws.Close(websocket.StatusNormalClosure, "")
	cause := context.Cause(ctx)
	cancel(nil)
	wg.Wait()
	if cause != nil {
		return cause
	}
	return err
}

// connection is one SSH connection.
type connection struct {
	*Service
	resource op.Resource
	guest    *guest.Client
	caller   *caller.Caller
	ws       *websocket.Conn
	user     string
	wg       sync.WaitGroup
}

func (c *connection) serve(ctx context.Context, conn net.Conn) error {
	host, err := c.hostKey(c.resource)
	if err != nil {
		return err
	}
	cfg := &ssh.ServerConfig{
		MaxAuthTries: 6, ServerVersion: "SSH-2.0-Berth",
		PublicKeyCallback: func(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			user, err := c.login(c.caller, c.resource.ID, meta.User(), key)
			if err != nil {
				return nil, err
			}
			return &ssh.Permissions{Extensions: map[string]string{loginExtension: user}}, nil
		},
	}
	cfg.AddHostKey(host)
	_ = conn.SetDeadline(time.Now().Add(loginTime))
	sc, channels, requests, err := ssh.NewServerConn(conn, cfg)
	if err != nil {
		if _, refused := errors.AsType[*ssh.ServerAuthError](err); refused {
			return errs.Wrap(errs.Unauthenticated, err, "no certificate for this sandbox was shown").Because("certificate").
				Suggest("Get one from sandboxes.ssh, with the same key of the API.")
		}
		return nil // it is gone, or does not speak SSH
	}
	_ = conn.SetDeadline(time.Time{})
	c.user = sc.Permissions.Extensions[loginExtension]
	stop := context.AfterFunc(ctx, func() { _ = sc.Close() })
	defer stop()
	inner, cancel := context.WithCancel(ctx)
	c.wg.Go(func() { c.requests(requests) })
	c.accept(inner, channels)
	cancel() // the connection is over: so is what it started
	_ = sc.Close()
	c.wg.Wait()
	return nil
}

// requests answers what is asked of the whole connection: keepalives get an answer, nothing is granted.
func (c *connection) requests(in <-chan *ssh.Request) {
	for r := range in {
		if r.WantReply {
			_ = r.Reply(false, nil)
		}
	}
}

func (c *connection) accept(ctx context.Context, in <-chan ssh.NewChannel) {
	slots := make(chan struct{}, maxChannels)
	for ch := range in {
		select {
		case slots <- struct{}{}:
		default:
			_ = ch.Reject(ssh.ResourceShortage, "too many sessions and connections are open")
			continue
		}
		c.wg.Go(func() {
			defer func() { <-slots }()
			switch ch.ChannelType() {
			case "session":
				c.session(ctx, ch)
			case "direct-tcpip":
				c.port(ctx, ch)
			case "direct-streamlocal@openssh.com":
				c.socket(ctx, ch)
			default:
				_ = ch.Reject(ssh.UnknownChannelType, "only sessions and connections to the sandbox's own ports and sockets are served")
			}
		})
	}
}

// watch keeps the connection from looking idle on its way, and ends it once its key is revoked or its sandbox is gone.
func (c *connection) watch(ctx context.Context, end context.CancelCauseFunc) {
	ping, recheck := time.NewTicker(pingEvery), time.NewTicker(c.Recheck)
	defer ping.Stop()
	defer recheck.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ping.C:
			pctx, cancel := context.WithTimeout(ctx, pingEvery/2)
			_ = c.ws.Ping(pctx) // a client that was stopped does not answer; the kernel tells when it is gone
			cancel()
		case <-recheck.C:
			_, err := c.Callers.Again(ctx, c.caller.OrgID, c.caller.KeyID)
			if !errs.Is(err, errs.Unauthenticated) {
				_, err = c.Sandboxes.Resource(ctx, c.resource.ID)
			}
			if errs.Is(err, errs.Unauthenticated) || errs.Is(err, errs.NotFound) {
				end(err)
				return
			}
		}
	}
}
