-- The states of a key and what leads from one to the next.
-- Promises: section 2 (the table), section 4 (idem_lookup), rules 5 (a lease that
-- ran out is still the owner's), 6 (expires_at, takeover) and 7 (expired means absent).

-- absent: always one row, the rest NULL
SELECT state, num_nulls(attempt, lease_until, expires_at, created_at, completed_at, status_code, recovery_point) AS nulls FROM idem_lookup('s', 'k');
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'idem_key_state'::regclass AND attnum > 0 ORDER BY attnum;

-- in progress
SELECT clock_timestamp() AS earlier \gset
SELECT token FROM idem_reserve('s', 'k', '\x01', lease => '1 min', retention => '1 h') \gset first_
SELECT state, attempt, lease_until - created_at AS lease, expires_at - created_at AS retention,
       created_at BETWEEN :'earlier' AND clock_timestamp() AS created, num_nulls(completed_at, status_code, recovery_point) AS nulls FROM idem_lookup('s', 'k');
SELECT client, key, state, attempt, began_at = created_at AS began, completed_at, status_code FROM idem_keys WHERE client = 's';

-- in progress to stale, when the lease is over; nothing else changes
SELECT test.age('s', 'k', '1 min');
SELECT state, attempt, lease_until <= clock_timestamp() AS over, num_nulls(completed_at, status_code) AS nulls FROM idem_lookup('s', 'k');
SELECT state FROM idem_keys WHERE client = 's';

-- stale to in progress: attempt 2, another token, kept as long as was granted, not as asked for now
SELECT * FROM idem_reserve('s', 'k', '\x01', retention => '20 h') \gset second_
\echo :second_outcome :second_attempt
SELECT :'first_token' <> :'second_token' AS another_token;
SELECT state, attempt, expires_at - lease_until AS rest, lease_until - created_at > '2 min' AS created_before FROM idem_lookup('s', 'k');
SELECT expires_at - began_at AS retention, began_at - created_at >= '1 min' AS began_anew FROM idem_keys WHERE client = 's';

-- The old owner is too late, now and for ever; nothing it does changes anything.
SELECT test.row('s', 'k') AS before \gset
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 200)', 's', 'k', :'first_token'));
SELECT test.sqlstate(format('SELECT idem_release(%L, %L, %L)', 's', 'k', :'first_token'));
SELECT outcome FROM idem_reserve('s', 'k', '\x01', token => :'first_token');
SELECT test.row('s', 'k') = :'before' AS unchanged;

-- in progress to completed
SELECT idem_complete('s', 'k', :'second_token', 201, 'second');
SELECT state, attempt, completed_at BETWEEN created_at AND clock_timestamp() AS completed, status_code FROM idem_lookup('s', 'k');
SELECT state, status_code, body_bytes, headers_bytes FROM idem_keys WHERE client = 's';
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 201, %L)', 's', 'k', :'first_token', 'second'));
SELECT outcome, status_code, convert_from(body, 'UTF8') AS body FROM idem_reserve('s', 'k', '\x01');

-- Completed is terminal: a lease that is over means nothing any more.
SELECT test.age('s', 'k', '30 min');
SELECT state FROM idem_lookup('s', 'k');
SELECT outcome, attempt FROM idem_reserve('s', 'k', '\x01');
SELECT outcome FROM idem_reserve('s', 'k', '\x01', token => :'second_token');
SELECT test.sqlstate(format('SELECT idem_release(%L, %L, %L)', 's', 'k', :'second_token'));

-- completed to absent, when retention is over: to every call, swept or not
SELECT test.age('s', 'k', '30 min');
SELECT count(*) FROM idem_key WHERE client = 's';
SELECT state, num_nulls(attempt, lease_until, expires_at, created_at, completed_at, status_code, recovery_point) AS nulls FROM idem_lookup('s', 'k');
SELECT count(*) FROM idem_keys WHERE client = 's';
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 201, %L)', 's', 'k', :'second_token', 'second'));
SELECT test.sqlstate(format('SELECT idem_release(%L, %L, %L)', 's', 'k', :'second_token'));
-- and new to whoever comes first, with whatever fingerprint; nothing of the old row is left
SELECT outcome, attempt FROM idem_reserve('s', 'k', '\x99');
SELECT state, attempt, lease_until - created_at AS lease, expires_at - created_at AS retention, num_nulls(completed_at, status_code) AS nulls FROM idem_lookup('s', 'k');
SELECT num_nulls(status_code, completed_at, headers, body, request, recovery_point, recovery_data) AS nulls, fingerprint FROM idem_key WHERE client = 's';
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 201, %L)', 's', 'k', :'second_token', 'second'));

-- A key in progress, and a stale one, expire as well.
SELECT token FROM idem_reserve('s', 'expires', '\x01', lease => '1 h', retention => '1 h', request => '{"n": 1}') \gset
SELECT test.age('s', 'expires', '1 h');
SELECT state FROM idem_lookup('s', 'expires');
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 200)', 's', 'expires', :'token'));
SELECT outcome, attempt FROM idem_reserve('s', 'expires', '\x02');
SELECT coalesce(attempt, 1) AS attempt, request FROM idem_key WHERE client = 's' AND key = 'expires';

-- stale to completed: late, but nobody took over
SELECT token FROM idem_reserve('s', 'late', '\x01') \gset
SELECT test.age('s', 'late', '11 min');
SELECT state FROM idem_lookup('s', 'late');
SELECT idem_complete('s', 'late', :'token', 200, 'late');
SELECT state, attempt FROM idem_lookup('s', 'late');
SELECT outcome, convert_from(body, 'UTF8') AS body FROM idem_reserve('s', 'late', '\x01');

-- stale to absent: released, late
SELECT token FROM idem_reserve('s', 'late release', '\x01') \gset
SELECT test.age('s', 'late release', '11 min');
SELECT idem_release('s', 'late release', :'token');
SELECT state FROM idem_lookup('s', 'late release');

-- One more with every takeover.
SELECT attempt FROM idem_reserve('s', 'often', '\x01');
CREATE FUNCTION pg_temp.again(n int, OUT outcome text, OUT attempt int) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM test.age('s', 'often', '11 min');
    SELECT r.outcome, r.attempt INTO outcome, attempt FROM idem_reserve('s', 'often', '\x01') r;
END $$;
SELECT n, again.* FROM generate_series(2, 6) n, pg_temp.again(n);
