-- idem_reserve: four outcomes and what comes with each.
-- Promises: section 3 (the table; problem bodies after RFC 9457 with the draft's
-- titles, status and code; idem's own headers are an object of strings;
-- retry-after); section 4 (the result's columns, arguments by name, fp NULL with
-- a request) and rule 4 (the token is NULL in every outcome but new).

-- The columns, in this order.
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = 'idem_reservation'::regclass AND attnum > 0 ORDER BY attnum;

-- new: nothing but the token and the attempt
SELECT * FROM idem_reserve('shop', 'r1', '\x01') \gset first_
\echo :first_outcome :first_attempt
SELECT outcome, token IS NOT NULL AS token, attempt, num_nulls(status_code, headers, body, retry_after, recovery_point, recovery_data) AS nulls
FROM idem_reserve('shop', 'r2', '\x01');
-- random, a version 4 UUID, never the same twice
SELECT count(DISTINCT token) AS tokens, bool_and(token::text ~ '^.{14}4.{4}[89ab]') AS version_4
FROM (SELECT (idem_reserve('tokens', 't' || i, '\x01')).token FROM generate_series(1, 500) i) t;

-- in_flight
SELECT outcome, token, attempt, status_code, jsonb_object_keys(headers) AS header FROM idem_reserve('shop', 'r1', '\x01');
SELECT headers ->> 'content-type' AS content_type, retry_after = make_interval(secs => (headers ->> 'retry-after')::int) AS same,
       retry_after BETWEEN '1 s' AND '10 min' AS within_the_lease, headers ->> 'retry-after' ~ '^[1-9][0-9]*$' AS whole_seconds
FROM idem_reserve('shop', 'r1', '\x01');
SELECT b ->> 'title' AS title, b -> 'status' AS status, b ->> 'code' AS code, b ? 'type' AS type, b ? 'detail' AS detail
FROM idem_reserve('shop', 'r1', '\x01') r, LATERAL (SELECT convert_from(body, 'UTF8')::jsonb AS b) x;

-- mismatch
SELECT outcome, token, attempt, status_code, headers, retry_after FROM idem_reserve('shop', 'r1', '\x02');
SELECT b ->> 'title' AS title, b -> 'status' AS status, b ->> 'code' AS code, b ? 'type' AS type, b ? 'detail' AS detail
FROM idem_reserve('shop', 'r1', '\x02') r, LATERAL (SELECT convert_from(body, 'UTF8')::jsonb AS b) x;

-- replay
SELECT idem_complete('shop', 'r1', :'first_token', 201, '{"id": 7}', '{"location": "/7"}');
SELECT outcome, token, status_code, headers, convert_from(body, 'UTF8') AS body, retry_after FROM idem_reserve('shop', 'r1', '\x01');
SELECT outcome, token, status_code, headers, retry_after FROM idem_reserve('shop', 'r1', '\x02');

-- For every outcome but new the row can be sent as it is: idem's own headers are strings.
SELECT outcome, bool_and(jsonb_typeof(h.value) = 'string') AS strings
FROM (SELECT * FROM idem_reserve('shop', 'r1', '\x02') UNION ALL SELECT * FROM idem_reserve('shop', 'r2', '\x01')) r, jsonb_each(r.headers) h
GROUP BY outcome ORDER BY outcome;

-- retry-after is the rest of the lease, rounded up
CREATE FUNCTION pg_temp.rounded_up(key text, lease interval) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    earlier timestamptz;
    until timestamptz;
    r record;
BEGIN
    PERFORM idem_reserve('shop', key, '\x01', lease => lease);
    until := (idem_lookup('shop', key)).lease_until;
    earlier := clock_timestamp();
    r := idem_reserve('shop', key, '\x01');
    RETURN r.outcome = 'in_flight' AND
           extract(epoch FROM r.retry_after) BETWEEN ceil(extract(epoch FROM until - clock_timestamp())) AND ceil(extract(epoch FROM until - earlier));
END $$;
SELECT lease, pg_temp.rounded_up('lease ' || lease, lease) FROM unnest('{1 h,30 s,10.5 s,10 s}'::interval[]) lease;
-- and at least 1; a lease this short may be over too early, so try until it is not
DO $$
DECLARE
    r record;
BEGIN
    FOR i IN 1 .. 1000 LOOP
        PERFORM idem_reserve('shop', 'short ' || i, '\x01', lease => '20 ms');
        r := idem_reserve('shop', 'short ' || i, '\x01');
        EXIT WHEN r.outcome = 'in_flight';
    END LOOP;
    RAISE NOTICE '%, % s, %', r.outcome, extract(epoch FROM r.retry_after)::int, r.headers;
END $$;

-- Arguments by name, in any order.
SELECT outcome FROM idem_reserve(request => '{"a": 1}', token => gen_random_uuid(), wait => '0', retention => '1 h', lease => '1 s', fp => '\x03', key => 'named', client => 'shop');
SELECT request FROM idem_key WHERE key = 'named';

-- fp NULL with a request: its canonical fingerprint; the request is kept.
SELECT outcome FROM idem_reserve('shop', 'r3', request => '{"amount": 1.0, "to": "x"}');
SELECT fingerprint = idem_canonical_fingerprint('{"to": "x", "amount": 1}') AS canonical, request FROM idem_key WHERE key = 'r3';
SELECT outcome FROM idem_reserve('shop', 'r3', request => '{"to":"x","amount":1.00}');
SELECT outcome FROM idem_reserve('shop', 'r3', idem_canonical_fingerprint('{"to": "x", "amount": 1}'));
SELECT outcome FROM idem_reserve('shop', 'r3', request => '{"amount": 2, "to": "x"}');
SELECT outcome FROM idem_reserve('shop', 'r3', '\x01', request => '{"amount": 1, "to": "x"}');
SELECT state, message, hint FROM test.failure($$ SELECT idem_reserve('shop', 'r3') $$);

-- Waiting for a live lease ends with the time allowed, or with the lease. What is not to wait would be stopped.
SET statement_timeout = '30 s';
SELECT outcome FROM idem_reserve('shop', 'r2', '\x01', wait => '20 ms');
SELECT outcome FROM idem_reserve('shop', 'r2', '\x02', wait => '1 min');
SELECT outcome FROM idem_reserve('shop', 'r1', '\x01', wait => '1 min');
SELECT outcome FROM idem_reserve('shop', 'r4', '\x01', lease => '50 ms');
SELECT outcome, attempt FROM idem_reserve('shop', 'r4', '\x01', wait => '1 min');
SET idem.wait_timeout = '1 min';
SELECT outcome FROM idem_reserve('shop', 'r5', '\x01', lease => '50 ms');
SELECT outcome, attempt FROM idem_reserve('shop', 'r5', '\x01');
SELECT outcome FROM idem_reserve('shop', 'r2', '\x01', wait => '0');
RESET idem.wait_timeout;

-- A key that nobody has is new at once.
SELECT outcome FROM idem_reserve('shop', 'r6', '\x01', wait => '1 min');
RESET statement_timeout;

-- The outcome is a domain over text with these four values.
SELECT pg_typeof(outcome), outcome::text FROM idem_reserve('shop', 'r6', '\x01');
SELECT test.sqlstate($$ SELECT 'maybe'::idem_outcome $$);
