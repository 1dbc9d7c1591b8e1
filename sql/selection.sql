-- include and exclude: which parts of a document count.
\getenv abs_srcdir PG_ABS_SRCDIR
\set selection :abs_srcdir '/test/vectors/selection.jsonl'

-- Vectors.
CREATE TEMP TABLE raw (l text);
COPY raw FROM :'selection' WITH (FORMAT csv, QUOTE E'\x01', DELIMITER E'\x02');
CREATE FUNCTION pg_temp.paths(list json) RETURNS jsonpath[] LANGUAGE sql AS $$
    SELECT CASE json_typeof(list) WHEN 'array' THEN array(SELECT json_array_elements_text(list)::jsonpath) END
$$;
SELECT count(*),
       count(*) FILTER (WHERE idem_canonical_json(doc, inc, exc) = canonical) AS same_text,
       count(*) FILTER (WHERE encode(idem_canonical_fingerprint(doc, inc, exc), 'hex') = sha256) AS same_fingerprint
FROM (SELECT (l::json->>'document')::jsonb AS doc, pg_temp.paths(l::json->'include') AS inc, pg_temp.paths(l::json->'exclude') AS exc,
             l::json->>'canonical' AS canonical, l::json->>'sha256' AS sha256 FROM raw) v;

-- What lax mode makes of arrays and of what is not one.
\set doc '{"a": [{"b": 1, "c": 2}, [{"b": 3}], {"c": 4}], "d": {"b": 5}, "e": 6, "": 7, "b.c": 8}'
SELECT i AS include, idem_canonical_json(:'doc', array[i])
FROM unnest('{$, $.a.b, $.a[*].b, $.a[*][*].b, $.a[0], $.a[1][0], $.d[0].b, $.d[*].b, $.e[0], $.*.b, $.**.b, $.a.**.b, $.**.**.c, "$.\"\"", "$.\"b.c\"", $.**, lax $.e}'::jsonpath[]) i;
SELECT e AS exclude, idem_canonical_json(:'doc', exclude => array[e])
FROM unnest('{$.a.b, $.a[*].b, $.a[0], $.a[1][0], $.d[0].b, $.d[0], $.*, $.*.b, $.**.b, $.a.**.b, $.nope, $.e.f, $.a[9]}'::jsonpath[]) e;

-- exclude wins, wherever the two meet; what include found has its ancestors all the same.
SELECT i AS include, e AS exclude, idem_canonical_json(:'doc', array[i], array[e])
FROM (VALUES ('$.d.b'::jsonpath, '$.d.b'::jsonpath), ('$.d.b', '$.d'), ('$.a[*].c', '$.a'), ('$.d', '$.d.b'), ('$.a', '$.a[*].b'), ('$', '$.**.b')) v(i, e);

-- Documents that are a scalar or an array.
SELECT doc, i AS include, idem_canonical_json(doc, array[i])
FROM (VALUES ('5'::jsonb, '$'::jsonpath), ('5', '$[0]'), ('5', '$.**'), ('"x"', '$[*]'), ('[1, 2, 3]', '$[1]'), ('[]', '$'), ('[{"a": 1}, {"a": 2}]', '$.a')) v(doc, i);
SELECT idem_canonical_json('5', exclude => '{$.a,$[1]}'), idem_canonical_json('[1, [2], 3]', exclude => '{$[0],$[2]}');

-- Absent, null and empty are told apart.
SELECT count(DISTINCT idem_canonical_fingerprint(doc, '{$.x,$.y}'))
FROM unnest('{"{\"y\":1}", "{\"x\":null,\"y\":1}", "{\"x\":{},\"y\":1}", "{\"x\":[],\"y\":1}", "{\"x\":\"\",\"y\":1}"}'::jsonb[]) doc;

-- Refused: what leaves nothing, paths that compute, NULL for a path.
CREATE FUNCTION pg_temp.refused(inc jsonpath[], exc jsonpath[], OUT state text, OUT message text, OUT detail text) LANGUAGE plpgsql AS $$
BEGIN
    message := idem_canonical_json('{"a": 1, "b": [1, 2]}', inc, exc);
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
END $$;
SELECT inc, exc, state, message
FROM (VALUES ('{$.nope,$.a.b}'::jsonpath[], NULL::jsonpath[]), ('{}', NULL), (NULL, '{$}'), (NULL, '{$.**}'), (NULL, '{$[0]}'), ('{$.a}', '{$}'),
             ('{$.a,NULL}', NULL), (NULL, '{NULL}'), (NULL, '{}'), ('{$.nope,$.a}', NULL)) v(inc, exc),
     pg_temp.refused(inc, exc);
SELECT path, state, detail
FROM unnest('{"strict $.a", "$.b[0,1]", "$.b[0 to 1]", "$.b[last]", "$.b[-1]", "$.b[1.5]", "$.b[2147483648]", "$.b[$.a]", "$.b ? (@ > 1)", "$.b.size()", "$.a + 1",
              "$.**{1}", "$.**{2 to last}", "$x", "1", "\"a\"", "$.a == 1", "exists ($.a)", "-$.a", "($.a + 1).b"}'::jsonpath[]) path,
     pg_temp.refused(NULL, array[path]);
\set VERBOSITY terse
SELECT idem_canonical_fingerprint('{}', exclude => array[('$.' || repeat('long', 50) || '.size()')::jsonpath]);
\set VERBOSITY default
SELECT idem_canonical_fingerprint('{"a": 1}', '{$.amount}');

-- Random documents and paths against jsonb_path_query. No two values in a document
-- are the same, so that a value tells which node was selected.
\set seed 0.1999
SELECT :seed AS seed, setseed(:seed);
CREATE TEMP SEQUENCE leaf;
CREATE FUNCTION pg_temp.random_doc(depth int) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    doc jsonb;
BEGIN
    IF depth = 0 OR random() < 0.1 THEN
        RETURN to_jsonb(nextval('leaf'));
    END IF;
    doc := CASE WHEN random() < 0.5 THEN '[]' ELSE '{}' END;
    FOR i IN 0 .. floor(random() * 3) LOOP
        IF jsonb_typeof(doc) = 'array' THEN
            doc := doc || jsonb_build_array(pg_temp.random_doc(depth - 1));
        ELSE
            doc := doc || jsonb_build_object((array['a', 'b', 'c d'])[1 + floor(random() * 3)::int], pg_temp.random_doc(depth - 1));
        END IF;
    END LOOP;
    RETURN doc;
END $$;
CREATE FUNCTION pg_temp.random_paths() RETURNS jsonpath[] LANGUAGE sql AS $$
    SELECT array(SELECT ('$' || array_to_string(array(
                      SELECT (array['.a', '.b', '."c d"', '.*', '[*]', '[0]', '[1]', '.**'])[1 + floor(random() * 8)::int]
                      FROM generate_series(1, 1 + floor(random() * 3)::int + 0 * p)), ''))::jsonpath
                 FROM generate_series(1, 1 + floor(random() * 2)::int) p)
$$;
-- What is left by the definition: the nodes found, what is in them and their
-- ancestors; then without the nodes excluded.
CREATE FUNCTION pg_temp.nodes(doc jsonb, paths jsonpath[]) RETURNS jsonb[] LANGUAGE sql AS $$
    SELECT array(SELECT jsonb_path_query(doc, p) FROM unnest(paths) p)
$$;
CREATE FUNCTION pg_temp.leave(node jsonb, kept boolean, inc jsonb[], exc jsonb[]) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    kept := kept OR node = ANY (inc);
    IF node = ANY (exc) OR NOT kept AND NOT EXISTS (SELECT FROM jsonb_path_query(node, '$.**') below WHERE below = ANY (inc)) THEN
        RETURN NULL;
    END IF;
    CASE jsonb_typeof(node)
        WHEN 'object' THEN
            RETURN coalesce((SELECT jsonb_object_agg(k, l) FROM jsonb_each(node) t(k, v), pg_temp.leave(v, kept, inc, exc) l WHERE l IS NOT NULL), '{}');
        WHEN 'array' THEN
            RETURN coalesce((SELECT jsonb_agg(l ORDER BY o) FROM jsonb_array_elements(node) WITH ORDINALITY t(v, o), pg_temp.leave(v, kept, inc, exc) l WHERE l IS NOT NULL), '[]');
        ELSE
            RETURN node;
    END CASE;
END $$;
CREATE FUNCTION pg_temp.selected(doc jsonb, inc jsonpath[], exc jsonpath[]) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    RETURN idem_canonical_json(doc, inc, exc)::jsonb;
EXCEPTION WHEN invalid_parameter_value THEN
    RETURN NULL;
END $$;
CREATE TEMP TABLE trial AS
SELECT pg_temp.random_doc(1 + i % 4) AS doc,
       CASE WHEN i % 3 > 0 THEN pg_temp.random_paths() END AS inc, CASE WHEN i % 3 <> 1 THEN pg_temp.random_paths() END AS exc
FROM generate_series(1, 3000) i;
SELECT count(*) FILTER (WHERE got IS NOT NULL AND got <> doc) > 500 AS tried, count(*) FILTER (WHERE got IS NULL) > 100 AS nothing_left,
       count(*) FILTER (WHERE got IS DISTINCT FROM expected) AS wrong
FROM (SELECT doc, pg_temp.selected(doc, inc, exc) AS got,
             pg_temp.leave(doc, inc IS NULL, pg_temp.nodes(doc, inc), pg_temp.nodes(doc, exc)) AS expected FROM trial) t;

-- A path of many steps, to the one number there is; one step more hits nothing.
SELECT idem_canonical_json((repeat('{"a":', 40) || '1' || repeat('}', 40))::jsonb, ARRAY[('$' || repeat('.a', 40))::jsonpath]) = repeat('{"a":', 40) || '1' || repeat('}', 40) AS whole,
       test.sqlstate($$SELECT idem_canonical_json((repeat('{"a":', 40) || '1' || repeat('}', 40))::jsonb, ARRAY[('$' || repeat('.a', 41))::jsonpath])$$);
