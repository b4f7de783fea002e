-- +goose Up
-- Which server works at a volume or a backup: copies take long, and two must not make the same one.
CREATE TABLE volume_leases (
    id    TEXT   NOT NULL PRIMARY KEY,
    owner TEXT   NOT NULL,
    until BIGINT NOT NULL
);

-- +goose Down
DROP TABLE volume_leases;
