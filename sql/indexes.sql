-- Indexes that an administrator adds to idem_key are kept like any other. Promises:
-- rule 1 (the unique index decides, and only that one), section 2 (every change of
-- state, through an index on what it changes).
TRUNCATE idem_key;
CREATE INDEX extra_expires ON idem_key (expires_at);
CREATE INDEX extra_status ON idem_key (status_code) INCLUDE (client);
CREATE INDEX extra_expression ON idem_key (upper(key), (expires_at - lease_until));
CREATE INDEX extra_partial ON idem_key (lease_until) WHERE completed_at IS NULL;
CREATE INDEX extra_hash ON idem_key USING hash (token);
CREATE INDEX extra_gin ON idem_key USING gin (headers);
CREATE INDEX extra_brin ON idem_key USING brin (created_at, expires_at);

-- Does each of them find what a sequential scan finds?
CREATE FUNCTION pg_temp.by(setting text, filter text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    found text;
BEGIN
    PERFORM set_config('enable_seqscan', CASE setting WHEN 'seq' THEN 'on' ELSE 'off' END, true), set_config('enable_indexscan', CASE setting WHEN 'seq' THEN 'off' ELSE 'on' END, true),
            set_config('enable_indexonlyscan', CASE setting WHEN 'seq' THEN 'off' ELSE 'on' END, true), set_config('enable_bitmapscan', CASE setting WHEN 'seq' THEN 'off' ELSE 'on' END, true);
    EXECUTE 'SELECT count(*) || '' '' || md5(coalesce(string_agg(client || key || ctid, '','' ORDER BY client, key), '''')) FROM idem_key WHERE ' || filter INTO found;
    RETURN found;
END $$;
CREATE FUNCTION pg_temp.same() RETURNS TABLE (differs text) LANGUAGE sql AS $$
    SELECT filter FROM unnest(ARRAY[$f$client = 'i'$f$, $f$expires_at > '-infinity'$f$, 'status_code = 200', 'status_code IS NULL', $f$upper(key) LIKE 'K%' AND upper(key) >= 'K'$f$,
        $f$completed_at IS NULL AND lease_until > '-infinity'$f$, $f$token = '00000000-0000-0000-0000-000000000001'$f$, $f$headers @> '{"n": "3"}'$f$, $f$created_at > '-infinity' AND expires_at > '-infinity'$f$]) filter
    WHERE pg_temp.by('seq', filter) IS DISTINCT FROM pg_temp.by('index', filter)
$$;
-- they are used
CREATE FUNCTION pg_temp.uses(filter text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    line text;
BEGIN
    SET LOCAL enable_seqscan = off;
    FOR line IN EXECUTE 'EXPLAIN (COSTS off) SELECT * FROM idem_key WHERE ' || filter LOOP
        IF line ~ 'extra_' THEN
            RETURN substring(line FROM 'extra_[a-z]+');
        END IF;
    END LOOP;
END $$;
SELECT pg_temp.uses($$expires_at < '-infinity'$$), pg_temp.uses('status_code = 1'), pg_temp.uses($$upper(key) = 'K'$$), pg_temp.uses($$token = '00000000-0000-0000-0000-000000000001'$$), pg_temp.uses($$headers @> '{"n": "3"}'$$);

-- Every way a row can change.
SELECT count(*) FROM generate_series(1, 200) i, idem_reserve('i', 'k' || i, '\x01', token => '00000000-0000-0000-0000-000000000001') WHERE outcome = 'new';
SELECT * FROM pg_temp.same();
SELECT count(idem_complete('i', 'k' || i, '00000000-0000-0000-0000-000000000001', 200, 'x', jsonb_build_object('n', (i % 10)::text))) FROM generate_series(1, 100) i;
SELECT * FROM pg_temp.same();
SELECT count(test.age('i', 'k' || i, '11 min')) FROM generate_series(101, 150) i;
SELECT count(*) FROM generate_series(101, 150) i, idem_reserve('i', 'k' || i, '\x01') WHERE outcome = 'new' AND attempt = 2;
SELECT * FROM pg_temp.same();
SELECT count(*) FROM generate_series(151, 200) i, idem_reserve('i', 'k' || i, '\x01', lease => '1 h', token => '00000000-0000-0000-0000-000000000001') WHERE outcome = 'new' AND attempt = 1;
SELECT * FROM pg_temp.same();
SELECT count(idem_release('i', 'k' || i, '00000000-0000-0000-0000-000000000001')) FROM generate_series(151, 170) i;
SELECT * FROM pg_temp.same();
SELECT count(test.age('i', 'k' || i, '24 h')) FROM generate_series(1, 60) i;
SELECT count(*) FROM generate_series(1, 30) i, idem_reserve('i', 'k' || i, '\x02') WHERE outcome = 'new' AND attempt = 1;
SELECT * FROM pg_temp.same();
SELECT expired FROM idem_sweep();
SELECT * FROM pg_temp.same();
-- rolled back, wholly and to a savepoint, in one transaction with what is kept
BEGIN;
SELECT count(*) FROM generate_series(171, 180) i, idem_reserve('i', 'k' || i, '\x01', token => '00000000-0000-0000-0000-000000000001') WHERE outcome = 'new';
SAVEPOINT a;
SELECT count(idem_complete('i', 'k' || i, '00000000-0000-0000-0000-000000000001', 200)) FROM generate_series(171, 180) i;
SELECT count(idem_release('i', 'k' || i, '00000000-0000-0000-0000-000000000001')) FROM generate_series(181, 190) i;
SELECT * FROM pg_temp.same();
ROLLBACK TO a;
SELECT * FROM pg_temp.same();
SELECT count(idem_complete('i', 'k' || i, '00000000-0000-0000-0000-000000000001', 200)) FROM generate_series(171, 175) i;
COMMIT;
SELECT * FROM pg_temp.same();
VACUUM idem_key;
SELECT * FROM pg_temp.same();

-- A unique index of the administrator's is not what decides; it is obeyed, with its own error, and nothing is left behind.
CREATE UNIQUE INDEX extra_unique ON idem_key (md5(client || key));
SELECT outcome FROM idem_reserve('i', 'k1', '\x02');
SELECT outcome FROM idem_reserve('i', 'unique', '\x01');
SELECT outcome FROM idem_reserve('i', 'unique', '\x01');
DROP INDEX extra_unique;
CREATE UNIQUE INDEX extra_unique ON idem_key ((left(key, 6))) WHERE key LIKE 'unique%';
SELECT test.sqlstate($$SELECT idem_reserve('i', 'unique 2', '\x01')$$);
SELECT state FROM idem_lookup('i', 'unique 2');
SELECT * FROM pg_temp.same();
DROP INDEX extra_unique;
SELECT outcome, attempt FROM idem_reserve('i', 'unique 2', '\x01');
-- Without them again: an index dropped in the session is not written to any more.
DROP INDEX extra_expires, extra_status, extra_expression, extra_partial, extra_hash, extra_gin, extra_brin;
SELECT outcome, attempt FROM idem_reserve('i', 'without', '\x01');
SELECT count(*), count(DISTINCT (client, key)) FROM idem_key;
