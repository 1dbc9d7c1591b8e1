-- What is counted. Promises: section 4 (idem_stat, idem_stat_reset: one row per database, columns named
-- like the outcomes) and section 6 (idem.max_databases).

-- A database of its own would need another connection, so this one is counted from here on.
-- What others have left goes before: on a slow machine its leases would end in the middle of this.
SELECT count(idem_forget(client)) >= 0 AS forgotten FROM (SELECT DISTINCT client FROM idem_key) c;
SELECT count(*) FROM idem_sweep();
SELECT idem_stat_reset();
CREATE VIEW counted AS
    SELECT c.key AS counter, c.value FROM idem_stat s, jsonb_each_text(to_jsonb(s) - '{datid,datname,passes,last_pass,last_pass_duration,oldest_expired,oldest_stale,keys,row_bytes,bytes,stats_reset,wait_time}'::text[]) c
     WHERE s.datname = current_database() AND c.value <> '0' ORDER BY 1;
SELECT * FROM counted;
SELECT count(*) AS rows, min(datid) = (SELECT oid FROM pg_database WHERE datname = current_database()) AS this_database FROM idem_stat WHERE datname = current_database();

-- Each kind of call once, some of them several times.
SELECT outcome, token FROM idem_reserve('stat', 'k', '\x01', token => gen_random_uuid()) \gset
SELECT :'outcome' AS reserved;
SELECT outcome FROM idem_reserve('stat', 'k', '\x01', token => :'token');
SELECT outcome FROM idem_reserve('stat', 'k', '\x01') UNION ALL SELECT outcome FROM idem_reserve('stat', 'k', '\x01');
SELECT outcome FROM idem_reserve('stat', 'k', '\x02');
SELECT idem_renew('stat', 'k', :'token') IS NOT NULL AS renewed;
SELECT idem_checkpoint('stat', 'k', :'token', 'point');
SELECT * FROM counted;
SELECT test.age('stat', 'k', '11 min');
SELECT outcome, token AS second FROM idem_reserve('stat', 'k', '\x01') \gset
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 200)', 'stat', 'k', :'token'));
SELECT idem_complete('stat', 'k', :'second', 200);
-- the same answer again is no second one
SELECT idem_complete('stat', 'k', :'second', 200);
SELECT outcome FROM idem_reserve('stat', 'k', '\x01');
SELECT * FROM counted;

SELECT token FROM idem_reserve('stat', 'released', '\x01') \gset
SELECT idem_release('stat', 'released', :'token');
SELECT idem_once('stat', 'mark'), idem_once('stat', 'mark');
SELECT count(*) FROM idem_once_batch('stat', '{mark,a,b,a}');
SELECT outcome FROM idem_call('stat', 'call', 'test.without_nulls(jsonb)', '{}');
SELECT outcome FROM idem_reserve('stat', 'stale', '\x01');
SELECT test.age('stat', 'stale', '11 min');
SELECT stale FROM idem_sweep();
SELECT count(*) FROM idem_claim_stale(client => 'stat');
SELECT idem_forget('stat', 'stale');
-- a call that waits, though not for long
SELECT outcome FROM idem_reserve('stat', 'waits', '\x01');
SELECT outcome FROM idem_reserve('stat', 'rolled back', '\x01', wait => '1 ms');
BEGIN;
SELECT outcome FROM idem_reserve('stat', 'rolled back too', '\x01');
ROLLBACK;
SELECT outcome FROM idem_reserve('stat', 'waits', '\x01', wait => '2 ms');
SELECT * FROM counted;
SELECT wait_time >= '1 ms' AS waited FROM idem_stat WHERE datname = current_database();

-- What the sweep does: counted, and described as of the last pass.
SELECT test.age('stat', 'call', '25 h'), test.age('stat', 'mark', '25 h');
SELECT passes FROM idem_stat WHERE datname = current_database() \gset
SELECT expired >= 2 AS expired FROM idem_sweep();
SELECT expired >= 2 AS expired, passes > :passes AS passes, last_pass BETWEEN now() - interval '1 min' AND clock_timestamp() AS just_now, last_pass_duration >= '0' AS took,
       keys = (SELECT count(*) FROM idem_keys) AS keys, row_bytes BETWEEN keys * 72 AND bytes AS row_bytes, bytes >= pg_total_relation_size('idem_key') AS bytes, oldest_expired
  FROM idem_stat WHERE datname = current_database();
-- what is stale, and what could not all be removed
SELECT outcome FROM idem_reserve('stat', 'stale', '\x01');
SELECT test.age('stat', 'stale', '11 min'), test.age('stat', 'k', '25 h'), test.age('stat', 'a', '26 h');
SELECT lease_until FROM idem_key WHERE client = 'stat' AND key = 'stale' \gset
SELECT * FROM idem_sweep(1);
SELECT oldest_stale <= :'lease_until' AS oldest_stale, now() - oldest_expired BETWEEN '30 min' AND '3 h' AS oldest_expired FROM idem_stat WHERE datname = current_database();
SELECT expired > 0 AS expired FROM idem_sweep();
SELECT oldest_expired FROM idem_stat WHERE datname = current_database();

-- Begun again: counters are zero, what is on disk is not.
SELECT stats_reset FROM idem_stat WHERE datname = current_database() \gset
SELECT idem_stat_reset();
SELECT * FROM counted;
SELECT stats_reset > :'stats_reset' AS later, passes, keys > 0 AS keys, wait_time FROM idem_stat WHERE datname = current_database();

-- For those only who were granted it.
CREATE ROLE regress_idem_stat;
GRANT USAGE ON SCHEMA test TO regress_idem_stat;
SET ROLE regress_idem_stat;
SELECT test.sqlstate('SELECT * FROM idem_stat'), test.sqlstate('SELECT * FROM idem_stat_rows()'), test.sqlstate('SELECT idem_stat_reset()'), test.sqlstate('SELECT * FROM idem_health()');
RESET ROLE;
SELECT idem_grant('regress_idem_stat', true);
SET ROLE regress_idem_stat;
SELECT count(*) FROM idem_stat WHERE datname = current_database();
SELECT count(*) FROM idem_health();
SELECT test.sqlstate('SELECT idem_stat_reset()');
RESET ROLE;
SELECT idem_revoke('regress_idem_stat');
REVOKE USAGE ON SCHEMA public, test FROM regress_idem_stat;
DROP ROLE regress_idem_stat;
DROP VIEW counted;
