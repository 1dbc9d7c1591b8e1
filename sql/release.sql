-- idem_release. Promises: section 4 (give up without an answer; the key is absent
-- again), section 2 (release), rule 4 (every change checks the token), rule 5
-- (release after completion is ID003) and rule 14.
SELECT gen_random_uuid() AS mine, gen_random_uuid() AS theirs \gset
CREATE FUNCTION pg_temp.release(client text, key text, token uuid) RETURNS text LANGUAGE sql AS $$
    SELECT test.sqlstate(format('SELECT idem_release(%L, %L, %L)', client, key, token))
$$;

-- The key is absent again, and new to anybody with any fingerprint.
SELECT outcome, attempt FROM idem_reserve('l', 'k', '\x01', token => :'mine');
SELECT idem_release('l', 'k', :'mine');
SELECT state FROM idem_lookup('l', 'k');
SELECT count(*) FROM idem_key WHERE client = 'l';
SELECT outcome, attempt FROM idem_reserve('l', 'k', '\x02', token => :'theirs');

-- ID001: another token holds it now; nothing changes.
SELECT test.row('l', 'k') AS before \gset
SELECT pg_temp.release('l', 'k', :'mine');
SELECT state, message, detail, hint FROM test.failure(format('SELECT idem_release(%L, %L, %L)', 'l', 'k', :'mine'));
SELECT test.row('l', 'k') = :'before' AS unchanged;

-- ID002: released already, never reserved, expired, another client's
SELECT idem_release('l', 'k', :'theirs');
SELECT pg_temp.release('l', 'k', :'theirs');
SELECT pg_temp.release('l', 'never', :'mine');
SELECT state, message, detail, hint FROM test.failure(format('SELECT idem_release(%L, %L, %L)', 'l', 'never', :'mine'));
SELECT outcome FROM idem_reserve('l', 'expired', '\x01', token => :'mine');
SELECT pg_temp.release('another', 'expired', :'mine');
SELECT test.age('l', 'expired', '24 h');
SELECT pg_temp.release('l', 'expired', :'mine');
SELECT pg_temp.release('l', 'expired', :'theirs');

-- ID003: completed; its answer stays. The token is judged first.
SELECT outcome FROM idem_reserve('l', 'completed', '\x01', token => :'mine');
SELECT idem_complete('l', 'completed', :'mine', 200, 'kept');
SELECT pg_temp.release('l', 'completed', :'mine');
SELECT pg_temp.release('l', 'completed', :'theirs');
SELECT state, message, detail, hint FROM test.failure(format('SELECT idem_release(%L, %L, %L)', 'l', 'completed', :'mine'));
SELECT outcome, convert_from(body, 'UTF8') AS body FROM idem_reserve('l', 'completed', '\x01');

-- Late, but nobody took over; and after a takeover, which releases the key for both.
SELECT outcome FROM idem_reserve('l', 'late', '\x01', token => :'mine');
SELECT test.age('l', 'late', '11 min');
SELECT outcome, attempt FROM idem_reserve('l', 'late', '\x01', token => :'theirs');
SELECT pg_temp.release('l', 'late', :'mine');
SELECT test.age('l', 'late', '11 min');
SELECT pg_temp.release('l', 'late', :'theirs');
SELECT pg_temp.release('l', 'late', :'mine');
-- the first attempt again, not the third
SELECT outcome, attempt FROM idem_reserve('l', 'late', '\x01');

-- A key that was released can be completed by its next owner only.
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 200)', 'l', 'late', :'theirs'));

-- By name.
SELECT outcome FROM idem_reserve('l', 'named', '\x01', token => :'mine');
SELECT idem_release(token => :'mine', key => 'named', client => 'l');

-- Often, one after the other: always the first attempt, never two rows.
DO $$
DECLARE
    r record;
BEGIN
    FOR i IN 1 .. 1000 LOOP
        r := idem_reserve('l', 'often', '\x01');
        ASSERT r.outcome = 'new' AND r.attempt = 1, r.outcome;
        PERFORM idem_release('l', 'often', r.token);
    END LOOP;
END $$;
SELECT count(*) FROM idem_key WHERE client = 'l' AND key = 'often';
