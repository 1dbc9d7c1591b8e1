-- A mark in a read-only transaction is refused before anybody is waited for. Promises: section 5 (25006), rule 12.
BEGIN;
SELECT idem_once('once_read_only', 'm');
PREPARE TRANSACTION 'idem_once_read_only';
SET statement_timeout = '10 s';
BEGIN READ ONLY;
SELECT idem_once('once_read_only', 'm');
ROLLBACK;
RESET statement_timeout;
ROLLBACK PREPARED 'idem_once_read_only';
SELECT idem_once('once_read_only', 'm');
