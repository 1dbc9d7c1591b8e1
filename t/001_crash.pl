# What was committed is there after a crash, what was not is free at once.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemCluster;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $fp   = q{'\x01'};
my $node = new_idem_server('crash', 'restart_after_crash = on');

$node->safe_psql('postgres', 'CREATE TABLE payment (key text)');

# Everything that is kept of a key, and the answer in particular
my $all_rows =
  q{SELECT encode(sha256(string_agg(k::text, E'\n' ORDER BY client, key)::bytea), 'hex') FROM idem_key k};

sub replay
{
	my ($key) = @_;
	return $node->safe_psql('postgres',
		"SELECT outcome, status_code, headers, encode(sha256(body), 'hex') FROM idem_reserve('c', '$key', $fp)"
	);
}

# Committed: an answer, a lease, a stale lease, an answered-and-swept key

$node->safe_psql(
	'postgres', qq{
BEGIN;
INSERT INTO payment VALUES ('done');
SELECT idem_complete_bytes('c', 'done', token, 201, $every_byte, '[["Set-Cookie","a=1, b"],["set-cookie",""]]')
  FROM idem_reserve('c', 'done', $fp);
COMMIT;});
my (undef, $token) = reserve($node, "'c', 'leased', $fp, '1 h'");
reserve($node, "'c', 'answering', $fp, '1 h', token => gen_random_uuid()");
reserve($node, "'c', 'stale', $fp, '1 ms'");
wait_over($node, "'c', 'stale'");

# Enough keys for the walk of a sweep to stop in their midst
$node->safe_psql(
	'postgres', qq{
SELECT count(*) FROM generate_series(1, 200) i, idem_reserve('c', 'live ' || i, $fp, '1 h');
SELECT count(*) FROM generate_series(1, 20) i, idem_reserve('c', 'expired ' || i, $fp, retention => '1 ms');
});
is($node->safe_psql('postgres', 'SELECT expired FROM idem_sweep(1)'),
	1, 'a sweep that stops half way');
is($node->safe_psql('postgres', 'SELECT next_block > 0 FROM idem_state'),
	't', 'and remembers where');

# Not committed: a new key, a takeover, an answer, on disk as far as possible

my $rival  = $node->background_psql('postgres');
my $opened = $rival->query_safe(
	qq{
BEGIN;
INSERT INTO payment VALUES ('open');
SELECT token FROM idem_reserve('c', 'open', $fp);});
like(
	$rival->query_safe(
		qq{
SELECT outcome, attempt FROM idem_reserve('c', 'stale', $fp);
SELECT idem_complete('c', 'answering', token, 200, 'never') FROM idem_key WHERE key = 'answering';
SELECT idem_complete('c', 'answered', token, 200, 'never') FROM idem_reserve('c', 'answered', $fp);}
	),
	qr/^new\|2$/m,
	'an open transaction takes over and answers');
$node->safe_psql('postgres', 'CHECKPOINT');

my $before = $node->safe_psql('postgres', $all_rows);
my $answer = replay('done');
like($answer, qr/^replay\|201\|/, 'an answer to compare with');

$node->stop('immediate');
eval { $rival->quit };
$node->start;

is($node->safe_psql('postgres', 'SELECT count(*) FROM idem_state'),
	0, 'where the sweep stood is forgotten');
is($node->safe_psql('postgres', $all_rows),
	$before, 'every committed row is as it was');
is(replay('done'), $answer, 'replay, byte for byte');
is( $node->safe_psql(
		'postgres', "SELECT idem_lookup('c', 'answered')::text ~ '^.absent,'"),
	't',
	'reserved and answered without commit: absent');
is(sqlstate($node, "SELECT idem_complete('c', 'open', '$opened', 200)"),
	'ID002', 'the token of an uncommitted reservation is refused');
is(outcome($node, "'c', 'open', $fp"), 'new|1', 'an uncommitted key is free');
is(sqlstate($node, "SELECT idem_complete('c', 'open', '$opened', 200)"),
	'ID001', 'the lost token is refused by the next holder, too');
is(outcome($node, "'c', 'answered', $fp"),
	'new|1', 'so is one with an uncommitted answer');
is($node->safe_psql('postgres', 'SELECT string_agg(key, $$,$$) FROM payment'),
	'done', 'business rows went the same way');

is(outcome($node, "'c', 'leased', $fp"), 'in_flight|', 'a lease outlives it');
is( $node->safe_psql(
		'postgres',
		"SELECT retry_after > interval '1 min', (headers->>'retry-after')::int > 60 FROM idem_reserve('c', 'leased', $fp)"
	),
	't|t',
	'with the rest of its time');
complete($node, "'c', 'leased', '$token', 200, 'late'");
like(replay('leased'), qr/^replay\|200\|/, 'its owner answers after it');
is(outcome($node, "'c', 'answering', $fp"),
	'in_flight|', 'an uncommitted answer is no answer');
is(outcome($node, "'c', 'stale', $fp"),
	'new|2', 'an uncommitted takeover did not count');

is($node->safe_psql('postgres', 'SELECT expired FROM idem_sweep()'),
	19, 'the sweep starts again and finds the rest');
is($node->safe_psql('postgres', 'SELECT expired FROM idem_sweep()'),
	0, 'and nothing twice');

# A backend is killed: the server restarts by itself

$rival = $node->background_psql('postgres', on_error_stop => 0);
my $pid = $rival->query_safe('SELECT pg_backend_pid()');
$opened = $rival->query_safe(
	qq{
BEGIN;
SELECT token FROM idem_reserve('c', 'killed', $fp, '1 h');});
my (undef, $kept) = reserve($node, "'c', 'kept', $fp, '1 h'");
is(outcome($node, "'c', 'killed', $fp"), 'in_flight|', 'held until the kill');

my $log_from = -s $node->logfile;
kill 'KILL', $pid;
$node->wait_for_log(qr/all server processes terminated; reinitializing/,
	$log_from);
$node->poll_query_until('postgres', 'SELECT true');
eval { $rival->quit };

is(sqlstate($node, "SELECT idem_complete('c', 'killed', '$opened', 200)"),
	'ID002', 'the token died with the backend');
is(outcome($node, "'c', 'killed', $fp"), 'new|1', 'and its key is free');
is(outcome($node, "'c', 'kept', $fp"), 'in_flight|',
	'the committed lease of another backend is not');
complete($node, "'c', 'kept', '$kept', 200");
is(replay('done'), $answer, 'replay, byte for byte, after it');

# A backend goes away in the middle, without a crash

$rival = $node->background_psql('postgres', on_error_stop => 0);
$pid = $rival->query_safe('SELECT pg_backend_pid()');
$rival->query_safe(
	qq{
BEGIN;
SELECT count(*) FROM idem_reserve('c', 'terminated', $fp, '1 h');});
is( $node->safe_psql('postgres', "SELECT pg_terminate_backend($pid, 60000)"),
	't', 'a backend is terminated');
is(outcome($node, "'c', 'terminated', $fp"), 'new|1', 'and its key is free');
eval { $rival->quit };

$node->stop;
done_testing();
