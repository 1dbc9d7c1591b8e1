# The background worker finds every database that has the extension, by
# itself, and leaves the others alone.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemWorker;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('worker');

# The launcher

ok(wait_process($node, 'idem launcher'), 'launcher runs');
is( $node->safe_psql(
		'postgres', q{
SELECT datid IS NULL, application_name FROM pg_stat_activity
WHERE backend_type = 'idem launcher'}),
	't|idem launcher',
	'launcher is connected to no database');

# From PostgreSQL 17 on what is waited for has a name.
my $named = $node->safe_psql('postgres', 'SHOW server_version_num') >= 170000;
my ($launcher_waits, $worker_waits) = $named ? qw(IdemLauncherMain IdemWorkerPace) : qw(Extension Extension);
ok( $node->poll_query_until('postgres',
		"SELECT wait_event_type = 'Extension' AND wait_event = '$launcher_waits' FROM pg_stat_activity WHERE backend_type = 'idem launcher'"),
	"and waits for $launcher_waits");

# Databases with the extension, in any schema, and one without

add_database($node, $_) for qw(one two);
add_database($node, 'none', 0);
$node->safe_psql('postgres', 'CREATE DATABASE hidden');
$node->safe_psql('hidden',
	'CREATE SCHEMA "Idem X"; CREATE EXTENSION idem SCHEMA "Idem X"');
for my $db (qw(one two))
{
	expire($node, $db, 2500);
	ok(wait_swept($node, $db), "database $db is swept");
}
$node->safe_psql(
	'hidden', q{
SET search_path = "Idem X";
SELECT count(*) FROM idem_once_batch('c', ARRAY['a', 'b'], '1 ms')});
ok( $node->poll_query_until(
		'hidden', 'SELECT count(*) = 0 FROM "Idem X".idem_key'),
	'the schema of the extension does not matter');

# What has not expired stays

$node->safe_psql('one',
	q{SELECT count(*) FROM idem_once_batch('c', ARRAY['kept'], '1 h')});
expire($node, 'one', 10);
ok(wait_swept($node, 'one'), 'swept beside a live key');
is(keys_left($node, 'one'), 1, 'the live key is kept');

# Tables of the same name mean nothing

$node->safe_psql(
	'none', q{
CREATE ROLE stranger;
CREATE SCHEMA idem AUTHORIZATION stranger;
CREATE TABLE idem.idem_key (expires_at timestamptz);
CREATE TABLE public.idem_key (expires_at int);
INSERT INTO idem.idem_key VALUES ('2000-01-01');
ALTER TABLE public.idem_key OWNER TO stranger;
ALTER TABLE idem.idem_key OWNER TO stranger;});

# The extension leaves and comes back, also within one session

$node->safe_psql('two', 'DROP EXTENSION idem');
$node->safe_psql('two', 'CREATE EXTENSION idem');
expire($node, 'two', 10);
ok(wait_swept($node, 'two'), 'extension created again');

my $session = $node->background_psql('two');
for my $round (1 .. 3)
{
	$session->query_safe('DROP EXTENSION idem');
	$node->poll_query_until('two',
		"SELECT count(*) = 0 FROM pg_extension WHERE extname = 'idem'");
	$session->query_safe('CREATE EXTENSION idem');
	$session->query_safe(
		"SELECT count(*) FROM idem_once_batch('c', ARRAY['a'], '1 ms')");
	ok(wait_swept($node, 'two'), "dropped and created in one session, $round");
}

# Created by a transaction that takes its time

$session->query_safe('DROP EXTENSION idem');
$session->query_safe(
	q{BEGIN; CREATE EXTENSION idem; SELECT count(*) FROM idem_once_batch('c', ARRAY['a'], '1 ms')}
);
for (1 .. 3)
{
	expire($node, 'one', 10);
	wait_swept($node, 'one');
}
$session->query_safe('COMMIT');
ok(wait_swept($node, 'two'), 'created in a long transaction');
$session->quit;

# A copy of a database is a database

ok(sweeper($node, 'off'), 'sweeper is switched off');
expire($node, 'one', 30);
$node->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE one');
is(keys_left($node, 'copy'), 31, 'nothing is swept while the sweeper is off');
sweeper($node, 'on');
ok(wait_swept($node, $_), "$_ is swept after it is on again") for qw(one copy);

# Limits on connections do not hold for it; a closed door does

$node->safe_psql('postgres', 'ALTER DATABASE one CONNECTION LIMIT 0');
expire($node, 'one', 10);
ok(wait_swept($node, 'one'), 'connection limit 0');
expire($node, 'copy', 10);
$node->safe_psql('postgres', 'ALTER DATABASE copy ALLOW_CONNECTIONS false');
expire($node, 'two', 10);
ok(wait_swept($node, 'two'), 'another database is closed to connections');
$node->safe_psql('postgres', 'ALTER DATABASE copy ALLOW_CONNECTIONS true');
ok(wait_swept($node, 'copy'), 'open again');

# Settings of the database do not change the worker, and no schema of a stranger's is looked into

$node->safe_psql(
	'one', q{
CREATE SCHEMA stranger_s;
CREATE TABLE stranger_s.idem_key (LIKE idem_key);
CREATE TABLE stranger_s.idem_reminder_1 (LIKE idem_reminder_1);
CREATE TABLE stranger_s.idem_reminder_2 (LIKE idem_reminder_2);
CREATE TABLE stranger_s.idem_state (LIKE idem_state);
CREATE TABLE stranger_s.pg_extension (LIKE pg_extension);
CREATE FUNCTION stranger_s.trap(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the trap was reached'; END $$;
CREATE FUNCTION stranger_s.trap(timestamptz, timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the trap was reached'; END $$;
CREATE OPERATOR stranger_s.= (LEFTARG = text, RIGHTARG = text, FUNCTION = stranger_s.trap);
CREATE OPERATOR stranger_s.<= (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = stranger_s.trap);
INSERT INTO stranger_s.idem_key SELECT (k).* FROM (SELECT k FROM idem_key k LIMIT 1) k;
UPDATE stranger_s.idem_key SET expires_at = '2000-01-01'});
$session = $node->background_psql('one');
$session->query_safe('SELECT 1');
$node->safe_psql(
	'postgres', q{
ALTER DATABASE one SET search_path = stranger_s, pg_catalog;
ALTER DATABASE one SET role = stranger;
ALTER DATABASE one SET default_transaction_read_only = on;
ALTER DATABASE one SET default_transaction_isolation = 'serializable';
ALTER DATABASE one SET statement_timeout = 1;
ALTER DATABASE one SET idle_in_transaction_session_timeout = 1;
ALTER DATABASE one SET synchronous_commit = on});
$session->query_safe(
	"SELECT count(*) FROM idem_once_batch('c', ARRAY['x', 'y'], '1 ms')");
$session->query_safe(
	q{
DO $$
BEGIN
	WHILE EXISTS (SELECT FROM idem_key WHERE expires_at <= now()) LOOP
		COMMIT;
	END LOOP;
END $$});
pass('swept in spite of what ALTER DATABASE set');
$session->quit;
$node->safe_psql('postgres', 'ALTER DATABASE one RESET ALL');
is($node->safe_psql('one', 'SELECT count(*) FROM stranger_s.idem_key'), 1, 'and a table of the same name was left alone');

# Between two batches it holds nothing

$node->append_conf('postgresql.conf', 'idem.sweep_batch = 1');
$node->reload;
expire($node, 'two', 1500);
my $busy = $node->background_psql('postgres');
my $held = 0;
my $seen = 0;
for (1 .. 500)
{
	my $row = $busy->query_safe(
		qq{
SELECT coalesce(sum(1), 0), coalesce(sum(1) FILTER (WHERE backend_xmin IS NOT NULL OR xact_start IS NOT NULL), 0)
FROM pg_stat_activity WHERE backend_type = 'idem worker' AND wait_event_type = 'Extension' AND wait_event = '$worker_waits'});
	my ($idle, $holding) = split /\|/, $row;
	$seen += $idle;
	$held += $holding;
	last if $seen >= 20;
}
$busy->quit;
cmp_ok($seen, '>', 0, 'worker seen between two batches');
# the view reads the two columns at different times, so a few prove nothing
cmp_ok($held, '<', $seen / 2, 'without a transaction or a snapshot');
$node->append_conf('postgresql.conf', 'idem.sweep_batch = 1000');
$node->reload;
ok(wait_swept($node, 'two'), 'a changed batch is taken up');

is( $node->safe_psql(
		'none', 'SELECT count(*) FROM idem.idem_key'),
	1,
	'tables of others are not touched');
is(errors_in_log($node), '', 'log is quiet');

$node->stop('fast');
done_testing();
