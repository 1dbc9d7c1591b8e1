-- Which keys are one key. Promises: section 2 (a key is client and key),
-- section 5 (limits in bytes), section 6 (no setting changes what a key is).

-- Every one of these is another key, so every one is new.
SELECT count(*) FILTER (WHERE outcome = 'new') AS new, count(*) AS keys
FROM (VALUES ('a', 'k'), ('A', 'k'), ('a', 'K'), ('a', 'k '), ('a', ' k'), ('a ', 'k'), ('a', E'k\n'), ('a', E'k\t'),
             ('a', 'b:c'), ('a:b', 'c'), ('ab', 'c'), ('a', 'bc'), ('a', '"k"'), ('a', 'k''; DROP TABLE idem_key; --'), ('a', '%'), ('a', '\x6b'),
             ('a', U&'\00E9'), ('a', U&'e\0301'), ('a', U&'\FB01'), ('a', 'fi'), ('a', U&'\+01F600'), ('a', U&'\200B'), ('a', U&'k\200B'),
             ('a', '1'), ('a', '01'), ('a', '1.0'), ('a', 'null'), ('a', 'NULL'), ('a', E'\x01'), ('a', E'\x7f')) v(client, key),
     idem_reserve('id-' || v.client, v.key, '\x01');
-- And each of them is found again.
SELECT count(*), count(*) FILTER (WHERE outcome = 'in_flight') AS found
FROM idem_key k, idem_reserve(k.client, k.key, '\x01') WHERE k.client LIKE 'id-%';

-- Two clients never meet: the same key is each one's own, and a refusal shows nothing of the other.
SELECT test.answered('tenant-1', 'order-1', '\x01', body => 'secret of tenant 1') IS NOT NULL AS answered;
SELECT outcome, attempt FROM idem_reserve('tenant-2', 'order-1', '\x02');
SELECT outcome, status_code, body::text LIKE '%' || encode('secret', 'hex') || '%' AS shown FROM idem_reserve('tenant-2', 'order-1', '\x03');
SELECT outcome, convert_from(body, 'UTF8') AS body FROM idem_reserve('tenant-1', 'order-1', '\x01');

-- The longest keys, whether they can be compressed or not.
CREATE TEMP TABLE long AS
SELECT i, repeat('c', 255) AS client, repeat('k', 999) || i AS key FROM generate_series(1, 2) i
UNION ALL
SELECT i, string_agg(substr(md5(i || 'c' || j), 1, 17), '' ORDER BY j), left(string_agg(md5(i || 'k' || j) || md5(i || 'm' || j) || md5(i || 'n' || j), '' ORDER BY j), 1000)
FROM generate_series(3, 4) i, generate_series(1, 15) j GROUP BY i
UNION ALL
SELECT 5, repeat(U&'\+01F600', 63) || 'abc', repeat(U&'\20AC', 333) || 'x';
SELECT i, octet_length(client), octet_length(key), outcome FROM long, idem_reserve(client, key, '\x01') ORDER BY i;
SELECT i, outcome FROM long, idem_reserve(client, key, '\x01') ORDER BY i;
-- They differ in the last byte, and in nothing else.
SELECT outcome FROM long, idem_reserve(client, left(key, 999), '\x01') WHERE i = 1;

-- Keys are the bytes that were given: no setting of the session changes what is found.
SET client_encoding = 'LATIN1';
SELECT outcome FROM idem_reserve('id-a', U&'\00E9', '\x01');
RESET client_encoding;

-- Domains, varchar and unknown literals are accepted as text.
SELECT outcome FROM idem_reserve('id-a'::varchar, 'k'::name, '\x01');
PREPARE reserve AS SELECT outcome FROM idem_reserve($1, $2, $3);
EXECUTE reserve('id-a', 'k', '\x01');
EXECUTE reserve('id-a', 'prepared', '\x01');
EXECUTE reserve('id-a', 'prepared', '\x02');
DEALLOCATE reserve;

-- Fingerprints of 1 to 64 bytes, compared byte for byte.
SELECT outcome FROM idem_reserve('id-a', 'fp1', '\x00');
SELECT outcome FROM idem_reserve('id-a', 'fp1', '\x0000');
SELECT outcome FROM idem_reserve('id-a', 'fp64', decode(repeat('ab', 64), 'hex'));
SELECT outcome FROM idem_reserve('id-a', 'fp64', decode(repeat('ab', 64), 'hex'));
SELECT outcome FROM idem_reserve('id-a', 'fp64', decode(repeat('ab', 63), 'hex'));
