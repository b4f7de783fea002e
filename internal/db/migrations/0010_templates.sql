-- +goose Up
-- Templates of organizations: a name, what sandboxes of it begin with, and the builds that it consists of.
CREATE TABLE templates (
    id           TEXT   NOT NULL PRIMARY KEY,
    org_id       TEXT   NOT NULL,
    workspace_id TEXT   NOT NULL,
    name         TEXT   NOT NULL,
    state        TEXT   NOT NULL,             -- living, deleted
    versions     BIGINT NOT NULL DEFAULT 0,   -- the number of its last build
    defaults     TEXT   NOT NULL DEFAULT '{}',
    volumes      TEXT   NOT NULL DEFAULT '[]',
    sealed       TEXT   NOT NULL DEFAULT '',  -- its environment and user data
    created_by   TEXT   NOT NULL,
    principal_id TEXT   NOT NULL,
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL
);
CREATE UNIQUE INDEX templates_name ON templates (workspace_id, name) WHERE state <> 'deleted';
CREATE INDEX templates_list ON templates (org_id, created_at, id);

CREATE TABLE template_builds (
    id           TEXT     NOT NULL PRIMARY KEY,
    org_id       TEXT     NOT NULL,
    workspace_id TEXT     NOT NULL,
    template_id  TEXT     NOT NULL REFERENCES templates (id) ON DELETE CASCADE,
    version      BIGINT   NOT NULL,
    status       TEXT     NOT NULL, -- waiting, building, ready, error
    reason       TEXT     NOT NULL DEFAULT '',
    cancelled    SMALLINT NOT NULL DEFAULT 0,
    tag          TEXT     NOT NULL,
    recipe       TEXT     NOT NULL,             -- what is to be built
    result       TEXT     NOT NULL DEFAULT '{}', -- what came of it
    layer        TEXT     NOT NULL DEFAULT '',  -- that sandboxes of it are made of, with its start command running
    disk         TEXT     NOT NULL DEFAULT '',  -- the layer of its files
    parent       TEXT     NOT NULL DEFAULT '',  -- the build of another template that it was made from
    context_id   TEXT     NOT NULL DEFAULT '',
    image_id     TEXT     NOT NULL DEFAULT '',
    step         BIGINT   NOT NULL DEFAULT 0,
    steps        BIGINT   NOT NULL DEFAULT 0,
    cached       BIGINT   NOT NULL DEFAULT 0,
    created_by   TEXT     NOT NULL,
    principal_id TEXT     NOT NULL,
    owner        TEXT     NOT NULL DEFAULT '',  -- the server that works on it
    lease_until  BIGINT   NOT NULL DEFAULT 0,
    created_at   BIGINT   NOT NULL,
    started_at   BIGINT   NOT NULL DEFAULT 0,
    finished_at  BIGINT   NOT NULL DEFAULT 0,
    used_at      BIGINT   NOT NULL DEFAULT 0
);
CREATE INDEX template_builds_list ON template_builds (org_id, created_at, id);
CREATE INDEX template_builds_template ON template_builds (template_id, version);
CREATE INDEX template_builds_status ON template_builds (status);
CREATE INDEX template_builds_parent ON template_builds (parent);

CREATE TABLE template_tags (
    template_id TEXT NOT NULL REFERENCES templates (id) ON DELETE CASCADE,
    tag         TEXT NOT NULL,
    build_id    TEXT NOT NULL REFERENCES template_builds (id),
    PRIMARY KEY (template_id, tag)
);
CREATE INDEX template_tags_build ON template_tags (build_id);

-- What steps left behind: saves on the node, found again by what went into them.
CREATE TABLE template_layers (
    id          TEXT     NOT NULL PRIMARY KEY,
    org_id      TEXT     NOT NULL,
    cache_key   TEXT     NOT NULL,
    state       TEXT     NOT NULL,             -- building, ready, old, deleting
    build_id    TEXT     NOT NULL,             -- that makes or made it
    memory      SMALLINT NOT NULL DEFAULT 0,
    image       TEXT     NOT NULL DEFAULT '',  -- that its disk lies above
    token       TEXT     NOT NULL DEFAULT '',  -- of the guest in its memory
    disk_bytes  BIGINT   NOT NULL DEFAULT 0,
    wanted      SMALLINT NOT NULL DEFAULT 0,   -- a build consists of it: it is kept off its node
    stored      SMALLINT NOT NULL DEFAULT 0,   -- off its node
    lease_until BIGINT   NOT NULL DEFAULT 0,   -- of one that is building
    created_at  BIGINT   NOT NULL,
    used_at     BIGINT   NOT NULL
);
CREATE UNIQUE INDEX template_layers_building ON template_layers (org_id, cache_key) WHERE state = 'building';
CREATE UNIQUE INDEX template_layers_ready ON template_layers (org_id, cache_key) WHERE state = 'ready';
CREATE INDEX template_layers_state ON template_layers (state, used_at);

CREATE TABLE build_log (
    build_id TEXT   NOT NULL REFERENCES template_builds (id) ON DELETE CASCADE,
    seq      BIGINT NOT NULL,
    at       BIGINT NOT NULL,
    step     BIGINT NOT NULL,
    stream   TEXT   NOT NULL, -- build, stdout, stderr
    text     TEXT   NOT NULL,
    PRIMARY KEY (build_id, seq)
);

-- Archives that COPY takes files from.
CREATE TABLE build_contexts (
    id           TEXT   NOT NULL PRIMARY KEY,
    org_id       TEXT   NOT NULL,
    workspace_id TEXT   NOT NULL,
    state        TEXT   NOT NULL, -- receiving, ready
    bytes        BIGINT NOT NULL DEFAULT 0,
    sha256       TEXT   NOT NULL DEFAULT '',
    entries      BIGINT NOT NULL DEFAULT 0,
    created_by   TEXT   NOT NULL,
    created_at   BIGINT NOT NULL,
    used_at      BIGINT NOT NULL
);
CREATE INDEX build_contexts_used ON build_contexts (used_at);

ALTER TABLE sandboxes ADD COLUMN purpose TEXT NOT NULL DEFAULT '';  -- build: one that a template is built in
ALTER TABLE sandboxes ADD COLUMN build_id TEXT NOT NULL DEFAULT ''; -- the build of a template that it is made of
CREATE INDEX sandboxes_build ON sandboxes (build_id) WHERE build_id <> '';
CREATE INDEX sandboxes_purpose ON sandboxes (purpose) WHERE purpose <> '';
ALTER TABLE snapshots ADD COLUMN build_id TEXT NOT NULL DEFAULT ''; -- as its sandbox's
CREATE INDEX snapshots_build ON snapshots (build_id) WHERE build_id <> '';

-- +goose Down
DROP INDEX snapshots_build;
ALTER TABLE snapshots DROP COLUMN build_id;
DROP INDEX sandboxes_purpose;
DROP INDEX sandboxes_build;
ALTER TABLE sandboxes DROP COLUMN build_id;
ALTER TABLE sandboxes DROP COLUMN purpose;
DROP TABLE build_contexts;
DROP TABLE build_log;
DROP TABLE template_layers;
DROP TABLE template_tags;
DROP TABLE template_builds;
DROP TABLE templates;
