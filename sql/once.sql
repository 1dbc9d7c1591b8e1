-- The inbox: messages are handled the first time only. Promises: section 4, rules 7, 12; section 5.

SELECT idem_once('inbox', 'm1') AS first, idem_once('inbox', 'm1') AS again;
SELECT idem_once('inbox2', 'm1') AS another_client;
-- The mark goes with the transaction that sets it.
BEGIN;
SELECT idem_once('inbox', 'm2');
SAVEPOINT s;
SELECT idem_once('inbox', 'm3'), idem_once('inbox', 'm2');
ROLLBACK TO s;
SELECT idem_once('inbox', 'm3');
ROLLBACK;
SELECT idem_once('inbox', 'm2') AS m2, idem_once('inbox', 'm3') AS m3;
-- It is kept for the retention, and then absent.
SELECT idem_once('inbox', 'short', '1 min');
SELECT expires_at - created_at AS retention, state, attempt, status_code FROM idem_lookup('inbox', 'short');
SELECT test.age('inbox', 'short', '2 min');
SELECT state FROM idem_lookup('inbox', 'short');
SELECT idem_once('inbox', 'short') AS first_again, idem_once('inbox', 'short') AS again;

-- Marks share the names of keys.
SELECT outcome, token, status_code FROM idem_reserve('inbox', 'm1', '\x01');
SELECT outcome FROM idem_reserve('inbox', 'm1', '\x01', token => '00000000-0000-0000-0000-000000000000');
SELECT f, test.sqlstate(format('SELECT %s', f)) FROM unnest(ARRAY[
    'idem_complete(''inbox'', ''m1'', ''00000000-0000-0000-0000-000000000000'', 200)',
    'idem_release(''inbox'', ''m1'', ''00000000-0000-0000-0000-000000000000'')',
    'idem_renew(''inbox'', ''m1'', ''00000000-0000-0000-0000-000000000000'')']) f;
SELECT idem_once('inbox', 'm1') AS still_there;
SELECT token AS t FROM idem_reserve('inbox', 'reserved', '\x01') \gset
SELECT (test.failure('SELECT idem_once(''inbox'', ''reserved'')')).*;
SELECT idem_complete('inbox', 'reserved', :'t', 200);
SELECT test.sqlstate('SELECT idem_once(''inbox'', ''reserved'')') AS completed;
-- An expired key may become a mark, and an expired mark a key.
SELECT test.age('inbox', 'reserved', '2 days'), test.age('inbox', 'm2', '2 days');
SELECT idem_once('inbox', 'reserved') AS mark, (SELECT outcome FROM idem_reserve('inbox', 'm2', '\x01')) AS key;
SELECT fingerprint IS NULL AS no_fingerprint, body IS NULL AS no_body, status_code IS NULL AS no_status FROM idem_key WHERE client = 'inbox' AND key = 'reserved';

-- Batches: the keys not seen before, each once, in the order of their first occurrence.
SELECT array(SELECT idem_once_batch('batch', ARRAY['c', 'a', 'b', 'a', 'c']));
SELECT k, n FROM idem_once_batch('batch', ARRAY['z', 'b', 'y', 'a']) WITH ORDINALITY x (k, n);
SELECT array(SELECT idem_once_batch('batch', ARRAY['z', 'y', 'x']));
SELECT array(SELECT idem_once_batch('batch', '{}')), array(SELECT idem_once_batch('batch', '{{p,q},{q,r}}'));
SELECT (test.failure('SELECT idem_once_batch(''batch'', ARRAY[''n1'', NULL, ''n2''])')).*;
SELECT (test.failure('SELECT idem_once_batch(''batch'', NULL)')).*;
SELECT test.sqlstate('SELECT idem_once_batch(''batch'', ARRAY[''n1'', ''''])'), test.sqlstate('SELECT idem_once_batch(''batch'', ARRAY[''n1''], ''0'')');
SELECT idem_once('batch', 'n1') AS nothing_was_marked;
-- An error in one leaves none of them.
SELECT token FROM idem_reserve('batch', 'k5', '\x01') \gset
SELECT test.sqlstate('SELECT idem_once_batch(''batch'', ARRAY[''k9'', ''k5'', ''k1''])');
SELECT array(SELECT idem_once_batch('batch', ARRAY['k9', 'k1']));
-- 100,000 elements, half of them seen before.
SELECT count(*) FROM idem_once_batch('big', array(SELECT 'e' || i FROM generate_series(1, 50000) i));
SELECT count(*), min(k), bool_and(substr(k, 2)::int > 50000) AS only_new
  FROM idem_once_batch('big', array(SELECT 'e' || i FROM generate_series(1, 100000) i)) k;
SELECT idem_forget('big');

-- Wrong arguments.
SELECT test.sqlstate('SELECT idem_once(NULL, ''k'')'), test.sqlstate('SELECT idem_once(''c'', NULL)'), test.sqlstate('SELECT idem_once(''c'', ''k'', ''-1 s'')');
BEGIN READ ONLY;
SELECT idem_once('inbox', 'm1') AS answered_without_writing;
SELECT idem_once('inbox', 'unseen');
ROLLBACK;
