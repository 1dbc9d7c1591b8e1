-- The key for the next system down the line.

-- Computed by other programs; doc/fingerprint.md shows how.
SELECT idem_provider_key(client, key, step), idem_provider_key(client, key, step) = expected AS as_expected
FROM (VALUES ('acct_1', '8e03978e-40d5-43e8-bc93-6894a57f9324', '', '2130ef4d-4eaf-8e5b-b9f8-37c6b8253ea3'::uuid),
             ('acct_1', '8e03978e-40d5-43e8-bc93-6894a57f9324', 'capture', 'dad4d109-0010-82ee-b002-de57cb120588'),
             ('a', 'b:c', '', '4725f3fc-c292-8a6d-a917-d405cb10f4a1'),
             ('a:b', 'c', '', '4de955e7-51c1-88db-8705-957526ae3f0c'),
             ('c', 'k', 's', 'c11ad92c-2969-8a9f-bbef-f05b9a60a26c'),
             ('c', 'ks', '', 'fb71136f-3dcb-88b3-9b68-5ddec459915a'),
             ('café', '日本', '😀', '0bd92d4e-bdf5-8800-b1a6-b4f4dfab54ac')) v(client, key, step, expected);

-- The step defaults to none, and so does NULL.
SELECT idem_provider_key('c', 'k') = idem_provider_key('c', 'k', '') AS by_default,
       idem_provider_key('c', 'k', NULL) = idem_provider_key('c', 'k', '') AS null_step,
       idem_provider_key(step => 's', key => 'k', client => 'c') = idem_provider_key('c', 'k', 's') AS by_name;

-- Version 8, variant 10, whatever the arguments.
SELECT count(*), count(DISTINCT k) AS different, count(*) FILTER (WHERE k::text ~ '^.{14}8.{4}[89ab]') AS version_and_variant
FROM (SELECT idem_provider_key('c' || i % 10, 'k' || i % 100, 's' || i) AS k FROM generate_series(1, 1000) i) x;

-- Limits are in bytes.
SELECT idem_provider_key(repeat('c', 255), repeat('k', 1000), repeat('s', 100000)) IS NOT NULL AS longest;
SELECT idem_provider_key(repeat('é', 128), 'k');
SELECT idem_provider_key('c', repeat('é', 501));
SELECT idem_provider_key('', 'k');
SELECT idem_provider_key('c', '');
SELECT idem_provider_key(NULL, 'k');
SELECT idem_provider_key('c', NULL);
\set VERBOSITY sqlstate
SELECT idem_provider_key('', 'k');
SELECT idem_provider_key('c', repeat('k', 1001));
SELECT idem_provider_key(NULL, 'k');
