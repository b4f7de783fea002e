-- +goose Up
-- Disks that outlive sandboxes.
CREATE TABLE volumes (
    id           TEXT     NOT NULL PRIMARY KEY,
    org_id       TEXT     NOT NULL,
    workspace_id TEXT     NOT NULL,
    name         TEXT     NOT NULL,
    state        TEXT     NOT NULL, -- creating, ready, failed, deleting, deleted
    error        TEXT     NOT NULL DEFAULT '',
    reason       TEXT     NOT NULL DEFAULT '',
    pool_id      TEXT     NOT NULL,
    size_gib     BIGINT   NOT NULL,
    made_gib     BIGINT   NOT NULL DEFAULT 0, -- the size that the node last gave it
    used_bytes   BIGINT   NOT NULL DEFAULT 0,
    measured_at  BIGINT   NOT NULL DEFAULT 0, -- 0: never
    from_backup  TEXT     NOT NULL DEFAULT '',
    done_bytes   BIGINT   NOT NULL DEFAULT 0, -- of a restore under way
    created_by   TEXT     NOT NULL,
    principal_id TEXT     NOT NULL,
    created_at   BIGINT   NOT NULL,
    state_at     BIGINT   NOT NULL
);
CREATE UNIQUE INDEX volumes_name ON volumes (org_id, name) WHERE state <> 'deleting' AND state <> 'deleted';
CREATE INDEX volumes_list ON volumes (org_id, created_at, id);
CREATE INDEX volumes_state ON volumes (state, state_at);
CREATE INDEX volumes_backup ON volumes (from_backup) WHERE from_backup <> '';

-- Which sandbox has which volume, whether it runs or not.
CREATE TABLE sandbox_volumes (
    sandbox_id TEXT     NOT NULL,
    volume_id  TEXT     NOT NULL REFERENCES volumes (id),
    path       TEXT     NOT NULL,
    read_only  SMALLINT NOT NULL,
    PRIMARY KEY (sandbox_id, volume_id)
);
CREATE INDEX sandbox_volumes_volume ON sandbox_volumes (volume_id);

-- The names of the volumes that the sandbox had which it is a copy of, and that were not copied, JSON.
ALTER TABLE sandboxes ADD COLUMN without_volumes TEXT NOT NULL DEFAULT '[]';
ALTER TABLE snapshots ADD COLUMN without_volumes TEXT NOT NULL DEFAULT '[]';

-- Moments of volumes, kept off their node.
CREATE TABLE volume_backups (
    id            TEXT     NOT NULL PRIMARY KEY,
    org_id        TEXT     NOT NULL,
    workspace_id  TEXT     NOT NULL,
    volume_id     TEXT     NOT NULL, -- which may be gone
    volume_name   TEXT     NOT NULL,
    size_gib      BIGINT   NOT NULL,
    state         TEXT     NOT NULL, -- creating, ready, failed, deleting, deleted
    error         TEXT     NOT NULL DEFAULT '',
    reason        TEXT     NOT NULL DEFAULT '',
    automatic     SMALLINT NOT NULL, -- made by the policy
    done_bytes    BIGINT   NOT NULL DEFAULT 0,
    total_bytes   BIGINT   NOT NULL DEFAULT 0,
    files         BIGINT   NOT NULL DEFAULT 0,
    content_bytes BIGINT   NOT NULL DEFAULT 0,
    stored_bytes  BIGINT   NOT NULL DEFAULT 0,
    sha256        TEXT     NOT NULL DEFAULT '',
    taken_at      BIGINT   NOT NULL DEFAULT 0, -- when its copy was made on the node; 0: not yet
    created_by    TEXT     NOT NULL,
    principal_id  TEXT     NOT NULL,
    created_at    BIGINT   NOT NULL,
    state_at      BIGINT   NOT NULL
);
CREATE INDEX volume_backups_list ON volume_backups (org_id, created_at, id);
CREATE INDEX volume_backups_volume ON volume_backups (volume_id, state);
CREATE INDEX volume_backups_state ON volume_backups (state, state_at);

-- Daily backups.
CREATE TABLE backup_policies (
    volume_id    TEXT     NOT NULL PRIMARY KEY,
    hour         SMALLINT NOT NULL, -- UTC
    keep_days    BIGINT   NOT NULL, -- 0: age keeps none
    keep_last    BIGINT   NOT NULL, -- 0: number keeps none but the newest
    next_at      BIGINT   NOT NULL,
    created_by   TEXT     NOT NULL,
    principal_id TEXT     NOT NULL
);
CREATE INDEX backup_policies_due ON backup_policies (next_at);

-- +goose Down
DROP TABLE backup_policies;
DROP TABLE volume_backups;
ALTER TABLE snapshots DROP COLUMN without_volumes;
ALTER TABLE sandboxes DROP COLUMN without_volumes;
DROP TABLE sandbox_volumes;
DROP TABLE volumes;
