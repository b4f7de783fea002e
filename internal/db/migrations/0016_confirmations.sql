-- +goose Up
-- Calls that wait for a person's approval, and which calls of a key do.
CREATE TABLE confirmations (
    id            TEXT   NOT NULL PRIMARY KEY,
    org_id        TEXT   NOT NULL REFERENCES organizations (id),
    workspace_id  TEXT   NOT NULL,
    principal_id  TEXT   NOT NULL, -- who asked
    asked_by      TEXT   NOT NULL, -- JSON: person, agent, app, key
    client        TEXT   NOT NULL, -- what the program that asked calls itself
    operation     TEXT   NOT NULL,
    resource_kind TEXT   NOT NULL,
    resource_id   TEXT   NOT NULL,
    resource_name TEXT   NOT NULL,
    arguments     TEXT   NOT NULL, -- canonical JSON
    reasons       TEXT   NOT NULL, -- JSON: why a person is asked
    draft         TEXT   NOT NULL, -- the canonical request: the very bytes that are approved
    digest        TEXT   NOT NULL, -- of draft
    nonce         TEXT   NOT NULL,
    state         TEXT   NOT NULL, -- pending, approved, denied, consumed; expired is said by the time
    created_at    BIGINT NOT NULL,
    expires_at    BIGINT NOT NULL,
    decided_at    BIGINT NOT NULL DEFAULT 0,
    decided_by    TEXT   NOT NULL DEFAULT '',
    note          TEXT   NOT NULL DEFAULT ''
);
CREATE INDEX confirmations_org ON confirmations (org_id, created_at, id);
CREATE INDEX confirmations_pending ON confirmations (org_id, principal_id, state);
CREATE INDEX confirmations_expiry ON confirmations (expires_at);

ALTER TABLE keys ADD COLUMN confirm TEXT NOT NULL DEFAULT '[]';

-- +goose Down
ALTER TABLE keys DROP COLUMN confirm;
DROP TABLE confirmations;
