-- What does not have to write does not. Promises: rule 3 (replay, in_flight and
-- mismatch assign no transaction id, take no row lock, leave no dead tuple, and work
-- in a read-only transaction) and section 5 (25006: a call that must write).
SELECT gen_random_uuid() AS mine \gset
SELECT test.answered('r', 'answered', '\x01', body => repeat('a large answer ', 10000)) AS answered \gset
SELECT outcome FROM idem_reserve('r', 'held', '\x01', token => :'mine');
SELECT outcome FROM idem_reserve('r', 'stale', '\x01', token => :'mine');
SELECT test.age('r', 'stale', '11 min');
SELECT outcome FROM idem_reserve('r', 'expired', '\x01', token => :'mine');
SELECT test.age('r', 'expired', '24 h');
CREATE TEMP TABLE before AS SELECT key, test.row('r', key) FROM idem_key WHERE client = 'r';
SELECT pg_relation_size('idem_key') AS size \gset

-- No transaction id, in any of the three outcomes, waiting included; nor for looking.
BEGIN;
SELECT k, fp, outcome, pg_current_xact_id_if_assigned() AS xid
FROM (VALUES ('answered', '\x01'::bytea), ('answered', '\x02'), ('held', '\x01'), ('held', '\x02'), ('stale', '\x02')) v(k, fp), idem_reserve('r', k, fp);
SELECT outcome, pg_current_xact_id_if_assigned() AS xid FROM idem_reserve('r', 'held', '\x01', wait => '5 ms');
SELECT state, pg_current_xact_id_if_assigned() AS xid FROM idem_lookup('r', 'answered');
SELECT count(*), pg_current_xact_id_if_assigned() AS xid FROM idem_keys WHERE client = 'r';
-- completing again with the same answer has nothing to write either
SELECT idem_complete('r', 'answered', :'answered', 200, repeat('a large answer ', 10000));
SELECT pg_current_xact_id_if_assigned() AS xid;
-- what was held on the tables while looking has been given back
SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND relation IN ('idem_key'::regclass, 'idem_key_pkey'::regclass) AND mode <> 'AccessShareLock';
COMMIT;
-- However hot the key.
SELECT outcome, count(*) FROM generate_series(1, 2000) i, LATERAL (SELECT outcome FROM idem_reserve('r', left('answered', 8 + i), '\x01')) r GROUP BY outcome;
SELECT count(*) AS changed FROM before b WHERE b.row IS DISTINCT FROM test.row('r', b.key);
SELECT pg_relation_size('idem_key') <= :size AS not_grown;

-- A read-only transaction.
SET default_transaction_read_only = on;
SELECT k, fp, outcome FROM (VALUES ('answered', '\x01'::bytea), ('answered', '\x02'), ('held', '\x01'), ('held', '\x02'), ('stale', '\x02')) v(k, fp), idem_reserve('r', k, fp);
SELECT outcome FROM idem_reserve('r', 'held', '\x01', wait => '5 ms');
SELECT k, state FROM unnest('{answered,held,stale,expired,never}'::text[]) k, idem_lookup('r', k);
SELECT idem_complete('r', 'answered', :'answered', 200, repeat('a large answer ', 10000));
-- 25006 exactly where something would have to be written
SELECT command, state, message
FROM unnest(ARRAY[$$idem_reserve('r', 'never', '\x01')$$, $$idem_reserve('r', 'stale', '\x01')$$, $$idem_reserve('r', 'expired', '\x02')$$, $$idem_reserve('r', 'held', '\x01', token => :mine)$$,
    $$idem_complete('r', 'held', :mine, 200)$$, $$idem_complete_bytes('r', 'stale', :mine, 200)$$, $$idem_complete_json('r', 'held', :mine, 200, '1')$$, $$idem_release('r', 'held', :mine)$$,
    $$idem_sweep()$$]) WITH ORDINALITY c(command, n), LATERAL test.failure('SELECT ' || replace(command, ':mine', quote_literal(:'mine'))) ORDER BY n;
-- and not where the call is refused anyway
SELECT command, test.sqlstate('SELECT ' || replace(command, ':mine', quote_literal(:'mine')))
FROM unnest(ARRAY[$$idem_reserve('r', '', '\x01')$$, $$idem_complete('r', 'never', :mine, 200)$$, $$idem_complete('r', 'answered', :mine, 200)$$, $$idem_complete('r', 'held', gen_random_uuid(), 200)$$,
    $$idem_complete('r', 'expired', :mine, 200)$$, $$idem_release('r', 'never', :mine)$$, $$idem_release('r', 'held', gen_random_uuid())$$]) WITH ORDINALITY c(command, n) ORDER BY n;
SELECT state, message FROM test.failure(format('SELECT idem_complete(%L, %L, %L, 201)', 'r', 'answered', :'answered'));
RESET default_transaction_read_only;
SELECT count(*) AS changed FROM before b WHERE b.row IS DISTINCT FROM test.row('r', b.key);
