-- Which clock: the server's, at the moment of decision. Promises: rule 6 (never the
-- transaction's start; past expires_at complete is ID002, even in the reserving
-- transaction; timestamptz only), section 2, and section 10 (dies between reserve
-- and complete).
SET statement_timeout = '90 s';	-- a clock that stands still would be waited for for ever

-- In a transaction that began long ago, a lease and a retention begin when the key is reserved.
BEGIN;
SELECT now() AS began \gset
SELECT pg_sleep(0.05);
SELECT clock_timestamp() AS earlier \gset
SELECT outcome FROM idem_reserve('clock', 'k', '\x01', lease => '30 ms', retention => '1 h');
SELECT created_at >= :'earlier' AS by_the_clock, lease_until - created_at AS lease, expires_at - created_at AS retention, lease_until > :'began'::timestamptz + '30 ms' AS not_over
FROM idem_lookup('clock', 'k');
SELECT began_at = created_at AS same FROM idem_keys WHERE client = 'clock' AND key = 'k';
COMMIT;

-- In that transaction, too, a lease is over when it is over: time moves within a transaction, and within a statement.
BEGIN;
SELECT outcome, token FROM idem_reserve('clock', 'within', '\x01', lease => '20 ms') \gset first_
SELECT test.await('clock', 'within', 'stale');
SELECT lease_until > now() AS after_the_start FROM idem_lookup('clock', 'within');
SELECT clock_timestamp() AS earlier \gset
SELECT outcome, attempt, token FROM idem_reserve('clock', 'within', '\x01', lease => '1 h') \gset second_
\echo :second_outcome :second_attempt
SELECT lease_until >= :'earlier'::timestamptz + '1 h' AS whole_lease FROM idem_lookup('clock', 'within');
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 200)', 'clock', 'within', :'first_token'));
SELECT clock_timestamp() AS earlier \gset
SELECT idem_complete('clock', 'within', :'second_token', 200);
SELECT completed_at >= :'earlier' AS by_the_clock FROM idem_lookup('clock', 'within');
COMMIT;
DO $$
DECLARE
    outcomes text[];
BEGIN
    LOOP
        outcomes := outcomes || (idem_reserve('clock', 'statement', '\x01', lease => '20 ms')).outcome::text;
        EXIT WHEN cardinality(outcomes) > 1 AND outcomes[cardinality(outcomes)] = 'new' OR clock_timestamp() > statement_timestamp() + interval '1 min';
    END LOOP;
    RAISE NOTICE '% attempts', (idem_lookup('clock', 'statement')).attempt;
END $$;

-- The wait ends with the lease, and the lease that begins then is a whole one.
SELECT outcome FROM idem_reserve('clock', 'wait', '\x01', lease => '30 ms');
SELECT lease_until AS over FROM idem_lookup('clock', 'wait') \gset
SELECT outcome, attempt FROM idem_reserve('clock', 'wait', '\x01', lease => '1 h', wait => '1 min');
SELECT began_at >= :'over' AS when_it_was_over, lease_until - began_at AS lease FROM idem_key WHERE client = 'clock' AND key = 'wait';

-- Retention is over when it is over, in the reserving transaction, too: complete and release are ID002.
BEGIN;
SELECT outcome, token FROM idem_reserve('clock', 'expires', '\x01', retention => '20 ms') \gset first_
SELECT test.await('clock', 'expires', 'absent');
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 200)', 'clock', 'expires', :'first_token'));
SELECT test.sqlstate(format('SELECT idem_release(%L, %L, %L)', 'clock', 'expires', :'first_token'));
SELECT count(*) FROM idem_keys WHERE client = 'clock' AND key = 'expires';
SELECT outcome, attempt, token FROM idem_reserve('clock', 'expires', '\x02') \gset second_
\echo :second_outcome :second_attempt
SELECT created_at > now() AS anew FROM idem_lookup('clock', 'expires');
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 200)', 'clock', 'expires', :'first_token'));
SELECT idem_complete('clock', 'expires', :'second_token', 200);
COMMIT;

-- An answer expires as well, however it was read before. (Tried with longer and longer retentions until the machine is fast enough.)
DO $$
DECLARE
    r record;
    retention interval := '20 ms';
BEGIN
    LOOP
        r := idem_reserve('clock', 'answer', '\x01', retention => retention);
        BEGIN
            PERFORM idem_complete('clock', 'answer', r.token, 200);
            EXIT WHEN (idem_reserve('clock', 'answer', '\x01')).outcome = 'replay';
        EXCEPTION WHEN SQLSTATE 'ID002' THEN
            retention := 2 * retention;
        END;
    END LOOP;
END $$;
SELECT test.await('clock', 'answer', 'absent');
SELECT outcome, attempt FROM idem_reserve('clock', 'answer', '\x01');

-- Completing moves neither the expiry nor the lease.
SELECT outcome, token FROM idem_reserve('clock', 'moved', '\x01') \gset
SELECT lease_until, expires_at, created_at FROM idem_lookup('clock', 'moved') \gset
SELECT idem_complete('clock', 'moved', :'token', 200);
SELECT lease_until = :'lease_until' AND expires_at = :'expires_at' AND created_at = :'created_at' AS unmoved FROM idem_lookup('clock', 'moved');

-- The time zone of the session changes nothing, nor does its way to write intervals; every time is a timestamptz.
SET timezone = 'Pacific/Kiritimati';
SELECT outcome, token FROM idem_reserve('clock', 'zone', '\x01', lease => '1 h') \gset
SET timezone = 'Pacific/Niue';
SELECT state, lease_until - created_at AS lease FROM idem_lookup('clock', 'zone');
SELECT outcome FROM idem_reserve('clock', 'zone', '\x01');
RESET timezone;
SET intervalstyle = 'iso_8601';
SELECT message FROM test.failure($$SELECT idem_reserve('clock', 'style', '\x01', lease => 'PT2H')$$);
RESET intervalstyle;
SELECT count(*) FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid WHERE relname LIKE 'idem\_%' AND atttypid IN ('timestamp'::regtype, 'time'::regtype, 'date'::regtype, 'timetz'::regtype);

-- A key from the future (the clock was set back) is not over; what is left of its lease is the whole of it, and no more.
SELECT outcome FROM idem_reserve('clock', 'future', '\x01', lease => '1 min');
SELECT test.age('clock', 'future', '-1 h');
SELECT outcome, headers->>'retry-after' AS header, retry_after FROM idem_reserve('clock', 'future', '\x01');
SELECT state FROM idem_lookup('clock', 'future');
