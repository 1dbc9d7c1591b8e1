-- What a takeover keeps and what it sets. Promises: section 2 (stale), rule 6 (a
-- takeover keeps the retention that was granted, the request and the recovery
-- point; a request passed with it replaces the stored one; a lease never outlives
-- expires_at) and section 5 (a default lease is capped).

CREATE FUNCTION pg_temp.spans(a_key text, OUT attempt int, OUT lease interval, OUT retention interval, OUT request jsonb) LANGUAGE sql AS $$
    SELECT coalesce(attempt, 1), lease_until - began_at, expires_at - began_at, request FROM idem_key WHERE client = 't' AND key = a_key
$$;

-- The retention granted stays, whether the takeover asks for more, for less or for nothing.
SELECT outcome FROM idem_reserve('t', 'k', '\x01', lease => '1 s', retention => '1 h', request => '{"n": 1}');
SELECT test.age('t', 'k', '2 s');
SELECT outcome, attempt FROM idem_reserve('t', 'k', '\x01', lease => '1 s');
SELECT * FROM pg_temp.spans('k');
SELECT test.age('t', 'k', '2 s');
SELECT outcome, attempt FROM idem_reserve('t', 'k', '\x01', lease => '1 s', retention => '20 h');
SELECT * FROM pg_temp.spans('k');
SELECT test.age('t', 'k', '2 s');
SELECT outcome, attempt FROM idem_reserve('t', 'k', '\x01', lease => '1 s', retention => '1 min');
SELECT * FROM pg_temp.spans('k');

-- The request is kept, or replaced.
SELECT test.age('t', 'k', '2 s');
SELECT outcome, attempt FROM idem_reserve('t', 'k', '\x01', lease => '1 s', request => '{"n": 2}');
SELECT * FROM pg_temp.spans('k');
-- With fp and a request the fingerprint is fp, and only that is compared.
SELECT outcome FROM idem_reserve('t', 'k', '\x02', request => '{"n": 2}');

-- A request that is passed with anything but a takeover changes nothing.
SELECT outcome FROM idem_reserve('t', 'request', '\x01', request => '{"n": 1}');
SELECT outcome FROM idem_reserve('t', 'request', '\x01', request => '{"n": 2}');
SELECT request FROM pg_temp.spans('request');

-- created_at tells when the key was first reserved.
SELECT began_at - created_at > '7 s' AS created_before FROM idem_keys WHERE client = 't' AND key = 'k';

-- The recovery point of the attempt before is handed over.
UPDATE idem_key SET recovery_point = 'charged', recovery_data = '{"charge": 1}' WHERE client = 't' AND key = 'k';
SELECT recovery_point FROM idem_lookup('t', 'k');
SELECT test.age('t', 'k', '2 s');
SELECT outcome, attempt, recovery_point, recovery_data FROM idem_reserve('t', 'k', '\x01');
SELECT recovery_point FROM idem_lookup('t', 'k');
SELECT outcome, recovery_point, recovery_data FROM idem_reserve('t', 'k', '\x01');

-- A lease never outlives the key: at the reservation a longer one is refused, a default one is cut,
SELECT state, message, hint FROM test.failure($$ SELECT idem_reserve('t', 'refused', '\x01', lease => '11 s', retention => '10 s') $$);
SELECT state FROM idem_lookup('t', 'refused');
SELECT outcome FROM idem_reserve('t', 'short', '\x01', retention => '10 s');
SELECT * FROM pg_temp.spans('short');
-- a takeover asks for what the key was not granted,
SELECT outcome FROM idem_reserve('t', 'cut', '\x01', lease => '1 s', retention => '10 s');
SELECT test.age('t', 'cut', '2 s');
SELECT outcome, attempt FROM idem_reserve('t', 'cut', '\x01', lease => '1 h');
SELECT * FROM pg_temp.spans('cut');
-- and so does the owner, whose lease begins anew while the retention goes on.
SELECT token FROM idem_reserve('t', 'owner', '\x01', lease => '1 s', retention => '10 min') \gset
SELECT test.age('t', 'owner', '5 min');
SELECT outcome, attempt FROM idem_reserve('t', 'owner', '\x01', lease => '10 min', token => :'token');
SELECT * FROM pg_temp.spans('owner');

-- Another fingerprint does not take a stale key over; it stays as it is.
SELECT outcome FROM idem_reserve('t', 'other', '\x01');
SELECT test.age('t', 'other', '11 min');
SELECT test.row('t', 'other') AS before \gset
SELECT outcome, attempt FROM idem_reserve('t', 'other', '\x02');
SELECT test.row('t', 'other') = :'before' AS unchanged;

-- One takeover for one lease: the second caller finds a live one.
SELECT outcome, attempt FROM idem_reserve('t', 'other', '\x01');
SELECT outcome, attempt FROM idem_reserve('t', 'other', '\x01');

-- With a short lease, by the clock: nobody has to notice that it is over.
SELECT outcome FROM idem_reserve('t', 'clock', '\x01', lease => '5 ms');
SELECT test.await('t', 'clock', 'stale');
SELECT outcome, attempt FROM idem_reserve('t', 'clock', '\x01');
