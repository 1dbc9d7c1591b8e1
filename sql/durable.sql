-- Keys and answers stay through what happens to a table. Promises: section 10 (what
-- was committed is there), rule 11 (bytes), section 2 (states). Crash, dump and
-- standby are tested in t/.
SELECT gen_random_uuid() AS mine \gset
-- A large answer that cannot be compressed, a large one that can, large headers, a key in flight.
SELECT string_agg(sha256(convert_to(i::text, 'UTF8')), '' ORDER BY i) AS noise FROM generate_series(1, 10000) i \gset
SELECT outcome FROM unnest('{noise,zeros,headers,held,stale,small}'::text[]) k, idem_reserve('d', k, '\x01', token => :'mine', request => '{"n": 1}');
SELECT idem_complete_bytes('d', 'noise', :'mine', 200, :'noise'), idem_complete('d', 'zeros', :'mine', 200, repeat('0', 1000000)),
       idem_complete('d', 'small', :'mine', 200, 'small'),
       idem_complete('d', 'headers', :'mine', 200, NULL, (SELECT jsonb_agg(jsonb_build_array('x-' || i, md5(i::text))) FROM generate_series(1, 2000) i));
SELECT test.age('d', 'stale', '11 min');
SELECT (SELECT reltoastrelid FROM pg_class WHERE oid = 'idem_key'::regclass)::regclass AS toast \gset
SELECT count(DISTINCT chunk_id) >= 2 AS out_of_line FROM :toast;

CREATE FUNCTION pg_temp.all_there(mine uuid) RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(concat_ws(' ', k.key, r.outcome, r.status_code, md5(r.body), md5(CASE WHEN r.outcome = 'replay' THEN r.headers::text END)), ', ' ORDER BY k.key COLLATE "C")
           || (SELECT string_agg(concat_ws(' ', ' / ' || key, state, attempt, l.lease_until - l.created_at), '' ORDER BY key) FROM unnest('{held,stale}'::text[]) key, idem_lookup('d', key) l)
    FROM unnest('{noise,zeros,headers,held,small}'::text[]) k(key), idem_reserve('d', k.key, '\x01') r
$$;
SELECT pg_temp.all_there(:'mine') AS before \gset
SELECT pg_temp.all_there(:'mine') = :'before' AS there, :'before' LIKE '%noise replay 200 ' || md5(:'noise'::bytea) || '%' AS noise;

VACUUM FULL idem_key;
SELECT pg_temp.all_there(:'mine') = :'before' AS there;
CLUSTER idem_key USING idem_key_pkey;
SELECT pg_temp.all_there(:'mine') = :'before' AS there;
REINDEX TABLE idem_key;
SELECT pg_temp.all_there(:'mine') = :'before' AS there;
REINDEX TABLE CONCURRENTLY idem_key;
SELECT pg_temp.all_there(:'mine') = :'before' AS there;
VACUUM (FREEZE, ANALYZE) idem_key;
SELECT pg_temp.all_there(:'mine') = :'before' AS there;
-- other storage, other compression, no lz4
ALTER TABLE idem_key ALTER COLUMN body SET STORAGE EXTERNAL, ALTER COLUMN headers SET STORAGE MAIN, SET (fillfactor = 100);
ALTER TABLE idem_key ALTER COLUMN body SET COMPRESSION pglz;
SELECT test.answered('d', 'after', '\x01', body => repeat('after', 100000)) IS NOT NULL AS answered;
VACUUM FULL idem_key;
SELECT octet_length(body), md5(body) = md5(repeat('after', 100000)) AS same FROM idem_reserve('d', 'after', '\x01');
SELECT pg_temp.all_there(:'mine') = :'before' AS there;
-- the session forgets everything it had looked up
DISCARD ALL;
SELECT outcome, status_code, convert_from(body, 'UTF8') AS body FROM idem_reserve('d', 'small', '\x01');
-- another session
\c -
SELECT outcome, md5(body) = md5(:'noise'::bytea) AS noise FROM idem_reserve('d', 'noise', '\x01');
-- Those in flight can be completed and taken over after all this, and only in the right way.
SELECT outcome FROM idem_reserve('d', 'held', '\x01');
SELECT idem_complete('d', 'held', :'mine', 200, 'held');
SELECT outcome, attempt FROM idem_reserve('d', 'stale', '\x01');
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 200)', 'd', 'stale', :'mine'));
SELECT request FROM idem_key WHERE client = 'd' AND key = 'stale';
-- The same large answer again is a success, another one is not, wherever it is stored.
SELECT idem_complete_bytes('d', 'noise', :'mine', 200, :'noise');
SELECT test.sqlstate(format('SELECT idem_complete_bytes(%L, %L, %L, 200, %L)', 'd', 'noise', :'mine', set_byte(:'noise'::bytea, 319999, 0)));
-- A takeover carries what is stored out of line.
SELECT outcome FROM idem_reserve('d', 'request', '\x01', token => :'mine', request => jsonb_build_object('noise', encode(:'noise'::bytea, 'hex')));
SELECT test.age('d', 'request', '11 min');
SELECT outcome, attempt FROM idem_reserve('d', 'request', '\x01', token => :'mine');
VACUUM idem_key;
SELECT request = jsonb_build_object('noise', encode(:'noise'::bytea, 'hex')) AS carried FROM idem_key WHERE client = 'd' AND key = 'request';
-- A released or swept key takes its large values with it.
SELECT count(*) AS before FROM :toast \gset
SELECT idem_release('d', 'request', :'mine');
SELECT test.age('d', 'noise', '24 h');
SELECT 'swept' AS swept FROM idem_sweep();
SELECT count(*) < :before - 250 AS gone FROM :toast;

-- Copied out and in again, row by row, as a dump does.
CREATE TABLE copy AS TABLE idem_key;
TRUNCATE idem_key;
SELECT (idem_lookup('d', 'small')).state;
INSERT INTO idem_key TABLE copy;
DROP TABLE copy;
SELECT outcome, convert_from(body, 'UTF8') AS body FROM idem_reserve('d', 'small', '\x01');
SELECT outcome, attempt FROM idem_reserve('d', 'stale', '\x01');
ALTER TABLE idem_key ALTER COLUMN body SET STORAGE EXTENDED, ALTER COLUMN headers SET STORAGE EXTENDED, SET (fillfactor = 92);
