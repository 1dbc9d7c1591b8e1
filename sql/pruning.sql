-- A key that is reserved and completed in one transaction takes the room of one row, not of two: the page
-- is pruned on the way, without a VACUUM. Promises: none of the contract; bytes per key (doc/design.md).
CREATE DATABASE regress_idem_pruning;
\set home :DBNAME
\c regress_idem_pruning
CREATE EXTENSION idem;
ALTER TABLE idem_key SET (autovacuum_enabled = off);
CREATE PROCEDURE pay(n int) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1..n LOOP
        PERFORM idem_complete('shop', i::text, r.token, 201, repeat('x', 200)) FROM idem_reserve('shop', i::text, '\x01') r;
        COMMIT;
    END LOOP;
END $$;
CALL pay(1000);
-- with every first version still there it would be more than 600
SELECT count(*) AS keys, pg_relation_size('idem_key') / count(*) < 500 AS pruned FROM idem_key;
\c :home
DROP DATABASE regress_idem_pruning;
