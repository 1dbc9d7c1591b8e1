-- The value of an Idempotency-Key header.
\getenv abs_srcdir PG_ABS_SRCDIR
\set header :abs_srcdir '/test/vectors/idempotency_key_header.tsv'

SELECT idem_parse_key('8e03978e-40d5-43e8-bc93-6894a57f9324') AS bare,
       idem_parse_key('"8e03978e-40d5-43e8-bc93-6894a57f9324"') AS quoted,
       idem_parse_key(E' \t"a \\"b\\" \\\\";v=1;w\t ') AS escapes;

-- The key of a value, or its SQLSTATE and what is wrong with it.
CREATE FUNCTION pg_temp.parse(value text, OUT key text, OUT state text, OUT detail text) LANGUAGE plpgsql AS $$
BEGIN
    key := idem_parse_key(value);
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, detail = PG_EXCEPTION_DETAIL;
END $$;

-- Vectors.
CREATE TEMP TABLE vector (name text, value text, key text, reason text);
COPY vector FROM :'header' WITH (FORMAT csv, QUOTE E'\x01', DELIMITER E'\t', HEADER);
SELECT count(*), count(*) FILTER (WHERE v.key = 'invalid') AS invalid,
       count(*) FILTER (WHERE CASE v.key WHEN 'invalid' THEN p.key IS NULL AND state = 'ID400'
                              ELSE p.key = v.key::json #>> '{}' END) AS as_expected
FROM vector v, pg_temp.parse(v.value::json #>> '{}') p;

-- Every byte, alone, within quotes and after a backslash.
SELECT string_agg(chr(b), '' ORDER BY b) FILTER (WHERE (pg_temp.parse(chr(b))).key = chr(b)) AS bare
FROM generate_series(1, 127) b;
SELECT string_agg(chr(b), '' ORDER BY b) FILTER (WHERE (pg_temp.parse('"' || chr(b) || '"')).key = chr(b)) AS quoted,
       string_agg(chr(b), '' ORDER BY b) FILTER (WHERE (pg_temp.parse('"\' || chr(b) || '"')).key = chr(b)) AS escaped
FROM generate_series(1, 127) b;

-- What may follow a string, and what is wrong with what may not.
SELECT p, key, state, detail
FROM unnest(array['', ';a', ';a=1', ';*=-1', '; a_-.*9=1.125', ';a="b;c"', ';a="\"";b', ';a=tok:/en', ';a=*', ';a=::', ';a=:AQID:', ';a=:QQ==:', ';a=:QQ:',
                  ';a=?1', ';a=123456789012345', ';a=123456789012.123',
                  'x', ' x', ', "k"', ';', ';;a', ';A', ';1', ';a=', ';a=-', ';a=1.', ';a=1.2345', ';a=1234567890123456', ';a=1234567890123.1',
                  ';a="b', ';a="\x"', ';a=:A:', ';a=:A=B=:', ';a=:AQID', ';a=?2', ';a=(1)', ';a=é', ';a =1', ';a= 1', ';a;' ]) WITH ORDINALITY t(p, o),
     pg_temp.parse('"k"' || p)
ORDER BY o;

-- Lengths count after unescaping: 1 to 255.
SELECT what, length(key), state, detail
FROM (VALUES ('bare 255', repeat('k', 255)), ('bare 256', repeat('k', 256)), ('quoted 255', '"' || repeat('\"', 255) || '"'),
             ('quoted 256', '"' || repeat('k', 256) || '"'), ('quoted 0', '""'), ('nothing', ''), ('blanks', E' \t '), ('a quote', '"'), ('long', repeat('k', 1000000))) v(what, value),
     pg_temp.parse(value);

-- NULL is refused too: a header that is missing is not one that is wrong.
SELECT state FROM pg_temp.parse(NULL);
SELECT idem_parse_key(NULL);
SELECT idem_parse_key('two keys, ' || repeat('or more, ', 20));

-- Random values against the grammar as regular expressions.
\set seed 0.8941
SELECT :seed AS seed, setseed(:seed);
\set string '"(?:[ !#-[\\]-~]|\\\\["\\\\])*"'
\set number '-?(?:[0-9]{1,12}\\.[0-9]{1,3}|[0-9]{1,15})'
\set token '[A-Za-z*][A-Za-z0-9!#$%&\'\'*+.^_`|~:/-]*'
\set binary ':(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2,3})?={0,2}:'
\set item '(?:' :string '|' :number '|' :token '|' :binary '|\\?[01])'
\set quoted '^' :string '(?:; *[a-z*][a-z0-9_.*-]*(?:=' :item ')?)*$'
\set bare '^[!#-+.-:<-[\\]-~-]+$'
CREATE TEMP TABLE trial AS
SELECT CASE i % 4 WHEN 0 THEN '' WHEN 1 THEN '"k"' WHEN 2 THEN '"k";a=' ELSE '"' END || array_to_string(array(
           SELECT (array['"', '"', '\"', '\\', '\', ';', ';', 'a', 'a', '=', '=', '1', '123456', '.', '-', ' ', ':', ':', 'QQ', '?', '0', '*', ',', E'\t', 'é', 'A', '/'])[1 + floor(random() * 27)::int]
           FROM generate_series(1, floor(random() * 7)::int + 0 * i)), '') AS value
FROM generate_series(1, 10000) i;
WITH stripped AS (
    SELECT value, btrim(value, E' \t') AS v FROM trial
), expected AS (
    SELECT value, CASE WHEN v ~ :'bare' THEN v
                       WHEN v ~ :'quoted' THEN nullif(regexp_replace(substr(substring(v from '^' || :'string'), 2, length(substring(v from '^' || :'string')) - 2), '\\(.)', '\1', 'g'), '')
                  END AS key
    FROM stripped
)
SELECT count(*) FILTER (WHERE e.key IS NOT NULL) > 1000 AS valid, count(*) FILTER (WHERE e.key IS NULL) > 1000 AS invalid,
       count(*) FILTER (WHERE e.key IS DISTINCT FROM p.key OR (p.key IS NULL) <> (p.state IS NOT DISTINCT FROM 'ID400')) AS wrong,
       min(value) FILTER (WHERE e.key IS DISTINCT FROM p.key) AS such_as
FROM expected e, pg_temp.parse(value) p;
