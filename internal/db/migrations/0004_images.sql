-- +goose Up
-- Images of organizations. A row is a version: its digest never changes; tags move from one to another.
CREATE TABLE images (
    id             TEXT     NOT NULL PRIMARY KEY,
    org_id         TEXT     NOT NULL,
    workspace_id   TEXT     NOT NULL,
    name           TEXT     NOT NULL, -- the repository, registry and all
    source         TEXT     NOT NULL, -- registry, import
    digest         TEXT     NOT NULL, -- of the manifest for the node's platform
    index_digest   TEXT     NOT NULL, -- of what the reference named
    state          TEXT     NOT NULL, -- pulling, ready, failed, deleting
    error          TEXT     NOT NULL DEFAULT '',
    reason         TEXT     NOT NULL DEFAULT '',
    phase          TEXT     NOT NULL DEFAULT '',
    done_bytes     BIGINT   NOT NULL DEFAULT 0,
    size_bytes     BIGINT   NOT NULL DEFAULT 0,
    unpacked_bytes BIGINT   NOT NULL DEFAULT 0,
    layers         BIGINT   NOT NULL DEFAULT 0,
    config         TEXT     NOT NULL DEFAULT '{}',
    built_at       BIGINT   NOT NULL DEFAULT 0,
    created_by     TEXT     NOT NULL,
    created_at     BIGINT   NOT NULL,
    state_at       BIGINT   NOT NULL
);
CREATE UNIQUE INDEX images_version ON images (org_id, name, digest) WHERE state = 'pulling' OR state = 'ready';
CREATE INDEX images_list ON images (org_id, created_at, id);
CREATE INDEX images_state ON images (state, state_at);

CREATE TABLE image_tags (
    org_id     TEXT     NOT NULL,
    name       TEXT     NOT NULL,
    tag        TEXT     NOT NULL,
    image_id   TEXT     NOT NULL REFERENCES images (id) ON DELETE CASCADE,
    local      SMALLINT NOT NULL, -- set here: the registry is never asked for it
    checked_at BIGINT   NOT NULL, -- when the registry last said that it is this image
    PRIMARY KEY (org_id, name, tag)
);
CREATE INDEX image_tags_image ON image_tags (image_id);

-- Credentials of registries, sealed for their row.
CREATE TABLE registries (
    org_id     TEXT   NOT NULL,
    host       TEXT   NOT NULL,
    username   TEXT   NOT NULL,
    sealed     TEXT   NOT NULL,
    created_by TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (org_id, host)
);

-- The key of an organization's secrets, wrapped by one that is not in the database.
CREATE TABLE data_keys (
    org_id     TEXT   NOT NULL PRIMARY KEY,
    wrapped    TEXT   NOT NULL,
    created_at BIGINT NOT NULL
);

ALTER TABLE sandboxes ADD COLUMN image_ref TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN image_id TEXT NOT NULL DEFAULT '';
CREATE INDEX sandboxes_image ON sandboxes (image_id) WHERE image_id <> '';
