# Visit after visit, good ones and failing ones, at a millisecond's interval:
# nobody's memory grows. Neither does that of a session that calls idem_sweep
# again and again, nor of a worker on a long visit.
#
# ENDURANCE_PASSES=100000 makes it so many visits and calls.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemWorker;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

plan skip_all => 'memory is read from /proc' unless -r '/proc/self/status';

my $passes = $ENV{ENDURANCE_PASSES} || 300;
my $slack  = 256;    # kB

# The postmaster tells about each worker that is asked for at this level.
my $node = new_server('memory', q{
idem.sweep_interval = '1 ms'
log_min_messages = debug1
fsync = off
});
wait_process($node, 'idem launcher');
add_database($node, $_) for qw(one two bad1 bad2 bad3 bad4);
add_database($node, 'none', 0);
$node->safe_psql("bad$_", 'ALTER TABLE idem_key RENAME TO elsewhere') for (1 .. 4);

# A process's own memory, in kB
sub memory_of
{
	my ($pid) = @_;

	return slurp_file("/proc/$pid/status") =~ /^RssAnon:\s+(\d+) kB/m ? $1 : 0;
}

# Visits that the log tells of, read on from where the last look ended; by
# database.
my $read = 0;
my %visits;
sub count_visits
{
	open my $log, '<', $node->logfile or die $!;
	seek $log, $read, 0;
	while (my $line = <$log>)
	{
		last unless $line =~ /\n\z/;
		$read += length $line;
		$visits{$1}++ if $line =~ /registering background worker "idem worker for database (\d+)"/;
	}
	close $log;
	my $sum = 0;
	$sum += $_ for values %visits;
	return $sum;
}

sub wait_visits
{
	my ($n) = @_;

	my $begin = count_visits();
	my ($last, $since) = ($begin, time);
	while (1)
	{
		my $now = count_visits();
		return 1 if $now >= $begin + $n;
		($last, $since) = ($now, time) if $now > $last;
		return 0 if time - $since > $PostgreSQL::Test::Utils::timeout_default;
		usleep(200_000);
	}
}

# Launcher and postmaster, after some visits and after many

my %pid = (
	launcher   => process_pid($node, 'idem launcher'),
	postmaster => (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0]);
ok(wait_visits($passes > 20_000 ? 5_000 : $passes / 4), 'some visits');
my %before = map { $_ => memory_of($pid{$_}) } keys %pid;
ok(wait_visits($passes), "$passes visits");
my %name = reverse map { split /\|/ } split /\n/,
  $node->safe_psql('postgres', 'SELECT oid, datname FROM pg_database');
my $failed = 0;
$failed += $visits{ $name{"bad$_"} } // 0 for (1 .. 4);
note "$failed visits failed";
cmp_ok($failed, '>', 4, 'failing ones among them');
is(process_pid($node, 'idem launcher'), $pid{launcher}, 'by the same launcher');
for my $who (sort keys %pid)
{
	my $after = memory_of($pid{$who});
	note "$who: $before{$who} kB, then $after kB";
	cmp_ok($after - $before{$who}, '<=', $slack, "memory of the $who is flat");
}
is(log_count($node, qr/idem worker ERROR:/), 4, 'each failure is logged once');

# One worker, batch after batch

$node->safe_psql('postgres', join '', map { "DROP DATABASE $_;" } qw(two bad1 bad2 bad3 bad4 none));
$node->safe_psql('postgres', "ALTER DATABASE template1 ALLOW_CONNECTIONS false");
$node->append_conf('postgresql.conf', "idem.sweep_batch = 1\nidem.sweep_interval = '1 s'");
$node->reload;
my $watch = $node->background_psql('postgres');
my ($grown, $batches) = (0, 0);
for my $round (1 .. 10)
{
	my ($first, $start) = (0, 0);

	expire($node, 'one', 20_000);
	my $worker = worker_pid($node);
	while (-r "/proc/$worker/status")
	{
		my $done = $watch->query_safe(qq{
SELECT substring(query FROM '(\\d+) expired keys removed') FROM pg_stat_activity WHERE pid = $worker});
		last if $done eq '';
		my $now = eval { memory_of($worker) } or last;
		($first, $start) = ($now, $done) if $first == 0 && $done >= 50;
		($grown, $batches) = ($now - $first, $done - $start)
		  if $first > 0 && $done - $start > $batches;
		usleep(20_000);
	}
	last if $batches >= 200;
}
$watch->quit;
note "$batches batches, $grown kB more";
cmp_ok($batches, '>=', 200, 'a worker is watched for many batches');
cmp_ok($grown, '<=', $slack, 'its memory is flat');
sweeper($node, 'off');

# A session that calls it by hand, with failing calls among them

is( $node->safe_psql('one', qq{
CREATE PROCEDURE sweep(n int) LANGUAGE plpgsql AS \$\$
BEGIN
	FOR i IN 1 .. n LOOP
		PERFORM idem_sweep(1);
		COMMIT;
		BEGIN
			PERFORM idem_sweep(0);
		EXCEPTION WHEN invalid_parameter_value THEN
			NULL;
		END;
		COMMIT;
	END LOOP;
END \$\$;
CREATE TABLE used (kb int);
CALL sweep(500);
INSERT INTO used SELECT sum(total_bytes) / 1024 FROM pg_backend_memory_contexts;
CALL sweep($passes);
SELECT sum(total_bytes) / 1024 - min(kb) <= $slack FROM pg_backend_memory_contexts, used}),
	't', "memory of a session is flat, $passes calls later");

$node->stop('fast');
done_testing();
