-- What the extension puts into the catalogs. Promises: section 4 (names, argument
-- order, defaults, results; one name, one signature; a comment on every object;
-- relocatable = false), section 5 (no unique index can drift with a collation) and
-- section 10 (pg_dump: keys and answers come along).

-- The calls, as the contract writes them.
CREATE TEMP TABLE contract (n int GENERATED ALWAYS AS IDENTITY, name text, arguments text, result text);
INSERT INTO contract (name, arguments, result) VALUES
('idem_reserve', 'client text, key text, fp bytea DEFAULT NULL::bytea, lease interval DEFAULT NULL::interval, retention interval DEFAULT NULL::interval, wait interval DEFAULT NULL::interval, token uuid DEFAULT NULL::uuid, request jsonb DEFAULT NULL::jsonb', 'idem_reservation'),
('idem_complete', 'client text, key text, token uuid, status_code integer, body text DEFAULT NULL::text, headers jsonb DEFAULT NULL::jsonb', 'void'),
('idem_complete_bytes', 'client text, key text, token uuid, status_code integer, body bytea DEFAULT NULL::bytea, headers jsonb DEFAULT NULL::jsonb', 'void'),
('idem_complete_json', 'client text, key text, token uuid, status_code integer, body jsonb, headers jsonb DEFAULT NULL::jsonb', 'bytea'),
('idem_release', 'client text, key text, token uuid', 'void'),
('idem_renew', 'client text, key text, token uuid, lease interval DEFAULT NULL::interval', 'timestamp with time zone'),
('idem_checkpoint', 'client text, key text, token uuid, recovery_point text, data jsonb DEFAULT NULL::jsonb', 'void'),
('idem_claim_stale', 'max_keys integer DEFAULT 100, lease interval DEFAULT NULL::interval, client text DEFAULT NULL::text', 'SETOF idem_claim'),
('idem_once', 'client text, key text, retention interval DEFAULT NULL::interval', 'boolean'),
('idem_once_batch', 'client text, keys text[], retention interval DEFAULT NULL::interval', 'SETOF text'),
('idem_call', 'client text, key text, fn regprocedure, request jsonb, fp bytea DEFAULT NULL::bytea, status_code integer DEFAULT 200, retention interval DEFAULT NULL::interval, wait interval DEFAULT NULL::interval', 'idem_call_result'),
('idem_lookup', 'client text, key text', 'idem_key_state'),
('idem_explain', 'client text, key text, fp bytea DEFAULT NULL::bytea, request jsonb DEFAULT NULL::jsonb', 'text'),
('idem_forget', 'client text, key text DEFAULT NULL::text', 'bigint'),
('idem_canonical_fingerprint', 'doc jsonb, include jsonpath[] DEFAULT NULL::jsonpath[], exclude jsonpath[] DEFAULT NULL::jsonpath[]', 'bytea'),
('idem_canonical_json', 'doc jsonb, include jsonpath[] DEFAULT NULL::jsonpath[], exclude jsonpath[] DEFAULT NULL::jsonpath[]', 'text'),
('idem_provider_key', 'client text, key text, step text DEFAULT ''''::text', 'uuid'),
('idem_parse_key', 'header text', 'text'),
('idem_sweep', 'max_keys integer DEFAULT NULL::integer', 'idem_sweep_result'),
('idem_grant', 'role regrole, monitor boolean DEFAULT false', 'void'),
('idem_revoke', 'role regrole', 'void');
SELECT name, pg_get_function_arguments(p.oid) = arguments AS arguments, pg_get_function_result(p.oid) = result AS result, proretset AS set,
       provolatile AS volatility, proisstrict AS strict, proparallel AS parallel, prosecdef AS definer, proconfig AS config
FROM contract c LEFT JOIN pg_proc p ON p.proname = name AND pronamespace = 'public'::regnamespace ORDER BY n;
-- whatever differs, in full
SELECT name, pg_get_function_arguments(p.oid) AS arguments, pg_get_function_result(p.oid) AS result
FROM contract c LEFT JOIN pg_proc p ON p.proname = name AND pronamespace = 'public'::regnamespace
WHERE (pg_get_function_arguments(p.oid), pg_get_function_result(p.oid)) IS DISTINCT FROM (c.arguments, c.result);

CREATE TEMP VIEW member AS
SELECT d.classid, d.objid FROM pg_depend d WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e' AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idem');
SELECT proname, count(*) AS signatures FROM pg_proc JOIN member ON classid = 'pg_proc'::regclass AND objid = pg_proc.oid GROUP BY proname HAVING count(*) > 1;
-- Every function, table, view, type and domain has a comment; so has every column of the table.
SELECT pg_describe_object(classid, objid, 0) AS without_comment FROM member
WHERE NOT (classid = 'pg_type'::regclass AND EXISTS (SELECT FROM pg_type t WHERE t.oid = objid AND (typelem <> 0 OR typrelid IN (SELECT oid FROM pg_class WHERE relkind IN ('r', 'v')))))
 AND NOT (classid = 'pg_class'::regclass AND (SELECT relkind FROM pg_class c WHERE c.oid = objid) IN ('c', 'i'))
 AND coalesce(obj_description(objid, classid::regclass::name), CASE WHEN classid = 'pg_class'::regclass THEN obj_description((SELECT reltype FROM pg_class WHERE oid = objid), 'pg_type') END) IS NULL;
SELECT attname AS without_comment FROM pg_attribute WHERE attrelid = 'idem_key'::regclass AND attnum > 0 AND NOT attisdropped AND col_description(attrelid, attnum) IS NULL;
-- Every function's comment says which errors it raises, or that they are those of another.
SELECT p.proname FROM pg_proc p JOIN member ON classid = 'pg_proc'::regclass AND objid = p.oid
WHERE obj_description(p.oid, 'pg_proc') !~ 'rrors' AND p.proname <> 'idem_pinned_client';

-- Control file.
SELECT extversion, extrelocatable, extconfig IS NOT NULL AS dumped FROM pg_extension WHERE extname = 'idem';
SELECT obj_description(oid, 'pg_extension') FROM pg_extension WHERE extname = 'idem';
-- Tables whose rows are dumped, and those whose are not: the position of the sweep, which nothing is written ahead for.
SELECT c.relname, c.relpersistence, t.n IS NOT NULL AS dumped, nullif(e.extcondition[t.n], '') AS condition, am.amname, c.relreplident
FROM member JOIN pg_class c ON classid = 'pg_class'::regclass AND objid = c.oid AND relkind = 'r' JOIN pg_am am ON am.oid = relam
JOIN pg_extension e ON extname = 'idem' LEFT JOIN unnest(e.extconfig) WITH ORDINALITY t(oid, n) ON t.oid = c.oid ORDER BY relname COLLATE "C";

-- Uniqueness is the primary key's; it and all key columns are in collation C.
SELECT i.indexrelid::regclass AS index, indisunique, indisprimary, indimmediate, indisvalid, pg_get_indexdef(i.indexrelid, 1, true) || ', ' || pg_get_indexdef(i.indexrelid, 2, true) AS columns,
       (SELECT array_agg(DISTINCT c) FROM unnest(indcollation::oid[]) c) = ARRAY['"C"'::regcollation::oid] AS in_c
FROM pg_index i JOIN member ON classid = 'pg_class'::regclass AND objid = i.indrelid WHERE i.indrelid::regclass::text NOT LIKE 'pg_toast%';
SELECT attrelid::regclass AS "table", attname FROM pg_attribute a JOIN member ON classid = 'pg_class'::regclass AND objid = attrelid
WHERE attname IN ('client', 'key') AND attcollation <> '"C"'::regcollation ORDER BY 1, 2;
SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute WHERE attrelid = 'idem_key'::regclass AND attnum > 0 ORDER BY attnum;
-- No trigger, no rule, no constraint but the key's, nothing that waits for another table.
SELECT count(*) FROM pg_trigger WHERE tgrelid IN (SELECT objid FROM member);
SELECT conname, contype FROM pg_constraint WHERE conrelid = 'idem_key'::regclass AND contype <> 'n';
-- No function runs as somebody else, none is written in SQL or PL/pgSQL.
SELECT lanname, count(*) FILTER (WHERE prosecdef) AS definer FROM pg_proc p JOIN member ON classid = 'pg_proc'::regclass AND objid = p.oid JOIN pg_language l ON l.oid = prolang GROUP BY lanname;
