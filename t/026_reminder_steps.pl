# A pass over very many reminders goes in small transactions, also where the
# table is emptied with TRUNCATE at the end; nothing that is still needed is
# lost on the way, and nothing is announced twice.
#
# ENDURANCE_KEYS makes it more of them.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemWorker;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

# More than a table has that is emptied in one step
my $keys = ($ENV{ENDURANCE_KEYS} || 0) / 5 || 120_000;
my $node = new_server('steps', q{
idem.sweeper = off
autovacuum = off
max_wal_size = 4GB
fsync = off
});
wait_process($node, 'idem launcher');
add_database($node, 'one');

my $reminders = '(TABLE idem_reminder_1 UNION ALL TABLE idem_reminder_2) r';
my $size = q{SELECT pg_relation_size('idem_reminder_1') + pg_relation_size('idem_reminder_2')};

# Many that are answered, and all over the table some that are stale or running
sub fill
{
	my ($round, $n) = @_;

	$n //= $keys;
	return $node->safe_psql('one', qq{
SELECT count(*) FROM generate_series(1, $n) i,
	idem_reserve(CASE i % 1000 WHEN 1 THEN 'stale' WHEN 2 THEN 'running' ELSE 'answered' END, '$round ' || lpad(i::text, 30, '0'), '\\x01',
		lease => CASE i % 1000 WHEN 2 THEN '1 h' ELSE '1 us' END::interval, token => md5('$round ' || i)::uuid);
-- as idem_complete would leave them, in a statement that is quicker
UPDATE idem_key SET completed_at = now(), status_code = 200 WHERE client = 'answered' AND completed_at IS NULL});
}

my $listener = $node->background_psql('one');
$listener->query_safe('LISTEN idem_stale');

# Where somebody reads the tables they cannot be emptied; what was done can be seen

fill(1);
my $full = $node->safe_psql('one', $size);
cmp_ok($full, '>', 1200 * 8192, 'there are many reminders');
my $old = $node->background_psql('one');
$old->query_safe("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM $reminders");
sweeper($node, 'on');
ok( $node->poll_query_until('one', qq{
SELECT count(*) FILTER (WHERE client = 'answered') = 0 AND count(*) FILTER (WHERE client = 'stale' AND announced) = $keys / 1000 FROM $reminders}),
	'the pass drops what is answered, and finds what is stale');
my ($dropped, $transactions, $most) = split /\|/, $old->query_safe(q{
SELECT sum(n), count(*), max(n)
FROM (SELECT count(*) AS n FROM (SELECT xmax AS x FROM idem_reminder_1 UNION ALL SELECT xmax FROM idem_reminder_2) r WHERE x <> 0 GROUP BY x::text) t});
note "$dropped reminders in $transactions transactions";
cmp_ok($dropped, '>=', $keys * 0.99, 'all the others were dropped');
cmp_ok($most, '<=', 1000, 'by transactions that dropped idem.sweep_batch of them at most');
$old->query_safe('COMMIT');
$old->quit;

sub told
{
	return scalar(() = $listener->query('SELECT 1') =~ /notification "idem_stale"/g);
}

sub count_of
{
	my ($what) = @_;

	return $node->safe_psql('one', "SELECT count(*), count(DISTINCT key) FROM $reminders WHERE $what");
}

my $each = $keys / 1000;
is(count_of("client = 'running' AND NOT announced"), "$each|$each", 'what runs is reminded of');
is(told(), 1, 'one notification for the pass');

# Otherwise the space is given back. The snapshot of another table is not in its way.

$node->safe_psql('one', 'CREATE TABLE bystander ()');
$old = $node->background_psql('one');
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM bystander');
sweeper($node, 'off');
fill(2);
sweeper($node, 'on');
my $writer = $node->background_psql('one');
my $rounds = 0;
do
{
	$writer->query_safe("SELECT FROM idem_reserve('running', 'meanwhile ' || " . $rounds++ . ", '\\x01', lease => '1 h')");
} while ($node->safe_psql('one', $size) > $full / 4 && $rounds < 100 * $PostgreSQL::Test::Utils::timeout_default);
$writer->quit;
ok($node->poll_query_until('one', "SELECT count(*) = 2 * $each FROM $reminders WHERE client = 'stale' AND announced"),
	'the next stale ones are found');
cmp_ok($node->safe_psql('one', $size), '<', $full / 4, 'and space is given back, whatever old snapshot is about');
my $running = 2 * $each + $rounds;
is(count_of("client = 'running' AND NOT announced"), "$running|$running", 'what ran or began meanwhile is reminded of');
is(count_of("client = 'stale'"), 2 * $each . '|' . 2 * $each, 'what is stale too, once each');
is($node->safe_psql('one', 'SELECT stale FROM idem_stat WHERE datname = current_database()'), 2 * $each, 'and counted');
is(told(), 1, 'one notification more');
is($node->safe_psql('one', 'SELECT count(*) FROM idem_claim_stale(1000000)'), 2 * $each, 'all of them can be claimed');
$old->query_safe('COMMIT');
$old->quit;

# A worker that is ended between two steps loses nothing, whatever step it was

sub in_round
{
	my ($round, $what) = @_;

	return count_of("key LIKE '$round %' AND $what");
}

# A pass over so many, of which something has been done
sub begin
{
	my ($round, $n) = @_;

	sweeper($node, 'off');
	fill($round, $n);
	sweeper($node, 'on');
	return $node->poll_query_until('one', "SELECT count(*) < $n FROM $reminders WHERE key LIKE '$round %'");
}

sub check_nothing_lost
{
	my ($round, $what) = @_;

	ok($node->poll_query_until('one', qq{
SELECT count(*) FILTER (WHERE client = 'answered') = 0 AND count(*) FILTER (WHERE client = 'stale' AND announced) = $each FROM $reminders WHERE key LIKE '$round %'}),
		$what);
	is(in_round($round, "client = 'running' AND NOT announced"), "$each|$each", 'what runs is reminded of');
	is(in_round($round, "client = 'stale'"), "$each|$each", 'what is stale is there once');
	return;
}

# in small steps, with somebody who reads, so that there is a middle to meet
$node->append_conf('postgresql.conf', 'idem.sweep_batch = 20');
my $fewer = 40_000;
$each = $fewer / 1000;
$old = $node->background_psql('one');
$old->query_safe("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM $reminders");
begin(3, $fewer);
my $midway = 0;
for (1 .. 5)
{
	my $pid = worker_pid($node);
	$node->safe_psql('one', "SELECT pg_terminate_backend($pid)");
	$node->poll_query_until('one', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid");
	$midway++ if in_round(3, "client = 'answered'") ne '0|0';
}
cmp_ok($midway, '>', 0, 'the worker was ended in the middle of a pass');
check_nothing_lost(3, 'another one goes on');
my $told = 0;
for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
{
	$told += told();
	last if $told > 0;
	usleep(100_000);
}
cmp_ok($told, '>', 0, 'and was told of');
$old->query_safe('COMMIT');
$old->quit;

# So does a pass by hand that has not committed while the worker makes its own

sweeper($node, 'off');
fill(4, $fewer);
my $hand = $node->background_psql('one');
$hand->query_safe('BEGIN');
is($hand->query_safe('SELECT stale FROM idem_sweep()'), $each, 'sweeping by hand finds what is stale');
my $passes = $node->safe_psql('one', 'SELECT passes FROM idem_stat WHERE datname = current_database()');
sweeper($node, 'on');
ok($node->poll_query_until('one', "SELECT passes > $passes + 1 FROM idem_stat WHERE datname = current_database()"),
	'the worker does not wait for it');
$hand->query_safe('COMMIT');
$hand->quit;
check_nothing_lost(4, 'both together drop and find all');
$listener->quit;

is(errors_in_log($node), '', 'log is quiet');
$node->stop('fast');
done_testing();
