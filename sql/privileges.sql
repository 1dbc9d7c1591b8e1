-- Who may do what. Promises: section 4 (nothing is executable or readable by PUBLIC;
-- idem_grant, monitor, idem_revoke) and section 5 (42501, 22004).
CREATE ROLE regress_idem_nobody;
CREATE ROLE "regress_idem App" LOGIN;
CREATE ROLE regress_idem_monitor;

-- Everything of the extension that can be granted, and what a role has of it. (An array has its element's privileges.)
CREATE TEMP VIEW object AS
SELECT CASE classid WHEN 'pg_proc'::regclass THEN 'function ' || objid::regproc WHEN 'pg_type'::regclass THEN 'type ' || objid::regtype ELSE 'table ' || objid::regclass END AS object, classid, objid
FROM pg_depend WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e' AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idem')
 AND NOT EXISTS (SELECT FROM pg_type WHERE classid = 'pg_type'::regclass AND pg_type.oid = objid AND typelem <> 0)
UNION ALL
SELECT 'row type ' || c.oid::regclass, 'pg_type'::regclass, reltype
FROM pg_depend JOIN pg_class c ON c.oid = objid WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e' AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idem')
 AND classid = 'pg_class'::regclass AND relkind IN ('r', 'v');
CREATE FUNCTION pg_temp.has(role name) RETURNS TABLE (object text, privilege text) LANGUAGE sql AS $$
    SELECT object, privilege
    FROM object, unnest('{EXECUTE,USAGE,SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) privilege
    WHERE CASE WHEN classid = 'pg_proc'::regclass THEN privilege = 'EXECUTE' AND has_function_privilege(role, objid, privilege)
               WHEN classid = 'pg_type'::regclass THEN privilege = 'USAGE' AND has_type_privilege(role, objid, privilege)
               WHEN privilege IN ('EXECUTE', 'USAGE') THEN false
               WHEN privilege IN ('SELECT', 'INSERT', 'UPDATE', 'REFERENCES') THEN has_table_privilege(role, objid, privilege) OR has_any_column_privilege(role, objid, privilege)
               ELSE has_table_privilege(role, objid, privilege) END
    ORDER BY 1, 2
$$;
SELECT count(*) > 40 AS objects FROM object;
-- an object of another kind would need a column of its own here
SELECT DISTINCT classid::regclass FROM object ORDER BY 1;
-- nothing for PUBLIC, and so nothing for a new role
SELECT * FROM pg_temp.has('regress_idem_nobody');
SELECT object FROM object o JOIN pg_proc p ON p.oid = o.objid AND o.classid = 'pg_proc'::regclass WHERE proacl IS NULL OR EXISTS (SELECT FROM aclexplode(proacl) WHERE grantee = 0)
UNION ALL
SELECT object FROM object o JOIN pg_class c ON c.oid = o.objid AND o.classid = 'pg_class'::regclass WHERE relacl IS NULL OR EXISTS (SELECT FROM aclexplode(relacl) WHERE grantee = 0)
UNION ALL
SELECT object FROM object o JOIN pg_type t ON t.oid = o.objid AND o.classid = 'pg_type'::regclass WHERE typelem = 0 AND (typacl IS NULL OR EXISTS (SELECT FROM aclexplode(typacl) WHERE grantee = 0))
UNION ALL
SELECT attrelid::regclass || '.' || attname FROM pg_attribute JOIN object ON classid = 'pg_class'::regclass AND objid = attrelid WHERE attacl IS NOT NULL;

-- an application: the calls, and no table
SELECT idem_grant('"regress_idem App"');
SELECT * FROM pg_temp.has('regress_idem App');
-- monitoring: the view and what it needs, and nothing that reserves
SELECT idem_grant(role => 'regress_idem_monitor', monitor => true);
SELECT * FROM pg_temp.has('regress_idem_monitor');
-- again is no error; NULL for monitor is its default
SELECT idem_grant('regress_idem_monitor', true), idem_grant('"regress_idem App"', NULL);

-- What that means.
GRANT USAGE ON SCHEMA test TO PUBLIC;
SELECT test.answered('priv', 'k', '\x01', body => 'secret') IS NOT NULL AS answered;
SELECT outcome FROM idem_reserve('priv', 'held', '\x01');
SET ROLE "regress_idem App";
SELECT outcome, token FROM idem_reserve('priv', 'app', '\x01') \gset
\echo :outcome
SELECT idem_complete('priv', 'app', :'token', 200);
SELECT outcome, convert_from(body, 'UTF8') AS body FROM idem_reserve('priv', 'k', '\x01');
SELECT statement, state, message FROM unnest('{TABLE idem_key,TABLE idem_keys,TABLE idem_reminder_1,"DELETE FROM idem_key","SELECT idem_sweep()","SELECT idem_grant(''regress_idem_nobody'')","SELECT idem_revoke(''regress_idem_monitor'')","SELECT idem_pinned_client()"}'::text[]) statement, test.failure(statement);
RESET ROLE;
SET ROLE regress_idem_monitor;
SELECT key, state, status_code, body_bytes FROM idem_keys WHERE client = 'priv' ORDER BY key;
SELECT statement, state, message FROM unnest('{TABLE idem_key,"SELECT idem_lookup(''priv'', ''k'')","SELECT idem_reserve(''priv'', ''k'', ''\\x01'')","UPDATE idem_keys SET client = client","DELETE FROM idem_keys"}'::text[]) statement, test.failure(statement);
RESET ROLE;
SET ROLE regress_idem_nobody;
SELECT statement, state FROM unnest('{TABLE idem_keys,"SELECT idem_lookup(''priv'', ''k'')","SELECT idem_canonical_json(''{}'')","SELECT idem_parse_key(''k'')"}'::text[]) statement, test.failure(statement);
RESET ROLE;
-- The view has neither bodies nor tokens.
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'idem_keys'::regclass AND attnum > 0 ORDER BY attnum;
SELECT reloptions FROM pg_class WHERE oid = 'idem_keys'::regclass;
-- Its predicates cannot be made to show what they hide: a function of the reader's sees live rows only.
SELECT test.age('priv', 'held', '24 h');
CREATE FUNCTION test.leak(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS $$ BEGIN IF $1 NOT IN ('app', 'k') THEN RAISE NOTICE '%', $1; END IF; RETURN true; END $$;
SET ROLE regress_idem_monitor;
SELECT key FROM idem_keys WHERE client = 'priv' AND test.leak(key) ORDER BY key;
RESET ROLE;
DROP FUNCTION test.leak;

-- Nobody grants what is not theirs to grant.
GRANT EXECUTE ON FUNCTION idem_grant TO regress_idem_monitor;
GRANT EXECUTE ON FUNCTION idem_revoke TO regress_idem_monitor;
SET ROLE regress_idem_monitor;
-- neither what it does not have, nor what it has and may not pass on, nor can it take anything back
SELECT state, message, hint FROM test.failure($$SELECT idem_grant('regress_idem_nobody')$$);
SELECT state, message FROM test.failure($$SELECT idem_grant('regress_idem_nobody', true)$$);
SELECT state, message FROM test.failure($$SELECT idem_revoke('"regress_idem App"')$$);
RESET ROLE;
SELECT count(*) AS still FROM pg_temp.has('regress_idem App');
SELECT * FROM pg_temp.has('regress_idem_nobody');
REVOKE EXECUTE ON FUNCTION idem_grant, idem_revoke FROM regress_idem_monitor;

-- Everything is taken back, however it was granted; again is no error.
SELECT idem_revoke('"regress_idem App"'), idem_revoke('regress_idem_monitor');
SELECT idem_revoke('"regress_idem App"'), idem_revoke(role => 'regress_idem_nobody');
SELECT * FROM pg_temp.has('regress_idem App') UNION ALL SELECT * FROM pg_temp.has('regress_idem_monitor');
SELECT state, message FROM test.failure($$SELECT idem_grant(NULL)$$);
SELECT state, message FROM test.failure($$SELECT idem_grant('regress_idem_unknown')$$);
SELECT state, message FROM test.failure($$SELECT idem_grant(0::oid::regrole)$$);
SELECT state, message FROM test.failure($$SELECT idem_revoke(1::oid::regrole)$$);

REVOKE USAGE ON SCHEMA test FROM PUBLIC;
REVOKE USAGE ON SCHEMA public FROM "regress_idem App", regress_idem_monitor;
DROP ROLE regress_idem_nobody, "regress_idem App", regress_idem_monitor;
