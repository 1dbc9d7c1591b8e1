# A system clock that is set ahead or back by hours and days: the sweep does not
# take its word for it at once, says so, and finds everything as it was when the
# clock is set right.
#
# The server gets a clock of its own, t/lib/clock.c, by way of LD_PRELOAD.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemClock;
use IdemWorker;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'cannot compile t/lib/clock.c' unless make_clock();

my $node = PostgreSQL::Test::Cluster->new('clock');
$node->init;
$node->append_conf('postgresql.conf', q{
shared_preload_libraries = 'idem'
idem.sweep_interval = '100 ms'
log_line_prefix = '%m [%p] %b '
log_statement = none
log_min_messages = debug1
autovacuum = off
fsync = off
});
with_clock(sub { $node->start });
$node->safe_psql('postgres', 'CREATE EXTENSION idem');

# Waits for a line about the clock.
sub wait_logged
{
	my ($pattern, $from) = @_;

	return $node->wait_for_log(qr/idem launcher LOG:  system clock has jumped $pattern/, $from);
}

# Waits for a few more visits to the database.
sub wait_visits
{
	my $oid  = $node->safe_psql('postgres', "SELECT oid FROM pg_database WHERE datname = 'postgres'");
	my $from = -s $node->logfile;

	return $node->wait_for_log(
		qr/(?:registering background worker "idem worker for database $oid".*){5}/s, $from);
}

sub answer
{
	my ($key) = @_;

	return $node->safe_psql('postgres', qq{
SELECT outcome, convert_from(body, 'UTF8') FROM idem_reserve('c', '$key', '\\x01') WHERE outcome <> 'new'});
}

my $answered = 100;
$node->safe_psql('postgres', qq{
SELECT count(idem_complete('c', i::text, token, 200, 'answer ' || i))
FROM generate_series(1, $answered) i, idem_reserve('c', i::text, '\\x01')});
expire($node, 'postgres', 10);
ok(wait_swept($node, 'postgres'), 'swept');
is(keys_left($node, 'postgres'), $answered, 'what lives is kept');

# Three days ahead, in the middle of a visit

$node->append_conf('postgresql.conf', 'idem.sweep_batch = 1');
$node->reload;
expire($node, 'postgres', 3000);
$node->poll_query_until('postgres', q{
SELECT count(*) > 0 FROM pg_stat_activity
WHERE backend_type = 'idem worker' AND query LIKE '% of %, % expired keys removed, %' AND query NOT LIKE '%, 0 expired%'});
my $log = -s $node->logfile;
set_clock(3 * 86400);
ok(wait_logged(qr/ahead by 259[12]\d\d seconds/, $log), 'a jump ahead is logged');
is($node->safe_psql('postgres', q{SELECT state FROM idem_lookup('c', '1')}),
	'absent', 'keys that are over by the new time are absent');
ok(wait_visits(), 'a few visits');
is($node->safe_psql('postgres', "SELECT count(*) FROM idem_key WHERE client = 'c'"),
	$answered, 'but not removed');
is( $node->safe_psql('postgres', q{SELECT outcome, attempt FROM idem_reserve('c', 'ahead', '\x01', retention => '1 s', lease => '1 s')}),
	'new|1', 'keys are given');
is(log_count($node, qr/system clock has jumped/, $log), 1, 'logged once');

# Set right

$node->append_conf('postgresql.conf', 'idem.sweep_batch = 1000');
$node->reload;
$log = -s $node->logfile;
set_clock(0);
ok(wait_logged(qr/back by 259[12]\d\d seconds/, $log), 'set right, which is logged');
expire($node, 'postgres', 10);
ok(wait_swept($node, 'postgres'), 'swept as before');
is(answer($_), "replay|answer $_", "the answer of key $_ is there") for (1, 50, 100);

# Five hours back

$log = -s $node->logfile;
set_clock(-5 * 3600);
ok(wait_logged(qr/back by 1(?:8000|799\d) seconds/, $log), 'a jump back is logged');
ok(wait_visits(), 'a few visits');
is(answer(7), 'replay|answer 7', 'answers are kept');
is( $node->safe_psql('postgres', q{
SELECT count(idem_complete('c', 'back', token, 200, 'answer back')) FROM idem_reserve('c', 'back', '\x01')}),
	1, 'keys are given and answered');
expire($node, 'postgres', 10);
ok( $node->poll_query_until('postgres', q{
SELECT count(*) = 0 FROM idem_key WHERE client = 'worker test' AND expires_at <= clock_timestamp()}),
	'and what expires is swept');

# Forward again; a new launcher takes the clock as it finds it

$log = -s $node->logfile;
set_clock(0);
ok(wait_logged(qr/ahead by 1(?:8000|799\d) seconds/, $log), 'forward again');
ok(wait_visits(), 'a few visits');
is($node->safe_psql('postgres', "SELECT count(*) FROM idem_key WHERE client = 'c' AND completed_at IS NOT NULL"),
	$answered + 1, 'nothing is lost');
set_clock(5 * 86400);
ok($node->poll_query_until('postgres', q{SELECT state = 'absent' FROM idem_lookup('c', '1')}), 'five days ahead');
ok(wait_logged(qr/ahead by 4(?:32000|319\d\d) seconds/, $log), 'which is logged');
my $pid = process_pid($node, 'idem launcher');
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
ok(wait_swept($node, 'postgres'), 'believed after a new start');
is(keys_left($node, 'postgres'), 0, 'then what is over goes');

# No pass for an hour, since somebody keeps writers out of the table

my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN; LOCK TABLE idem_key IN SHARE MODE');
set_clock(5 * 86400 + 3600);
my $health = q{SELECT ok, regexp_replace(detail, ': \d{4}-.*', '') FROM idem_health() WHERE check_name = 'sweeper'};
ok( $node->poll_query_until('postgres', $health,
		'f|the last pass was longer ago than 3 times idem.sweep_interval, which is 100ms'),
	'idem_health says that the sweep is late');
$locker->query_safe('ROLLBACK');
$locker->quit;
ok($node->poll_query_until('postgres', $health, 't|last pass'), 'and that it is not any more');

# Nothing was damaged

my ($rc) = $node->psql('postgres', 'CREATE EXTENSION amcheck');
SKIP:
{
	skip 'amcheck is not here', 1 if $rc != 0;
	is( $node->safe_psql('postgres', q{
SELECT count(*) FROM verify_heapam('idem_key');
SELECT count(bt_index_check(indexrelid, true)) FROM pg_index WHERE indrelid = 'idem_key'::regclass}),
		"0\n1", 'table and index are sound');
}
is(log_count($node, qr/PANIC|terminated by signal|idem worker (?:ERROR|FATAL)/), 0, 'no error');

$node->stop('fast');
done_testing();
