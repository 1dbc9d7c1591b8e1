-- The heartbeat. Promises: section 4, rules 4, 5 and 6; section 5.

-- The new end of the lease is returned and stored, and counts from now.
SELECT token AS t FROM idem_reserve('renew', 'k', '\x01', lease => '1 min') \gset
SELECT idem_renew('renew', 'k', :'t', '30 min') AS until \gset
SELECT :'until'::timestamptz BETWEEN clock_timestamp() + interval '29 min' AND clock_timestamp() + interval '30 min' AS from_now,
       lease_until = :'until' AS stored, attempt FROM idem_lookup('renew', 'k');
-- Without an argument the setting counts, and no interval is longer than idem.max_lease.
SELECT idem_renew('renew', 'k', :'t') - clock_timestamp() BETWEEN interval '9 min' AND interval '10 min' AS from_setting;
-- A lease may be cut short as well; the sweeper finds that too, and once.
SELECT idem_renew('renew', 'k', :'t', '1 ms') < clock_timestamp() + interval '1 min' AS cut_short;
SELECT test.await('renew', 'k', 'stale');
SELECT * FROM idem_sweep();
SELECT * FROM idem_sweep();
-- A lease that is over but was not taken over is still the owner's.
SELECT idem_renew('renew', 'k', :'t', '10 min') > clock_timestamp() AS renewed, state FROM idem_lookup('renew', 'k');

-- It never outlives the key, without an error.
SELECT token AS t FROM idem_reserve('renew', 'short', '\x01', retention => '10 min', lease => '1 min') \gset
SELECT idem_renew('renew', 'short', :'t', '1 h') = expires_at AS capped FROM idem_lookup('renew', 'short');

-- After a takeover the old attempt is told to stop.
SELECT token AS old FROM idem_reserve('renew', 'lost', '\x01', lease => '1 min') \gset
SELECT test.age('renew', 'lost', '2 min');
SELECT outcome, attempt, token AS new FROM idem_reserve('renew', 'lost', '\x01') \gset
SELECT :'outcome' AS outcome, :attempt AS attempt;
SELECT test.sqlstate(format('SELECT idem_renew(%L, %L, %L)', 'renew', 'lost', :'old')) AS old,
       test.sqlstate(format('SELECT idem_renew(%L, %L, %L)', 'renew', 'lost', :'new')) AS new;

-- Not reserved, completed, expired, and arguments that are wrong.
SELECT idem_complete('renew', 'lost', :'new', 200);
SELECT test.sqlstate(format('SELECT idem_renew(%L, %L, %L)', 'renew', 'lost', :'new')) AS completed,
       test.sqlstate(format('SELECT idem_renew(%L, %L, %L)', 'renew', 'none', :'new')) AS never_reserved;
SELECT token AS t FROM idem_reserve('renew', 'expired', '\x01') \gset
SELECT test.age('renew', 'expired', '2 days');
SELECT test.sqlstate(format('SELECT idem_renew(%L, %L, %L)', 'renew', 'expired', :'t')) AS expired;
SELECT l, test.sqlstate(format('SELECT idem_renew(%L, %L, %L, %L)', 'renew', 'k', :'t', l))
  FROM unnest(ARRAY['0', '-1 s', '2 h', '100000 years']) l;
SELECT (test.failure('SELECT idem_renew(''renew'', ''k'', NULL)')).*;
BEGIN READ ONLY;
SELECT idem_renew('renew', 'short', (SELECT token FROM idem_key WHERE client = 'renew' AND key = 'short'));
ROLLBACK;

-- Renewed by the transaction that reserved it: the reminder has the new end.
BEGIN;
SELECT token AS t FROM idem_reserve('renew', 'same', '\x01', lease => '1 min') \gset
SELECT idem_renew('renew', 'same', :'t', '20 min') IS NOT NULL AS renewed;
SAVEPOINT s;
SELECT idem_renew('renew', 'same', :'t', '40 min') IS NOT NULL AS renewed;
ROLLBACK TO s;
COMMIT;
SELECT count(*), bool_and(r.lease_until = l.lease_until) AS same_end
  FROM (TABLE idem_reminder_1 UNION ALL TABLE idem_reminder_2) r, idem_lookup('renew', 'same') l
 WHERE r.client = 'renew' AND r.key = 'same';
