# Logical replication of all tables between two servers that both have the
# extension: whatever is done to keys can be applied, and goes on there.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemCluster;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $fp        = q{'\x01'};
my $publisher = new_idem_server('publisher', '', allows_streaming => 'logical');
my $subscriber = new_idem_server('subscriber', 'max_logical_replication_workers = 12',
	allows_streaming => 'logical');
$subscriber->safe_psql('postgres', 'CREATE DATABASE later');
$subscriber->safe_psql('later', 'CREATE EXTENSION idem');

my $publishing = $publisher->connstr . ' dbname=postgres';
$publisher->safe_psql('postgres', 'CREATE PUBLICATION all_tables FOR ALL TABLES');

sub subscribe
{
	my ($db, $name) = @_;
	$subscriber->safe_psql($db,
		"CREATE SUBSCRIPTION $name CONNECTION '$publishing' PUBLICATION all_tables");
	return;
}

# Waits until all is applied; fails at once with an error of the subscriber's
sub wait_applied
{
	$publisher->wait_for_catchup($_[0]);
	return;
}

my $keys = q{SET TimeZone = 'UTC'; SELECT count(*), encode(sha256(string_agg(k::text, E'\n' ORDER BY client, key)::bytea), 'hex') FROM idem_key k};
my $reminded = q{SELECT string_agg(key, ' ' ORDER BY key) FROM (TABLE idem_reminder_1 UNION ALL TABLE idem_reminder_2) r WHERE client = 'c'};

sub is_equal
{
	my ($db, $name, $what) = @_;
	wait_applied($name);
	is($subscriber->safe_psql($db, $keys), $publisher->safe_psql('postgres', $keys),
		"$what: keys are equal");
	return;
}

# From empty tables on

subscribe('postgres', 'early');
$subscriber->wait_for_subscription_sync($publisher, 'early');

my (undef, $live) = reserve($publisher, "'c', 'live', $fp, '1 h'");
reserve($publisher, "'c', 'stale', $fp, '1 ms'");
reserve($publisher, "'c', 'taken over', $fp, '1 ms'");
wait_over($publisher, "'c', 'taken over'");
$publisher->safe_psql(
	'postgres', qq{
SELECT idem_complete_bytes('c', 'done', token, 201, $every_byte, '[["a","b"]]') FROM idem_reserve('c', 'done', $fp);
-- values that are stored out of line, kept by the update that completes
SELECT FROM idem_reserve('c', 'large', $fp, request => (SELECT jsonb_agg(md5(i::text)) FROM generate_series(1, 2000) i));
SELECT idem_complete('c', 'large', token, 200, (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 3000) i)) FROM idem_key WHERE key = 'large';
SELECT idem_release('c', 'released', token) FROM idem_reserve('c', 'released', $fp);
SELECT FROM idem_reserve('c', 'reused', $fp, retention => '1 ms');
SELECT FROM idem_reserve('c', 'expired', $fp, retention => '1 ms');
SELECT FROM pg_sleep(0.01);
SELECT FROM idem_reserve('c', 'reused', $fp, '1 h');
SELECT FROM idem_reserve('c', 'taken over', $fp, '1 h');
-- a key in one and the same transaction, over savepoints
BEGIN;
SAVEPOINT s;
SELECT FROM idem_reserve('c', 'undone', $fp);
ROLLBACK TO s;
SELECT FROM idem_reserve('c', 'undone', $fp);
SELECT idem_complete('c', 'undone', token, 200, 'x') FROM idem_key WHERE key = 'undone';
COMMIT;});
is_equal('postgres', 'early', 'from empty tables');
is($subscriber->safe_psql('postgres', $reminded),
	$publisher->safe_psql('postgres', $reminded), 'reminders are equal');

# Many callers with one key: insertions that are withdrawn
$publisher->pgbench(
	'-n -c 8 -j 2 -t 100 -D n=0',
	0, [qr/number of failed transactions: 0 /], [qr/^$/], 'many callers',
	{
		'009_logical_race' =>
		  "\\set n :n + 1\nSELECT idem_complete('race', :n::text, token, 200) FROM idem_reserve('race', :n::text, $fp) WHERE outcome = 'new';\n"
	});
is_equal('postgres', 'early', 'after a race');

# Sweeping by hand deletes keys and reminders

is($publisher->safe_psql('postgres', 'SELECT * FROM idem_sweep()'),
	'1|1', 'a sweep');
is_equal('postgres', 'early', 'after a sweep');

# The worker empties a large table of reminders as a whole

$publisher->safe_psql(
	'postgres', qq{
SELECT count(*) FROM generate_series(1, 16000) i, idem_reserve('many', i::text, $fp, '1 ms');
SELECT count(idem_complete(client, key, token, 200)) FROM idem_key WHERE client = 'many';
ALTER SYSTEM SET idem.sweeper = on;
SELECT pg_reload_conf();});
ok( $publisher->poll_query_until(
		'postgres', q{SELECT pg_relation_size('idem_reminder_1') + pg_relation_size('idem_reminder_2') <= 3 * 8192}),
	'the worker empties the reminders');
$publisher->safe_psql('postgres', 'ALTER SYSTEM SET idem.sweeper = off; SELECT pg_reload_conf()');
is_equal('postgres', 'early', 'after TRUNCATE');
is( $subscriber->safe_psql(
		'postgres', q{SELECT count(*) FROM (TABLE idem_reminder_1 UNION ALL TABLE idem_reminder_2) r WHERE client = 'many'}),
	0, 'emptied there as well');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM idem_state'),
	0, 'where the sweep stands stays at home');

# From filled tables on

subscribe('later', 'late');
$subscriber->wait_for_subscription_sync($publisher, 'late', 'later');
is_equal('later', 'late', 'from filled tables');
complete($publisher, "'c', 'live', '$live', 200, 'late'");
reserve($publisher, "'c', 'more', $fp, '1 h'");
is_equal('later', 'late', 'after changes');

# The subscriber sweeps as well: what one removes, the other finds removed

$publisher->safe_psql('postgres',
	"SELECT FROM generate_series(1, 50) i, idem_reserve('short', i::text, $fp, retention => '1 ms')");
wait_applied($_) for 'early', 'late';
$subscriber->safe_psql('postgres', 'ALTER SYSTEM SET idem.sweeper = on; SELECT pg_reload_conf()');
ok( $subscriber->poll_query_until(
		$_, q{SELECT count(*) = 0 FROM idem_key WHERE client = 'short'}),
	"swept by the subscriber in $_")
  for 'postgres', 'later';
is($publisher->safe_psql('postgres', 'SELECT expired FROM idem_sweep()'),
	50, 'then by the publisher');
is_equal('postgres', 'early', 'after both');
is_equal('later',    'late',  'after both');

# And goes on there

is( $subscriber->safe_psql(
		'postgres', qq{
SELECT outcome, encode(sha256(body), 'hex') = encode(sha256($every_byte), 'hex') FROM idem_reserve('c', 'done', $fp);
SELECT outcome FROM idem_reserve('c', 'taken over', $fp);
SELECT outcome, attempt FROM idem_reserve('c', 'stale', $fp);}
	),
	"replay|t\nin_flight\nnew|2",
	'the subscriber knows every key');

$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION early');
$subscriber->safe_psql('later',    'DROP SUBSCRIPTION late');
unlike(slurp_file($subscriber->logfile), qr/ERROR:/, 'no error on the subscriber');
unlike(slurp_file($publisher->logfile),  qr/ERROR:/, 'nor on the publisher');

$publisher->stop;
$subscriber->stop;
done_testing();
