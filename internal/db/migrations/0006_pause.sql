-- +goose Up
-- What pausing, waking and copying keep of a sandbox.
ALTER TABLE sandboxes ADD COLUMN depth TEXT NOT NULL DEFAULT '';            -- of a paused one: frozen, disk
ALTER TABLE sandboxes ADD COLUMN pause_reason TEXT NOT NULL DEFAULT '';     -- requested, idle, expired
ALTER TABLE sandboxes ADD COLUMN wake_error TEXT NOT NULL DEFAULT '';       -- of the last wake that failed, JSON
ALTER TABLE sandboxes ADD COLUMN timer_at BIGINT NOT NULL DEFAULT 0;        -- when a timer inside is due
ALTER TABLE sandboxes ADD COLUMN unsettled SMALLINT NOT NULL DEFAULT 0;     -- the node keeps what a wake would be undone with
ALTER TABLE sandboxes ADD COLUMN op_id TEXT NOT NULL DEFAULT '';            -- of the fork or snapshot under way
ALTER TABLE sandboxes ADD COLUMN forked_from TEXT NOT NULL DEFAULT '';      -- the sandbox that it is a copy of
ALTER TABLE sandboxes ADD COLUMN snapshot_id TEXT NOT NULL DEFAULT '';      -- the snapshot that it was made of
ALTER TABLE sandboxes ADD COLUMN save_name TEXT NOT NULL DEFAULT '';        -- the save on the node that it is made of
ALTER TABLE sandboxes ADD COLUMN save_token TEXT NOT NULL DEFAULT '';       -- of the guest in that save
ALTER TABLE sandboxes ADD COLUMN from_disk SMALLINT NOT NULL DEFAULT 0;     -- it boots on that save's disk
CREATE INDEX sandboxes_save ON sandboxes (save_name);

CREATE TABLE snapshots (
    id           TEXT     NOT NULL PRIMARY KEY,
    org_id       TEXT     NOT NULL,
    workspace_id TEXT     NOT NULL,
    name         TEXT     NOT NULL DEFAULT '',
    state        TEXT     NOT NULL, -- creating, ready, failed, deleting, deleted
    error        TEXT     NOT NULL DEFAULT '',
    mode         TEXT     NOT NULL, -- memory, disk
    sandbox_id   TEXT     NOT NULL,
    template     TEXT     NOT NULL,
    image        TEXT     NOT NULL, -- on the node
    image_ref    TEXT     NOT NULL,
    image_id     TEXT     NOT NULL,
    vcpu_milli   BIGINT   NOT NULL,
    memory_mib   BIGINT   NOT NULL,
    disk_gib     BIGINT   NOT NULL,
    internet     SMALLINT NOT NULL,
    env          TEXT     NOT NULL,
    metadata     TEXT     NOT NULL,
    guest_token  TEXT     NOT NULL,
    disk_bytes   BIGINT   NOT NULL DEFAULT 0,
    memory_bytes BIGINT   NOT NULL DEFAULT 0,
    stored       SMALLINT NOT NULL DEFAULT 0, -- off its node
    taken_at     BIGINT   NOT NULL DEFAULT 0,
    created_by   TEXT     NOT NULL,
    principal_id TEXT     NOT NULL,
    created_at   BIGINT   NOT NULL,
    state_at     BIGINT   NOT NULL
);
CREATE UNIQUE INDEX snapshots_name ON snapshots (workspace_id, name) WHERE name <> '' AND state <> 'deleting' AND state <> 'deleted';
CREATE INDEX snapshots_list ON snapshots (org_id, created_at, id);
CREATE INDEX snapshots_state ON snapshots (state, state_at);
CREATE INDEX snapshots_sandbox ON snapshots (sandbox_id);

CREATE TABLE snapshot_labels (
    snapshot_id TEXT NOT NULL REFERENCES snapshots (id) ON DELETE CASCADE,
    key         TEXT NOT NULL,
    value       TEXT NOT NULL,
    PRIMARY KEY (snapshot_id, key)
);

-- A copy of a sandbox has processes of the same ids.
CREATE TABLE processes_2 (
    id            TEXT     NOT NULL,
    org_id        TEXT     NOT NULL,
    sandbox_id    TEXT     NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    state         TEXT     NOT NULL,
    info          TEXT     NOT NULL,
    started_at    BIGINT   NOT NULL,
    stdout_at     BIGINT   NOT NULL DEFAULT 0,
    stderr_at     BIGINT   NOT NULL DEFAULT 0,
    kept          SMALLINT NOT NULL DEFAULT 0,
    pack          TEXT     NOT NULL DEFAULT '',
    stdout_from   BIGINT   NOT NULL DEFAULT 0,
    stdout_length BIGINT   NOT NULL DEFAULT 0,
    stderr_from   BIGINT   NOT NULL DEFAULT 0,
    stderr_length BIGINT   NOT NULL DEFAULT 0,
    stamps        TEXT     NOT NULL DEFAULT '',
    PRIMARY KEY (sandbox_id, id)
);
INSERT INTO processes_2 (id, org_id, sandbox_id, state, info, started_at, stdout_at, stderr_at, kept, pack, stdout_from, stdout_length, stderr_from, stderr_length, stamps)
    SELECT id, org_id, sandbox_id, state, info, started_at, stdout_at, stderr_at, kept, pack, stdout_from, stdout_length, stderr_from, stderr_length, stamps FROM processes;
DROP TABLE processes;
ALTER TABLE processes_2 RENAME TO processes;
CREATE INDEX processes_list ON processes (sandbox_id, started_at, id);

-- +goose Down
CREATE TABLE processes_1 (
    id            TEXT     NOT NULL PRIMARY KEY,
    org_id        TEXT     NOT NULL,
    sandbox_id    TEXT     NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    state         TEXT     NOT NULL,
    info          TEXT     NOT NULL,
    started_at    BIGINT   NOT NULL,
    stdout_at     BIGINT   NOT NULL DEFAULT 0,
    stderr_at     BIGINT   NOT NULL DEFAULT 0,
    kept          SMALLINT NOT NULL DEFAULT 0,
    pack          TEXT     NOT NULL DEFAULT '',
    stdout_from   BIGINT   NOT NULL DEFAULT 0,
    stdout_length BIGINT   NOT NULL DEFAULT 0,
    stderr_from   BIGINT   NOT NULL DEFAULT 0,
    stderr_length BIGINT   NOT NULL DEFAULT 0,
    stamps        TEXT     NOT NULL DEFAULT ''
);
INSERT INTO processes_1 (id, org_id, sandbox_id, state, info, started_at, stdout_at, stderr_at, kept, pack, stdout_from, stdout_length, stderr_from, stderr_length, stamps)
    SELECT id, org_id, sandbox_id, state, info, started_at, stdout_at, stderr_at, kept, pack, stdout_from, stdout_length, stderr_from, stderr_length, stamps FROM processes
    WHERE NOT EXISTS (SELECT 1 FROM processes p WHERE p.id = processes.id AND p.sandbox_id < processes.sandbox_id);
DROP TABLE processes;
ALTER TABLE processes_1 RENAME TO processes;
CREATE INDEX processes_list ON processes (sandbox_id, started_at, id);
DROP TABLE snapshot_labels;
DROP TABLE snapshots;
DROP INDEX sandboxes_save;
ALTER TABLE sandboxes DROP COLUMN from_disk;
ALTER TABLE sandboxes DROP COLUMN save_token;
ALTER TABLE sandboxes DROP COLUMN save_name;
ALTER TABLE sandboxes DROP COLUMN snapshot_id;
ALTER TABLE sandboxes DROP COLUMN forked_from;
ALTER TABLE sandboxes DROP COLUMN op_id;
ALTER TABLE sandboxes DROP COLUMN unsettled;
ALTER TABLE sandboxes DROP COLUMN timer_at;
ALTER TABLE sandboxes DROP COLUMN wake_error;
ALTER TABLE sandboxes DROP COLUMN pause_reason;
ALTER TABLE sandboxes DROP COLUMN depth;
