-- A key that is reserved and completed takes the room of one row, not of two, in one transaction or in two: the
-- page is pruned on the way, without a VACUUM. Promises: none of the contract; bytes per key (doc/design.md).
CREATE DATABASE regress_idem_pruning;
\set home :DBNAME
\c regress_idem_pruning
CREATE EXTENSION idem;
ALTER TABLE idem_key SET (autovacuum_enabled = off);
CREATE PROCEDURE pay(n int, apart boolean) LANGUAGE plpgsql AS $$
DECLARE
    r record;
    name text;
BEGIN
    FOR i IN 1..n LOOP
        name := md5(i::text)::uuid;
        r := idem_reserve('shop', name, sha256('request'));
        IF apart THEN
            COMMIT;
        END IF;
        PERFORM idem_complete('shop', name, r.token, 201, repeat('x', 200));
        COMMIT;
    END LOOP;
END $$;
-- with every first version still there it would be more than 500
CALL pay(1000, false);
SELECT count(*) AS keys, pg_relation_size('idem_key') / count(*) < 450 AS pruned FROM idem_key;
TRUNCATE idem_key;
CALL pay(1000, true);
SELECT count(*) AS keys, pg_relation_size('idem_key') / count(*) < 450 AS pruned FROM idem_key;
\c :home
DROP DATABASE regress_idem_pruning;
