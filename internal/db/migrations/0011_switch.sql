-- +goose Up
-- Sandboxes that are to get another image, until they have it, and what came of it.
CREATE TABLE sandbox_switches (
    sandbox_id TEXT     NOT NULL PRIMARY KEY REFERENCES sandboxes (id) ON DELETE CASCADE,
    op_id      TEXT     NOT NULL,            -- what holds the sandbox
    state      TEXT     NOT NULL,            -- pending, done, failed
    target     TEXT     NOT NULL,            -- JSON
    image_id   TEXT     NOT NULL DEFAULT '', -- the version that it is to get, where there is one
    build_id   TEXT     NOT NULL DEFAULT '', -- of the template that it is to be of, where that was built
    boots      SMALLINT NOT NULL,            -- it ran, and runs again afterwards
    error      TEXT     NOT NULL DEFAULT '', -- JSON
    at         BIGINT   NOT NULL             -- when it was asked for
);
CREATE INDEX sandbox_switches_image ON sandbox_switches (image_id) WHERE state = 'pending';

-- +goose Down
DROP TABLE sandbox_switches;
