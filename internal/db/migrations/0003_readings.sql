-- +goose Up
-- What sandboxes used, a minute a row: samples is a text of numbers, see internal/sandbox/series.go.
CREATE TABLE sandbox_readings (
    sandbox_id TEXT   NOT NULL,
    at         BIGINT NOT NULL,
    samples    TEXT   NOT NULL,
    PRIMARY KEY (sandbox_id, at)
);
CREATE INDEX sandbox_readings_at ON sandbox_readings (at);

-- A sandbox's log is what happened to it.
CREATE INDEX events_resource ON events (resource_id, at, id);

-- How long a stopped one is kept; 0: until it is deleted.
ALTER TABLE sandboxes ADD COLUMN retention_seconds BIGINT NOT NULL DEFAULT 0;

-- Where what a process wrote is in the pack of its sandbox's stop, and when it wrote it.
-- Of what was kept in another form before, nothing is found any more.
UPDATE processes SET kept = 0, state = CASE WHEN state = 'running' THEN 'lost' ELSE state END WHERE kept = 1;
ALTER TABLE processes ADD COLUMN pack TEXT NOT NULL DEFAULT '';
ALTER TABLE processes ADD COLUMN stdout_from BIGINT NOT NULL DEFAULT 0;
ALTER TABLE processes ADD COLUMN stdout_length BIGINT NOT NULL DEFAULT 0;
ALTER TABLE processes ADD COLUMN stderr_from BIGINT NOT NULL DEFAULT 0;
ALTER TABLE processes ADD COLUMN stderr_length BIGINT NOT NULL DEFAULT 0;
ALTER TABLE processes ADD COLUMN stamps TEXT NOT NULL DEFAULT '';
