/* idem--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION idem" to load this file. \quit

/*
 * Tables. They are read and written by the functions below, directly through
 * the table access method, and belong to nobody else. What every row has comes
 * first, the answer then, and last what few have: a row ends with its last column
 * that is not null, where that makes it shorter.
 */

CREATE TABLE idem_key (
    expires_at     timestamptz NOT NULL,
    lease_until    timestamptz NOT NULL,
    began_at       timestamptz NOT NULL,
    token          uuid        NOT NULL,
    client         text COLLATE pg_catalog."C" NOT NULL,
    key            text COLLATE pg_catalog."C" NOT NULL,
    fingerprint    bytea,
    completed_at   timestamptz,
    status_code    integer,
    body           bytea,
    headers        jsonb,
    request        jsonb,
    attempt        integer,
    created_at     timestamptz,
    lost_tokens    uuid[],
    recovery_point text,
    recovery_data  jsonb,
    PRIMARY KEY (client, key)
) USING heap WITH (
    fillfactor = 92,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 1
);
REVOKE ALL ON TABLE idem_key FROM PUBLIC;
REVOKE ALL ON TYPE idem_key FROM PUBLIC;

-- What is compared stays in the row; a large answer or request does not.
ALTER TABLE idem_key
    ALTER COLUMN client SET STORAGE MAIN,
    ALTER COLUMN key SET STORAGE MAIN,
    ALTER COLUMN fingerprint SET STORAGE MAIN,
    ALTER COLUMN lost_tokens SET STORAGE MAIN;

-- No plan depends on these, and ANALYZE would keep samples of tokens, requests and
-- answers in pg_statistic, for longer than the keys are kept.
ALTER TABLE idem_key
    ALTER COLUMN token SET STATISTICS 0,
    ALTER COLUMN fingerprint SET STATISTICS 0,
    ALTER COLUMN headers SET STATISTICS 0,
    ALTER COLUMN body SET STATISTICS 0,
    ALTER COLUMN request SET STATISTICS 0,
    ALTER COLUMN recovery_point SET STATISTICS 0,
    ALTER COLUMN recovery_data SET STATISTICS 0,
    ALTER COLUMN lost_tokens SET STATISTICS 0;

COMMENT ON TABLE idem_key IS 'one row per idempotency key; kept by the functions of extension idem, not to be changed by hand';
COMMENT ON COLUMN idem_key.expires_at IS 'end of retention: from here on the key is absent to every caller; set when an attempt begins and moved by nothing else';
COMMENT ON COLUMN idem_key.lease_until IS 'end of the lease of the attempt in progress, never later than expires_at';
COMMENT ON COLUMN idem_key.began_at IS 'when the current attempt began; expires_at - began_at is the retention that was granted';
COMMENT ON COLUMN idem_key.token IS 'who owns the key: random, new with every attempt';
COMMENT ON COLUMN idem_key.client IS 'whose key it is, 1 to 255 bytes';
COMMENT ON COLUMN idem_key.key IS 'the idempotency key, 1 to 1,000 bytes';
COMMENT ON COLUMN idem_key.fingerprint IS 'hash of the request, 1 to 64 bytes; tells a retry from another request';
COMMENT ON COLUMN idem_key.completed_at IS 'when the answer was stored; NULL while in progress';
COMMENT ON COLUMN idem_key.status_code IS 'HTTP status code of the stored answer; NULL while in progress';
COMMENT ON COLUMN idem_key.body IS 'body of the stored answer, byte for byte; NULL is no body, not an empty one';
COMMENT ON COLUMN idem_key.headers IS 'headers of the stored answer, an object or an array of pairs';
COMMENT ON COLUMN idem_key.request IS 'the request, where it was given to idem_reserve or idem_call';
COMMENT ON COLUMN idem_key.attempt IS 'one more with every takeover of a stale lease; NULL is 1';
COMMENT ON COLUMN idem_key.created_at IS 'when the key was first reserved; NULL in its first attempt, which began at began_at';
COMMENT ON COLUMN idem_key.lost_tokens IS 'tokens of earlier attempts, which no later attempt may have again; NULL before the first takeover and once completed';
COMMENT ON COLUMN idem_key.recovery_point IS 'how far the work had come at the last checkpoint';
COMMENT ON COLUMN idem_key.recovery_data IS 'what the last checkpoint noted';

-- lz4 is faster at about the same size; not every server is built with it
DO $do$
BEGIN
    ALTER TABLE idem_key ALTER COLUMN body SET COMPRESSION lz4;
    ALTER TABLE idem_key ALTER COLUMN request SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
    NULL;
END
$do$;

-- Leases that are committed and not yet answered. Two tables of equal
-- standing, so that one can be emptied while the other is written to. No
-- index, and no replica identity: rows are only inserted and deleted.
CREATE TABLE idem_reminder_1 (
    lease_until timestamptz NOT NULL,
    token       uuid        NOT NULL,
    announced   boolean     NOT NULL,
    client      text COLLATE pg_catalog."C" NOT NULL,
    key         text COLLATE pg_catalog."C" NOT NULL
) USING heap;
REVOKE ALL ON TABLE idem_reminder_1 FROM PUBLIC;
REVOKE ALL ON TYPE idem_reminder_1 FROM PUBLIC;

CREATE TABLE idem_reminder_2 (
    lease_until timestamptz NOT NULL,
    token       uuid        NOT NULL,
    announced   boolean     NOT NULL,
    client      text COLLATE pg_catalog."C" NOT NULL,
    key         text COLLATE pg_catalog."C" NOT NULL
) USING heap;
REVOKE ALL ON TABLE idem_reminder_2 FROM PUBLIC;
REVOKE ALL ON TYPE idem_reminder_2 FROM PUBLIC;

-- No plan depends on them.
ALTER TABLE idem_reminder_1 ALTER COLUMN token SET STATISTICS 0, ALTER COLUMN client SET STATISTICS 0, ALTER COLUMN key SET STATISTICS 0;
ALTER TABLE idem_reminder_2 ALTER COLUMN token SET STATISTICS 0, ALTER COLUMN client SET STATISTICS 0, ALTER COLUMN key SET STATISTICS 0;

COMMENT ON TABLE idem_reminder_1 IS 'leases to look at when they are over; kept by extension idem';
COMMENT ON TABLE idem_reminder_2 IS 'leases to look at when they are over; kept by extension idem';

-- Where the sweep goes on. Unlogged, since it means nothing after a crash, on
-- another server or in a dump.
CREATE UNLOGGED TABLE idem_state (
    next_block bigint NOT NULL
) USING heap;
REVOKE ALL ON TABLE idem_state FROM PUBLIC;
REVOKE ALL ON TYPE idem_state FROM PUBLIC;

COMMENT ON TABLE idem_state IS 'where the sweep of idem_key goes on; kept by extension idem';

-- Keys and answers come along with a dump, and so do leases in progress.
SELECT pg_catalog.pg_extension_config_dump('idem_key', '');
SELECT pg_catalog.pg_extension_config_dump('idem_reminder_1', '');
SELECT pg_catalog.pg_extension_config_dump('idem_reminder_2', '');

/*
 * Types. Everybody may use a type unless told otherwise; a column of it in a
 * stranger's table would be in the way of a later version.
 */

CREATE DOMAIN idem_outcome AS text
    CHECK (VALUE OPERATOR(pg_catalog.=) ANY (ARRAY['new', 'in_flight', 'replay', 'mismatch']::pg_catalog.text[]));
REVOKE ALL ON DOMAIN idem_outcome FROM PUBLIC;
COMMENT ON DOMAIN idem_outcome IS 'outcome of a reservation: new, in_flight, replay or mismatch, and never anything else';

CREATE TYPE idem_reservation AS (
    outcome        idem_outcome,
    token          uuid,
    attempt        integer,
    status_code    integer,
    headers        jsonb,
    body           bytea,
    retry_after    interval,
    recovery_point text,
    recovery_data  jsonb
);
REVOKE ALL ON TYPE idem_reservation FROM PUBLIC;
COMMENT ON TYPE idem_reservation IS 'result of idem_reserve';

CREATE TYPE idem_call_result AS (
    outcome     idem_outcome,
    status_code integer,
    headers     jsonb,
    body        bytea
);
REVOKE ALL ON TYPE idem_call_result FROM PUBLIC;
COMMENT ON TYPE idem_call_result IS 'result of idem_call';

CREATE TYPE idem_claim AS (
    client         text,
    key            text,
    token          uuid,
    attempt        integer,
    request        jsonb,
    recovery_point text,
    recovery_data  jsonb
);
REVOKE ALL ON TYPE idem_claim FROM PUBLIC;
COMMENT ON TYPE idem_claim IS 'a stale key that idem_claim_stale has taken over';

CREATE TYPE idem_key_state AS (
    state          text,
    attempt        integer,
    lease_until    timestamptz,
    expires_at     timestamptz,
    created_at     timestamptz,
    completed_at   timestamptz,
    status_code    integer,
    recovery_point text
);
REVOKE ALL ON TYPE idem_key_state FROM PUBLIC;
COMMENT ON TYPE idem_key_state IS 'result of idem_lookup';

CREATE TYPE idem_sweep_result AS (
    expired bigint,
    stale   bigint
);
REVOKE ALL ON TYPE idem_sweep_result FROM PUBLIC;
COMMENT ON TYPE idem_sweep_result IS 'result of idem_sweep';

/*
 * Reserving and answering
 */

CREATE FUNCTION idem_reserve(
    client    text,
    key       text,
    fp        bytea    DEFAULT NULL,
    lease     interval DEFAULT NULL,
    retention interval DEFAULT NULL,
    wait      interval DEFAULT NULL,
    token     uuid     DEFAULT NULL,
    request   jsonb    DEFAULT NULL
) RETURNS idem_reservation
AS 'MODULE_PATHNAME', 'idem_reserve'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION idem_reserve(text, text, bytea, interval, interval, interval, uuid, jsonb) FROM PUBLIC;
COMMENT ON FUNCTION idem_reserve(text, text, bytea, interval, interval, interval, uuid, jsonb) IS
'Reserve a key, or say what became of it.
client: whose key, 1 to 255 bytes. key: 1 to 1,000 bytes. fp: hash of the request, 1 to 64 bytes; NULL with a request: its canonical fingerprint. lease: how long the key may stay unanswered, NULL: idem.lease. retention: how long it is kept, NULL: idem.retention. wait: how long to wait for another request to end, NULL: idem.wait_timeout, 0 never waits. token: the owner''s own, which makes the call safe to repeat; the token returned is this one, unless an earlier attempt on the key has lost it. request: kept with the key.
outcome new: the caller owns the key and does the work; in_flight (409), replay (the stored answer), mismatch (422): the row is the answer to send.
Errors: 22004, 22023 (arguments), 54000 (request too large), 42501 (pinned to another client), 25006 (read-only, where a write is needed), 40001 (the deciding row is newer than the snapshot).
Outcomes after draft-ietf-httpapi-idempotency-key-header; problem bodies after RFC 9457.';

CREATE FUNCTION idem_complete(
    client      text,
    key         text,
    token       uuid,
    status_code integer,
    body        text  DEFAULT NULL,
    headers     jsonb DEFAULT NULL
) RETURNS void
AS 'MODULE_PATHNAME', 'idem_complete'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION idem_complete(text, text, uuid, integer, text, jsonb) FROM PUBLIC;
COMMENT ON FUNCTION idem_complete(text, text, uuid, integer, text, jsonb) IS
'Store the answer of a key that the caller owns.
token: from idem_reserve. status_code: 100 to 599. body: stored as UTF-8; NULL is no body. headers: an object, or an array of pairs where order and repeats matter.
The same answer again is a success. Errors: ID001 (another token holds the key), ID002 (not reserved, or expired), ID003 (completed with another answer), 22004, 22023, 54000 (larger than idem.max_response_size), 42501, 25006, 40001.';

CREATE FUNCTION idem_complete_bytes(
    client      text,
    key         text,
    token       uuid,
    status_code integer,
    body        bytea DEFAULT NULL,
    headers     jsonb DEFAULT NULL
) RETURNS void
AS 'MODULE_PATHNAME', 'idem_complete_bytes'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION idem_complete_bytes(text, text, uuid, integer, bytea, jsonb) FROM PUBLIC;
COMMENT ON FUNCTION idem_complete_bytes(text, text, uuid, integer, bytea, jsonb) IS
'Store the answer of a key that the caller owns, with a body of any bytes.
Arguments and errors as for idem_complete; body: stored as it is, NULL is no body.';

CREATE FUNCTION idem_complete_json(
    client      text,
    key         text,
    token       uuid,
    status_code integer,
    body        jsonb,
    headers     jsonb DEFAULT NULL
) RETURNS bytea
AS 'MODULE_PATHNAME', 'idem_complete_json'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION idem_complete_json(text, text, uuid, integer, jsonb, jsonb) FROM PUBLIC;
COMMENT ON FUNCTION idem_complete_json(text, text, uuid, integer, jsonb, jsonb) IS
'Store the answer of a key that the caller owns, with a JSON body, and return the bytes stored: send those, so that the first answer equals the replays.
Arguments and errors as for idem_complete; headers NULL: {"content-type": "application/json"}.';

CREATE FUNCTION idem_release(client text, key text, token uuid) RETURNS void
AS 'MODULE_PATHNAME', 'idem_release'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION idem_release(text, text, uuid) FROM PUBLIC;
COMMENT ON FUNCTION idem_release(text, text, uuid) IS
'Give up a key that the caller owns, without an answer: it is absent again, and a retry is new.
Errors: ID001 (another token holds the key), ID002 (not reserved, or expired), ID003 (completed), 22004, 22023, 42501, 25006, 40001.';

CREATE FUNCTION idem_renew(
    client text,
    key    text,
    token  uuid,
    lease  interval DEFAULT NULL
) RETURNS timestamptz
AS 'MODULE_PATHNAME', 'idem_renew'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION idem_renew(text, text, uuid, interval) FROM PUBLIC;
COMMENT ON FUNCTION idem_renew(text, text, uuid, interval) IS
'The heartbeat of work that takes longer than its lease: the lease of a key that the caller owns runs anew from now.
lease: NULL: idem.lease. Returns the new end of the lease, never later than the key''s retention.
Errors: ID001 (another token holds the key: stop), ID002 (not reserved, or expired), ID003 (completed), 22004, 22023, 42501, 25006, 40001.';

CREATE FUNCTION idem_checkpoint(
    client         text,
    key            text,
    token          uuid,
    recovery_point text,
    data           jsonb DEFAULT NULL
) RETURNS void
AS 'MODULE_PATHNAME', 'idem_checkpoint'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION idem_checkpoint(text, text, uuid, text, jsonb) FROM PUBLIC;
COMMENT ON FUNCTION idem_checkpoint(text, text, uuid, text, jsonb) IS
'Note how far the work on a key has come, in the transaction of the step that is noted. The next attempt gets it from idem_reserve or idem_claim_stale.
recovery_point: name of the step done. data: what the steps after it need; replaces what was noted before.
Errors: ID001, ID002, ID003 as for idem_renew, 22004, 22023, 54000 (larger than idem.max_response_size), 42501, 25006, 40001.';

CREATE FUNCTION idem_claim_stale(
    max_keys integer  DEFAULT 100,
    lease    interval DEFAULT NULL,
    client   text     DEFAULT NULL
) RETURNS SETOF idem_claim
AS 'MODULE_PATHNAME', 'idem_claim_stale'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION idem_claim_stale(integer, interval, text) FROM PUBLIC;
COMMENT ON FUNCTION idem_claim_stale(integer, interval, text) IS
'Take over keys whose lease is over, the oldest first, to bring their work to an end. Each goes to one caller; what another session is at is passed over.
max_keys: most keys. lease: of the new attempt, NULL: idem.lease. client: whose keys, NULL: everybody''s (the pinned client''s, where idem.client is set). request is NULL where none was kept. LISTEN idem_stale tells when there are new ones.
Errors: 22004, 22023, 42501, 25006, 40001.';

/*
 * The whole cycle, and the inbox
 */

CREATE FUNCTION idem_call(
    client      text,
    key         text,
    fn          regprocedure,
    request     jsonb,
    fp          bytea    DEFAULT NULL,
    status_code integer  DEFAULT 200,
    retention   interval DEFAULT NULL,
    wait        interval DEFAULT NULL
) RETURNS idem_call_result
AS 'MODULE_PATHNAME', 'idem_call'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION idem_call(text, text, regprocedure, jsonb, bytea, integer, interval, interval) FROM PUBLIC;
COMMENT ON FUNCTION idem_call(text, text, regprocedure, jsonb, bytea, integer, interval, interval) IS
'Reserve, work and complete in one statement: when the key is new, body := fn(request) is called as the caller and stored.
fn: a function from jsonb to jsonb that the caller may execute. request: its argument. fp: hash of the request, NULL: the canonical fingerprint of request. status_code: of the answer. retention, wait: as for idem_reserve.
An error in fn propagates and leaves the key free. Errors: as for idem_reserve and idem_complete_json, 42501 (fn not executable), 42883 (no such function).';

CREATE FUNCTION idem_once(client text, key text, retention interval DEFAULT NULL) RETURNS boolean
AS 'MODULE_PATHNAME', 'idem_once'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION idem_once(text, text, interval) FROM PUBLIC;
COMMENT ON FUNCTION idem_once(text, text, interval) IS
'Mark a message as handled: true the first time, false from then on. Call it in the transaction of its effect. Waits for a rival that has not ended (lock_timeout applies), and says false of a committed mark only.
retention: how long the mark is kept, NULL: idem.retention.
Errors: 55000 (the key is reserved, not a mark), 22004, 22023, 42501, 25006, 40001, 55P03, 40P01.';

CREATE FUNCTION idem_once_batch(client text, keys text[], retention interval DEFAULT NULL) RETURNS SETOF text
AS 'MODULE_PATHNAME', 'idem_once_batch'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION idem_once_batch(text, text[], interval) FROM PUBLIC;
COMMENT ON FUNCTION idem_once_batch(text, text[], interval) IS
'Mark many messages as handled. Returns the keys not seen before, each once, in the order of their first occurrence; they are marked in sorted order, so that two batches cannot deadlock.
keys: 1 to 1,000 bytes each. retention and errors: as for idem_once; 22004 for a NULL element.';

/*
 * Looking
 */

CREATE FUNCTION idem_lookup(client text, key text) RETURNS idem_key_state
AS 'MODULE_PATHNAME', 'idem_lookup'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED;
REVOKE ALL ON FUNCTION idem_lookup(text, text) FROM PUBLIC;
COMMENT ON FUNCTION idem_lookup(text, text) IS
'The state of a key, without touching it; works on a standby. Always one row.
state: absent (the rest NULL), in_progress, stale (the lease is over) or completed.
Errors: 22004, 22023, 42501.';

CREATE FUNCTION idem_explain(
    client  text,
    key     text,
    fp      bytea DEFAULT NULL,
    request jsonb DEFAULT NULL
) RETURNS text
AS 'MODULE_PATHNAME', 'idem_explain'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED;
REVOKE ALL ON FUNCTION idem_explain(text, text, bytea, jsonb) FROM PUBLIC;
COMMENT ON FUNCTION idem_explain(text, text, bytea, jsonb) IS
'In words: the state of a key, what a retry would get now, and why; changes nothing and works on a standby.
fp, request: of the retry, as for idem_reserve; without both: a retry with the same request. With request, and where the first one was kept, a mismatch says in which fields they differ. It shows no answer, but parts of both requests.
Errors: 22004, 22023, 42501, 40001.';

CREATE FUNCTION idem_pinned_client() RETURNS text
AS 'MODULE_PATHNAME', 'idem_pinned_client'
LANGUAGE C STABLE PARALLEL RESTRICTED;
REVOKE ALL ON FUNCTION idem_pinned_client() FROM PUBLIC;
COMMENT ON FUNCTION idem_pinned_client() IS
'The client that this session is pinned to by idem.client, or NULL.';

-- Two branches, of which a pinned session runs the second only, and that by the
-- index: what EXPLAIN ANALYZE counts there is its own.
CREATE VIEW idem_keys WITH (security_barrier) AS
    SELECT k.client,
           k.key,
           CASE WHEN k.completed_at IS NOT NULL THEN 'completed'
                WHEN k.lease_until OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp() THEN 'stale'
                ELSE 'in_progress'
           END AS state,
           COALESCE(k.attempt, 1) AS attempt,
           COALESCE(k.created_at, k.began_at) AS created_at,
           k.began_at,
           k.lease_until,
           k.completed_at,
           k.expires_at,
           k.status_code,
           pg_catalog.octet_length(k.body) AS body_bytes,
           pg_catalog.octet_length(k.headers::pg_catalog.text) AS headers_bytes,
           pg_catalog.octet_length(k.request::pg_catalog.text) AS request_bytes,
           k.recovery_point
      FROM (SELECT * FROM idem_key WHERE (SELECT idem_pinned_client()) IS NULL
            UNION ALL
            SELECT * FROM idem_key WHERE client OPERATOR(pg_catalog.=) (SELECT idem_pinned_client())) k
     WHERE k.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp();
REVOKE ALL ON TABLE idem_keys FROM PUBLIC;
REVOKE ALL ON TYPE idem_keys FROM PUBLIC;
COMMENT ON VIEW idem_keys IS
'one row per live key, of the pinned client only where idem.client is set; no bodies, no tokens';
COMMENT ON COLUMN idem_keys.state IS 'in_progress, stale (the lease is over) or completed';
COMMENT ON COLUMN idem_keys.attempt IS '1, and one more with every takeover';
COMMENT ON COLUMN idem_keys.began_at IS 'when the current attempt began';
COMMENT ON COLUMN idem_keys.body_bytes IS 'size of the stored body in bytes; NULL: none';

/*
 * Sweeping
 */

CREATE FUNCTION idem_sweep(max_keys integer DEFAULT NULL) RETURNS idem_sweep_result
AS 'MODULE_PATHNAME', 'idem_sweep'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION idem_sweep(integer) FROM PUBLIC;
COMMENT ON FUNCTION idem_sweep(integer) IS
'Do what the background worker does, by hand and in this transaction: remove expired keys and find stale leases.
max_keys: most keys removed, NULL: ten times idem.sweep_batch. Call again until it returns (0, 0).
expired: keys removed; stale: leases found to have become stale, which NOTIFY idem_stale tells.
Errors: 22023, 25006, 42P01 and 55000 (the tables are not as the extension created them).';

/*
 * Administration
 */

CREATE FUNCTION idem_forget(client text, key text DEFAULT NULL) RETURNS bigint
AS 'MODULE_PATHNAME', 'idem_forget'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION idem_forget(text, text) FROM PUBLIC;
COMMENT ON FUNCTION idem_forget(text, text) IS
'For administrators: remove a key, or with key NULL all of the client''s, whatever the state and whoever owns it. Returns how many there were. A retry is new afterwards. Waits for unfinished changes, as a DELETE does.
Errors: 22004, 22023, 42501, 25006.';

/*
 * Fingerprints, header values and derived keys
 */

CREATE FUNCTION idem_canonical_json(
    doc     jsonb,
    include jsonpath[] DEFAULT NULL,
    exclude jsonpath[] DEFAULT NULL
) RETURNS text
AS 'MODULE_PATHNAME', 'idem_canonical_json'
LANGUAGE C IMMUTABLE CALLED ON NULL INPUT PARALLEL SAFE;
REVOKE ALL ON FUNCTION idem_canonical_json(jsonb, jsonpath[], jsonpath[]) FROM PUBLIC;
COMMENT ON FUNCTION idem_canonical_json(jsonb, jsonpath[], jsonpath[]) IS
'The canonical text of a document: what idem_canonical_fingerprint hashes. RFC 8785 (JCS) with exact numbers.
doc: the document; NULL gives NULL.
include: what to keep, with what is in it and above it; NULL: everything.
exclude: what to leave out; it wins over include; NULL: nothing.
Paths are lax and made of $ .key ."key" .* [*] [n] .** only; they select what jsonb_path_query selects. One that selects nothing is ignored.
Errors: 0A000 another kind of path, 22004 a NULL path, 22023 nothing is left (an include list that hits nothing, exclude of the document itself), 22021 not UTF-8 in a SQL_ASCII database, 54001 nested too deep.';

CREATE FUNCTION idem_canonical_fingerprint(
    doc     jsonb,
    include jsonpath[] DEFAULT NULL,
    exclude jsonpath[] DEFAULT NULL
) RETURNS bytea
AS 'MODULE_PATHNAME', 'idem_canonical_fingerprint'
LANGUAGE C IMMUTABLE CALLED ON NULL INPUT PARALLEL SAFE;
REVOKE ALL ON FUNCTION idem_canonical_fingerprint(jsonb, jsonpath[], jsonpath[]) FROM PUBLIC;
COMMENT ON FUNCTION idem_canonical_fingerprint(jsonb, jsonpath[], jsonpath[]) IS
'SHA-256 (32 bytes) of the canonical text of a document in UTF-8. Two documents have the same fingerprint exactly when they are equal as jsonb.
doc, include, exclude and errors: as for idem_canonical_json.';

CREATE FUNCTION idem_parse_key(
    header text
) RETURNS text
AS 'MODULE_PATHNAME', 'idem_parse_key'
LANGUAGE C IMMUTABLE CALLED ON NULL INPUT PARALLEL SAFE;
REVOKE ALL ON FUNCTION idem_parse_key(text) FROM PUBLIC;
COMMENT ON FUNCTION idem_parse_key(text) IS
'The key in the value of an Idempotency-Key header, 1 to 255 bytes: a quoted string (RFC 8941; parameters after it are ignored) or a bare key; "k" and k are one key.
header: the value; blanks around it are taken off.
Errors: ID400 (idem_invalid_key) not a valid value, or NULL; answer the request with status 400.';

CREATE FUNCTION idem_provider_key(
    client text,
    key    text,
    step   text DEFAULT ''
) RETURNS uuid
AS 'MODULE_PATHNAME', 'idem_provider_key'
LANGUAGE C IMMUTABLE CALLED ON NULL INPUT PARALLEL SAFE;
REVOKE ALL ON FUNCTION idem_provider_key(text, text, text) FROM PUBLIC;
COMMENT ON FUNCTION idem_provider_key(text, text, text) IS
'The idempotency key to send to the next system down the line: a version 8 UUID, the same for the same arguments on every attempt, server and version. It is made of SHA-256 over client, key and step, each as a big-endian uint32 length and its UTF-8 bytes.
client: 1 to 255 bytes. key: 1 to 1,000 bytes.
step: tells several calls for one key apart; NULL is the same as ''''.
Errors: 22004 client or key NULL, 22023 empty or too long.';

/*
 * Monitoring
 */

CREATE TYPE idem_stat_row AS (
    datid              oid,
    reserved           bigint,
    taken_over         bigint,
    repeated           bigint,
    replay             bigint,
    in_flight          bigint,
    mismatch           bigint,
    completed          bigint,
    released           bigint,
    lease_lost         bigint,
    renewed            bigint,
    checkpoints        bigint,
    claimed            bigint,
    once_first         bigint,
    once_seen          bigint,
    waits              bigint,
    wait_time          interval,
    forgotten          bigint,
    expired            bigint,
    stale              bigint,
    passes             bigint,
    last_pass          timestamptz,
    last_pass_duration interval,
    oldest_expired     timestamptz,
    oldest_stale       timestamptz,
    keys               bigint,
    row_bytes          bigint,
    bytes              bigint,
    stats_reset        timestamptz
);
REVOKE ALL ON TYPE idem_stat_row FROM PUBLIC;
COMMENT ON TYPE idem_stat_row IS 'result of idem_stat_rows';

CREATE FUNCTION idem_stat_rows() RETURNS SETOF idem_stat_row
AS 'MODULE_PATHNAME', 'idem_stat_rows'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
REVOKE ALL ON FUNCTION idem_stat_rows() FROM PUBLIC;
COMMENT ON FUNCTION idem_stat_rows() IS
'What the view idem_stat is made of. Errors: 55000 (idem is not preloaded).';

CREATE VIEW idem_stat AS
    SELECT s.datid, d.datname,
           s.reserved, s.taken_over, s.repeated, s.replay, s.in_flight, s.mismatch,
           s.completed, s.released, s.lease_lost, s.renewed, s.checkpoints, s.claimed,
           s.once_first, s.once_seen, s.waits, s.wait_time, s.forgotten,
           s.expired, s.stale, s.passes, s.last_pass, s.last_pass_duration,
           s.oldest_expired, s.oldest_stale, s.keys, s.row_bytes, s.bytes, s.stats_reset
      FROM idem_stat_rows() s
      JOIN pg_catalog.pg_database d ON d.oid OPERATOR(pg_catalog.=) s.datid;
REVOKE ALL ON TABLE idem_stat FROM PUBLIC;
REVOKE ALL ON TYPE idem_stat FROM PUBLIC;
COMMENT ON VIEW idem_stat IS
'one row per database that has used idem: calls since stats_reset by what they were answered, also of transactions that rolled back, and what the last pass of the sweep found; kept over a clean restart, begun again after a crash. Error: 55000 (idem is not preloaded)';
COMMENT ON COLUMN idem_stat.reserved IS 'idem_reserve: new, first attempt';
COMMENT ON COLUMN idem_stat.taken_over IS 'idem_reserve: new, a later attempt';
COMMENT ON COLUMN idem_stat.repeated IS 'idem_reserve: new again, for the holder of the token';
COMMENT ON COLUMN idem_stat.replay IS 'idem_reserve: the stored answer';
COMMENT ON COLUMN idem_stat.in_flight IS 'idem_reserve: another request holds the key';
COMMENT ON COLUMN idem_stat.mismatch IS 'idem_reserve: the key belongs to another request';
COMMENT ON COLUMN idem_stat.completed IS 'answers stored';
COMMENT ON COLUMN idem_stat.released IS 'keys given up';
COMMENT ON COLUMN idem_stat.lease_lost IS 'calls of owners that ended with ID001';
COMMENT ON COLUMN idem_stat.renewed IS 'leases renewed by idem_renew';
COMMENT ON COLUMN idem_stat.checkpoints IS 'recovery points noted';
COMMENT ON COLUMN idem_stat.claimed IS 'stale keys handed out by idem_claim_stale';
COMMENT ON COLUMN idem_stat.once_first IS 'idem_once, idem_once_batch: seen for the first time';
COMMENT ON COLUMN idem_stat.once_seen IS 'idem_once, idem_once_batch: seen before';
COMMENT ON COLUMN idem_stat.waits IS 'calls of idem_reserve that waited for another request';
COMMENT ON COLUMN idem_stat.wait_time IS 'how long those waited that were answered, in all';
COMMENT ON COLUMN idem_stat.forgotten IS 'keys removed by idem_forget';
COMMENT ON COLUMN idem_stat.expired IS 'expired keys removed by the sweep';
COMMENT ON COLUMN idem_stat.stale IS 'leases that the sweep found to have become stale';
COMMENT ON COLUMN idem_stat.passes IS 'times that the sweep has been here, idem_sweep included';
COMMENT ON COLUMN idem_stat.last_pass IS 'end of the last pass; NULL: none since the server started after a crash, or ever';
COMMENT ON COLUMN idem_stat.last_pass_duration IS 'how long it took, pauses included';
COMMENT ON COLUMN idem_stat.oldest_expired IS 'since when the oldest expired key is expired that the last pass knows to have left, or, where it did not get to its end, may have left';
COMMENT ON COLUMN idem_stat.oldest_stale IS 'since when the oldest stale lease is stale that the last pass saw';
COMMENT ON COLUMN idem_stat.keys IS 'keys stored and not expired, estimated from what the last pass read of the table';
COMMENT ON COLUMN idem_stat.row_bytes IS 'bytes that those take in the table, without indexes and TOAST';
COMMENT ON COLUMN idem_stat.bytes IS 'bytes on disk of all tables of the extension, with indexes and TOAST, at the last pass';

CREATE FUNCTION idem_stat_reset() RETURNS void
AS 'MODULE_PATHNAME', 'idem_stat_reset'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
REVOKE ALL ON FUNCTION idem_stat_reset() FROM PUBLIC;
COMMENT ON FUNCTION idem_stat_reset() IS
'For administrators: begin the counters of this database again. Errors: 55000 (idem is not preloaded).';

CREATE TYPE idem_health_check AS (
    check_name text,
    ok         boolean,
    detail     text,
    remedy     text
);
REVOKE ALL ON TYPE idem_health_check FROM PUBLIC;
COMMENT ON TYPE idem_health_check IS 'result of idem_health';

-- Asks the catalogs, so names are to be theirs.
CREATE FUNCTION idem_health() RETURNS SETOF idem_health_check
AS 'MODULE_PATHNAME', 'idem_health'
LANGUAGE C VOLATILE PARALLEL RESTRICTED
SET search_path = pg_catalog, pg_temp;
REVOKE ALL ON FUNCTION idem_health() FROM PUBLIC;
COMMENT ON FUNCTION idem_health() IS
'Whether all is well with idem in this database: one row per check, in words; where ok is false, remedy says what to do.
Checks: preloaded, sweeper, worker_slots, counters, retention (will the keys of one retention fit on the disk), client_pins, table_size, autovacuum, durability. Errors: none of its own.';

/*
 * Privileges
 */

CREATE FUNCTION idem_grant(role regrole, monitor boolean DEFAULT false) RETURNS void
AS 'MODULE_PATHNAME', 'idem_grant'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION idem_grant(regrole, boolean) FROM PUBLIC;
COMMENT ON FUNCTION idem_grant(regrole, boolean) IS
'Grant a role what an application calls; with monitor, what monitoring reads instead.
Never granted: what works on keys whatever their owner. Errors: 22004, 42501 (the caller may not grant).';

CREATE FUNCTION idem_revoke(role regrole) RETURNS void
AS 'MODULE_PATHNAME', 'idem_revoke'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION idem_revoke(regrole) FROM PUBLIC;
COMMENT ON FUNCTION idem_revoke(regrole) IS
'Take back from a role everything that idem_grant gave. USAGE of the schema, which other things may need, is left. Errors: 22004, 42501 (the caller may not revoke).';

-- There is nothing to sweep yet, but this lets the background worker know that
-- it has a database more to visit.
DO $do$
BEGIN
    PERFORM idem_sweep(1);
END
$do$;
