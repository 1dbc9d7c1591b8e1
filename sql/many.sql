-- Many keys: in one transaction, in one statement, one after the other. Promises:
-- section 1, rules 9 and 10, section 2.
TRUNCATE idem_key, idem_reminder_1, idem_reminder_2;
-- Each key has a token of its own, which a test can say without having kept it.
CREATE FUNCTION pg_temp.token(i int) RETURNS uuid LANGUAGE sql AS $$ SELECT md5(i::text)::uuid $$;

-- 10,000 in one transaction: reserved, half of them answered, and looked at.
BEGIN;
SELECT count(*) FROM generate_series(1, 10000) i, idem_reserve('n', 'k' || i, '\x01', token => pg_temp.token(i)) WHERE outcome = 'new' AND attempt = 1;
SELECT count(idem_complete('n', 'k' || i, pg_temp.token(i), 200, 'answer ' || i)) FROM generate_series(1, 10000, 2) i;
SELECT outcome, count(*) FROM generate_series(1, 10000) i, idem_reserve('n', 'k' || i, '\x01') GROUP BY outcome ORDER BY outcome;
COMMIT;
SELECT outcome, count(*), count(*) FILTER (WHERE convert_from(body, 'UTF8') = 'answer ' || i) AS right FROM generate_series(1, 10000) i, idem_reserve('n', 'k' || i, '\x01') GROUP BY outcome ORDER BY outcome;
SELECT state, count(*) FROM idem_keys GROUP BY state ORDER BY state;
SELECT count(*) FROM (TABLE idem_reminder_1 UNION ALL TABLE idem_reminder_2) r;
-- the other half, in a transaction that rolls back, and then for good
BEGIN;
SELECT count(idem_complete('n', 'k' || i, pg_temp.token(i), 200)) FROM generate_series(2, 10000, 2) i;
ROLLBACK;
SELECT count(idem_release('n', 'k' || i, pg_temp.token(i))) FROM generate_series(2, 10000, 2) i;
SELECT count(*) FROM idem_key;
SELECT * FROM idem_sweep();
SELECT * FROM idem_sweep();

-- Reserve and complete in a loop, in one transaction.
DO $$
DECLARE
    r record;
BEGIN
    FOR i IN 1 .. 5000 LOOP
        r := idem_reserve('n', 'loop ' || i, '\x01');
        PERFORM idem_complete('n', 'loop ' || i, r.token, 200, i::text);
    END LOOP;
END $$;
SELECT count(*), sum(convert_from(body, 'UTF8')::int) FROM idem_key WHERE key LIKE 'loop %';
-- in one transaction each
DO $$
DECLARE
    r record;
BEGIN
    FOR i IN 1 .. 1000 LOOP
        r := idem_reserve('n', 'each ' || i, '\x01');
        COMMIT;
        PERFORM idem_complete('n', 'each ' || i, r.token, 200, i::text);
        COMMIT;
    END LOOP;
END $$;
SELECT state, count(*) FROM idem_keys WHERE key LIKE 'each %' GROUP BY state;
-- in one savepoint each, every other rolled back
DO $$
DECLARE
    r record;
BEGIN
    FOR i IN 1 .. 2000 LOOP
        BEGIN
            r := idem_reserve('n', 'savepoint ' || i, '\x01');
            IF i % 2 = 0 THEN
                RAISE division_by_zero;
            END IF;
        EXCEPTION WHEN division_by_zero THEN
            NULL;
        END;
    END LOOP;
END $$;
SELECT count(*), count(*) FILTER (WHERE right(key, 1) IN ('1', '3', '5', '7', '9')) AS odd FROM idem_key WHERE key LIKE 'savepoint %';
SELECT count(*) FROM (TABLE idem_reminder_1 UNION ALL TABLE idem_reminder_2) r WHERE key LIKE 'savepoint %';

-- One key, over and over: 300 takeovers, then 300 lives, each in its own transaction.
DO $$
DECLARE
    r record;
BEGIN
    PERFORM idem_reserve('n', 'hot', '\x01');
    FOR i IN 2 .. 300 LOOP
        COMMIT;
        PERFORM test.age('n', 'hot', '11 min');
        r := idem_reserve('n', 'hot', '\x01');
        ASSERT r.outcome = 'new' AND r.attempt = i, r;
    END LOOP;
    FOR i IN 1 .. 300 LOOP
        COMMIT;
        PERFORM test.age('n', 'hot', '24 h');
        r := idem_reserve('n', 'hot', set_byte('\x00', 0, i % 256));
        ASSERT r.outcome = 'new' AND r.attempt = 1, r;
        PERFORM idem_complete('n', 'hot', r.token, 200, i::text);
    END LOOP;
END $$;
SELECT count(*), min(convert_from(body, 'UTF8')) AS last FROM idem_key WHERE key = 'hot';

-- In one statement for a whole set: each key once, however often it occurs.
SELECT outcome, count(*) FROM (SELECT outcome FROM generate_series(0, 999) i, idem_reserve('n', 'set ' || i % 100, '\x01')) r GROUP BY outcome ORDER BY outcome;
-- As columns of a set-returning query, from a table, with NULLs elsewhere.
CREATE TEMP TABLE work AS SELECT i, 'work ' || i AS key, jsonb_build_object('n', i) AS request FROM generate_series(1, 100) i;
SELECT count(*) FILTER (WHERE r.outcome = 'new') AS new, count(*) FILTER (WHERE r.outcome = 'mismatch') AS mismatch
FROM (SELECT key, request FROM work UNION ALL SELECT key, request || '{"x": 1}' FROM work) w, LATERAL idem_reserve('n', w.key, request => w.request) r;
TRUNCATE idem_key, idem_reminder_1, idem_reminder_2;
