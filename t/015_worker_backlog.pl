# After a week without the sweeper: what has expired goes in small transactions,
# whatever old snapshot is about, while keys are used and other databases are
# visited. And a pass over leases reads what is stale, not what is answered.
#
# ENDURANCE_KEYS=5000000 makes it five million keys.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemWorker;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $keys = $ENV{ENDURANCE_KEYS} || 200_000;
my $live = 1000;
my $node = new_server('backlog', q{
idem.sweeper = off
max_wal_size = 4GB
fsync = off
});
wait_process($node, 'idem launcher');
add_database($node, $_) for qw(one two);

# Answered eight days ago; among them, all over the table, some that live

$node->safe_psql(
	'one', qq{
INSERT INTO idem_key (expires_at, lease_until, began_at, token, status_code, completed_at, client, key, fingerprint, body)
SELECT t + interval '1 day' + CASE WHEN i % ($keys / $live) = 0 THEN interval '30 days' ELSE '0' END,
	t, t, gen_random_uuid(), 200, t, 'c', i::text, '\\x01', convert_to('answer ' || i, 'UTF8')
FROM generate_series(1, $keys) i, LATERAL (SELECT now() - interval '8 days') x(t)});
my $size = $node->safe_psql('one', q{SELECT pg_relation_size('idem_key')});
$node->safe_psql('one', 'CREATE TABLE bystander ()');

my $old = $node->background_psql('one');
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM bystander');

sweeper($node, 'on');
my $seen = $node->poll_query_until('postgres', q{
SELECT count(*) > 0 FROM pg_stat_activity
WHERE backend_type = 'idem worker' AND datname = 'one'
	AND query ~ '^sweeping: block [1-9][0-9]* of [1-9][0-9]*, [1-9][0-9]* expired keys removed, 0 stale leases found$'});
ok($seen, 'a long pass shows how far it has come');

# Meanwhile

my ($outcomes, $rounds) = ('', 0);
do
{
	my $i = (1 + $rounds++ % $live) * ($keys / $live);
	$outcomes .= ' ' . $node->safe_psql(
		'one', qq{
SELECT outcome || ' ' || convert_from(body, 'UTF8') FROM idem_reserve('c', '$i', '\\x01');
SELECT outcome FROM idem_reserve('c', '@{[$keys - $rounds]}', '\\x02', lease => '1 h');
SELECT outcome FROM idem_reserve('new', '$rounds', '\\x01', lease => '1 h')}) =~ s/\n/ /gr;
	$outcomes =~ s/^ replay answer $i new new$//;
	expire($node, 'two', 10);
	wait_swept($node, 'two') or $outcomes .= ' two is not swept';
} while ($outcomes eq '' && $node->safe_psql('one',
	'SELECT EXISTS (SELECT FROM idem_key WHERE expires_at <= now())') eq 't');
is($outcomes, '', "keys are used, and another database is swept, $rounds times meanwhile");
is( $node->safe_psql('one', "SELECT count(*) FROM idem_key WHERE client = 'c' AND completed_at IS NOT NULL"),
	$live, 'what lives is kept');

# The old snapshot still sees what was removed, and by which transaction

my ($removed, $transactions, $most) = split /\|/, $old->query_safe(q{
SELECT sum(n), count(*), max(n)
FROM (SELECT count(*) AS n FROM idem_key WHERE xmax <> 0 GROUP BY xmax) x});
cmp_ok($removed, '>=', $keys - $live, 'all of it was removed');
cmp_ok($most, '<=', 1000, 'by transactions that removed idem.sweep_batch rows at most');
note "$removed rows in $transactions transactions";
$old->query_safe('COMMIT');
$old->quit;

# An old snapshot delays the space, no longer than it lasts

$node->safe_psql('one', 'VACUUM idem_key');
$node->safe_psql(
	'one', qq{
INSERT INTO idem_key (expires_at, lease_until, began_at, token, status_code, completed_at, client, key, fingerprint, body)
SELECT t + interval '1 day', t, t, gen_random_uuid(), 200, t, 'again', i::text, '\\x01', convert_to('answer ' || i, 'UTF8')
FROM generate_series(1, $keys) i, LATERAL (SELECT now()) x(t)});
cmp_ok($node->safe_psql('one', q{SELECT pg_relation_size('idem_key')}),
	'<=', 1.1 * $size, 'the space is used again');

# Leases that end in the course of a long visit are found by that visit

$node->safe_psql('postgres', 'ALTER DATABASE two ALLOW_CONNECTIONS false');
$node->append_conf('postgresql.conf', "idem.sweep_batch = 1\nidem.sweep_interval = '1 s'");
$node->reload;
my $found = 0;
for my $round (1 .. 5)
{
	expire($node, 'one', 20_000);
	my $walking = q{
FROM pg_stat_activity WHERE backend_type = 'idem worker' AND datname = 'one' AND query ~ ' [1-9][0-9]* expired keys removed'};
	$node->poll_query_until('postgres', "SELECT count(*) > 0 $walking");
	my $worker = $node->safe_psql('postgres', "SELECT pid $walking");
	$node->safe_psql('one',
		"SELECT FROM idem_reserve('lease', '$round', '\\x01', '1 ms')");
	$node->poll_query_until('one', q{
SELECT count(*) > 0 FROM (TABLE idem_reminder_1 UNION ALL TABLE idem_reminder_2) r
WHERE client = 'lease' AND announced});
	$found = $worker ne '' && process_pid($node, 'idem worker') eq $worker;
	last if $found;
}
ok($found, 'a lease that ends during a visit is found by that visit');

# Answered keys are not read for the sake of those that are stale

sweeper($node, 'off');
$node->append_conf('postgresql.conf', "idem.sweep_batch = 1000\nidem.sweep_interval = '1 h'");
$node->reload;
my $answered = $keys / 5;
$node->safe_psql('postgres', 'ALTER DATABASE two ALLOW_CONNECTIONS true');
is( $node->safe_psql(
		'two', qq{
SELECT count(idem_complete('c', i::text, token, 200)) FROM generate_series(1, $answered) i, idem_reserve('c', i::text, '\\x01');
SELECT count(*) FROM generate_series(1, 100) i, idem_reserve('stale', i::text, '\\x01', '1 ms') WHERE outcome = 'new'}),
	"$answered\n100", 'many keys answered in their transaction, and a hundred stale ones');
my $listener = $node->background_psql('two');
$listener->query_safe('LISTEN idem_stale');
my $reads = q{
SELECT sum(idx_scan) FILTER (WHERE relname = 'idem_key') || ' ' || sum(seq_tup_read) FILTER (WHERE relname LIKE 'idem_reminder%')
FROM pg_stat_user_tables};
$node->safe_psql('two', 'SELECT pg_stat_force_next_flush()');
my ($keys_before, $reminders_before) = split / /, $node->safe_psql('two', $reads);
sweeper($node, 'on');
ok( $node->poll_query_until('two', q{
SELECT count(*) = 100 FROM (TABLE idem_reminder_1 UNION ALL TABLE idem_reminder_2) r
WHERE client = 'stale' AND announced}), 'all that are stale are found');
ok( $node->poll_query_until('two', "SELECT sum(idx_scan) >= $keys_before + 100 FROM pg_stat_user_tables WHERE relname = 'idem_key'"),
	'the reads are counted');
my ($keys_after, $reminders_after) = split / /, $node->safe_psql('two', $reads);
cmp_ok($keys_after - $keys_before, '<=', 500, 'few keys are looked at');
note $reminders_after - $reminders_before . ' reminders read';
my $notices = () = $listener->query('SELECT 1') =~ /notification "idem_stale"/g;
is($notices, 1, 'one notification for all of them');
$listener->quit;

is(errors_in_log($node), '', 'log is quiet');
$node->stop('fast');
done_testing();
