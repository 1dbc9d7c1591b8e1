-- A token that is passed in. Promises: rule 4 (reserve is safe to repeat: the
-- holder gets new again with the same attempt, and the lease anew, expires_at
-- unchanged; the order of judging) and section 10 (reply lost on the wire).

-- The caller draws the token, and loses the reply: again the same, as often as it likes.
SELECT gen_random_uuid() AS mine, gen_random_uuid() AS theirs \gset
SELECT outcome, attempt, token = :'mine' AS mine FROM idem_reserve('o', 'k', '\x01', lease => '1 min', retention => '1 h', token => :'mine');
SELECT test.age('o', 'k', '30 s');
SELECT created_at, lease_until, expires_at FROM idem_lookup('o', 'k') \gset
SELECT outcome, attempt, token = :'mine' AS mine, num_nulls(status_code, headers, body, retry_after) AS nulls FROM idem_reserve('o', 'k', '\x01', lease => '1 min', token => :'mine');
SELECT state, attempt, lease_until - :'lease_until' BETWEEN '30 s' AND '1 min' AS lease_anew, expires_at = :'expires_at' AS same_expiry, created_at = :'created_at' AS same_creation FROM idem_lookup('o', 'k');
-- another lease, another retention: the lease is the new one, the retention stays
SELECT outcome, attempt FROM idem_reserve('o', 'k', '\x01', lease => '10 min', retention => '20 h', token => :'mine');
SELECT attempt, lease_until - :'lease_until' > '9 min' AS lease_anew, expires_at = :'expires_at' AS same_expiry FROM idem_lookup('o', 'k');
-- a shorter one, too
SELECT outcome, attempt FROM idem_reserve('o', 'k', '\x01', lease => '1 s', token => :'mine');
SELECT attempt, lease_until < :'lease_until' AS shorter, expires_at = :'expires_at' AS same_expiry FROM idem_lookup('o', 'k');

-- The lease is over, and still it is the holder's, with the same attempt.
SELECT test.age('o', 'k', '10 min');
SELECT state FROM idem_lookup('o', 'k');
SELECT outcome, attempt, token = :'mine' AS mine FROM idem_reserve('o', 'k', '\x01', token => :'mine');
SELECT state, attempt FROM idem_lookup('o', 'k');

-- Another token: in_flight while the lease runs, and a takeover under that token when it is over.
SELECT outcome, token, attempt FROM idem_reserve('o', 'k', '\x01', token => :'theirs');
SELECT outcome, token, attempt FROM idem_reserve('o', 'k', '\x01');
SELECT test.age('o', 'k', '11 min');
SELECT outcome, attempt, token = :'theirs' AS theirs FROM idem_reserve('o', 'k', '\x01', token => :'theirs');
SELECT outcome, attempt, token = :'theirs' AS theirs FROM idem_reserve('o', 'k', '\x01', token => :'theirs');
-- The holder before has lost it.
SELECT outcome, token FROM idem_reserve('o', 'k', '\x01', token => :'mine');
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 200)', 'o', 'k', :'mine'));
-- Stale again: the holder before may take it over again, as attempt 3, but not under the token
-- of attempt 1, or what is left of that attempt could complete.
SELECT test.age('o', 'k', '11 min');
SELECT outcome, attempt, token = :'mine' AS mine, token AS third FROM idem_reserve('o', 'k', '\x01', token => :'mine') \gset third_
SELECT :'third_outcome' AS outcome, :third_attempt AS attempt, :'third_mine' AS mine;
SELECT outcome, token FROM idem_reserve('o', 'k', '\x01', token => :'mine');
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 200)', 'o', 'k', :'mine'));
SELECT test.sqlstate(format('SELECT idem_renew(%L, %L, %L)', 'o', 'k', :'mine'));
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 200)', 'o', 'k', :'theirs'));
-- The same with every token lost before; each attempt notes one.
SELECT test.age('o', 'k', '11 min');
SELECT outcome, attempt, token IN (:'mine', :'theirs', :'third_third') AS lost_before FROM idem_reserve('o', 'k', '\x01', token => :'theirs');
SELECT test.age('o', 'k', '11 min');
SELECT outcome, attempt, token IN (:'mine', :'theirs', :'third_third') AS lost_before FROM idem_reserve('o', 'k', '\x01', token => :'third_third');
SELECT cardinality(lost_tokens) AS lost FROM idem_key WHERE client = 'o' AND key = 'k';
-- A token that no attempt had is taken.
SELECT test.age('o', 'k', '11 min');
SELECT gen_random_uuid() AS mine \gset
SELECT outcome, attempt, token = :'mine' AS mine FROM idem_reserve('o', 'k', '\x01', token => :'mine');

-- Another fingerprint comes first: a mismatch even for the holder, before and after.
SELECT outcome, token FROM idem_reserve('o', 'k', '\x02', token => :'mine');
SELECT test.age('o', 'k', '11 min');
SELECT outcome, token FROM idem_reserve('o', 'k', '\x02', token => :'mine');
-- The holder waits for nobody; if it did, it would be stopped.
SET statement_timeout = '30 s';
SELECT outcome, attempt FROM idem_reserve('o', 'k', '\x01', token => :'mine', wait => '1 min');
RESET statement_timeout;

-- A reply to complete is lost: complete again, or reserve again.
SELECT idem_complete('o', 'k', :'mine', 200, 'done');
SELECT idem_complete('o', 'k', :'mine', 200, 'done');
SELECT outcome, token, attempt, convert_from(body, 'UTF8') AS body FROM idem_reserve('o', 'k', '\x01', token => :'mine');
SELECT outcome, token FROM idem_reserve('o', 'k', '\x02', token => :'mine');

-- After expiry a token means nothing: the key is new, with the first attempt, and the token can be used again.
SELECT test.age('o', 'k', '1 h');
SELECT outcome, attempt, token = :'mine' AS mine FROM idem_reserve('o', 'k', '\x02', token => :'mine');
SELECT attempt, expires_at - created_at AS retention FROM idem_lookup('o', 'k');
SELECT outcome, attempt, token = :'mine' AS mine FROM idem_reserve('o', 'k', '\x02', token => :'mine');
SELECT test.age('o', 'k', '24 h');
SELECT outcome, attempt FROM idem_reserve('o', 'k', '\x02', token => :'theirs');
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 200)', 'o', 'k', :'mine'));
-- An expiring key is not prolonged by its holder.
SELECT outcome, attempt FROM idem_reserve('o', 'expires', '\x01', lease => '1 min', retention => '2 min', token => :'mine');
SELECT test.age('o', 'expires', '1 min');
SELECT outcome, attempt FROM idem_reserve('o', 'expires', '\x01', lease => '1 min', retention => '2 min', token => :'mine');
SELECT test.age('o', 'expires', '1 min');
SELECT state FROM idem_lookup('o', 'expires');

-- After a release, too.
SELECT outcome FROM idem_reserve('o', 'released', '\x01', token => :'mine');
SELECT idem_release('o', 'released', :'mine');
SELECT outcome, attempt, token = :'mine' AS mine FROM idem_reserve('o', 'released', '\x02', token => :'mine');

-- One token for several keys is the caller's business: it owns each of them.
SELECT outcome FROM idem_reserve('o', 'several 1', '\x01', token => :'mine');
SELECT outcome FROM idem_reserve('o', 'several 2', '\x01', token => :'mine');
SELECT idem_complete('o', 'several 1', :'mine', 200, '1');
SELECT outcome FROM idem_reserve('o', 'several 2', '\x01', token => :'mine');
SELECT idem_complete('o', 'several 2', :'mine', 200, '2');
SELECT convert_from(body, 'UTF8') AS body FROM idem_reserve('o', 'several 1', '\x01');

-- A token that was drawn here makes reserve safe to repeat as well.
SELECT token FROM idem_reserve('o', 'drawn', '\x01') \gset
SELECT outcome, attempt, token = :'token' AS same FROM idem_reserve('o', 'drawn', '\x01', token => :'token');
-- A takeover without a token draws another.
SELECT test.age('o', 'drawn', '11 min');
SELECT outcome, attempt, token <> :'token' AS another FROM idem_reserve('o', 'drawn', '\x01');
-- Any UUID will do, the nil one too.
SELECT outcome, token FROM idem_reserve('o', 'nil', '\x01', token => '00000000-0000-0000-0000-000000000000');
SELECT outcome, attempt FROM idem_reserve('o', 'nil', '\x01', token => '00000000-0000-0000-0000-000000000000');
SELECT outcome, attempt FROM idem_reserve('o', 'nil', '\x01');
SELECT idem_complete('o', 'nil', '00000000-0000-0000-0000-000000000000', 204);

-- Only so many lost tokens are noted. Beyond them nobody can tell which were lost, so none is taken.
SELECT outcome FROM idem_reserve('o', 'often', '\x01', token => :'mine');
DO $$
DECLARE
    reserved idem_reservation;
    mine     uuid;
BEGIN
    FOR i IN 2..70 LOOP
        PERFORM test.age('o', 'often', '11 min');
        mine := gen_random_uuid();
        reserved := idem_reserve('o', 'often', '\x01', token => mine);
        ASSERT reserved.outcome = 'new' AND reserved.attempt = i, reserved;
        ASSERT (reserved.token = mine) = (i <= 65), reserved;
    END LOOP;
END
$$;
SELECT attempt, cardinality(lost_tokens) AS lost, token = ANY (lost_tokens) AS lost_before FROM idem_key WHERE client = 'o' AND key = 'often';
SELECT test.age('o', 'often', '11 min');
SELECT outcome, attempt, token = :'mine' AS mine FROM idem_reserve('o', 'often', '\x01', token => :'mine');
-- Once completed, none can come back, and the list is let go.
SELECT idem_complete('o', 'often', token, 200) FROM idem_key WHERE client = 'o' AND key = 'often';
SELECT lost_tokens FROM idem_key WHERE client = 'o' AND key = 'often';
