-- Another fingerprint: in every state of the key, on every path.
-- Promises: section 3 (mismatch in any committed state), rule 4 (the order of
-- judging: expired, other fingerprint, completed, own token, lease) and section 4
-- (fp NULL with a request: its canonical fingerprint).

-- Each state of a key reserved for {"a": 1}, and each way to ask for it again.
CREATE TEMP TABLE reserved_for AS SELECT '{"a": 1}'::jsonb AS request, idem_canonical_fingerprint('{"a": 1}') AS fp;
CREATE TEMP TABLE ask AS
SELECT n, asked, v.fp, v.request
FROM reserved_for r, LATERAL (VALUES (1, 'same', r.fp, NULL::jsonb), (2, 'same, by request', NULL, '{"a": 1.0}'), (3, 'other', sha256(r.fp), NULL),
     (4, 'other, by request', NULL, '{"a": 2}'), (5, 'longer', r.fp || '\x00', NULL), (6, 'shorter', substr(r.fp, 1, 31), NULL),
     (7, 'one bit', set_bit(r.fp, 255, 1 - get_bit(r.fp, 255)), NULL), (8, 'one byte', '\x00', NULL),
     (9, 'other, with the same request', sha256(r.fp), '{"a": 1}'), (10, 'same, with another request', r.fp, '{"a": 2}')) v(n, asked, fp, request);
CREATE TEMP TABLE matrix AS
SELECT s.n AS s, s.state, a.*, s.state || ' ' || a.n AS key, NULL::uuid AS token
FROM (VALUES (1, 'in_progress'), (2, 'stale'), (3, 'completed'), (4, 'absent')) s(n, state), ask a;

UPDATE matrix m SET token = (idem_reserve('m', m.key, r.fp)).token FROM reserved_for r;
SELECT count(idem_complete_bytes('m', key, token, 200, 'the secret answer', '{"x-secret": "1"}')) FROM matrix WHERE state = 'completed';
SELECT count(test.age('m', key, CASE state WHEN 'stale' THEN interval '11 min' ELSE '24 h' END)) FROM matrix WHERE state IN ('stale', 'absent');
SELECT state, count(*) FROM matrix m WHERE (idem_lookup('m', m.key)).state = m.state GROUP BY m.s, m.state ORDER BY m.s;

-- Every one of them, by an owner who has lost the answer and by somebody else.
CREATE TEMP TABLE answer AS
SELECT m.*, test.row('m', m.key) AS before, own.outcome AS own_outcome, own.attempt AS own_attempt
FROM matrix m, LATERAL (SELECT * FROM idem_reserve('m', m.key, m.fp, request => m.request, token => m.token)) own
WHERE state IN ('in_progress', 'completed') AND n IN (3, 4, 5, 6, 7, 8, 9) OR state = 'completed';
SELECT state, own_outcome, count(*), array_agg(n ORDER BY n) AS n, bool_and(before = test.row('m', key)) AS unchanged FROM answer GROUP BY s, state, own_outcome ORDER BY s, own_outcome;

SELECT m.s, m.state, m.asked, r.outcome, r.attempt, r.status_code,
       r.token IS NOT NULL AS token, (r.body || convert_to(r.headers::text, 'UTF8'))::text LIKE '%' || encode('secret', 'hex') || '%' AS shows_answer
FROM (SELECT * FROM matrix ORDER BY s, n) m, LATERAL (SELECT * FROM idem_reserve('m', m.key, m.fp, request => m.request)) r ORDER BY m.s, m.n;

-- A mismatch is not waited for, whatever the state.
SET statement_timeout = '30 s';
SELECT state, outcome FROM (SELECT * FROM matrix WHERE asked = 'other' AND state <> 'absent' ORDER BY s) m,
       LATERAL (SELECT outcome FROM idem_reserve('m', m.key, m.fp, wait => '1 min')) r ORDER BY s;
RESET statement_timeout;

-- A key that is released, or whose retention is over, is anybody's.
SELECT token FROM idem_reserve('m', 'released', '\x01') \gset
SELECT idem_release('m', 'released', :'token');
SELECT outcome, attempt FROM idem_reserve('m', 'released', '\x02');
SELECT outcome FROM idem_reserve('m', 'released', '\x01');

-- By the clock, unswept.
SELECT outcome FROM idem_reserve('m', 'expires', '\x01', retention => '5 ms');
SELECT test.await('m', 'expires', 'absent');
SELECT outcome, attempt FROM idem_reserve('m', 'expires', '\x02');
