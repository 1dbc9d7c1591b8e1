-- The whole cycle in one statement. Promises: section 4 (idem_call), rules 10 and 14; section 5.

CREATE TABLE charges (id serial, amount int);
CREATE FUNCTION charge(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    id int;
BEGIN
    IF (request->>'amount')::int > 1000 THEN
        RAISE EXCEPTION 'too much' USING ERRCODE = 'P0042';
    END IF;
    INSERT INTO charges (amount) VALUES ((request->>'amount')::int) RETURNING charges.id INTO id;
    RETURN jsonb_build_object('charge', id, 'amount', request->'amount');
END $$;

SELECT outcome, status_code, headers, convert_from(body, 'UTF8') AS body FROM idem_call('call', 'k', 'charge(jsonb)', '{"amount": 5}', status_code => 201);
SELECT outcome, status_code, headers, convert_from(body, 'UTF8') AS body FROM idem_call('call', 'k', 'charge(jsonb)', '{"amount": 5.0}');
SELECT outcome, status_code, headers, convert_from(body, 'UTF8')::json->>'code' AS code FROM idem_call('call', 'k', 'charge(jsonb)', '{"amount": 6}');
SELECT count(*) FROM charges;
-- The same key through the other calls: what idem_call stores is an answer like any other.
SELECT outcome, status_code, convert_from(body, 'UTF8') AS body FROM idem_reserve('call', 'k', request => '{"amount": 5}');
SELECT token FROM idem_reserve('call', 'held', '\x01') \gset
SELECT outcome, status_code, headers->>'retry-after' AS retry_after FROM idem_call('call', 'held', 'charge(jsonb)', '{"amount": 5}', fp => '\x01');
SELECT count(*) FROM charges;

-- An error in the function propagates and leaves the key free.
SELECT (test.failure('SELECT * FROM idem_call(''call'', ''err'', ''charge(jsonb)'', ''{"amount": 5000}'')')).*;
SELECT state FROM idem_lookup('call', 'err');
SELECT outcome FROM idem_call('call', 'err', 'charge(jsonb)', '{"amount": 50}');
-- Nothing of it is left when its transaction rolls back, and no reminder when it commits.
BEGIN;
SELECT outcome FROM idem_call('call', 'back', 'charge(jsonb)', '{"amount": 7}');
ROLLBACK;
SELECT state FROM idem_lookup('call', 'back');
SELECT count(*) FROM charges WHERE amount = 7;
SELECT count(*) FROM (TABLE idem_reminder_1 UNION ALL TABLE idem_reminder_2) r WHERE client = 'call' AND key <> 'held';

-- NULL: no body; a strict function that is given none is not called.
CREATE FUNCTION nothing(request jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb';
CREATE FUNCTION strictly(request jsonb) RETURNS jsonb LANGUAGE sql STRICT AS 'SELECT request';
SELECT outcome, status_code, body IS NULL AS no_body FROM idem_call('call', 'nothing', 'nothing(jsonb)', '{}', status_code => 204);
SELECT outcome, body IS NULL AS no_body FROM idem_call('call', 'nothing', 'nothing(jsonb)', '{}');
SELECT outcome, body IS NULL AS no_body FROM idem_call('call', 'strict', 'strictly(jsonb)', NULL, fp => '\x01');

-- It runs as the caller, who has to be allowed to execute it.
CREATE FUNCTION whoami(request jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT to_jsonb(current_user)';
CREATE FUNCTION secret(request jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT to_jsonb(1)';
REVOKE ALL ON FUNCTION secret(jsonb) FROM PUBLIC;
CREATE ROLE regress_idem_caller;
SELECT idem_grant('regress_idem_caller');
SET ROLE regress_idem_caller;
SELECT convert_from(body, 'UTF8') AS body FROM idem_call('call', 'who', 'whoami(jsonb)', '{}');
SELECT outcome FROM idem_call('call', 'secret', 'secret(jsonb)', '{}');
RESET ROLE;
SELECT state FROM idem_lookup('call', 'secret');
SELECT idem_revoke('regress_idem_caller');
REVOKE USAGE ON SCHEMA public FROM regress_idem_caller;
DROP ROLE regress_idem_caller;

-- Only a function from jsonb to jsonb will do, and everything is checked first.
CREATE FUNCTION set_of(request jsonb) RETURNS SETOF jsonb LANGUAGE sql AS 'SELECT request';
CREATE FUNCTION to_text(request jsonb) RETURNS text LANGUAGE sql AS 'SELECT request::text';
CREATE FUNCTION two(a jsonb, b jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT a';
CREATE PROCEDURE proc(request jsonb) LANGUAGE sql AS 'SELECT 1';
SELECT fn, test.sqlstate(format('SELECT * FROM idem_call(%L, %L, %s, %L)', 'call', 'sig', fn, '{}'))
  FROM unnest(ARRAY['''set_of(jsonb)''', '''to_text(jsonb)''', '''two(jsonb,jsonb)''', '''proc(jsonb)''', '''jsonb_agg(anyelement)''', '''no_such(jsonb)''', 'NULL', '0', '1']) fn;
SELECT a, test.sqlstate(format('SELECT * FROM idem_call(%L, %L, %L, %s)', 'call', 'args', 'whoami(jsonb)', a))
  FROM unnest(ARRAY['NULL', '''{}'', ''\x''', '''{}'', NULL, 99', '''{}'', NULL, NULL', '''{}'', NULL, 200, ''0''', '''{}'', NULL, 200, NULL, ''-1 s''']) a;
SELECT state FROM idem_lookup('call', 'args');
-- An answer that is too large undoes the work.
CREATE FUNCTION huge(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ INSERT INTO charges (amount) VALUES (-1); SELECT to_jsonb(repeat('x', 1048577)) $$;
SELECT test.sqlstate('SELECT * FROM idem_call(''call'', ''huge'', ''huge(jsonb)'', ''{}'')');
SELECT count(*) FROM charges WHERE amount = -1;

-- The request is kept, within the limit, as with idem_reserve.
SELECT request FROM idem_key WHERE client = 'call' AND key = 'k';
SELECT test.sqlstate('SELECT * FROM idem_call(''call'', ''big'', ''charge(jsonb)'', jsonb_build_object(''amount'', 1, ''p'', repeat(''x'', 1048577)))');
SELECT state FROM idem_lookup('call', 'big');

-- The same as a CTE.
WITH r AS (SELECT * FROM idem_reserve('call', 'cte', '\x01')),
     w AS (INSERT INTO charges (amount) SELECT 9 FROM r WHERE outcome = 'new' RETURNING amount)
SELECT r.outcome, r.status_code, c.done IS NOT NULL AS completed
  FROM r LEFT JOIN w ON true
       LEFT JOIN LATERAL (SELECT 1 AS done FROM idem_complete('call', 'cte', r.token, 201, 'charged ' || w.amount)) c ON r.outcome = 'new';
WITH r AS (SELECT * FROM idem_reserve('call', 'cte', '\x01')),
     w AS (INSERT INTO charges (amount) SELECT 9 FROM r WHERE outcome = 'new' RETURNING amount)
SELECT r.outcome, r.status_code, convert_from(r.body, 'UTF8') AS body FROM r LEFT JOIN w ON true;
SELECT count(*) FROM charges WHERE amount = 9;

-- A final refusal: the work is undone, the refusal kept.
BEGIN;
SELECT token AS t FROM idem_reserve('call', 'refused', '\x01') \gset
SAVEPOINT work;
INSERT INTO charges (amount) VALUES (13);
ROLLBACK TO work;
SELECT idem_complete('call', 'refused', :'t', 402, 'card declined');
COMMIT;
SELECT outcome, status_code, convert_from(body, 'UTF8') AS body, (SELECT count(*) FROM charges WHERE amount = 13) AS charges FROM idem_reserve('call', 'refused', '\x01');
DROP TABLE charges CASCADE;
DROP FUNCTION charge(jsonb), nothing, strictly, whoami, secret, set_of, to_text, two, huge;
DROP PROCEDURE proc;
