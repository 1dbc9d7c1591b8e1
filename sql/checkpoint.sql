-- Recovery points. Promises: section 4, rules 4, 5 and 6; section 5.

SELECT token AS t FROM idem_reserve('check', 'k', '\x01', lease => '1 min', request => '{"amount": 5}') \gset
SELECT idem_checkpoint('check', 'k', :'t', 'order created', '{"order": 7}');
SELECT state, recovery_point FROM idem_lookup('check', 'k');
SELECT recovery_point, request_bytes > 0 AS request_kept FROM idem_keys WHERE client = 'check';

-- It commits and vanishes with the step that it notes.
BEGIN;
SELECT idem_checkpoint('check', 'k', :'t', 'charged', '{"order": 7, "charge": 1}');
ROLLBACK;
SELECT recovery_point FROM idem_lookup('check', 'k');

-- The holder of the token gets it back, and so does the next attempt.
SELECT outcome, attempt, recovery_point, recovery_data FROM idem_reserve('check', 'k', '\x01', token => :'t');
SELECT test.age('check', 'k', '20 min');
SELECT outcome, attempt, recovery_point, recovery_data, token AS t2 FROM idem_reserve('check', 'k', '\x01') \gset
SELECT :'outcome' AS outcome, :attempt AS attempt, :'recovery_point' AS recovery_point, :'recovery_data' AS recovery_data;
SELECT request FROM idem_key WHERE client = 'check' AND key = 'k';
-- The next one replaces it, data and all.
SELECT idem_checkpoint('check', 'k', :'t2', 'charged');
SELECT recovery_point, recovery_data IS NULL AS no_data FROM idem_key WHERE client = 'check' AND key = 'k';

-- The old attempt's checkpoint is refused, and one after completion.
SELECT test.sqlstate(format('SELECT idem_checkpoint(%L, %L, %L, %L)', 'check', 'k', :'t', 'late')) AS old;
SELECT idem_complete('check', 'k', :'t2', 201);
SELECT test.sqlstate(format('SELECT idem_checkpoint(%L, %L, %L, %L)', 'check', 'k', :'t2', 'late')) AS completed,
       test.sqlstate(format('SELECT idem_checkpoint(%L, %L, %L, %L)', 'check', 'none', :'t2', 'late')) AS never_reserved;
-- Only the outcome new shows it.
SELECT outcome, recovery_point, recovery_data FROM idem_reserve('check', 'k', '\x01');

-- An expired key is used again without it.
SELECT test.age('check', 'k', '2 days');
SELECT outcome, attempt, recovery_point FROM idem_reserve('check', 'k', '\x02');

-- Wrong arguments.
SELECT token AS t FROM idem_reserve('check', 'args', '\x01') \gset
SELECT (test.failure(format('SELECT idem_checkpoint(%L, %L, %L, NULL)', 'check', 'args', :'t'))).*;
SELECT (test.failure(format('SELECT idem_checkpoint(%L, %L, NULL, %L)', 'check', 'args', 'p'))).*;
SELECT state, message FROM test.failure(format('SELECT idem_checkpoint(%L, %L, %L, %L, to_jsonb(repeat(%L, 1048577)))', 'check', 'args', :'t', 'p', 'x'));
SELECT state, recovery_point FROM idem_lookup('check', 'args');
SELECT idem_checkpoint('check', 'args', :'t', '');
SELECT recovery_point = '' AS empty_point FROM idem_lookup('check', 'args');
