# Whatever is done to a database or to the extension goes through, while the
# background worker is at it as often as it can be.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemWorker;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('ddl', q{
idem.sweep_interval = '1 ms'
idem.sweep_batch = 1
fsync = off
});
wait_process($node, 'idem launcher');

# Runs a statement; the server's error, or nothing.
sub error_of
{
	my ($db, $sql) = @_;

	my ($rc, $out, $err) = $node->psql($db, $sql);
	return $rc == 0 ? '' : $err;
}

# The worker in the middle of a long pass over this database.
sub wait_busy
{
	my ($db) = @_;

	return $node->poll_query_until('postgres',
		"SELECT count(*) > 0 FROM pg_stat_activity WHERE backend_type = 'idem worker' AND datname = '$db'"
	);
}

# A database comes and goes; the template that it is made from is visited too

my $errors = '';
for my $round (1 .. 8)
{
	add_database($node, 'd');
	expire($node, 'd', 5);
	$errors .= error_of('postgres', 'DROP DATABASE d');
}
is($errors, '', 'create, use and drop a database');

# Each of these meets a worker in the middle of a long pass

add_database($node, 'd');
add_database($node, 'other', 0);
for my $sql (
	'CREATE DATABASE e TEMPLATE d',
	'ALTER DATABASE d RENAME TO f',
	'ALTER DATABASE f RENAME TO d',
	'DROP DATABASE e',
	'DROP DATABASE other',
	'DROP DATABASE d')
{
	my $db = $sql =~ /DATABASE f/ ? 'f' : 'd';

	expire($node, $db, 2000);
	wait_busy($db);
	is(error_of('postgres', $sql), '', "$sql with a worker at work in $db");
}

# Dropped by force, the worker ends without a word

for my $round (1 .. 5)
{
	add_database($node, 'd');
	expire($node, 'd', 2000);
	wait_busy('d');
	$errors .= error_of('postgres', 'DROP DATABASE d WITH (FORCE)');
}
is($errors, '', 'drop by force');

# Tablespaces

my $dir = PostgreSQL::Test::Utils::tempdir();
add_database($node, 'd');
$node->safe_psql('postgres', "CREATE TABLESPACE ts LOCATION '$dir'");
for my $sql (
	'ALTER DATABASE d SET TABLESPACE ts',
	'ALTER DATABASE d SET TABLESPACE pg_default',
	'DROP TABLESPACE ts')
{
	expire($node, 'd', 2000);
	wait_busy('d');
	is(error_of('postgres', $sql), '', $sql);
}

# The extension, and its tables

for my $sql (
	'VACUUM FULL idem_key', 'VACUUM FULL',
	'REINDEX TABLE idem_key', 'ALTER EXTENSION idem UPDATE',
	'DROP EXTENSION idem')
{
	expire($node, 'd', 500);
	wait_busy('d');
	is(error_of('d', $sql), '', $sql);
}

my $cycle = q{
CREATE EXTENSION idem;
SELECT count(*) FROM idem_once_batch('c', ARRAY['a', 'b'], '1 ms');
DROP EXTENSION idem;
};
is(error_of('d', $cycle x 180), '', 'create and drop the extension 180 times');
$errors .= error_of('d', $cycle) for (1 .. 20);
is($errors, '', 'and 20 times, each in another session');

for my $round (1 .. 10)
{
	$errors .= error_of(
		'd', q{
CREATE SCHEMA s;
CREATE EXTENSION idem SCHEMA s;
SELECT count(*) FROM s.idem_once_batch('c', ARRAY['a', 'b'], '1 ms');
DROP SCHEMA s CASCADE;});
}
is($errors, '', 'drop its schema');

# Somebody sits on the table: the other databases are swept all the same

add_database($node, 'e');
$node->safe_psql('d', 'CREATE EXTENSION idem');
my $session = $node->background_psql('d');
$session->query_safe(
	'BEGIN; LOCK TABLE idem_key IN ACCESS EXCLUSIVE MODE');
for my $round (1 .. 3)
{
	expire($node, 'e', 10);
	ok(wait_swept($node, 'e'), "swept while the table in d is locked, $round");
}

# A worker that waits for that lock is in nobody's way either

my $dir2 = PostgreSQL::Test::Utils::tempdir();
$node->safe_psql('postgres', 'CREATE DATABASE g');
for my $sql (
	'CREATE DATABASE h TEMPLATE g',
	'ALTER DATABASE h RENAME TO i',
	"CREATE TABLESPACE ts LOCATION '$dir2'",
	'ALTER DATABASE i SET TABLESPACE ts',
	'DROP DATABASE i',
	'DROP TABLESPACE ts',
	'DROP DATABASE g')
{
	$node->poll_query_until('postgres', q{
SELECT count(*) > 0 FROM pg_stat_activity
WHERE backend_type = 'idem worker' AND datname = 'd' AND wait_event_type = 'Lock'});
	is(error_of('postgres', $sql), '', "$sql with a worker that waits for a lock");
}
$session->quit;
expire($node, 'd', 10);
ok(wait_swept($node, 'd'), 'swept after the lock is gone');

# No other database waits, so that the worker has a long turn: longer than the
# five seconds that DROP DATABASE waits

sweeper($node, 'off');
add_database($node, 'long');
expire($node, 'long', 20000);
$node->append_conf('postgresql.conf', "idem.sweep_interval = '1 h'");
sweeper($node, 'on');
wait_busy('long');
is(error_of('postgres', 'DROP DATABASE long'),
	'', 'drop a database in the middle of a long turn');

# And while there is nothing to sweep, and nobody at work

add_database($node, 'idle');
$node->poll_query_until('postgres',
	"SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'idem worker'");
for my $sql (
	'CREATE DATABASE copy TEMPLATE idle',
	'ALTER DATABASE copy RENAME TO other_copy',
	'DROP DATABASE other_copy',
	'DROP DATABASE idle')
{
	is(error_of('postgres', $sql), '', "$sql while the sweeper is idle");
}

is(errors_in_log($node), '', 'log is quiet');
is(log_count($node, qr/deadlock detected/), 0, 'no deadlock');

$node->stop('fast');
done_testing();
