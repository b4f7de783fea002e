-- +goose Up
-- Pushes of images: the last of each image to each reference.
CREATE TABLE image_pushes (
    id         TEXT   NOT NULL PRIMARY KEY,
    image_id   TEXT   NOT NULL REFERENCES images (id) ON DELETE CASCADE,
    org_id     TEXT   NOT NULL,
    reference  TEXT   NOT NULL,
    state      TEXT   NOT NULL, -- pushing, done, failed
    done_bytes BIGINT NOT NULL DEFAULT 0,
    size_bytes BIGINT NOT NULL DEFAULT 0,
    error      TEXT   NOT NULL DEFAULT '',
    reason     TEXT   NOT NULL DEFAULT '',
    begun_at   BIGINT NOT NULL,
    ended_at   BIGINT NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX image_pushes_reference ON image_pushes (image_id, reference);
CREATE INDEX image_pushes_state ON image_pushes (state);

-- +goose Down
DROP TABLE image_pushes;
