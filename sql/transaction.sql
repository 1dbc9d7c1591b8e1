-- Keys and the transaction they are reserved in. Promises: rules 3 (read first), 4
-- and 9 (rows of the own transaction, savepoints), 10 (the caller's transaction is
-- never poisoned), 2 (wait = 0), section 1 (key, answer and business rows commit or
-- vanish together), section 5 (25006) and section 10 (dies inside the transaction).
CREATE TABLE business (what text);
SET statement_timeout = '30 s';	-- what must not wait would wait for ever

-- They commit together, or vanish together.
BEGIN;
SELECT outcome, attempt FROM idem_reserve('x', 'k', '\x01');
INSERT INTO business VALUES ('rolled back');
ROLLBACK;
SELECT state FROM idem_lookup('x', 'k');
BEGIN;
SELECT token FROM idem_reserve('x', 'k', '\x01') \gset
INSERT INTO business VALUES ('charged');
SELECT idem_complete('x', 'k', :'token', 200, 'charged');
ROLLBACK;
SELECT state FROM idem_lookup('x', 'k');
BEGIN;
SELECT token, attempt FROM idem_reserve('x', 'k', '\x01') \gset
\echo :attempt
INSERT INTO business VALUES ('charged');
SELECT idem_complete('x', 'k', :'token', 200, 'charged');
COMMIT;
SELECT outcome, convert_from(body, 'UTF8') AS body, (SELECT count(*) FROM business) FROM idem_reserve('x', 'k', '\x01');

-- A duplicate poisons nothing, whatever the outcome: what was done before and after stays.
SELECT outcome FROM idem_reserve('x', 'held', '\x01');
BEGIN;
INSERT INTO business VALUES ('before');
SELECT k, fp, outcome FROM (VALUES ('k', '\x01'::bytea), ('k', '\x02'), ('held', '\x01'), ('held', '\x02')) v(k, fp), idem_reserve('x', k, fp);
SELECT outcome FROM idem_reserve('x', 'held', '\x01', wait => '5 ms');
INSERT INTO business VALUES ('after');
COMMIT;
SELECT what FROM business ORDER BY what;

-- The own transaction's rows are judged like any other and never waited for.
BEGIN;
SELECT outcome, token FROM idem_reserve('x', 'own', '\x01') \gset
SELECT outcome, status_code, headers ->> 'retry-after' BETWEEN '1' AND '600' AS retry_after FROM idem_reserve('x', 'own', '\x01');
SELECT outcome FROM idem_reserve('x', 'own', '\x01', wait => '1 min');
SELECT outcome FROM idem_reserve('x', 'own', '\x02', wait => '1 min');
SELECT outcome, attempt, token = :'token' AS same FROM idem_reserve('x', 'own', '\x01', token => :'token');
SELECT state, attempt FROM idem_lookup('x', 'own');
SELECT test.age('x', 'own', '11 min');
SELECT state FROM idem_lookup('x', 'own');
SELECT outcome, attempt FROM idem_reserve('x', 'own', '\x01', token => gen_random_uuid(), wait => '1 min');
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 200)', 'x', 'own', :'token'));
SELECT test.age('x', 'own', '24 h');
SELECT outcome, attempt, token FROM idem_reserve('x', 'own', '\x02', wait => '1 min') \gset
\echo :outcome :attempt
SELECT idem_complete('x', 'own', :'token', 200, 'own');
SELECT outcome, convert_from(body, 'UTF8') AS body FROM idem_reserve('x', 'own', '\x02', wait => '1 min');
COMMIT;
SELECT outcome, convert_from(body, 'UTF8') AS body FROM idem_reserve('x', 'own', '\x02');

-- Savepoints: what is rolled back is gone, for the transaction itself and after it.
BEGIN;
SAVEPOINT a;
SELECT outcome, token FROM idem_reserve('x', 'saved', '\x01') \gset
ROLLBACK TO a;
SELECT state FROM idem_lookup('x', 'saved');
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 200)', 'x', 'saved', :'token'));
SELECT outcome, attempt, token FROM idem_reserve('x', 'saved', '\x02') \gset
\echo :outcome :attempt
SAVEPOINT b;
SELECT idem_complete('x', 'saved', :'token', 200, 'rolled back');
SELECT state FROM idem_lookup('x', 'saved');
ROLLBACK TO b;
SELECT state FROM idem_lookup('x', 'saved');
SELECT outcome FROM idem_reserve('x', 'saved', '\x02');
SAVEPOINT c;
SELECT idem_release('x', 'saved', :'token');
SELECT outcome, attempt FROM idem_reserve('x', 'saved', '\x03');
ROLLBACK TO c;
SELECT outcome FROM idem_reserve('x', 'saved', '\x03');
SAVEPOINT d;
SELECT idem_complete('x', 'saved', :'token', 200, 'kept');
RELEASE d;
COMMIT;
SELECT outcome, convert_from(body, 'UTF8') AS body FROM idem_reserve('x', 'saved', '\x02');
-- a takeover that is rolled back: stale as before, its old owner may still complete
SELECT token FROM idem_reserve('x', 'taken', '\x01') \gset
SELECT test.age('x', 'taken', '11 min');
BEGIN;
SAVEPOINT a;
SELECT outcome, attempt FROM idem_reserve('x', 'taken', '\x01');
ROLLBACK TO a;
SELECT state, attempt FROM idem_lookup('x', 'taken');
SELECT idem_complete('x', 'taken', :'token', 200);
COMMIT;
SELECT state, attempt FROM idem_lookup('x', 'taken');
-- an exception block in PL/pgSQL is a savepoint
DO $$
DECLARE
    r record;
BEGIN
    BEGIN
        r := idem_reserve('x', 'block', '\x01');
        RAISE division_by_zero;
    EXCEPTION WHEN division_by_zero THEN
        RAISE NOTICE 'reserved: %, then %', r.outcome, (idem_lookup('x', 'block')).state;
    END;
    r := idem_reserve('x', 'block', '\x01');
    PERFORM idem_complete('x', 'block', r.token, 200);
    RAISE NOTICE '% %', r.outcome, (idem_lookup('x', 'block')).state;
END $$;

-- One statement: a CTE, and PL/pgSQL.
WITH r AS MATERIALIZED (SELECT * FROM idem_reserve('x', 'cte', '\x01')), w AS (INSERT INTO business SELECT 'cte' FROM r WHERE outcome = 'new')
SELECT outcome, idem_complete('x', 'cte', token, 200, 'cte') FROM r WHERE outcome = 'new';
WITH r AS MATERIALIZED (SELECT * FROM idem_reserve('x', 'cte', '\x01'))
SELECT outcome, convert_from(body, 'UTF8') AS body, CASE WHEN outcome = 'new' THEN idem_complete('x', 'cte', token, 200, 'again') END FROM r;
WITH r AS MATERIALIZED (SELECT * FROM idem_reserve('x', 'cte 2', '\x01')), c AS MATERIALIZED (SELECT outcome, idem_release('x', 'cte 2', token) FROM r)
SELECT c.outcome, again.outcome, again.attempt FROM c, LATERAL (SELECT * FROM idem_reserve('x', left('cte 2', length(c.outcome) + 2), '\x02')) again;
DO $$
DECLARE
    r record;
BEGIN
    FOR i IN 1 .. 2 LOOP
        r := idem_reserve('x', 'plpgsql', '\x01');
        RAISE NOTICE '%', r.outcome;
        IF r.outcome = 'new' THEN
            PERFORM idem_complete('x', 'plpgsql', r.token, 200);
        END IF;
    END LOOP;
END $$;
-- Release and reserve again, in one transaction.
BEGIN;
SELECT token FROM idem_reserve('x', 'again', '\x01') \gset
SELECT idem_release('x', 'again', :'token');
SELECT state FROM idem_lookup('x', 'again');
SELECT outcome, attempt, token <> :'token' AS another FROM idem_reserve('x', 'again', '\x02');
COMMIT;
SELECT outcome FROM idem_reserve('x', 'again', '\x01');
SELECT count(*) FROM idem_key WHERE client = 'x' AND key = 'again';
DROP TABLE business;
