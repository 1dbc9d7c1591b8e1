# A reservation in a prepared transaction: held through a restart, decided by
# COMMIT PREPARED or ROLLBACK PREPARED, and in nobody's way meanwhile.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemCluster;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $fp   = q{'\x01'};
my $node = new_idem_server('prepared', 'max_prepared_transactions = 10');

# Prepare what these statements do; returns what they print
sub prepare
{
	my ($gid, $sql) = @_;
	return $node->safe_psql('postgres', "BEGIN; $sql; PREPARE TRANSACTION '$gid'");
}

sub finish
{
	my ($how, $gid) = @_;
	$node->safe_psql('postgres', "$how PREPARED '$gid'");
	return;
}

my $reminders =
  q{SELECT string_agg(key, ' ' ORDER BY key) FROM (TABLE idem_reminder_1 UNION ALL TABLE idem_reminder_2) r};

$node->safe_psql('postgres', 'CREATE TABLE payment (key text)');
reserve($node, "'c', 'stale $_', $fp, '1 ms'") for 1, 2;
wait_over($node, "'c', 'stale $_'") for 1, 2;
my @stale = split /\n/,
  $node->safe_psql('postgres', 'SELECT token FROM idem_key ORDER BY key');
my (undef, $answering) = reserve($node, "'c', 'answering', $fp, '1 h'");
my (undef, $undoing)   = reserve($node, "'c', 'undoing', $fp, '1 h'");
is($node->safe_psql('postgres', 'SELECT stale FROM idem_sweep()'), 2,
	'two stale leases to begin with');

# Everything that can be prepared

my ($committed) = prepare('commit',
	"INSERT INTO payment VALUES ('commit'); SELECT token FROM idem_reserve('c', 'commit', $fp, '1 h')");
my ($rolled_back) = prepare('rollback',
	"INSERT INTO payment VALUES ('rollback'); SELECT token FROM idem_reserve('c', 'rollback', $fp, '1 h')");
prepare('both',
	"SELECT idem_complete('c', 'both', token, 200, 'at once') FROM idem_reserve('c', 'both', $fp)");
is(prepare('takeover 1', "SELECT attempt FROM idem_reserve('c', 'stale 1', $fp, '1 h')"),
	2, 'a takeover is prepared');
prepare('takeover 2', "SELECT attempt FROM idem_reserve('c', 'stale 2', $fp, '1 h')");
prepare('answering', "SELECT idem_complete('c', 'answering', '$answering', 201, 'late')");
prepare('undoing', "SELECT idem_complete('c', 'undoing', '$undoing', 201, 'never')");
prepare('release', "SELECT idem_release('c', 'released', token) FROM idem_reserve('c', 'released', $fp)");

sub check_undecided
{
	my ($when) = @_;

	for my $key ('commit', 'rollback', 'both', 'stale 1', 'answering')
	{
		is(outcome($node, "'c', '$key', $fp"),
			'in_flight|', "$key: in flight $when");
		is(outcome($node, "'c', '$key', $fp, wait => '20 ms'"),
			'in_flight|', "$key: also after a wait $when");
	}
	is(state($node, "'c', 'commit'"), 'absent|', "a reader sees nothing $when");
	is(state($node, "'c', 'stale 1'"), 'stale|1', "nor the takeover $when");
	is(outcome($node, "'c', 'stale 1', '\\x02'"),
		'mismatch|', "another request is told from the committed row $when");
	is( sqlstate(
			$node,
			"SET lock_timeout = '10 ms'; SELECT idem_complete('c', 'stale 1', '$stale[0]', 200)"
		),
		'55P03',
		"the old owner has to wait $when");
	is($node->safe_psql('postgres', 'SELECT stale FROM idem_sweep()'),
		0, "the sweep passes $when");
	is( $node->safe_psql('postgres', $reminders),
		'answering stale 1 stale 2 undoing',
		"no reminder is to be seen $when");
	return;
}

check_undecided('while prepared');
$node->restart;
check_undecided('after a restart');
$node->safe_psql('postgres', 'CHECKPOINT');
$node->stop('immediate');
$node->start;
check_undecided('after a crash');

# Somebody waits for the end of it, and then for the answer

my $waiter = $node->background_psql('postgres');
my $pid = $waiter->query_safe('SELECT pg_backend_pid()');
$waiter->query_until(qr//,
	"SELECT outcome, convert_from(body, 'UTF8') FROM idem_reserve('c', 'commit', $fp, wait => '10 min');\n\\echo answered\n"
);
wait_blocked($node, $pid);
finish('COMMIT', 'commit');
is(outcome($node, "'c', 'commit', $fp"), 'in_flight|', 'a lease is committed');
is(state($node, "'c', 'commit'"), 'in_progress|1', 'for readers, too');
is($node->safe_psql('postgres', $reminders),
	'answering commit stale 1 stale 2 undoing',
	'its reminder was written when it was prepared');
complete($node, "'c', 'commit', '$committed', 200, 'answer'");
like($waiter->query_until(qr/answered/, ''),
	qr/^replay\|answer$/m, 'the waiter gets the answer');

# Rolled back: as if it had never been

$waiter->query_until(qr//,
	"SELECT outcome, attempt FROM idem_reserve('c', 'rollback', $fp, wait => '10 min');\n\\echo reserved\n"
);
wait_blocked($node, $pid);
finish('ROLLBACK', 'rollback');
like($waiter->query_until(qr/reserved/, ''),
	qr/^new\|1$/m, 'a waiter gets the key');
$waiter->quit;
is(sqlstate($node, "SELECT idem_complete('c', 'rollback', '$rolled_back', 200)"),
	'ID001', 'the token of what was rolled back is worth nothing');
is($node->safe_psql('postgres', q{SELECT string_agg(key, ' ') FROM payment}),
	'commit', 'business rows went the same way');

# A takeover

finish('COMMIT', 'takeover 1');
is(state($node, "'c', 'stale 1'"), 'in_progress|2', 'the takeover is committed');
is(sqlstate($node, "SELECT idem_complete('c', 'stale 1', '$stale[0]', 200)"),
	'ID001', 'the old owner has lost the key');
finish('ROLLBACK', 'takeover 2');
is(state($node, "'c', 'stale 2'"), 'stale|1', 'the takeover never happened');
complete($node, "'c', 'stale 2', '$stale[1]', 200, 'late'");
is(outcome($node, "'c', 'stale 2', $fp"),
	'replay|', 'the old owner answers late, as nobody took over');

# An answer

finish('COMMIT', $_) for 'both', 'answering', 'release';
finish('ROLLBACK', 'undoing');
is( $node->safe_psql(
		'postgres', "SELECT outcome, convert_from(body, 'UTF8') FROM idem_reserve('c', 'both', $fp)"),
	'replay|at once',
	'reserved and answered in one prepared transaction');
is( $node->safe_psql(
		'postgres', "SELECT outcome, convert_from(body, 'UTF8') FROM idem_reserve('c', 'answering', $fp)"),
	'replay|late',
	'answered in a prepared transaction');
is(outcome($node, "'c', 'undoing', $fp"),
	'in_flight|', 'an answer that was rolled back is none');
is(state($node, "'c', 'released'"), 'absent|', 'reserved and released');

# The sweep deals with what is due, such as the reminder of the first attempt
# at a key that was taken over

$node->safe_psql('postgres', 'SELECT idem_sweep()');
is( $node->safe_psql('postgres', $reminders),
	'answering commit rollback stale 1 undoing',
	'reminders that are due are gone, the others are kept');

# A prepared transaction keeps its lock on a table of reminders for as long as
# it likes. The worker cannot empty the table as a whole, and goes on.

$node->safe_psql(
	'postgres', qq{
CREATE TABLE many AS
SELECT i::text AS key, (idem_reserve('many', i::text, $fp, '1 ms')).token FROM generate_series(1, 16000) i});
is( $node->safe_psql(
		'postgres', q{SELECT pg_relation_size('idem_reminder_1') + pg_relation_size('idem_reminder_2') >= 128 * 8192}),
	't',
	'a large table of reminders');
prepare('holder', "SELECT outcome FROM idem_reserve('c', 'holder', $fp, '1 h')");
$node->safe_psql('postgres', "SELECT count(idem_complete('many', key, token, 200)) FROM many");
$node->safe_psql('postgres', 'ALTER SYSTEM SET idem.sweeper = on; SELECT pg_reload_conf()');
ok( $node->poll_query_until(
		'postgres',
		"SELECT count(*) = 0 FROM (TABLE idem_reminder_1 UNION ALL TABLE idem_reminder_2) r WHERE client = 'many'"
	),
	'the worker goes through it beside a prepared transaction');
is(outcome($node, "'c', 'another', $fp"),
	'new|1', 'and nobody waits for anybody');
finish('COMMIT', 'holder');
ok( $node->poll_query_until(
		'postgres', "SELECT pg_relation_size('idem_reminder_1') = 0"),
	'the table is emptied as a whole once it is let go');
is( $node->safe_psql('postgres', "$reminders WHERE key = 'holder'"),
	'holder', 'the reminder of the prepared transaction is not lost');

$node->stop;
done_testing();
