# The background worker outlives what happens to it, and says so once.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemWorker;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = new_server('life', "max_worker_processes = 3\nrestart_after_crash = on",
	allows_streaming => 1);
my $log;

wait_process($node, 'idem launcher');
add_database($node, $_) for qw(one two);

# Ended by an administrator

my $pid = process_pid($node, 'idem launcher');
$node->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
ok(wait_process($node, 'idem launcher', $pid), 'launcher comes back');
expire($node, 'one', 10);
ok(wait_swept($node, 'one'), 'and does its work');

# Its worker goes with it, and no second one comes before

$node->append_conf('postgresql.conf', 'idem.sweep_batch = 1');
$node->reload;
expire($node, 'one', 3000);
$pid = process_pid($node, 'idem launcher');
my $worker = worker_pid($node);
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
ok( $node->poll_query_until('postgres',
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $worker"),
	'worker goes with its launcher');
wait_process($node, 'idem worker', $worker);
cmp_ok(
	$node->safe_psql(
		'postgres',
		"SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idem worker'"
	),
	'<=', 1,
	'one worker at a time');

# A worker ended in the middle of its visit is followed by another

$log = -s $node->logfile;
$worker = worker_pid($node);
$node->safe_psql('postgres',
	"SELECT pg_terminate_backend($worker, 10000)");
ok(wait_process($node, 'idem worker', $worker), 'worker comes back');
is(errors_in_log($node, $log), '', 'without a word in the log');

# Switched off in the middle of a visit

sweeper($node, 'off');
ok( $node->poll_query_until('postgres',
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'idem worker'"
	),
	'worker leaves when the sweeper is switched off');
cmp_ok(keys_left($node, 'one'), '>', 0, 'in the middle of its visit');
$node->append_conf('postgresql.conf', 'idem.sweep_batch = 1000');
sweeper($node, 'on');
ok(wait_swept($node, 'one'), 'and goes on when it is on again');

# A changed interval holds at once, also while the launcher sleeps

$node->append_conf('postgresql.conf', "idem.sweep_interval = '1 d'");
$node->reload;
for my $db (qw(one two))
{
	expire($node, $db, 10);
}
$node->append_conf('postgresql.conf', "idem.sweep_interval = '100 ms'");
$node->reload;
ok(wait_swept($node, $_), "$_ is swept after the interval was changed") for qw(one two);

# Half removed: one line when it breaks, one when it works again

$log = -s $node->logfile;
$node->safe_psql('one', 'ALTER TABLE idem_key RENAME TO elsewhere');
ok($node->poll_query_until('postgres',
	q{SELECT query LIKE '%, 1 cannot be visited' FROM pg_stat_activity WHERE backend_type = 'idem launcher'}
), 'a database cannot be visited');
for my $round (1 .. 3)
{
	expire($node, 'two', 10);
	ok(wait_swept($node, 'two'), "the other is swept, $round");
}
is(log_count($node, qr/idem worker ERROR:/, $log), 1, 'the error is logged once');
is( log_count(
		$node, qr/CONTEXT:  background worker of idem in database "one"/,
		$log),
	1,
	'and where');
$node->safe_psql('one', 'ALTER TABLE elsewhere RENAME TO idem_key');
expire($node, 'one', 10);
ok(wait_swept($node, 'one'), 'swept again');
$node->poll_query_until('postgres',
	q{SELECT query LIKE '%, 0 cannot be visited' FROM pg_stat_activity WHERE backend_type = 'idem launcher'}
);
is( log_count(
		$node, qr/background worker of idem in database "one" works again/,
		$log),
	1,
	'which is logged once');

# Files missing: the connection fails

my $oid =
  $node->safe_psql('postgres', "SELECT oid FROM pg_database WHERE datname = 'one'");
my $dir = $node->data_dir . "/base/$oid";
$node->safe_psql('postgres', 'CHECKPOINT');
$log = -s $node->logfile;
rename($dir, "$dir.away") or die $!;
ok($node->poll_query_until('postgres',
	q{SELECT query LIKE '%, 1 cannot be visited' FROM pg_stat_activity WHERE backend_type = 'idem launcher'}
), 'a database cannot be connected to');
for my $round (1 .. 3)
{
	expire($node, 'two', 10);
	ok(wait_swept($node, 'two'), "the other is swept, $round");
}
is(log_count($node, qr/idem worker FATAL:/, $log), 1, 'logged once');
is(log_count($node, qr/exited with exit code/, $log), 0, 'and no exit either');
rename("$dir.away", $dir) or die $!;
ok($node->poll_query_until('postgres',
	q{SELECT query LIKE '%, 0 cannot be visited' FROM pg_stat_activity WHERE backend_type = 'idem launcher'}
), 'it can be visited again');

# No slot: another session's parallel worker has the last one

my $parallel =
  $node->safe_psql('postgres', 'SHOW server_version_num') >= 160000
  ? 'debug_parallel_query'
  : 'force_parallel_mode';
sweeper($node, 'off');
my $session = $node->background_psql('postgres', on_error_stop => 0);
$pid = $session->query_safe('SELECT pg_backend_pid()');
$session->{stdin} .= "SET $parallel = on; SELECT pg_sleep(1000);\n";
$session->{run}->pump_nb;
ok(wait_process($node, 'parallel worker'), 'the last slot is taken');
$log = -s $node->logfile;
sweeper($node, 'on');
ok($node->wait_for_log(qr/LOG:  no slot for a background worker of idem/, $log),
	'no slot is logged');
expire($node, 'two', 10);
cmp_ok(keys_left($node, 'two'), '>', 0, 'keys work without a worker');
$node->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
ok(wait_swept($node, 'two'), 'swept when the slot is free');
is(log_count($node, qr/LOG:  no slot for a background worker of idem/, $log),
	1, 'logged once');
ok( $node->wait_for_log(
		qr/LOG:  slots for background workers of idem are free again/, $log),
	'and that it is over');
$session->quit;

# Killed: the server recovers, and with it the launcher. (Ended in order before, so that what it did until
# then is counted where lines are counted.)

$node->restart;
wait_process($node, 'idem launcher');
$pid = process_pid($node, 'idem launcher');
is(kill('KILL', $pid), 1, 'launcher killed');
ok( $node->poll_query_until(
		'postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'idem launcher' AND pid <> $pid"
	),
	'launcher comes back after a crash');
expire($node, 'two', 10);
ok(wait_swept($node, 'two'), 'and does its work after a crash');

$node->append_conf('postgresql.conf', 'idem.sweep_batch = 1');
$node->reload;
expire($node, 'two', 2000);
$worker = worker_pid($node);
is(kill('KILL', $worker), 1, 'worker killed');
ok(wait_process($node, 'idem worker', $worker), 'worker comes back after a crash');
$node->append_conf('postgresql.conf', 'idem.sweep_batch = 1000');
$node->reload;
ok(wait_swept($node, 'two'), 'and does its work');

# A synchronous standby that is not there

$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'");
$node->reload;
$node->safe_psql(
	'two', q{
SET synchronous_commit = local;
SELECT count(*) FROM idem_once_batch('c', ARRAY['x', 'y'], '1 ms')});
my $waits = $node->background_psql('two');
my $waiting = $waits->query_safe('SELECT pg_backend_pid()');
$waits->query_until(qr/waits/, "\\echo waits\nCREATE TABLE waits ();\n");
ok( $node->poll_query_until('postgres', "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $waiting"),
	'a session waits for a standby');
ok(wait_swept($node, 'two'), 'swept without waiting for a standby');
$node->safe_psql('two', "SELECT pg_cancel_backend($waiting)");
$waits->quit;

# Ends with the server, in every mode

$node->stop('fast');
$node->start;
expire_locally($node, 'two', 500);
worker_pid($node);
$node->stop('immediate');
$node->start;
ok(wait_swept($node, 'two'), 'swept after an immediate stop');
expire_locally($node, 'two', 500);
$node->stop('smart');
is( log_count($node, qr/CONTEXT:  background worker of idem/, $log),
	0, 'no error at the end');

# Ends with the postmaster

$node->append_conf('postgresql.conf', 'idem.sweep_batch = 1');
$node->start;
wait_process($node, 'idem launcher');
expire_locally($node, 'two', 3000);
my @pids = (process_pid($node, 'idem launcher'), worker_pid($node));
$node->kill9;
for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
{
	last unless grep { kill 0, $_ } @pids;
	usleep(100_000);
}
is(scalar(grep { kill 0, $_ } @pids),
	0, 'launcher and worker end when the postmaster is killed');
$node->start;
ok(wait_process($node, 'idem launcher'), 'and is there again');
$node->stop('fast');

# While pg_upgrade runs the server, nobody else is there

$node->append_conf('postgresql.conf', "synchronous_standby_names = ''");
PostgreSQL::Test::Utils::system_or_bail(
	'pg_ctl', '-w', '-D', $node->data_dir, '-l', $node->logfile,
	'-o', '-b --cluster-name=life', 'start');
$node->_update_pid(1);
is(process_pid($node, 'idem launcher'), '', 'no launcher in binary upgrade');
$node->stop('fast');

done_testing();

# Expired keys from a session that does not wait for a standby.
sub expire_locally
{
	my ($server, $db, $n) = @_;

	$server->safe_psql(
		$db, qq{
SET synchronous_commit = local;
SELECT count(*) FROM idem_once_batch('worker test',
	ARRAY(SELECT gen_random_uuid()::text FROM generate_series(1, $n)), '1 ms')});
	return;
}
