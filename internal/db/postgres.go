package db

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

// channel is the one PostgreSQL channel that carries all topics.
const channel = "berth"

func (d *DB) openPostgres(ctx, run context.Context, cfg Config) error {
	d.dialect = Postgres
	pc, err := parsePostgres(cfg.URL)
	if err != nil {
		return err
	}
	d.write = stdlib.OpenDB(*pc)
	d.write.SetMaxOpenConns(cfg.MaxConns)
	d.write.SetMaxIdleConns(cfg.MaxConns)
	d.read = d.write
	if err := d.write.PingContext(ctx); err != nil {
		return err
	}
	if err := migrate(ctx, goose.DialectPostgres, d.write, goose.WithSessionLocker(advisory{})); err != nil {
		return err
	}
	ready := make(chan struct{})
	d.done.Go(func() { d.listen(run, pc.Copy(), ready) })
	d.done.Go(func() { d.send(run) })
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func parsePostgres(url string) (*pgx.ConnConfig, error) {
	pc, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	if pc.ConnectTimeout == 0 {
		pc.ConnectTimeout = 10 * time.Second
	}
	return pc, nil
}

// advisory makes servers that start at once migrate one after the other.
type advisory struct{}

const advisoryKey = 7214_0001

func (advisory) SessionLock(ctx context.Context, c *sql.Conn) error {
	_, err := c.ExecContext(ctx, `SELECT pg_advisory_lock($1)`, advisoryKey)
	return err
}

func (advisory) SessionUnlock(ctx context.Context, c *sql.Conn) error {
	_, err := c.ExecContext(ctx, `SELECT pg_advisory_unlock($1)`, advisoryKey)
	return err
}

// listen passes what other servers notify to the waiting of this one. A connection that broke may have missed some, so all are woken.
func (d *DB) listen(ctx context.Context, pc *pgx.ConnConfig, ready chan struct{}) {
	for ctx.Err() == nil {
		err := d.listenOnce(ctx, pc, func() {
			if ready != nil {
				close(ready)
				ready = nil
			}
			d.hub.wakeAll()
		})
		if ctx.Err() != nil {
			return
		}
		d.log.Warn("the connection for signals broke", "error", err)
		pause(ctx, 500*time.Millisecond)
	}
}

func (d *DB) listenOnce(ctx context.Context, pc *pgx.ConnConfig, listening func()) error {
	c, err := pgx.ConnectConfig(ctx, pc)
	if err != nil {
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = c.Close(end)
	}()
	if _, err := c.Exec(ctx, `LISTEN `+channel); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	listening()
	for {
		n, err := c.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		d.hub.wake(n.Payload)
	}
}

// send tells the other servers. Many signals for one topic become one.
func (d *DB) send(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.hub.outgoing:
		}
		for _, topic := range d.hub.takeOut() {
			one, cancel := context.WithTimeout(ctx, 5*time.Second)
			if _, err := d.write.ExecContext(one, `SELECT pg_notify($1, $2)`, channel, topic); err != nil && ctx.Err() == nil {
				d.log.Warn("a signal was not sent", "topic", topic, "error", err)
			}
			cancel()
		}
	}
}

// pause waits, or ends with the context.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
