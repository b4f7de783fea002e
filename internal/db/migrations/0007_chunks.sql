-- +goose Up
-- Trees of files, kept as chunks in packs (internal/chunk/vault). Everything belongs to one organization, and nothing is shared between two.

-- One row: its number goes up whenever the order of two things matters, so that no clock decides what may be deleted.
CREATE TABLE chunk_turns (
    id   SMALLINT NOT NULL PRIMARY KEY,
    turn BIGINT   NOT NULL
);
INSERT INTO chunk_turns (id, turn) VALUES (1, 100);

-- Whoever saves or reads a tree at the moment. Packs that were there when it began are not deleted before it has ended.
CREATE TABLE chunk_leases (
    turn       BIGINT NOT NULL PRIMARY KEY,
    org_id     TEXT   NOT NULL,
    expires_at BIGINT NOT NULL
);

CREATE TABLE chunk_packs (
    id         BIGINT NOT NULL PRIMARY KEY, -- a turn
    org_id     TEXT   NOT NULL,
    state      TEXT   NOT NULL, -- writing, ready, deleting
    lease      BIGINT NOT NULL, -- of who writes it
    bytes      BIGINT NOT NULL DEFAULT 0,
    chunks     BIGINT NOT NULL DEFAULT 0,
    created_at BIGINT NOT NULL,
    retired    BIGINT NOT NULL DEFAULT 0 -- 0: its chunks are handed out; 1: not any more; else the turn behind which nobody was told of it
);
CREATE INDEX chunk_packs_state ON chunk_packs (state, retired);

-- Where a chunk is. It may be in several packs; each of them alone is enough for whoever uses that pack.
CREATE TABLE chunk_places (
    org_id  TEXT   NOT NULL,
    hash    BYTEA  NOT NULL,
    pack_id BIGINT NOT NULL,
    slot    BIGINT NOT NULL,
    at      BIGINT NOT NULL,
    size    BIGINT NOT NULL,
    PRIMARY KEY (org_id, hash, pack_id)
);
CREATE INDEX chunk_places_pack ON chunk_places (pack_id);

CREATE TABLE chunk_trees (
    org_id     TEXT   NOT NULL,
    name       TEXT   NOT NULL,
    line       TEXT   NOT NULL, -- those of one line are trees of the same thing at different times
    ref        TEXT   NOT NULL,
    root       BYTEA  NOT NULL,
    stats      TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (org_id, name)
);
CREATE INDEX chunk_trees_line ON chunk_trees (org_id, line, created_at);

-- Which chunks of which packs a tree needs: a bit for each.
CREATE TABLE chunk_uses (
    org_id  TEXT   NOT NULL,
    name    TEXT   NOT NULL,
    pack_id BIGINT NOT NULL,
    slots   BYTEA  NOT NULL,
    PRIMARY KEY (org_id, name, pack_id)
);
CREATE INDEX chunk_uses_pack ON chunk_uses (pack_id);

-- +goose Down
DROP TABLE chunk_uses;
DROP TABLE chunk_trees;
DROP TABLE chunk_places;
DROP TABLE chunk_packs;
DROP TABLE chunk_leases;
DROP TABLE chunk_turns;
