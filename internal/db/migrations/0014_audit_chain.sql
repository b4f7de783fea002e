-- +goose Up
-- A row of the audit log gets its number, in its organization, and its hash over its content and the row before it, once nothing in it can change any more.
-- Rows of before are numbered anew with their hashes by the first server that runs.
CREATE TABLE audit_chains (
    org_id       TEXT   NOT NULL PRIMARY KEY,
    seq          BIGINT NOT NULL, -- of the last row
    hash         TEXT   NOT NULL,
    dropped_seq  BIGINT NOT NULL, -- of the last row that is not kept any more; 0 where all are there
    dropped_hash TEXT   NOT NULL  -- what the first row that is kept goes on from
);
DROP INDEX audit_seq;
DROP INDEX audit_org;
UPDATE audit SET seq = NULL;
ALTER TABLE audit ADD COLUMN end_of TEXT NOT NULL DEFAULT '';
ALTER TABLE audit ADD COLUMN hash TEXT NOT NULL DEFAULT '';
CREATE UNIQUE INDEX audit_org ON audit (org_id, seq);

-- +goose Down
DROP INDEX audit_org;
UPDATE audit SET seq = NULL;
ALTER TABLE audit DROP COLUMN hash;
ALTER TABLE audit DROP COLUMN end_of;
CREATE UNIQUE INDEX audit_seq ON audit (seq);
CREATE INDEX audit_org ON audit (org_id, seq);
UPDATE sequences SET value = 0 WHERE name = 'audit';
DROP TABLE audit_chains;
