-- A key in words. Promises: section 4 (idem_explain).

-- Times and spans are left out here.
SET intervalstyle = 'postgres';
CREATE FUNCTION explained(client text, key text, fp bytea DEFAULT NULL, request jsonb DEFAULT NULL) RETURNS text LANGUAGE sql AS $$
    SELECT regexp_replace(regexp_replace(regexp_replace(idem_explain(client, key, fp, request), '\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^ ,.]*(\.\d+[^ ,.]*)?', '<time>', 'g'),
                          '(\d+ days? )?\d\d:\d\d:\d\d|1 day', '<span>', 'g'), 'after ([2-9]|10) s', 'after <10> s')
$$;
SELECT explained('explain', 'k');
SELECT token AS t FROM idem_reserve('explain', 'k', request => '{"amount": 100, "currency": "EUR", "items": [{"sku": "a"}, 2], "to": {"iban": "DE1"}}', lease => '10 s') \gset
SELECT explained('explain', 'k');
SELECT explained('explain', 'k', request => '{"to": {"iban": "DE1"}, "amount": 100.0, "currency": "EUR", "items": [{"sku": "a"}, 2]}');
-- A mismatch says in which fields the requests differ.
SELECT explained('explain', 'k', request => '{"amount": 500, "currency": "EUR", "items": [{"sku": "b"}, 2, null], "note": "hi"}');
SELECT explained('explain', 'k', fp => '\x00');
SELECT explained('explain', 'k', fp => '\x00', request => '{"amount": 100, "currency": "EUR", "items": [{"sku": "a"}, 2], "to": {"iban": "DE1"}}');
SELECT explained('explain', 'k', request => '[1]');
SELECT explained('explain', 'k', request => (SELECT jsonb_object_agg('f' || i, repeat('x', i * 10)) FROM generate_series(1, 40) i)) LIKE '%and in 24 more' AS bounded;
SELECT idem_checkpoint('explain', 'k', :'t', 'charged');
SELECT test.age('explain', 'k', '1 min');
SELECT explained('explain', 'k');
SELECT idem_complete('explain', 'k', :'t', 201, 'secret answer');
SELECT explained('explain', 'k');
SELECT explained('explain', 'k') LIKE '%secret%' AS shows_the_answer;
SELECT token FROM idem_reserve('explain', 'plain', '\x01') \gset
SELECT explained('explain', 'plain', '\x02');
SELECT idem_once('explain', 'mark');
SELECT explained('explain', 'mark');
SELECT test.age('explain', 'k', '2 days');
SELECT explained('explain', 'k');
-- While somebody is at it: reserved, answered, released, taken over by a transaction that has not ended.
BEGIN;
SELECT outcome FROM idem_reserve('explain', 'open', '\x01');
PREPARE TRANSACTION 'explain';
SELECT explained('explain', 'open');
SELECT explained('explain', 'open', '\x02');
ROLLBACK PREPARED 'explain';
SELECT token AS t FROM idem_reserve('explain', 'busy', '\x01', lease => '10 s') \gset
BEGIN;
SELECT idem_complete('explain', 'busy', :'t', 201, 'secret answer');
PREPARE TRANSACTION 'explain';
SELECT explained('explain', 'busy');
SELECT explained('explain', 'busy', '\x02');
ROLLBACK PREPARED 'explain';
SELECT test.age('explain', 'busy', '1 min');
SELECT explained('explain', 'busy', '\x02');
BEGIN;
SELECT outcome, attempt FROM idem_reserve('explain', 'busy', '\x01');
PREPARE TRANSACTION 'explain';
SELECT explained('explain', 'busy');
COMMIT PREPARED 'explain';
SELECT explained('explain', 'busy') LIKE '%attempt 2 began%' AS second_attempt;
SELECT test.age('explain', 'busy', '2 days');
BEGIN;
SELECT outcome, attempt FROM idem_reserve('explain', 'busy', '\x02');
PREPARE TRANSACTION 'explain';
SELECT explained('explain', 'busy');
ROLLBACK PREPARED 'explain';
-- It changes nothing, and needs no more than reading.
BEGIN READ ONLY;
SELECT explained('explain', 'plain') IS NOT NULL AS explained;
ROLLBACK;
SELECT test.sqlstate('SELECT idem_explain(NULL, ''k'')'), test.sqlstate('SELECT idem_explain(''c'', '''')'), test.sqlstate('SELECT idem_explain(''c'', ''k'', '''')');
DROP FUNCTION explained;
