-- The settings. Promises: section 6 (names, defaults, who may change them, what is
-- capped) and section 4 (NULL for an optional argument means its setting).
SELECT current_user AS admin \gset
SELECT name, boot_val, unit, vartype, context, min_val, max_val FROM pg_settings
WHERE name IN ('idem.lease', 'idem.max_lease', 'idem.retention', 'idem.wait_timeout', 'idem.max_response_size', 'idem.client', 'idem.sweeper', 'idem.sweep_interval', 'idem.sweep_batch')
ORDER BY name COLLATE "C";
SELECT count(*) AS without_description FROM pg_settings WHERE name LIKE 'idem.%' AND coalesce(short_desc, '') = '';
-- A name that is none is refused.
SELECT test.sqlstate('SET idem.leese = 1');

CREATE FUNCTION pg_temp.granted(a_key text, lease interval DEFAULT NULL, retention interval DEFAULT NULL, OUT lease_granted interval, OUT retention_granted interval) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM idem_reserve('set', a_key, '\x01', lease => lease, retention => retention);
    SELECT lease_until - began_at, expires_at - began_at INTO lease_granted, retention_granted FROM idem_key WHERE client = 'set' AND key = a_key;
END $$;

-- idem.lease, and what caps it
SET idem.lease = '30 s';
SELECT * FROM pg_temp.granted('lease');
SELECT * FROM pg_temp.granted('explicit', lease => '45 s');
SET idem.lease = '2 h';
SELECT * FROM pg_temp.granted('capped by max_lease');
SELECT * FROM pg_temp.granted('capped by retention', retention => '5 min');
SET idem.lease = '1 ms';
SELECT * FROM pg_temp.granted('shortest');
SELECT test.sqlstate('SET idem.lease = 0'), test.sqlstate('SET idem.lease = -1');
RESET idem.lease;
-- idem.max_lease refuses a longer one that is asked for
SET idem.max_lease = '1 min';
SELECT * FROM pg_temp.granted('capped');
SELECT * FROM pg_temp.granted('longest', lease => '1 min');
SELECT state, message, hint FROM test.failure($$SELECT idem_reserve('set', 'longer', '\x01', lease => '60.001 s')$$);
RESET idem.max_lease;
-- idem.retention: at most, and by default
SET idem.retention = '10 min';
SELECT * FROM pg_temp.granted('retention');
SELECT * FROM pg_temp.granted('less', retention => '1 min', lease => '1 s');
SELECT state, message, hint FROM test.failure($$SELECT idem_reserve('set', 'more', '\x01', retention => '10 min 0.001 s')$$);
SET idem.retention = '0.5 s';
SELECT * FROM pg_temp.granted('half a second');
SET idem.retention = '365 d';
SELECT * FROM pg_temp.granted('a year', retention => '360 d');
SELECT state FROM test.failure('SET idem.retention = 0');
RESET idem.retention;
-- a change touches no key that is there
SELECT token FROM idem_reserve('set', 'before', '\x01', lease => '1 h', retention => '2 h') \gset
SET idem.retention = '1 min';
SET idem.max_lease = '1 s';
SELECT state, lease_until - created_at AS lease, expires_at - created_at AS retention FROM idem_lookup('set', 'before');
-- and a takeover keeps what was granted
SELECT test.age('set', 'before', '61 min');
SELECT attempt FROM idem_reserve('set', 'before', '\x01');
SELECT lease_until - began_at AS lease, expires_at - began_at AS retention FROM idem_keys WHERE client = 'set' AND key = 'before';
RESET idem.retention;
RESET idem.max_lease;

-- per database: in force from the next session on
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET idem.retention = ''3 h''', current_database()); END $$;
\c -
SHOW idem.retention;
SELECT outcome FROM idem_reserve('set', 'per database', '\x01');
SELECT expires_at - created_at AS retention FROM idem_lookup('set', 'per database');
SELECT state, message FROM test.failure($$SELECT idem_reserve('set', 'more', '\x01', retention => '4 h')$$);
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET idem.retention', current_database()); END $$;
\c -
SHOW idem.retention;

-- Who may change what.
CREATE ROLE regress_idem_user LOGIN;
SELECT idem_grant('regress_idem_user');
GRANT USAGE ON SCHEMA test TO regress_idem_user;
\c - regress_idem_user
SELECT name, state
FROM (VALUES ('idem.lease', '1 s'), ('idem.wait_timeout', '1 s'), ('idem.max_lease', '2 h'), ('idem.retention', '48 h'), ('idem.max_response_size', '2 MB'), ('idem.client', 'me'),
             ('idem.sweeper', 'off'), ('idem.sweep_interval', '1 s'), ('idem.sweep_batch', '1')) v(name, value), test.failure(format('SET %s = %L', name, value));
SELECT name, test.sqlstate(format('ALTER ROLE regress_idem_user SET %s = %L', name, value))
FROM (VALUES ('idem.lease', '1 s'), ('idem.retention', '48 h'), ('idem.client', 'me')) v(name, value);
SELECT outcome FROM idem_reserve('anybody', 'k', '\x01');
\c - :admin
SELECT idem_revoke('regress_idem_user');
REVOKE USAGE ON SCHEMA test FROM regress_idem_user;
REVOKE USAGE ON SCHEMA public FROM regress_idem_user;
ALTER ROLE regress_idem_user RESET ALL;
DROP ROLE regress_idem_user;
