-- +goose Up
-- Sandboxes that were booted before anybody asked for them: a create takes one, and with it its row here.
CREATE TABLE ready_sandboxes (
    id         TEXT     NOT NULL PRIMARY KEY, -- the id that the sandbox has for good
    state      TEXT     NOT NULL,             -- making, ready, dropping
    image      TEXT     NOT NULL,
    vcpu_milli BIGINT   NOT NULL,
    memory_mib BIGINT   NOT NULL,
    disk_gib   BIGINT   NOT NULL,
    internet   SMALLINT NOT NULL,
    token      TEXT     NOT NULL,             -- of its guest, until somebody takes it
    at         BIGINT   NOT NULL              -- of the state
);
CREATE INDEX ready_sandboxes_kind ON ready_sandboxes (image, vcpu_milli, memory_mib, disk_gib, internet, state, at);

-- Saves of sandboxes that had just booted, from which others are brought back instead of booting.
CREATE TABLE ready_seeds (
    name       TEXT     NOT NULL PRIMARY KEY, -- of the save
    state      TEXT     NOT NULL,             -- making, ready, dropping
    image      TEXT     NOT NULL,
    vcpu_milli BIGINT   NOT NULL,
    memory_mib BIGINT   NOT NULL,
    internet   SMALLINT NOT NULL,
    token      TEXT     NOT NULL,
    at         BIGINT   NOT NULL              -- of its last use
);
CREATE UNIQUE INDEX ready_seeds_kind ON ready_seeds (image, vcpu_milli, memory_mib, internet) WHERE state <> 'dropping';

-- +goose Down
DROP TABLE ready_seeds;
DROP TABLE ready_sandboxes;
