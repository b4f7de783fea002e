-- +goose Up
-- The core tables. Migrations only go forward.
CREATE TABLE organizations (
    id         TEXT     NOT NULL PRIMARY KEY,
    name       TEXT     NOT NULL,
    root       SMALLINT NOT NULL DEFAULT 0,
    created_at BIGINT   NOT NULL
);
-- One organization at most runs the deployment.
CREATE UNIQUE INDEX organizations_root ON organizations (root) WHERE root = 1;

CREATE TABLE workspaces (
    id         TEXT     NOT NULL PRIMARY KEY,
    org_id     TEXT     NOT NULL REFERENCES organizations (id),
    name       TEXT     NOT NULL,
    created_at BIGINT   NOT NULL,
    UNIQUE (org_id, name)
);

CREATE TABLE keys (
    id           TEXT   NOT NULL PRIMARY KEY,
    org_id       TEXT   NOT NULL REFERENCES organizations (id),
    workspace_id TEXT   NOT NULL REFERENCES workspaces (id),
    name         TEXT   NOT NULL,
    hash         TEXT   UNIQUE, -- null until its secret is given out
    last4        TEXT   NOT NULL,
    scopes       TEXT   NOT NULL,
    created_by   TEXT   NOT NULL,
    created_at   BIGINT NOT NULL,
    expires_at   BIGINT NOT NULL DEFAULT 0,
    revoked_at   BIGINT NOT NULL DEFAULT 0,
    last_used_at BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX keys_org ON keys (org_id, created_at, id);

CREATE TABLE idempotency (
    org_id          TEXT   NOT NULL,
    principal_id    TEXT   NOT NULL,
    operation       TEXT   NOT NULL,
    idem_key        TEXT   NOT NULL,
    input_sha256    TEXT   NOT NULL,
    state           TEXT   NOT NULL, -- held, pending, done
    once            TEXT   NOT NULL,
    resource_id     TEXT   NOT NULL,
    process_id      TEXT   NOT NULL,
    confirmation_id TEXT   NOT NULL DEFAULT '',
    result          TEXT,
    error           TEXT,
    lease_owner     TEXT   NOT NULL,
    lease_until     BIGINT NOT NULL,
    created_at      BIGINT NOT NULL,
    expires_at      BIGINT NOT NULL,
    PRIMARY KEY (org_id, principal_id, operation, idem_key)
);
CREATE INDEX idempotency_expiry ON idempotency (expires_at);

CREATE TABLE limits (
    scope TEXT   NOT NULL,
    key   TEXT   NOT NULL,
    value BIGINT NOT NULL, -- -1: none
    PRIMARY KEY (scope, key)
);

CREATE TABLE usage (
    scope TEXT   NOT NULL,
    key   TEXT   NOT NULL,
    used  BIGINT NOT NULL,
    PRIMARY KEY (scope, key)
);

CREATE TABLE buckets (
    scope      TEXT   NOT NULL PRIMARY KEY,
    milli      BIGINT NOT NULL, -- thousandths of a token
    updated_at BIGINT NOT NULL
);

CREATE TABLE sequences (
    name  TEXT   NOT NULL PRIMARY KEY,
    value BIGINT NOT NULL
);
INSERT INTO sequences (name, value) VALUES ('events', 0), ('audit', 0);

CREATE TABLE events (
    id           TEXT   NOT NULL PRIMARY KEY,
    org_id       TEXT   NOT NULL,
    workspace_id TEXT   NOT NULL,
    at           BIGINT NOT NULL,
    type         TEXT   NOT NULL,
    resource_id  TEXT   NOT NULL,
    data         TEXT   NOT NULL,
    seq          BIGINT
);
CREATE UNIQUE INDEX events_seq ON events (seq);
CREATE INDEX events_org ON events (org_id, seq);
CREATE INDEX events_fresh ON events (at, id) WHERE seq IS NULL;

CREATE TABLE audit (
    id            TEXT     NOT NULL PRIMARY KEY,
    org_id        TEXT     NOT NULL,
    workspace_id  TEXT     NOT NULL,
    at            BIGINT   NOT NULL,
    principal_id  TEXT     NOT NULL,
    person_id     TEXT     NOT NULL,
    agent_id      TEXT     NOT NULL,
    app_id        TEXT     NOT NULL,
    key_id        TEXT     NOT NULL,
    face          TEXT     NOT NULL,
    client        TEXT     NOT NULL,
    source_ip     TEXT     NOT NULL,
    request_id    TEXT     NOT NULL,
    operation     TEXT     NOT NULL,
    action        TEXT     NOT NULL,
    resource_kind TEXT     NOT NULL,
    resource_id   TEXT     NOT NULL,
    result        TEXT     NOT NULL, -- ok, a code, or empty: the call did not come to an end
    duration_us   BIGINT   NOT NULL,
    seq           BIGINT
);
CREATE UNIQUE INDEX audit_seq ON audit (seq);
CREATE INDEX audit_org ON audit (org_id, seq);
CREATE INDEX audit_fresh ON audit (at, id) WHERE seq IS NULL;
