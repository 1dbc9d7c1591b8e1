# NOTIFY can fail at commit, or hang there: the queue is full, or somebody holds
# the lock that whoever notifies has to take. Neither keeps the sweeper from its
# work: keys are removed, stale leases are found, and listeners are told when
# that is possible again. The log gets one line for each of the two changes.
#
# The queue of PostgreSQL 15 holds 8 GB; ENDURANCE_NOTIFY=1 fills it. From 17 on
# it can be made small.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemCluster;
use IdemWorker;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = new_server('notify', "fsync = off\n", allows_streaming => 1);
my $small = $node->safe_psql('postgres', q{SELECT count(*) FROM pg_settings WHERE name = 'max_notify_queue_pages'});
if ($small)
{
	$node->append_conf('postgresql.conf', 'max_notify_queue_pages = 64');
	$node->restart;
}
$node->safe_psql('postgres', 'CREATE EXTENSION idem');

my ($listener, $told);

sub listen_anew
{
	$listener = $node->background_psql('postgres');
	$listener->query_safe('LISTEN idem_stale');
	$told = 0;
	return;
}

# How often the listener was told so far
sub told
{
	$told += () = $listener->query('SELECT 1') =~ /notification "idem_stale"/g;
	return $told;
}

sub wait_told
{
	my ($n) = @_;

	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return 1 if told() >= $n;
		usleep(100_000);
	}
	return 0;
}

# Leases that are over at once, and keys that are expired
sub leave_stale
{
	my ($client, $n) = @_;

	$node->safe_psql('postgres', qq{
SET synchronous_commit = local;
SELECT count(*) FROM generate_series(1, $n) i, idem_reserve('$client', i::text, '\\x01', lease => '1 us');
SELECT count(*) FROM idem_once_batch('worker test', ARRAY(SELECT gen_random_uuid()::text FROM generate_series(1, 10)), '1 us')});
	return;
}

sub wait_announced
{
	my ($client, $n) = @_;

	return $node->poll_query_until('postgres', qq{
SELECT count(*) = $n FROM (TABLE idem_reminder_1 UNION ALL TABLE idem_reminder_2) r WHERE client = '$client' AND announced});
}

sub wait_passes
{
	my ($n) = @_;
	my $passes = $node->safe_psql('postgres', 'SELECT passes FROM idem_stat WHERE datname = current_database()');

	return $node->poll_query_until('postgres', "SELECT passes >= $passes + $n FROM idem_stat WHERE datname = current_database()");
}

my $refused = qr/idem worker LOG:  listeners cannot be notified of stale leases/;
my $again   = qr/idem worker LOG:  listeners are notified of stale leases again/;

# What has to be so while NOTIFY does not work, in whatever way
sub check_refused
{
	my ($why, $from) = @_;

	leave_stale($why, 20);
	ok(wait_announced($why, 20), "$why: stale leases are found");
	ok(wait_swept($node, 'postgres'), "$why: what has expired is removed");
	ok($node->wait_for_log($refused, $from), "$why: the log says that nobody can be told");
	ok(wait_passes(3), "$why: one pass follows another");
	is(log_count($node, $refused, $from), 1, "$why: that is logged once");
	is(log_count($node, qr/idem worker (?:WARNING|ERROR|FATAL)/, $from), 0, "$why: and nothing else");
	is($node->safe_psql('postgres', qq{
SET synchronous_commit = local;
SELECT count(*) FROM idem_claim_stale(5, '1 h', '$why')}), 5, "$why: they can be claimed");
	is(told(), 0, "$why: nobody was told");
	return;
}

sub check_told
{
	my ($why, $from) = @_;

	ok(wait_told(1), "$why: afterwards the listener is told");
	ok($node->wait_for_log($again, $from), "$why: which is logged");
	ok(wait_passes(3), "$why: passes go on");
	is(told(), 1, "$why: it was told once");
	is(log_count($node, $again, $from), 1, "$why: and so was the log");
	return;
}

# As it should be

listen_anew();
leave_stale('plain', 20);
ok(wait_told(1), 'the listener is told');
ok(wait_announced('plain', 20), 'of all that are stale');
ok(wait_passes(3), 'passes go on');
is(told(), 1, 'once');
is(errors_in_log($node), '', 'and the log is not');

# A new launcher does not know who was told

my $pid = process_pid($node, 'idem launcher');
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
ok(wait_told(2), 'told again after the launcher was ended');
ok(wait_passes(3), 'passes go on');
is(told(), 2, 'once more');
$node->safe_psql('postgres', q{SELECT idem_forget('plain')});
$listener->quit;

# Somebody notifies and waits in his commit for a standby that is not there

listen_anew();
$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'");
$node->reload;
my $log = -s $node->logfile;
my $hangs = $node->background_psql('postgres');
my $hanging = $hangs->query_safe('SELECT pg_backend_pid()');
$hangs->query_until(qr/^hangs$/m, "\\echo hangs\nBEGIN; CREATE TABLE other (); NOTIFY other; COMMIT;\n");
ok($node->poll_query_until('postgres', "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $hanging"),
	'a session waits in its commit');
check_refused('lock', $log);
$node->append_conf('postgresql.conf', "synchronous_standby_names = ''");
$node->reload;
check_told('lock', $log);
$hangs->quit;
$listener->quit;
$node->safe_psql('postgres', q{SELECT idem_forget('lock')});

# A session listens and stays in a transaction until the queue is full

SKIP:
{
	skip 'the queue is large; ENDURANCE_NOTIFY=1 fills it', 1 unless $small || $ENV{ENDURANCE_NOTIFY};

	# on a channel of its own, and in another database
	$node->safe_psql('postgres', 'CREATE DATABASE sleepy');
	my $sleeper = $node->background_psql('sleepy');
	$sleeper->query_safe('LISTEN sleepy');
	$sleeper->query_safe('BEGIN');
	$sleeper->query_safe('SELECT 1');
	for my $batch (10_000, 100, 1)
	{
		1 while sqlstate($node, qq{
SELECT count(pg_notify('filler', repeat('x', 7900) || i)) FROM generate_series(1, $batch) i}, 'sleepy') eq '';
	}
	my ($usage) = $node->safe_psql('postgres', 'SELECT pg_notification_queue_usage()');
	note "the queue is full: $usage";
	is(sqlstate($node, 'NOTIFY idem_stale'), '54000', 'the queue is full');

	listen_anew();
	$log = -s $node->logfile;
	check_refused('full', $log);

	# By hand the notification is the caller's, whose commit must not fail
	sweeper($node, 'off');
	leave_stale('by hand', 3);
	is($node->safe_psql('postgres', 'SELECT * FROM idem_sweep()'), '10|0',
		'idem_sweep removes what has expired, and leaves leases to another time');
	is($node->safe_psql('postgres', q{SELECT count(*) FROM idem_claim_stale(100, '1 h', 'by hand')}), 3, 'which can be claimed');
	leave_stale('later', 3);
	is($node->safe_psql('postgres', 'SELECT * FROM idem_sweep()'), '10|0', 'once more');
	sweeper($node, 'on');
	ok(wait_announced('later', 3), 'the worker finds them');

	$sleeper->query_safe('COMMIT');
	$sleeper->quit;
	check_told('full', $log);
}

$node->stop('fast');
done_testing();

