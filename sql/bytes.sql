-- The answer comes back as it was given. Promises: rule 11 (exact bytes: any bytes,
-- any status, empty and NULL told apart, a text body is stored as UTF-8, headers as
-- they were given), section 4 (idem_complete_json returns the bytes stored) and
-- section 5 (status 100 to 599).

-- Stores an answer in one of the three ways and reads it back, twice.
CREATE FUNCTION pg_temp.there_and_back(key text, status int, body bytea, headers jsonb DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    r idem_reservation;
BEGIN
    r := idem_reserve('b', key, '\x01');
    PERFORM idem_complete_bytes('b', key, r.token, status, body, headers);
    FOR i IN 1 .. 2 LOOP
        r := idem_reserve('b', key, '\x01');
        IF (r.outcome, r.status_code, r.body, r.headers) IS DISTINCT FROM ('replay', status, body, headers) OR
           r.headers::text IS DISTINCT FROM headers::text THEN
            RETURN false;
        END IF;
    END LOOP;
    RETURN true;
END $$;

-- Every byte, alone and all together.
SELECT count(*), bool_and(pg_temp.there_and_back('byte ' || b, 200, set_byte('\x00', 0, b))) FROM generate_series(0, 255) b;
SELECT string_agg(set_byte('\x00', 0, b), '' ORDER BY b) AS every FROM generate_series(0, 255) b \gset
SELECT octet_length(:'every'::bytea), pg_temp.there_and_back('every byte', 200, :'every');
-- What others have lost: line ends, a BOM, blanks at the end, gzip, invalid and overlong UTF-8, a lone surrogate.
SELECT what, pg_temp.there_and_back(what, 200, body)
FROM (VALUES ('crlf', convert_to(E'a\r\nb\r\n', 'UTF8')), ('bom', '\xefbbbf7b7d'), ('blanks', convert_to('  a  ', 'UTF8')), ('nul', '\x6100620000'),
             ('gzip', '\x1f8b0800000000000003'), ('invalid', '\xfffe80c0'), ('overlong', '\xc080'), ('surrogate', '\xeda080'),
             ('backslash', convert_to('\x41 \\ \101', 'UTF8'))) v(what, body);

-- Sizes: compressed, stored out of line, both, neither; up to 1 MB.
SELECT n, pg_temp.there_and_back('zeros ' || n, 200, decode(repeat('00', n), 'hex')), pg_temp.there_and_back('random ' || n, 200, body) AS random
FROM unnest('{1,100,1990,2000,2040,8100,8192,100000,1048576}'::int[]) n,
     LATERAL (SELECT substr(string_agg(sha256(convert_to(i::text, 'UTF8')), '' ORDER BY i), 1, n) AS body FROM generate_series(0, n / 32) i) x;
SELECT max(pg_column_size(body)) FILTER (WHERE key LIKE 'zeros %') < 100000 AS compressed, max(octet_length(body)) FROM idem_key WHERE client = 'b';

-- Empty and none.
SELECT pg_temp.there_and_back('empty', 200, ''), pg_temp.there_and_back('none', 200, NULL),
       pg_temp.there_and_back('empty headers', 200, '', '{}'), pg_temp.there_and_back('no pairs', 200, NULL, '[]');
SELECT key, body IS NULL AS none, octet_length(body), headers FROM (VALUES ('empty'), ('none'), ('empty headers'), ('no pairs')) v(key), idem_reserve('b', v.key, '\x01');

-- Every status.
SELECT count(*), bool_and(pg_temp.there_and_back('status ' || s, s, NULL)) FROM generate_series(100, 599) s;
SELECT s, status_code, body FROM unnest('{100,204,304,599}'::int[]) s, idem_reserve('b', 'status ' || s, '\x01');

-- Headers: an object; an array, whose order and repeats stay; odd names and values.
SELECT what, pg_temp.there_and_back(what, 200, NULL, headers)
FROM (VALUES ('object', '{"location": "/7", "etag": "\"x\""}'::jsonb),
             ('pairs', '[["set-cookie", "a=1; Path=/"], ["set-cookie", "b=2"], ["SET-COOKIE", "c=3"], ["x", ""], ["accept", "a, b,c"], ["x", "é \u0001"]]'),
             ('nested', '{"a": [1, 2.50, null, true, {"b": ["c"]}], "": ""}'), ('numbers', '[1, 1.0, 1.00, 1e400]'),
             ('large', (SELECT jsonb_object_agg('x-' || i, repeat('v', 100)) FROM generate_series(1, 1000) i))) v(what, headers);
SELECT headers FROM idem_reserve('b', 'pairs', '\x01');

-- A text body: as it is, in UTF-8; JSON text keeps its blanks, its order and its duplicate keys.
CREATE FUNCTION pg_temp.as_text(key text, body text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    r idem_reservation;
BEGIN
    r := idem_reserve('b', key, '\x01');
    PERFORM idem_complete('b', key, r.token, 200, body);
    RETURN (idem_reserve('b', key, '\x01')).body IS NOT DISTINCT FROM convert_to(body, 'UTF8');
END $$;
SELECT what, pg_temp.as_text('text ' || what, body)
FROM (VALUES ('json', '{"b":1,  "a":1.50,"a":2 }' || E'\n'), ('empty', ''), ('none', NULL), ('accents', U&'caf\00E9 \+01F600 e\0301'), ('escape', '\x41'), ('quotes', '''"\"'), ('spaces', E' \t\r\n ')) v(what, body);
SELECT convert_from(body, 'UTF8') AS json FROM idem_reserve('b', 'text json', '\x01');
SELECT encode(body, 'escape') AS escape FROM idem_reserve('b', 'text escape', '\x01');
-- JSON text as bytes, too
SELECT pg_temp.there_and_back('json bytes', 200, convert_to('{"b":1,  "a":1.50,"a":2 }', 'UTF8'));
-- whatever the client speaks
SET client_encoding = 'LATIN1';
SELECT pg_temp.as_text('latin', U&'caf\00E9');
RESET client_encoding;
SELECT body FROM idem_reserve('b', 'latin', '\x01');
SET bytea_output = 'escape';
SELECT body FROM idem_reserve('b', 'latin', '\x01');
RESET bytea_output;

-- A JSON body: what is returned is what is stored and what is replayed.
CREATE FUNCTION pg_temp.as_json(key text, body jsonb, OUT stored text, OUT same boolean, OUT headers jsonb) LANGUAGE plpgsql AS $$
DECLARE
    r idem_reservation;
    bytes bytea;
BEGIN
    r := idem_reserve('b', key, '\x01');
    bytes := idem_complete_json('b', key, r.token, 200, body);
    r := idem_reserve('b', key, '\x01');
    stored := convert_from(bytes, 'UTF8');
    same := r.body IS NOT DISTINCT FROM bytes AND stored IS NOT DISTINCT FROM body::text;
    headers := r.headers;
END $$;
SELECT what, j.* FROM (VALUES ('object', '{"b": 1.50, "a": {"é": [1, null]}}'::jsonb), ('array', '[]'), ('string', '"x"'), ('number', '1.00'), ('null', 'null'), ('none', NULL)) v(what, body),
     pg_temp.as_json('json ' || what, body) j;
SELECT token FROM idem_reserve('b', 'json headers', '\x01') \gset
SELECT idem_complete_json('b', 'json headers', :'token', 200, '{}', '{"content-type": "application/hal+json"}');
SELECT headers, body FROM idem_reserve('b', 'json headers', '\x01');

-- The request that is kept with a key, large ones too.
SELECT outcome FROM idem_reserve('b', 'request', '\x01', request => jsonb_build_object('a', repeat('x', 500000)));
SELECT request = jsonb_build_object('a', repeat('x', 500000)) AS kept FROM idem_key WHERE client = 'b' AND key = 'request';
