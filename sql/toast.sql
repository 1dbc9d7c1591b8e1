-- Long keys, fingerprints, requests and answers together in one row. Promises:
-- section 3 (replay of the same fingerprint), rules 5 and 11.
CREATE FUNCTION pg_temp.noise(seed text, bytes int) RETURNS text LANGUAGE sql AS $$
    SELECT substr(string_agg(md5(seed || i), ''), 1, bytes) FROM generate_series(1, 1 + bytes / 32) i
$$;

-- A fingerprint that compresses well beside an answer that does not is still equal to itself.
SELECT token AS t FROM idem_reserve('toast', 'flat', decode(repeat('00', 64), 'hex')) \gset
SELECT idem_complete('toast', 'flat', :'t', 200, pg_temp.noise('body', 1990));
SELECT outcome, md5(body) = md5(pg_temp.noise('body', 1990)::bytea) AS same_body FROM idem_reserve('toast', 'flat', decode(repeat('00', 64), 'hex'));
SELECT outcome FROM idem_reserve('toast', 'flat', decode(repeat('00', 63) || '01', 'hex'));
SELECT idem_complete('toast', 'flat', :'t', 200, pg_temp.noise('body', 1990));

-- A key as long as it may be, with a request beside it: found, reminded of and answered.
SELECT repeat('k', 1000) AS flat, pg_temp.noise('key', 1000) AS noisy, repeat('c', 255) AS client \gset
SELECT outcome FROM idem_reserve(:'client', :'flat', '\x01', request => to_jsonb(pg_temp.noise('request', 5000)));
SELECT outcome FROM idem_reserve(:'client', :'noisy', '\x01', request => to_jsonb(pg_temp.noise('request', 990)));
SELECT outcome FROM idem_reserve(:'client', :'noisy', '\x02');
-- The reminder is written when no statement is running any more.
BEGIN;
SELECT outcome FROM idem_reserve('toast', :'noisy', '\x01', request => to_jsonb(pg_temp.noise('request', 990)));
SELECT 1 AS another_statement;
COMMIT;
BEGIN;
SELECT outcome FROM idem_reserve('toast2', :'noisy', '\x01', request => to_jsonb(pg_temp.noise('request', 990)));
SELECT 1 AS another_statement;
COMMIT;
SELECT client, length(key) FROM (TABLE idem_reminder_1 UNION ALL TABLE idem_reminder_2) r WHERE client IN ('toast', 'toast2') ORDER BY 1;
SELECT test.age('toast2', :'noisy', '1 h');
SELECT client, length(key), attempt, length(request #>> '{}') FROM idem_claim_stale(client => 'toast2');

-- Reserved and answered by one transaction, and by two, with all of it large.
BEGIN;
SELECT token AS t FROM idem_reserve('toast3', :'noisy', decode(repeat('ab', 64), 'hex'), request => to_jsonb(pg_temp.noise('request', 100000))) \gset
SELECT idem_complete('toast3', :'noisy', :'t', 200, pg_temp.noise('answer', 100000), jsonb_build_object('h', pg_temp.noise('header', 3000)));
COMMIT;
SELECT outcome, length(body), length(headers->>'h') FROM idem_reserve('toast3', :'noisy', decode(repeat('ab', 64), 'hex'));
SELECT request_bytes, body_bytes FROM idem_keys WHERE client = 'toast3';
