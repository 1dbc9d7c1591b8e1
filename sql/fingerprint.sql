-- The canonical text of a document and its fingerprint.
\getenv abs_srcdir PG_ABS_SRCDIR
\set jcs :abs_srcdir '/test/vectors/jcs.jsonl'
\set equal :abs_srcdir '/test/vectors/must_equal.jsonl'
\set differ :abs_srcdir '/test/vectors/must_differ.jsonl'

-- What it looks like.
SELECT idem_canonical_json('{"b": 1.50, "a": [true, null, "x"], "aa": {}}');
SELECT encode(idem_canonical_fingerprint('{"b": 1.50, "a": [true, null, "x"], "aa": {}}'), 'hex');
SELECT idem_canonical_fingerprint(doc) = sha256(convert_to(idem_canonical_json(doc), 'UTF8')) AS hashed_as_shown
FROM (VALUES ('{"z": "ä€😀", "y": [1e400]}'::jsonb)) v(doc);
SELECT idem_canonical_json(NULL) IS NULL AS text_null, idem_canonical_fingerprint(NULL) IS NULL AS fingerprint_null;

-- Vectors.
CREATE TEMP TABLE line (file text, l json);
CREATE TEMP TABLE raw (l text);
COPY raw FROM :'jcs' WITH (FORMAT csv, QUOTE E'\x01', DELIMITER E'\x02');
WITH moved AS (DELETE FROM raw RETURNING l) INSERT INTO line SELECT 'jcs', l::json FROM moved;
COPY raw FROM :'equal' WITH (FORMAT csv, QUOTE E'\x01', DELIMITER E'\x02');
WITH moved AS (DELETE FROM raw RETURNING l) INSERT INTO line SELECT 'equal', l::json FROM moved;
COPY raw FROM :'differ' WITH (FORMAT csv, QUOTE E'\x01', DELIMITER E'\x02');
WITH moved AS (DELETE FROM raw RETURNING l) INSERT INTO line SELECT 'differ', l::json FROM moved;

CREATE TEMP VIEW vector AS
SELECT file, (l->>'input')::jsonb AS doc, l->>'canonical' AS canonical, l->>'sha256' AS sha256 FROM line WHERE file = 'jcs'
UNION ALL
SELECT file, (l->>side)::jsonb, l->>'canonical', l->>'sha256' FROM line, unnest('{a,b}'::text[]) side WHERE file = 'equal'
UNION ALL
SELECT file, (l->>side)::jsonb, l->>('canonical_' || side), l->>('sha_' || side) FROM line, unnest('{a,b}'::text[]) side WHERE file = 'differ';

SELECT file, count(*),
       count(*) FILTER (WHERE idem_canonical_json(doc) = canonical) AS same_text,
       count(*) FILTER (WHERE encode(idem_canonical_fingerprint(doc), 'hex') = sha256) AS same_fingerprint
FROM vector GROUP BY file ORDER BY file;

-- The edges of every layout of a number.
SELECT n, idem_canonical_json(n::jsonb)
FROM unnest('{0,-0,0.00,10,100000000000000000000,999999999999999999999,1000000000000000000000,-1000000000000000000000,
              1234567890123456789012,123456789012345678901.5,1.5,0.1,0.000001,0.0000010,0.0000001,0.00000012,-1e-7,
              1e22,1.25e22,1e131071,-1e-16383,10000,10001,9999.0001,1e4,1e-4,0.00012345678}'::text[]) n;

-- Keys sort by UTF-16 code units: the emoji (D83D DE00) before U+FB33, and neither as jsonb has them.
SELECT idem_canonical_json('{"\ufb33": 1, "😀": 2, "": 3, "b": 4, "aa": 5, "é": 6, "\u007f": 7, "\u0001": 8}')
     = U&'{"":3,"\005Cu0001":8,"aa":5,"b":4,"\007F":7,"\00E9":6,"\+01F600":2,"\FB33":1}' AS in_order;

-- Scalars, arrays of one and the empty containers are all different.
SELECT count(DISTINCT idem_canonical_fingerprint(doc)) AS different
FROM unnest('{"1", "[1]", "[[1]]", "\"1\"", "[\"1\"]", "null", "[null]", "[]", "{}", "\"\"", "[[]]", "[{}]", "{\"\":null}", "false", "0"}'::jsonb[]) doc;

-- Random documents out of few values, many of them spelt differently: fingerprints
-- are equal exactly when the documents are, and the text reads back as the document.
\set seed 0.4711
SELECT :seed AS seed, setseed(:seed);
CREATE FUNCTION pg_temp.random_doc(depth int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    scalars CONSTANT text[] := '{0,-0,0.0,1,1.0,10e-1,1e2,100,1e400,10e399,"null",true,false,"\"\"","\"1\"","\"a\"","\"\\u0061\"","\"é\"","\"e\\u0301\"",0.1,0.10000000000000001}';
    keys    CONSTANT text[] := '{"","a","b","\\u0061","aa","é","\\uE000","😀"}';
    parts   text[] := '{}';
BEGIN
    IF depth = 0 OR random() < 0.3 THEN
        RETURN scalars[1 + floor(random() * cardinality(scalars))];
    END IF;
    IF random() < 0.4 THEN
        FOR i IN 1 .. floor(random() * 3) LOOP
            parts := parts || pg_temp.random_doc(depth - 1);
        END LOOP;
        RETURN '[' || array_to_string(parts, ',') || ']';
    END IF;
    FOR i IN 1 .. floor(random() * 4) LOOP
        parts := parts || format('"%s":%s', keys[1 + floor(random() * cardinality(keys))], pg_temp.random_doc(depth - 1));
    END LOOP;
    RETURN '{' || array_to_string(parts, ',') || '}';
END $$;
CREATE TEMP TABLE random_doc AS
SELECT doc, idem_canonical_fingerprint(doc) AS fp, idem_canonical_json(doc) AS canonical
FROM (SELECT pg_temp.random_doc(i % 4)::jsonb AS doc FROM generate_series(1, 600) i) r;
SELECT count(*) FILTER (WHERE a.doc = b.doc AND a.fp <> b.fp) AS equal_but_differ,
       count(*) FILTER (WHERE a.doc <> b.doc AND a.fp = b.fp) AS differ_but_equal,
       count(*) FILTER (WHERE a.doc = b.doc AND a.doc::text <> b.doc::text) > 100 AS tried_spellings
FROM random_doc a, random_doc b;
SELECT count(*) FILTER (WHERE canonical::jsonb <> doc) AS read_back_differently,
       count(*) FILTER (WHERE fp <> sha256(convert_to(canonical, 'UTF8'))) AS hashed_differently
FROM random_doc;

-- The order of keys, against UTF-16 computed by hand.
CREATE FUNCTION pg_temp.utf16(s text) RETURNS text LANGUAGE sql AS $$
    SELECT coalesce(string_agg(CASE WHEN c < 65536 THEN lpad(to_hex(c), 4, '0')
                                    ELSE to_hex(55296 + (c - 65536) / 1024) || to_hex(56320 + (c - 65536) % 1024) END, '' ORDER BY o), '')
    FROM (SELECT ascii(ch) AS c, o FROM regexp_split_to_table(s, '') WITH ORDINALITY t(ch, o) WHERE ch <> '') x
$$;
WITH keys AS (
    SELECT d, repeat('a', k % 10) || array_to_string(array(SELECT chr((array[1, 34, 97, 98, 127, 233, 2047, 55295, 57344, 65535, 65536, 128512, 1114111])[1 + floor(random() * 13)::int])
                                    FROM generate_series(1, floor(random() * 4)::int + 0 * k)), '') AS key
    FROM generate_series(1, 50) d, generate_series(1, 40) k
), docs AS (
    SELECT d, jsonb_object_agg(key, 1) AS doc FROM keys GROUP BY d
), members AS (
    SELECT d, pg_temp.utf16(key) AS units, o
    FROM docs, json_object_keys(idem_canonical_json(doc)::json) WITH ORDINALITY t(key, o)
)
SELECT count(*) > 500 AS tried, count(*) FILTER (WHERE o <> place) AS out_of_order
FROM (SELECT o, row_number() OVER (PARTITION BY d ORDER BY units COLLATE "C") AS place FROM members) x;

-- Numbers that are short in jsonb and long as text stay short.
SELECT length(idem_canonical_json(jsonb_agg('1e131071'::jsonb))) FROM generate_series(1, 10000);
-- Those that are long keep every digit, and so do long strings every character.
SELECT idem_canonical_json(to_jsonb(repeat('7', n)::numeric)) = '7.' || repeat('7', n - 1) || 'e+' || n - 1 AS exact FROM unnest('{255,256,257,1000}'::int[]) n;
SELECT idem_canonical_fingerprint(to_jsonb(repeat('x', n))) = sha256(convert_to('"' || repeat('x', n) || '"', 'UTF8')) AS exact FROM unnest('{4093,4094,4095,4096,4097,100000}'::int[]) n;

-- Deep documents: every level counts, and the server's stack limit holds.
SELECT count(DISTINCT idem_canonical_fingerprint((repeat('[', d) || repeat(']', d))::jsonb)) FROM generate_series(1, 1500) d;
CREATE TEMP TABLE deep AS
SELECT (repeat('{"a":', 1500) || '1' || repeat('}', 1500))::jsonb AS object, (repeat('[', 1500) || repeat(']', 1500))::jsonb AS list;
SET max_stack_depth = '100kB';
\set VERBOSITY sqlstate
SELECT idem_canonical_fingerprint(object) FROM deep;
SELECT idem_canonical_json(list) FROM deep;
SELECT idem_canonical_fingerprint(object, exclude => '{$.**.b}') FROM deep;
SELECT idem_canonical_json(list, '{$.**.b}') FROM deep;
RESET max_stack_depth;
SELECT idem_canonical_fingerprint(object, exclude => '{$.**.b}') = idem_canonical_fingerprint(object) AS whole_afterwards FROM deep;
