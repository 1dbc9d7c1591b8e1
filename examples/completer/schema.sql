-- The work is that of the recovery example.
\ir ../recovery/schema.sql

-- How often stale keys are looked for, and so how soon a completer is woken. The
-- default is a minute; here it is short, so that one can watch it.
ALTER SYSTEM SET idem.sweep_interval = '100 ms';
SELECT pg_reload_conf();
