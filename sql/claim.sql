-- Stale keys for a process that brings them to an end. Promises: section 4, rule 13; section 2.

SELECT idem_forget('claim'), idem_forget('claim2');
SELECT count(*) FROM idem_claim_stale(1000);

-- Due leases are judged without a sweep, oldest first, with request and recovery point, and with the next attempt.
SELECT key FROM (VALUES ('a', 1), ('b', 2), ('c', 3)) v (key, n), idem_reserve('claim', v.key, '\x01', lease => '1 min', request => jsonb_build_object('n', n)) r WHERE r.outcome = 'new' ORDER BY 1;
SELECT token AS live FROM idem_reserve('claim', 'live', '\x01') \gset
SELECT token AS done FROM idem_reserve('claim', 'done', '\x01', lease => '1 min') \gset
SELECT token AS plain FROM idem_reserve('claim', 'plain', '\x01', lease => '1 min', retention => '10 min') \gset
SELECT token AS other FROM idem_reserve('claim2', 'other', '\x01', lease => '1 min') \gset
SELECT idem_checkpoint('claim', 'b', token, 'charged', '{"id": 1}') FROM idem_key WHERE client = 'claim' AND key = 'b';
SELECT idem_complete('claim', 'done', :'done', 200);
SELECT count(*) FROM idem_claim_stale();
SELECT test.age('claim', k, s::interval) FROM (VALUES ('a', '3 min'), ('b', '5 min'), ('c', '4 min'), ('done', '5 min'), ('plain', '2 min')) v (k, s);
SELECT test.age('claim2', 'other', '9 min');

SELECT client, key, attempt, request, recovery_point, recovery_data FROM idem_claim_stale(2, client => 'claim');
-- They are in progress again, for whoever claimed them only.
SELECT l.state, l.attempt FROM unnest(ARRAY['a', 'b', 'c', 'live', 'done', 'plain']) k, idem_lookup('claim', k) l;
-- The rest, anybody's; keys without a request too.
SELECT client, key, attempt, request FROM idem_claim_stale(lease => '20 min');
SELECT count(*) FROM idem_claim_stale();
-- The retention granted is used again, and the lease asked for.
SELECT expires_at - began_at AS retention, lease_until = expires_at AS capped FROM idem_key WHERE client = 'claim' AND key = 'plain';
SELECT lease_until - began_at AS lease FROM idem_key WHERE client = 'claim' AND key = 'a';
-- The token handed out owns the key, the old one does not.
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 200)', 'claim2', 'other', :'other')) AS old,
       test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 200)', 'claim2', 'other', token)) AS new
  FROM idem_key WHERE client = 'claim2' AND key = 'other';

-- What was claimed and became stale again can be claimed again.
SELECT test.age('claim', 'a', '30 min');
SELECT key, attempt FROM idem_claim_stale();
-- Expired keys are absent, not stale.
SELECT token FROM idem_reserve('claim', 'gone', '\x01', lease => '1 min') \gset
SELECT test.age('claim', 'gone', '2 days');
SELECT count(*) FROM idem_claim_stale();

-- A pinned role gets its own client's only, and may not ask for another's.
SELECT test.age('claim', 'c', '1 h'), test.age('claim', 'b', '1 h');
SELECT token FROM idem_reserve('claim2', 'mine', '\x01', lease => '1 min') \gset
SELECT test.age('claim2', 'mine', '2 min');
SET idem.client = 'claim2';
SELECT client, key FROM idem_claim_stale();
SELECT test.sqlstate('SELECT * FROM idem_claim_stale(client => ''claim'')');
RESET idem.client;

-- Wrong arguments.
SELECT a, test.sqlstate(format('SELECT * FROM idem_claim_stale(%s)', a))
  FROM unnest(ARRAY['0', '-1', 'NULL', '1, ''0''', '1, ''2 h''', '1, NULL, ''''']) a;
SELECT idem_forget('claim') AS forgotten, idem_forget('claim2') AS forgotten2;
