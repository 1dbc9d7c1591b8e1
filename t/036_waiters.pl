# Hundreds wait for the answer of one request. They take no lock, no transaction id and
# hardly a processor, are in nobody's way, and have the answer once it is committed:
# by a COMMIT, by COMMIT PREPARED, and without the library preloaded.
#
# WAITERS: how many (100).

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemCluster;
use IPC::Run ();
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $n     = $ENV{WAITERS} || 100;
my $fp    = q{'\x01'};
my $owned = q{'c', 'k', '11111111-1111-4111-8111-111111111111', 201, 'the answer'};
my $waiting =
  q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'waiter' AND state = 'active' AND wait_event_type IN ('Extension', 'Lock')};

# All of them, in as few processes as can be: each connection of a pgbench waits, and
# writes down what it was told.
sub start_waiters
{
	my ($node, $wait) = @_;
	my $script = $node->basedir . '/wait.sql';
	my $told   = '';

	unlink $script;
	append_to_file($script,
		"INSERT INTO told SELECT outcome, status_code, convert_from(body, 'UTF8')::text FROM (SELECT * FROM idem_reserve('c', 'k', $fp, wait => '$wait') OFFSET 0) r;\n");
	return IPC::Run::start(
		[ 'pgbench', '-n', '-c', $n, '-j', 2, '-t', 1, '-f', $script, '-d', $node->connstr('postgres') . ' application_name=waiter' ],
		'>', \my $out, '2>', \my $err,
		IPC::Run::timeout(3 * $PostgreSQL::Test::Utils::timeout_default));
}

# Seconds of processor time that the waiters have taken, and how often they went to sleep
sub effort
{
	my ($node) = @_;
	my ($ticks, $sleeps) = (0, 0);

	foreach my $pid (split /\n/, $node->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity WHERE application_name = 'waiter'}))
	{
		my @fields = split ' ', slurp_file("/proc/$pid/stat") =~ s/.*\) //sr;
		$ticks += $fields[11] + $fields[12];
		$sleeps += (slurp_file("/proc/$pid/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m)[0];
	}
	return ($ticks / POSIX::sysconf(POSIX::_SC_CLK_TCK()), $sleeps, time);
}

sub told
{
	my ($node) = @_;
	return $node->safe_psql('postgres', 'SELECT outcome, status_code, count(*) FROM told GROUP BY 1, 2 ORDER BY 1; DELETE FROM told');
}

sub begin
{
	my ($node) = @_;

	$node->safe_psql('postgres', q{SELECT idem_forget('c')});
	$node->safe_psql('postgres', qq{SELECT outcome FROM idem_reserve('c', 'k', $fp, '1 h', token => '11111111-1111-4111-8111-111111111111')});
	return;
}

foreach my $preload ('idem', '')
{
	my $what = $preload ? 'preloaded' : 'not preloaded';
	my $node = PostgreSQL::Test::Cluster->new($preload || 'late');
	$node->init;
	$node->append_conf('postgresql.conf', 'max_connections = ' . ($n + 20) . qq{
shared_preload_libraries = '$preload'
max_prepared_transactions = 5
idem.sweeper = off
fsync = off
});
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION idem; CREATE UNLOGGED TABLE told (outcome text, status_code int, body text)');

	# A committed lease

	begin($node);
	my $waiters = start_waiters($node, '1 h');
	ok($node->poll_query_until('postgres', "$waiting AND query_start < clock_timestamp() - interval '1 s'", $n), "$what: $n wait for a lease");
	is( $node->safe_psql('postgres', q{
SELECT count(backend_xid), count(*) FILTER (WHERE wait_event_type = 'Lock') FROM pg_stat_activity WHERE application_name = 'waiter'}),
		'0|0', "$what: without a transaction id, and for no lock");
	# From PostgreSQL 17 on what is waited for has a name.
	my $event = $node->safe_psql('postgres', 'SHOW server_version_num') < 170000 ? 'Extension' : 'IdemLease';
	ok( $node->poll_query_until('postgres',
			"SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'waiter' AND wait_event_type = 'Extension' AND wait_event = '$event'"),
		"$what: which pg_stat_activity calls $event");
	# A lock to look at the table is given back at once: sooner or later each is seen without. (Where the library
	# comes late, a look at the configuration leaves one on a view of the catalog.)
	my $locks = q{FROM pg_locks l WHERE l.pid = a.pid AND locktype <> 'virtualxid' AND relation >= 16384 AND relation <> 'told'::regclass};
	is( $node->safe_psql('postgres',
			"SELECT count(*) FROM pg_stat_activity a WHERE application_name = 'waiter' AND EXISTS (SELECT $locks AND mode <> 'AccessShareLock')"),
		0, "$what: they hold no lock but what their statement has");
	my %without;
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		$without{$_} = 1
		  foreach split /\n/, $node->safe_psql('postgres',
			"SELECT pid FROM pg_stat_activity a WHERE application_name = 'waiter' AND NOT EXISTS (SELECT $locks)");
		last if keys %without == $n;
		usleep(20_000);
	}
	is(scalar keys %without, $n, "$what: and do not keep one between two looks");

  SKIP:
	{
		skip 'no /proc', 2 unless -e '/proc/self/status';
		my @from = effort($node);
		$node->safe_psql('postgres', 'SELECT pg_sleep(2)');
		my ($seconds, $sleeps, $elapsed) = map { $_ - shift @from } effort($node);
		note sprintf '%s: %d waiters take %.1f %% of a processor, and each looks %.1f times a second', $what, $n,
		  100 * $seconds / $elapsed, $sleeps / $n / $elapsed;
		# Pauses are 25 ms at least after a second. A loop without them would not sleep at all.
		cmp_ok($sleeps / $n / $elapsed, '<', 50, "$what: each looks now and then");
		cmp_ok($seconds, '<', 0.005 * $sleeps, "$what: and sleeps in between");
	}

	$node->safe_psql('postgres', "SELECT idem_complete($owned)");
	ok($waiters->finish, "$what: all end");
	is(told($node), "replay|201|$n", "$what: with the answer");

	# The answer is prepared: they wait for that transaction, and are woken by its end.

	begin($node);
	$waiters = start_waiters($node, '1 h');
	ok($node->poll_query_until('postgres', $waiting, $n), "$what: $n wait again");
	$node->safe_psql('postgres', "BEGIN; SELECT idem_complete($owned); PREPARE TRANSACTION 'answer'");
	ok( $node->poll_query_until('postgres', q{
SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE application_name = 'waiter' AND locktype = 'transactionid' AND NOT granted}, $n),
		"$what: for a prepared transaction");
	is(told($node), '', "$what: which is no answer yet");
	$node->safe_psql('postgres', "COMMIT PREPARED 'answer'");
	ok($waiters->finish, "$what: COMMIT PREPARED ends the wait");
	is(told($node), "replay|201|$n", "$what: with the answer");

	# Nothing comes

	begin($node);
	$waiters = start_waiters($node, '300 ms');
	ok($waiters->finish, "$what: a wait has an end");
	is(told($node), "in_flight|409|$n", "$what: in_flight then");

	# What is behind a waiter does not wait for it

	begin($node);
	$waiters = start_waiters($node, '1 h');
	ok($node->poll_query_until('postgres', $waiting, $n), "$what: $n wait once more");
	is(outcome($node, "'c', 'k', $fp"), 'in_flight|', "$what: who does not wait is told at once");
	is(outcome($node, "'c', 'other', $fp"), 'new|1', "$what: other keys go on");
	$node->safe_psql('postgres', q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'waiter'});
	$waiters->finish;
	is(told($node), '', "$what: a cancelled wait tells nothing");
	is(state($node, "'c', 'k'"), 'in_progress|1', "$what: and leaves the key alone");
	$node->stop;
}
done_testing();
