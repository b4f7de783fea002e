-- +goose Up
CREATE TABLE sandboxes (
    id                TEXT PRIMARY KEY,
    org_id            TEXT NOT NULL,
    workspace_id      TEXT NOT NULL,
    name              TEXT NOT NULL DEFAULT '',
    state             TEXT NOT NULL,
    generation        BIGINT NOT NULL,
    boot_generation   BIGINT NOT NULL DEFAULT 0,
    node_id           TEXT NOT NULL DEFAULT '',
    template          TEXT NOT NULL,
    image             TEXT NOT NULL,
    vcpu_milli        BIGINT NOT NULL,
    memory_mib        BIGINT NOT NULL,
    disk_gib          BIGINT NOT NULL,
    internet          SMALLINT NOT NULL,
    env               TEXT NOT NULL,
    metadata          TEXT NOT NULL,
    idle_seconds      BIGINT NOT NULL,
    on_idle           TEXT NOT NULL,
    on_expiry         TEXT NOT NULL,
    auto_wake         SMALLINT NOT NULL,
    wake_on_timers    SMALLINT NOT NULL,
    persist           SMALLINT NOT NULL DEFAULT 0,
    guest_token       TEXT NOT NULL,
    created_by        TEXT NOT NULL,
    principal_id      TEXT NOT NULL,
    created_at        BIGINT NOT NULL,
    state_at          BIGINT NOT NULL,
    started_at        BIGINT NOT NULL DEFAULT 0,
    ended_at          BIGINT NOT NULL DEFAULT 0,
    ttl_seconds       BIGINT NOT NULL,
    expires_at        BIGINT NOT NULL DEFAULT 0,
    active_at         BIGINT NOT NULL,
    stop_reason       TEXT NOT NULL DEFAULT '',
    error             TEXT NOT NULL DEFAULT ''
);
CREATE UNIQUE INDEX sandboxes_name ON sandboxes (workspace_id, name) WHERE name <> '' AND state <> 'deleting' AND state <> 'deleted';
CREATE INDEX sandboxes_list ON sandboxes (org_id, created_at, id);
CREATE INDEX sandboxes_state ON sandboxes (state, state_at);

CREATE TABLE sandbox_labels (
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    key        TEXT NOT NULL,
    value      TEXT NOT NULL,
    PRIMARY KEY (sandbox_id, key)
);

CREATE TABLE processes (
    id         TEXT PRIMARY KEY,
    org_id     TEXT NOT NULL,
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    state      TEXT NOT NULL,
    info       TEXT NOT NULL,
    started_at BIGINT NOT NULL,
    stdout_at  BIGINT NOT NULL DEFAULT 0,
    stderr_at  BIGINT NOT NULL DEFAULT 0,
    kept       SMALLINT NOT NULL DEFAULT 0
);
CREATE INDEX processes_list ON processes (sandbox_id, started_at, id);

-- +goose Down
DROP TABLE processes;
DROP TABLE sandbox_labels;
DROP TABLE sandboxes;
