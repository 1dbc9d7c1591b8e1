-- The administrator's way out. Promises: section 4 (idem_forget); section 5.

SELECT test.answered('forget', 'done', '\x01') IS NOT NULL AS done;
SELECT token AS held FROM idem_reserve('forget', 'held', '\x01') \gset
SELECT idem_once('forget', 'mark');
SELECT test.answered('forget', 'expired', '\x01') IS NOT NULL AS done;
SELECT test.age('forget', 'expired', '2 days');
SELECT token FROM idem_reserve('forget2', 'done', '\x01') \gset

-- One key, whatever its state; the next request is new, and the old owner is told.
SELECT idem_forget('forget', 'held') AS forgotten, idem_forget('forget', 'held') AS again;
SELECT test.sqlstate(format('SELECT idem_complete(%L, %L, %L, 200)', 'forget', 'held', :'held')) AS old_owner;
SELECT outcome, attempt FROM idem_reserve('forget', 'held', '\x02');
SELECT idem_forget('forget', 'done') AS forgotten, (SELECT outcome FROM idem_reserve('forget', 'done', '\x09')) AS next;
-- All of a client's, nobody else's.
SELECT idem_forget('forget') AS forgotten, count(*) AS left FROM idem_key WHERE client = 'forget';
SELECT count(*) FROM idem_key WHERE client = 'forget';
SELECT state FROM idem_lookup('forget2', 'done');
-- It can be taken back.
BEGIN;
SELECT idem_forget('forget2');
SELECT outcome FROM idem_reserve('forget2', 'done', '\x02');
ROLLBACK;
SELECT outcome FROM idem_reserve('forget2', 'done', '\x02');
-- Never granted, wrong arguments, a pinned session.
SELECT has_function_privilege('public', 'idem_forget(text,text)', 'EXECUTE');
SELECT test.sqlstate('SELECT idem_forget(NULL)'), test.sqlstate('SELECT idem_forget('''')'), test.sqlstate('SELECT idem_forget(''c'', '''')');
SET idem.client = 'forget';
SELECT test.sqlstate('SELECT idem_forget(''forget2'')');
RESET idem.client;
BEGIN READ ONLY;
SELECT idem_forget('forget2');
ROLLBACK;
-- What ANALYZE samples is no more than what somebody may look for: of tokens, requests and answers nothing stays.
SELECT idem_checkpoint('forget3', 'k', token, 'charged', '{"provider": 1}') FROM idem_reserve('forget3', 'k', '\x01', request => '{"amount": 1}');
SELECT test.answered('forget3', 'done', '\x01') IS NOT NULL AS done;
ANALYZE idem_key, idem_reminder_1, idem_reminder_2;
SELECT tablename, attname FROM pg_stats WHERE tablename IN ('idem_key', 'idem_reminder_1', 'idem_reminder_2') AND attname NOT IN ('lease_until', 'announced') ORDER BY tablename COLLATE "C", attname COLLATE "C";
