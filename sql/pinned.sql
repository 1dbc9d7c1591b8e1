-- A role that is pinned to one client. Promises: section 6 (idem.client, by login;
-- SET ROLE does not change it) and section 5 (42501).
SELECT current_user AS admin \gset
CREATE ROLE regress_idem_pinned LOGIN;
CREATE ROLE regress_idem_free LOGIN;
GRANT regress_idem_free TO regress_idem_pinned;
ALTER ROLE regress_idem_pinned SET idem.client = 'acme';
SELECT idem_grant('regress_idem_pinned'), idem_grant('regress_idem_free');
SELECT idem_grant('regress_idem_pinned', monitor => true);
GRANT EXECUTE ON FUNCTION idem_forget TO regress_idem_pinned;
GRANT USAGE ON SCHEMA test TO regress_idem_pinned, regress_idem_free;
SELECT test.answered('other', 'k', '\x01', body => 'of the other') AS other, test.answered('ACME', 'k', '\x01') IS NOT NULL AS upper \gset
CREATE FUNCTION regress_idem_echo(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
SELECT count(*) FROM unnest('{acme,other}'::text[]) client, idem_reserve(client, 'stale', '\x01');
SELECT test.age(client, 'stale', '11 min') FROM unnest('{acme,other}'::text[]) client;
\c - regress_idem_pinned
SHOW idem.client;
-- its own client
SELECT outcome, token FROM idem_reserve('acme', 'k', '\x01') \gset
\echo :outcome
SELECT idem_complete('acme', 'k', :'token', 200);
SELECT outcome FROM idem_reserve('acme', 'k', '\x01');
SELECT state FROM idem_lookup('acme', 'k');
-- and no other, in any call, whether the key is there or not; names are compared whole
SELECT call, state, message, detail, hint
FROM unnest(ARRAY[$$idem_reserve('other', 'k', '\x01')$$, $$idem_complete('other', 'k', :token, 200, 'of the other')$$, $$idem_complete_bytes('other', 'k', :token, 200)$$, $$idem_complete_json('other', 'k', :token, 200, '1')$$,
    $$idem_release('other', 'k', :token)$$, $$idem_renew('other', 'k', :token)$$, $$idem_checkpoint('other', 'k', :token, 'p')$$, $$idem_once('other', 'k')$$, $$idem_once_batch('other', '{k}')$$,
    $$idem_call('other', 'k', 'regress_idem_echo(jsonb)', '{}')$$, $$idem_claim_stale(client => 'other')$$, $$idem_explain('other', 'k')$$, $$idem_forget('other')$$, $$idem_forget('other', 'k')$$,
    $$idem_lookup('other', 'k')$$, $$idem_lookup('other', 'none')$$, $$idem_lookup('ACME', 'k')$$, $$idem_lookup('acm', 'k')$$, $$idem_lookup('acme ', 'k')$$, $$idem_lookup('acme2', 'k')$$]) WITH ORDINALITY c(call, n),
     LATERAL test.failure('SELECT ' || replace(call, ':token', quote_literal(:'other'))) ORDER BY n;
-- pure functions look at no key
SELECT idem_provider_key('other', 'k') IS NOT NULL AS derived, idem_parse_key('k');
-- the view shows its own
SELECT client, key, state FROM idem_keys ORDER BY key;
SELECT count(*) FROM idem_keys WHERE client <> 'acme';
-- what EXPLAIN counts does not depend on what another client has
CREATE FUNCTION pg_temp.plan(key text) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY EXECUTE format('EXPLAIN (ANALYZE, BUFFERS OFF, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT state FROM idem_keys WHERE client = ''other'' AND key = %L', key);
END $$;
SELECT bool_or(plan LIKE '%(never executed)%') AS not_looked_at, bool_or(plan LIKE '%Removed%') AS removed FROM pg_temp.plan('k') plan;
SET enable_indexscan = off;
SET enable_bitmapscan = off;
SELECT bool_or(plan LIKE '%(never executed)%') AS not_looked_at, bool_or(plan LIKE '%Removed%') AS removed FROM pg_temp.plan('k') plan;
RESET enable_indexscan;
RESET enable_bitmapscan;
-- its own stale keys only
SELECT client, key FROM idem_claim_stale();
-- in no way does it get out of it
SELECT command, test.sqlstate(command) FROM unnest('{"SET idem.client = ''other''","SET LOCAL idem.client = ''''","SELECT set_config(''idem.client'', ''other'', false)",
    "ALTER ROLE regress_idem_pinned SET idem.client = ''other''","ALTER ROLE regress_idem_pinned RESET idem.client"}'::text[]) command;
RESET idem.client;
SELECT current_setting('idem.client');
RESET ALL;
SELECT current_setting('idem.client');
DISCARD ALL;
SELECT current_setting('idem.client');
ALTER ROLE regress_idem_pinned RESET ALL;
SELECT test.sqlstate($$CREATE FUNCTION pg_temp.f() RETURNS void LANGUAGE sql SET idem.client = 'other' AS 'SELECT'$$);
SET ROLE regress_idem_free;
SELECT current_setting('idem.client'), test.sqlstate($$SELECT idem_lookup('other', 'k')$$);
RESET ROLE;
\c - regress_idem_pinned
SELECT current_setting('idem.client'), test.sqlstate($$SELECT idem_lookup('other', 'k')$$);

-- By login: another role that takes this one's rights is not pinned by it.
\c - regress_idem_free
SELECT outcome FROM idem_reserve('other', 'k', '\x01');
SELECT test.sqlstate('SELECT count(*) FROM idem_keys');

-- A superuser may pin itself, to any name; an error in it is said by the call.
\c - :admin
SET idem.client = 'acme';
SELECT test.sqlstate($$SELECT idem_lookup('other', 'k')$$), (idem_lookup('acme', 'k')).state;
SELECT DISTINCT client FROM idem_keys;
SET idem.client = '';
SELECT (idem_lookup('other', 'k')).state;
SELECT count(DISTINCT client) > 1 AS all_clients FROM idem_keys;
-- for a function's length, too: how a trusted function calls for somebody else
CREATE FUNCTION pg_temp.pinned(client text) RETURNS text LANGUAGE sql SET idem.client = 'acme' AS $$ SELECT state FROM idem_lookup(client, 'k') $$;
SELECT pg_temp.pinned('acme');
SELECT state, message FROM test.failure($$SELECT pg_temp.pinned('other')$$);
SELECT (idem_lookup('other', 'k')).state;

DROP FUNCTION regress_idem_echo;
REVOKE EXECUTE ON FUNCTION idem_forget FROM regress_idem_pinned;
SELECT idem_revoke('regress_idem_pinned'), idem_revoke('regress_idem_free');
REVOKE USAGE ON SCHEMA test FROM regress_idem_pinned, regress_idem_free;
REVOKE USAGE ON SCHEMA public FROM regress_idem_pinned, regress_idem_free;
DROP ROLE regress_idem_pinned, regress_idem_free;
