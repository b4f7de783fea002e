package terminal

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/berthrun/berth/api"
	"github.com/berthrun/berth/api/op"
	"github.com/berthrun/berth/internal/caller"
	"github.com/berthrun/berth/internal/db"
	"github.com/berthrun/berth/internal/errs"
)

// ticketTime is how long a ticket is good for.
const ticketTime = 30 * time.Second

// ticketPrefix tells a ticket from a key.
const ticketPrefix = "tt_"

// actTicket makes a ticket for the caller's key. Only its hash is stored.
func (s *Service) actTicket(ctx context.Context, in *api.SandboxWriteIn, d *op.Draft) (*api.TerminalTicketOut, error) {
	c := caller.From(ctx)
	now, err := s.DB.Now(ctx, s.DB)
	if err != nil {
		return nil, err
	}
	ticket, until := ticketPrefix+rand.Text(), now.Add(ticketTime)
	_, err = s.DB.ExecContext(ctx, `INSERT INTO terminal_tickets (hash, key_id, org_id, sandbox_id, expires_at) VALUES ($1, $2, $3, $4, $5)`,
		hash(ticket), c.KeyID, d.Resource.OrgID, in.SandboxID, db.Micros(until))
	if err != nil {
		return nil, fmt.Errorf("insert ticket: %w", err)
	}
	return &api.TerminalTicketOut{Ticket: ticket, ExpiresAt: until}, nil
}

// Redeem gives the caller of a ticket for a sandbox's terminal, once. A ticket for another sandbox is used up by the attempt.
func (s *Service) Redeem(ctx context.Context, ticket, sandboxID string) (*caller.Caller, error) {
	refused := errs.E(errs.Unauthenticated, "the ticket is not valid: it is good for one connection within %d seconds", int(ticketTime.Seconds())).
		Because("ticket").Suggest("Get a new one from sandboxes.terminalTicket.")
	if len(ticket) > 64 {
		return nil, refused
	}
	var key, org, sandbox string
	err := s.DB.Tx(ctx, func(tx *sql.Tx) error {
		now, err := s.DB.Now(ctx, tx)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM terminal_tickets WHERE expires_at <= $1`, db.Micros(now)); err != nil {
			return fmt.Errorf("delete tickets: %w", err)
		}
		err = tx.QueryRowContext(ctx, `DELETE FROM terminal_tickets WHERE hash = $1 RETURNING key_id, org_id, sandbox_id`, hash(ticket)).Scan(&key, &org, &sandbox)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("use ticket: %w", err)
	}
	if key == "" || sandbox != sandboxID {
		return nil, refused
	}
	return s.Callers.Again(ctx, org, key)
}

func hash(ticket string) string {
	sum := sha256.Sum256([]byte(ticket))
	return hex.EncodeToString(sum[:])
}
