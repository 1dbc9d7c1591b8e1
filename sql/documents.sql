-- JSON that is small as jsonb and huge, or not to be read again, as text: it could
-- be kept, and not be dumped and restored. Promises: section 5 (54000, 54001) and
-- section 10 (keys and answers come along with a dump).
CREATE FUNCTION pg_temp.nested(levels int, object boolean DEFAULT false) RETURNS jsonb LANGUAGE sql AS $$
    SELECT (repeat(CASE WHEN object THEN '{"a":' ELSE '[' END, levels) || '1' || repeat(CASE WHEN object THEN '}' ELSE ']' END, levels))::jsonb
$$;
CREATE FUNCTION pg_temp.return_it(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT request $$;
CREATE FUNCTION pg_temp.huge(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT jsonb_agg(request) FROM generate_series(1, 10000) $$;
-- 100 kB as jsonb, 1.3 GB as text
CREATE TEMP TABLE doc (n int, what text, doc jsonb);
INSERT INTO doc SELECT 1, 'numbers', jsonb_agg(1e131071) FROM generate_series(1, 10000);
INSERT INTO doc SELECT 2, 'fractions', jsonb_agg(1e-16383) FROM generate_series(1, 10000);
INSERT INTO doc SELECT 3, 'control characters', to_jsonb(repeat(chr(1), 200000));
INSERT INTO doc VALUES (4, 'arrays', pg_temp.nested(1001)), (5, 'objects', pg_temp.nested(1001, true)), (6, 'deep', pg_temp.nested(5000, true));
SELECT token AS t FROM idem_reserve('docs', 'held', '\x01') \gset
SELECT what, call, state, message
FROM doc, unnest(ARRAY[$$idem_reserve('docs', 'k', '\x01', request => :doc)$$, $$idem_call('docs', 'k', 'pg_temp.return_it(jsonb)', :doc, '\x01')$$,
    $$idem_checkpoint('docs', 'held', :t, 'point', :doc)$$, $$idem_complete('docs', 'held', :t, 200, 'x', jsonb_build_object('h', :doc))$$,
    $$idem_complete_bytes('docs', 'held', :t, 200, 'x', jsonb_build_array(:doc))$$, $$idem_complete_json('docs', 'held', :t, 200, '{}', jsonb_build_array(:doc))$$]) WITH ORDINALITY c(call, i),
     LATERAL test.failure('SELECT ' || replace(replace(call, ':t', quote_literal(:'t')), ':doc', format('(SELECT doc FROM doc WHERE n = %s)', n))) ORDER BY n, i;
-- a body is no document any more: only its bytes count
SELECT what, state, message FROM doc, LATERAL test.failure(format($$SELECT idem_complete_json('docs', 'held', %L, 200, (SELECT doc FROM doc WHERE n = %s))$$, :'t', n)) WHERE n < 4 ORDER BY n;
SELECT state, message FROM test.failure($$SELECT idem_call('docs', 'k', 'pg_temp.huge(jsonb)', '1e131071')$$);
-- None of this has left anything.
SELECT state, recovery_point FROM idem_lookup('docs', 'held');
SELECT state FROM idem_lookup('docs', 'k');

-- At the limits all is kept, and can be read again from its text.
SELECT outcome FROM idem_reserve('docs', 'numbers', '\x01', request => (SELECT jsonb_agg(-1e131071) FROM generate_series(1, 7)));
SELECT outcome FROM idem_reserve('docs', 'deep', '\x01', request => pg_temp.nested(1000));
SELECT idem_checkpoint('docs', 'held', :'t', 'point', pg_temp.nested(1000, true));
SELECT idem_complete_json('docs', 'held', :'t', 200, pg_temp.nested(2000), pg_temp.nested(1000)) IS NOT NULL AS kept;
SELECT key, request_bytes, headers_bytes, k.request::text::jsonb = k.request AS request_again, k.headers::text::jsonb = k.headers AS headers_again, k.recovery_data::text::jsonb = k.recovery_data AS data_again
FROM idem_keys JOIN idem_key k USING (client, key) WHERE client = 'docs' ORDER BY key;

-- The size that is judged is that of the text, to the byte, wherever it is the larger one.
SET idem.max_response_size = 0;
SELECT count(*) AS documents, count(*) FILTER (WHERE message IS DISTINCT FROM format('request of %s bytes is too large', octet_length(doc::text))) AS wrong
FROM (SELECT jsonb_build_array(repeat(E'\n"\\\b\f\r\t\x01é', 20), (sign * digits)::numeric * (10::numeric ^ exponent)) AS doc
        FROM unnest('{-1,1}'::numeric[]) sign, unnest('{0,0.00,1,7.25,10,99.9,100,1000,9999,10000,12345.678}'::numeric[]) digits, unnest('{-300,-5,-4,-1,0,1,2,3,4,5,300}'::int[]) exponent) d,
     LATERAL test.failure(format($$SELECT idem_reserve('docs', 'size', '\x01', request => %L)$$, doc));
RESET idem.max_response_size;
SELECT idem_forget('docs') > 0 AS forgotten;
