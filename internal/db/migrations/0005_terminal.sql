-- +goose Up
-- Tickets with which browsers open a terminal: each is used once.
CREATE TABLE terminal_tickets (
    hash       TEXT   NOT NULL PRIMARY KEY,
    key_id     TEXT   NOT NULL,
    org_id     TEXT   NOT NULL,
    sandbox_id TEXT   NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE INDEX terminal_tickets_expiry ON terminal_tickets (expires_at);

-- +goose Down
DROP TABLE terminal_tickets;
