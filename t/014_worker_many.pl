# Many databases, few worker slots that others fight for, and some databases
# that are broken: each of the others gets its turn.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemWorker;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('many', q{
max_worker_processes = 4
max_parallel_workers = 4
fsync = off
});
wait_process($node, 'idem launcher');

my $parallel =
  $node->safe_psql('postgres', 'SHOW server_version_num') >= 160000
  ? 'debug_parallel_query'
  : 'force_parallel_mode';

# Every fourth has the extension; copies, so that nobody tells the launcher

add_database($node, 'model');
$node->safe_psql(
	'postgres', join '', map {
		$_ % 4
		  ? "CREATE DATABASE d$_ STRATEGY file_copy;\n"
		  : "CREATE DATABASE d$_ TEMPLATE model STRATEGY file_copy;\n"
	} 1 .. 24);
my @with = map { "d$_" } grep { $_ % 4 == 0 } 1 .. 24;

# Broken in several ways

my $log = -s $node->logfile;
$node->safe_psql('d4', 'ALTER TABLE idem_key RENAME TO elsewhere');
$node->safe_psql('postgres', 'ALTER DATABASE d8 CONNECTION LIMIT 0');
$node->safe_psql('postgres',
	"UPDATE pg_database SET datconnlimit = -2 WHERE datname IN ('d12', 'd13')");
shift @with;
@with = grep { $_ ne 'd12' } @with;

# Parallel queries take what slots they can get

my @rivals = map {
	IPC::Run::start(
		[
			'psql', '-XAtq', '-d', $node->connstr('postgres'), '-c',
			"SET $parallel = on",
			'-c', "DO 'BEGIN LOOP PERFORM pg_sleep(0.01); END LOOP; END'"
		],
		'2>', '/dev/null')
} 1 .. 3;
ok(wait_process($node, 'parallel worker'), 'worker slots are contended');

expire($node, $_, 50) for @with;
my @left = grep { !wait_swept($node, $_) } @with;
is("@left", '', 'all databases are swept');
$node->safe_psql('postgres',
	"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'DO %'"
);
$_->finish for @rivals;

is(log_count($node, qr/idem worker ERROR:/, $log), 1,
	'one is broken, which is logged once');
is(log_count($node, qr/cannot connect to invalid database/, $log),
	0, 'invalid databases are not tried');

# Databases that are dropped are forgotten

$node->safe_psql('postgres', join '', map { "DROP DATABASE d$_;\n" } 1 .. 24);
ok( $node->poll_query_until(
		'postgres', q{
SELECT query LIKE '3 databases, 1 with idem, 0 %' FROM pg_stat_activity
WHERE backend_type = 'idem launcher'}),
	'dropped databases are forgotten');

$node->stop('fast');
done_testing();
