-- +goose Up
-- The policies of organizations. Every version is kept: the newest holds. An organization without a row has the default.
CREATE TABLE policy_sets (
    org_id     TEXT   NOT NULL REFERENCES organizations (id),
    version    BIGINT NOT NULL,
    text       TEXT   NOT NULL,
    created_by TEXT   NOT NULL, -- JSON: the person, agent, app and key that put it
    created_at BIGINT NOT NULL,
    PRIMARY KEY (org_id, version)
);

-- +goose Down
DROP TABLE policy_sets;
