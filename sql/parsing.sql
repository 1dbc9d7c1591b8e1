-- Where JSON parsers disagree: what is accepted has one canonical text, what is
-- refused never gets a fingerprint, and nothing is quietly changed into something else.
\pset format unaligned

-- The canonical text of a JSON text, or the SQLSTATE with which it is refused.
CREATE FUNCTION pg_temp.outcome(input text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN idem_canonical_json(input::jsonb);
EXCEPTION WHEN OTHERS THEN
    RETURN SQLSTATE;
END $$;

-- Numbers that are valid: signs, zeros and exponents of every spelling.
SELECT n, pg_temp.outcome(n), pg_temp.outcome('[' || n || ']') = '[' || pg_temp.outcome(n) || ']' AS in_array
FROM unnest('{0,-0,-0.0,0e0,0E0,0e+1,-0E-1,1e0,1E+2,1E-2,1e00,1e+00,1e0000000000000000000000000000001,10,100e-2,0.1e1,1.000,20e1,-1,-123,123.456789,123e45,
              1e-2,1.5E+2,-0.0000000000000000000000000000000000000000000000000000000000000000000000000001,100000000000000000000000000000000000000000000,
              0.4e-323,2.2250738585072011e-308,1.7976931348623157e308,1.7976931348623159e308,-1e309,1e-400}'::text[]) n;

-- Exponents at and beyond what jsonb keeps: exact or refused, never 0 and never infinite.
SELECT n, left(pg_temp.outcome(n), 20)
FROM unnest('{1e131071,1e131072,-1e131071,1e999999,1e99999999999999999999,1e-16383,1e-16384,1e-99999,0.4e00669999999999999999999999999999999999999999999999999999999999,0e99999999}'::text[]) n;

-- Numbers that are not: refused, each alone and in an array.
SELECT string_agg(n, ' ' ORDER BY o) FILTER (WHERE pg_temp.outcome(n) = '22P02' AND pg_temp.outcome('[' || n || ']') = '22P02') AS refused,
       string_agg(n, ' ' ORDER BY o) FILTER (WHERE pg_temp.outcome(n) <> '22P02') AS accepted
FROM unnest('{+1,++1,--1,-,.5,-.5,1.,-1.,1.e1,1e,1E+,1e-,0x10,0o7,0b1,1_000,"1,000",01,-01,00,00.5,- 1,1 000,1e1.5,1e1e1,Inf,-Infinity,NaN,nan,１,1f,2L,1/2,1+2,0e,0e+}'::text[]) WITH ORDINALITY t(n, o);

-- Strings: escapes of one character are that character; what needs none has none.
SELECT s, pg_temp.outcome(s)
FROM unnest(array['""', '"a"', '"\u0061"', '"\/"', '"/"', '"\"\\\b\f\n\r\t"', '"\u0022\u005C\u0008\u000c\u000A\u000D\u0009"', '"\u0001\u001f\u001F"', '"\u007f"', '"\u0080\u009F"',
                  '"\u00e9"', '"\u2028\u2029"', '"\uFEFF"', '"\uFFFD"', '"\uFFFF\uFFFE\ufdd0"', '"\ud83d\ude00"', '"\uD83D\uDE00"', '"\uDBFF\uDFFF"', '"\uE000\uF8FF"',
                  '"a/*b*/c"', '"<script>&''"', '"\\u0000"', '"\u005cu0041"']) s;
SELECT count(*) AS characters, count(*) FILTER (WHERE pg_temp.outcome('"' || chr(c) || '"') = '"' || chr(c) || '"') AS as_they_are,
       count(*) FILTER (WHERE c < 65536 AND pg_temp.outcome('"\u' || lpad(to_hex(c), 4, '0') || '"') = '"' || chr(c) || '"') AS escaped
FROM (SELECT c FROM generate_series(32, 1114111, 61) c WHERE c NOT BETWEEN 55296 AND 57343 AND c NOT IN (34, 92)) x;

-- Not strings.
SELECT s, pg_temp.outcome(s)
FROM unnest(array['"', '"a', 'a"', '''a''', '"\a"', '"\x41"', '"\u"', '"\u12"', '"\u12G4"', '"\U0041"', '"\u 041"', '"\"', E'"\t"', E'"\n"', E'"\x1f"', '"\ud800"', '"\udc00"', '"\ud800a"',
                  '"\ud800\u0041"', '"\ud800\ud800"', '"\ud800\ud800\udc00"', '"\udc00\ud800"', '"\u0000"', '"a\u0000b"', '“a”', '"\ud83d\"', '"\ud83d\ude0"']) s;

-- Structures: white space is none of it, and there is no other.
SELECT s, pg_temp.outcome(s)
FROM unnest(array['[]', E' [ \t\n\r] ', '[ ]', '{}', '{ }', '[[]]', '[{}]', '{"a":[]}', '[[[[[1]]]]]', '[1,null,1,2,null]', '{"":0}', '{"a":1,"a":2}', '{"a":1,"\u0061":2}', '{"a":{"b":1},"a":{"c":2}}',
                  '{"b":1,"a":2}', '{"\ud83d\ude00":1,"\ufb33":2}', '{"a\tb":1,"a\u0009b":2}', 'null', ' true ', 'false', '"s"', '7']) s;
SELECT string_agg(s, ' ' ORDER BY o) FILTER (WHERE pg_temp.outcome(s) = '22P02') AS refused, string_agg(s, ' ' ORDER BY o) FILTER (WHERE pg_temp.outcome(s) <> '22P02') AS accepted
FROM unnest(array['', ' ', '[', ']', '[1', '[1,]', '[,1]', '[1,,2]', '[1 2]', '[1;2]', '{', '}', '{"a"}', '{"a":}', '{"a":1,}', '{,"a":1}', '{"a" 1}', '{"a"::1}', '{a:1}', '{1:1}', '{null:1}', '{"a":1 "b":2}', '{"a":1]', '[1}',
                  '[]]', '[][]', '{}{}', '1 2', '[1]x', '//', '/**/1', '1//', '1#', 'True', 'NULL', 'nul', 'nulll', 'truefalse', 'undefined', '[a]', '*', '()', U&'\FEFF[]', U&'[\00A0]', U&'[\2003]', E'[\f]', E'[\x0B]', '\u005b\u005d', '<a/>']) WITH ORDINALITY t(s, o);

-- Depth.
SELECT d, pg_temp.outcome(repeat('[', d) || repeat(']', d)) = repeat('[', d) || repeat(']', d) AS list, pg_temp.outcome(repeat('{"a":', d) || '0' || repeat('}', d)) = repeat('{"a":', d) || '0' || repeat('}', d) AS object
FROM unnest('{1,500,1500}'::int[]) d;
SELECT pg_temp.outcome(repeat('[', 500)) AS not_closed, pg_temp.outcome(repeat('[', 100000)) AS too_deep, pg_temp.outcome(repeat('[{"":', 50000)) AS too_deep_either;
