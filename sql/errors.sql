-- Every error that an argument can cause, at every argument, and what is said.
-- Promises: section 5 (SQLSTATEs, limits, messages and hints) and section 4 (NULL
-- for an optional argument means its setting).

-- How a statement ends, and what is said.
CREATE FUNCTION pg_temp.say(statement text, OUT state text, OUT said text) LANGUAGE sql AS $$
    SELECT state, concat_ws(E'\n', message, 'DETAIL: ' || nullif(detail, ''), 'HINT: ' || nullif(hint, '')) FROM test.failure(statement)
$$;
\pset format unaligned
\pset fieldsep ' '

-- client and key, of every function that has them: NULL, empty, too long in bytes
CREATE TEMP TABLE fn (f text, rest text);
INSERT INTO fn VALUES ('idem_reserve', $$, '\x01'$$), ('idem_complete', $$, gen_random_uuid(), 200$$), ('idem_complete_bytes', $$, gen_random_uuid(), 200$$),
    ('idem_complete_json', $$, gen_random_uuid(), 200, '{}'$$), ('idem_release', ', gen_random_uuid()'), ('idem_lookup', '');
SELECT what, state, count(*), string_agg(DISTINCT said, E'\nor ') AS said
FROM (VALUES (1, 'client NULL', $$NULL, 'k'$$), (2, 'key NULL', $$'c', NULL$$), (3, 'client empty', $$'', 'k'$$), (4, 'key empty', $$'c', ''$$),
             (5, 'client of 256 bytes', $$repeat('c', 256), 'k'$$), (6, 'client of 128 letters', $$repeat('é', 128), 'k'$$),
             (7, 'key of 1001 bytes', $$'c', repeat('k', 1001)$$), (8, 'key of 501 letters', $$'c', repeat('é', 501)$$), (9, 'key of 1 MB', $$'c', repeat('k', 1048576)$$)) v(n, what, arguments),
     fn, LATERAL pg_temp.say(format('SELECT %s(%s%s)', f, arguments, rest))
GROUP BY n, what, state ORDER BY n, state;
-- at the limits nothing is wrong but that there is no such key
SELECT f, test.sqlstate(format('SELECT %s(repeat(''é'', 127) || ''c'', repeat(''é'', 500)%s)', f, rest)) FROM fn;

-- everything else about a reservation
SELECT arguments, state, said
FROM unnest(ARRAY['fp => NULL', $$fp => ''$$, $$fp => decode(repeat('00', 65), 'hex')$$,
    $$lease => '0'$$, $$lease => '-1 s'$$, $$lease => '1 h 0.000001 s'$$, $$lease => '1 month'$$, $$lease => '-170000000 years'$$, $$lease => '170000000 years'$$,
    $$lease => '2 s', retention => '1 s'$$,
    $$retention => '0'$$, $$retention => '-1 s'$$, $$retention => '24 h 0.000001 s'$$, $$retention => '1 month'$$, $$retention => '170000000 years'$$, $$retention => '-1 month'$$,
    $$wait => '-0.000001 s'$$, $$wait => '-1 month'$$, $$wait => '-170000000 years'$$]) WITH ORDINALITY a(arguments, n),
     LATERAL pg_temp.say('SELECT idem_reserve(' || CASE WHEN arguments LIKE 'fp%' THEN $$'e', 'k', $$ ELSE $$'e', 'k', '\x01', $$ END || arguments || ')') ORDER BY n;
-- None of these has left a key behind.
SELECT state FROM idem_lookup('e', 'k');
-- Intervals that are not finite: since 17 they exist, and are refused here; before, they do not.
SELECT argument, state = CASE WHEN current_setting('server_version_num')::int >= 170000 THEN '22023' ELSE '22007' END AS refused
FROM unnest('{lease,retention,wait}'::text[]) argument, unnest('{infinity,-infinity}'::text[]) value,
     LATERAL pg_temp.say(format($$SELECT idem_reserve('e', 'k', '\x01', %s => %L)$$, argument, value));
-- At the limits; the smallest; mixed signs count by their sum; a wait may be long, since nobody is waited for.
SELECT n, arguments, state FROM unnest(ARRAY[$$fp => '\x00'$$, $$fp => decode(repeat('00', 64), 'hex')$$, $$fp => '\x01', lease => '1 h'$$, $$fp => '\x01', lease => '0.000001 s'$$,
    $$fp => '\x01', retention => '24 h'$$, $$fp => '\x01', retention => '1 day'$$, $$fp => '\x01', retention => '0.000001 s'$$, $$fp => '\x01', lease => '1 s', retention => '1 s'$$,
    $$fp => '\x01', lease => '1 day -23:59:59'$$, $$fp => '\x01', wait => '0'$$, $$fp => '\x01', wait => '1 month'$$, $$fp => '\x01', wait => '170000000 years'$$]) WITH ORDINALITY a(arguments, n),
     LATERAL pg_temp.say(format($$SELECT idem_reserve('e', 'limit %s', %s)$$, n, arguments)) ORDER BY n;

-- everything else about an answer
SELECT token FROM idem_reserve('e', 'answer', '\x01') \gset
SELECT arguments, state, count(*), string_agg(DISTINCT said, E'\nor ') AS said
FROM unnest(ARRAY[$$NULL, 200, '{}'$$, $$:token, NULL, '{}'$$, $$:token, 99, '{}'$$, $$:token, 600, '{}'$$, $$:token, 0, '{}'$$, $$:token, -200, '{}'$$, $$:token, 2147483647, '{}'$$,
    $$:token, 200, '{}', '"x"'$$, $$:token, 200, '{}', '1'$$, $$:token, 200, '{}', 'true'$$, $$:token, 200, '{}', 'null'$$]) WITH ORDINALITY a(arguments, n),
     unnest('{idem_complete,idem_complete_bytes,idem_complete_json}'::text[]) f,
     LATERAL pg_temp.say(format($$SELECT %s('e', 'answer', %s)$$, f, replace(arguments, ':token', quote_literal(:'token')))) GROUP BY n, arguments, state ORDER BY n;
SELECT state, said FROM pg_temp.say($$SELECT idem_release('e', 'answer', NULL)$$);

-- Sizes: what is too large is refused, and the key stays as it was.
SET idem.max_response_size = '1000B';
SELECT test.row('e', 'answer') AS before \gset
SELECT arguments, state, said
FROM unnest(ARRAY[$$idem_complete(:key, body => repeat('x', 1001))$$, $$idem_complete(:key, body => repeat('é', 501))$$, $$idem_complete_bytes(:key, body => decode(repeat('00', 1001), 'hex'))$$,
    $$idem_complete(:key, body => repeat('x', 1000), headers => '{}')$$, $$idem_complete(:key, headers => jsonb_build_object('x', repeat('x', 1000)))$$,
    $$idem_complete(:key, body => repeat('x', 500), headers => jsonb_build_object('x', repeat('x', 500)))$$,
    $$idem_complete_json(:key, body => to_jsonb(repeat('x', 1000)))$$]) WITH ORDINALITY a(arguments, n),
     LATERAL pg_temp.say('SELECT ' || replace(arguments, ':key', format($$'e', 'answer', %L, 200$$, :'token'))) ORDER BY n;
SELECT state, said FROM pg_temp.say($$SELECT idem_reserve('e', 'request', '\x01', request => jsonb_build_object('a', repeat('x', 1000)))$$);
SELECT state FROM idem_lookup('e', 'request');
SELECT test.row('e', 'answer') = :'before' AS unchanged;
-- at the limit
SELECT outcome FROM idem_reserve('e', 'request', '\x01', request => jsonb_build_object('a', repeat('x', 900)));
SELECT idem_complete('e', 'answer', :'token', 200, repeat('x', 1000));
SELECT octet_length(body) FROM idem_reserve('e', 'answer', '\x01');
-- a smaller limit does not touch what is stored
SET idem.max_response_size = 0;
SELECT octet_length(body) FROM idem_reserve('e', 'answer', '\x01');
SELECT token FROM idem_reserve('e', 'nothing', '\x01') \gset
SELECT idem_complete('e', 'nothing', :'token', 204);
RESET idem.max_response_size;
-- the default limit is 1 MB: at it, and one over
SELECT token FROM idem_reserve('e', 'default', '\x01') \gset
SELECT state, said FROM pg_temp.say(format($$SELECT idem_complete('e', 'default', %L, 200, repeat('x', 1048577))$$, :'token'));
SELECT idem_complete('e', 'default', :'token', 200, repeat('x', 1048576));

-- sweep, grant, revoke
SELECT statement, state, said FROM unnest('{idem_sweep(0),idem_sweep(-1),idem_grant(NULL),"idem_grant(NULL, true)",idem_revoke(NULL)}'::text[]) statement, LATERAL pg_temp.say('SELECT ' || statement);
