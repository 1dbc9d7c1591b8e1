-- idem_complete, in its three forms, and what it refuses.
-- Promises: section 4 (the signatures), rule 5 (the same answer again is a success,
-- another one is ID003), rule 6 (past expires_at it is ID002, ID001 once another
-- token holds the key), section 2 (completed is terminal) and section 5.

-- How a completion of key k by this token ends, and whether it changed the row.
CREATE FUNCTION pg_temp.complete(a_key text, token uuid, arguments text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    before text := test.row('c', a_key);
    state text := test.sqlstate(format('SELECT idem_complete(%L, %L, %L, %s)', 'c', a_key, token, arguments));
BEGIN
    RETURN state || CASE WHEN before IS DISTINCT FROM test.row('c', a_key) THEN ', changed' ELSE '' END;
END $$;
SELECT gen_random_uuid() AS mine, gen_random_uuid() AS theirs \gset

-- The answer is stored once. The same again is a success and writes nothing; any other is not one.
SELECT outcome FROM idem_reserve('c', 'k', '\x01', token => :'mine');
SELECT pg_temp.complete('k', :'mine', $$201, '{"a":1}', '{"x": "1", "y": "2"}'$$);
SELECT a AS arguments, pg_temp.complete('k', :'mine', a) FROM unnest(ARRAY[
    $$201, '{"a":1}', '{"x": "1", "y": "2"}'$$, $$201, '{"a":1}', '{"y":"2","x":"1"}'$$,
    $$200, '{"a":1}', '{"x": "1", "y": "2"}'$$, $$201, '{"a":1} ', '{"x": "1", "y": "2"}'$$, $$201, '{"a": 1}', '{"x": "1", "y": "2"}'$$,
    $$201, '', '{"x": "1", "y": "2"}'$$, $$201, NULL, '{"x": "1", "y": "2"}'$$, $$201, '{"a":1}', '{"x": "1"}'$$, $$201, '{"a":1}', '{"x": "1", "y": "3"}'$$,
    $$201, '{"a":1}', '[["x", "1"], ["y", "2"]]'$$, $$201, '{"a":1}', '{}'$$, $$201, '{"a":1}', NULL$$, $$201, '{"a":1}'$$, $$201$$]) a;
SELECT outcome, status_code, convert_from(body, 'UTF8') AS body, headers FROM idem_reserve('c', 'k', '\x01');
SELECT state, message, detail, hint FROM test.failure(format('SELECT idem_complete(%L, %L, %L, 200)', 'c', 'k', :'mine'));

-- No body is not an empty one, and no headers are not empty headers.
SELECT k, outcome FROM unnest('{none,empty}'::text[]) k, idem_reserve('c', k, '\x01', token => :'mine');
SELECT idem_complete('c', 'none', :'mine', 204), idem_complete('c', 'empty', :'mine', 204, '', '{}');
SELECT k, a AS arguments, pg_temp.complete(k, :'mine', a) FROM unnest('{none,empty}'::text[]) k, unnest('{204,"204, NULL, NULL","204, ''''","204, '''', ''{}''","204, '''', ''[]''","204, NULL, ''{}''"}'::text[]) WITH ORDINALITY a(a, n) ORDER BY k DESC, n;

-- The three forms store the same bytes, and each repeats what another has stored.
SELECT outcome FROM idem_reserve('c', 'forms', '\x01', token => :'mine');
SELECT convert_from(idem_complete_json('c', 'forms', :'mine', 200, '{"b":1.50,  "a":[]}'), 'UTF8') AS stored;
SELECT idem_complete('c', 'forms', :'mine', 200, '{"a": [], "b": 1.50}', '{"content-type": "application/json"}');
SELECT idem_complete_bytes('c', 'forms', :'mine', 200, '{"a": [], "b": 1.50}', '{"content-type": "application/json"}');
SELECT idem_complete_json('c', 'forms', :'mine', 200, '{"a": [], "b": 1.50}') = convert_to('{"a": [], "b": 1.50}', 'UTF8') AS again;
SELECT test.sqlstate(format('SELECT idem_complete_json(%L, %L, %L, 200, %L)', 'c', 'forms', :'mine', '{"a": [], "b": 1.5}'));
SELECT test.sqlstate(format('SELECT idem_complete_json(%L, %L, %L, 200, %L, %L)', 'c', 'forms', :'mine', '{"a": [], "b": 1.50}', '{}'));
SELECT test.sqlstate(format('SELECT idem_complete_bytes(%L, %L, %L, 200)', 'c', 'forms', :'mine'));

-- By name.
SELECT outcome FROM idem_reserve('c', 'named', '\x01', token => :'mine');
SELECT idem_complete(headers => '{}', body => 'x', status_code => 200, token => :'mine', key => 'named', client => 'c');
SELECT idem_complete_bytes(headers => '{}', body => 'x', status_code => 200, token => :'mine', key => 'named', client => 'c');

-- ID002: never reserved, released, expired
SELECT pg_temp.complete('never', :'mine', '200');
SELECT state, message, detail, hint FROM test.failure(format('SELECT idem_complete(%L, %L, %L, 200)', 'c', 'never', :'mine'));
SELECT outcome FROM idem_reserve('c', 'released', '\x01', token => :'mine');
SELECT idem_release('c', 'released', :'mine');
SELECT pg_temp.complete('released', :'mine', '200');
SELECT outcome FROM idem_reserve('c', 'expired', '\x01', token => :'mine');
SELECT test.age('c', 'expired', '24 h');
SELECT pg_temp.complete('expired', :'mine', '200');
-- expired after its completion: the same answer again is no success any more
SELECT test.age('c', 'k', '24 h');
SELECT pg_temp.complete('k', :'mine', $$201, '{"a":1}', '{"x": "1", "y": "2"}'$$);
-- ID002 before ID001: a key that is expired belongs to nobody
SELECT pg_temp.complete('expired', :'theirs', '200');

-- ID001: another token holds the key: in progress, stale, completed, reused after expiry
SELECT outcome FROM idem_reserve('c', 'theirs', '\x01', token => :'theirs');
SELECT pg_temp.complete('theirs', :'mine', '200');
SELECT state, message, detail, hint FROM test.failure(format('SELECT idem_complete(%L, %L, %L, 200)', 'c', 'theirs', :'mine'));
SELECT test.age('c', 'theirs', '11 min');
SELECT pg_temp.complete('theirs', :'mine', '200');
-- ID001 before ID003, and before "the same answer": it is not this attempt's
SELECT pg_temp.complete('theirs', :'theirs', '200');
SELECT pg_temp.complete('theirs', :'mine', '200');
SELECT pg_temp.complete('theirs', :'mine', '500');
SELECT outcome, attempt FROM idem_reserve('c', 'expired', '\x01', token => :'theirs');
SELECT pg_temp.complete('expired', :'mine', '200');

-- Arguments come before the key: a call that could not succeed on any key says so.
SELECT pg_temp.complete('never', :'mine', '99');
SELECT pg_temp.complete('never', NULL, '200');

-- The client is part of the key.
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 200)', 'another', 'theirs', :'theirs'));

-- The error of a loser rolls its transaction back.
CREATE TABLE business (what text);
BEGIN;
INSERT INTO business VALUES ('charged twice');
SELECT idem_complete('c', 'theirs', :'mine', 200);
COMMIT;
SELECT count(*) FROM business;
DROP TABLE business;
