# On a standby everything can be asked and nothing changed. What was
# acknowledged by a primary with a synchronous standby is known after that
# standby has been promoted.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemCluster;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $fp      = q{'\x01'};
my $primary = new_idem_server('primary', 'hot_standby_feedback = on',
	allows_streaming => 1);
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;

$primary->safe_psql(
	'postgres', qq{
CREATE TABLE payment (key text);
SELECT idem_complete_bytes('c', 'done', token, 201, $every_byte, '{"a": "b"}') FROM idem_reserve('c', 'done', $fp);
SELECT idem_complete('c', 'large', token, 200, string_agg(md5(i::text), ''))
  FROM idem_reserve('c', 'large', $fp), generate_series(1, 2000) i GROUP BY token;
SELECT FROM idem_reserve('c', 'stale', $fp, '1 ms');
SELECT FROM idem_reserve('c', 'expired', $fp, retention => '1 ms');});
my (undef, $live) = reserve($primary, "'c', 'live', $fp, '1 h'");
my $done = $primary->safe_psql('postgres', q{SELECT token FROM idem_key WHERE key = 'done'});
my $answers =
  qq{SELECT outcome, status_code, headers, encode(sha256(body), 'hex') FROM (VALUES ('done'), ('large')) k (key), idem_reserve('c', k.key, $fp)};
my $answered = $primary->safe_psql('postgres', $answers);
wait_over($primary, "'c', 'stale'");

# Uncommitted on the primary, but visible to a standby that looks closely
my $open = $primary->background_psql('postgres');
$open->query_safe(
	qq{BEGIN;
SELECT FROM idem_reserve('c', 'open', $fp, '1 h');
SELECT FROM idem_reserve('c', 'stale', $fp, '1 h');});
$primary->safe_psql('postgres', 'INSERT INTO payment VALUES ($$flush$$)');
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));

# What can be asked

is($standby->safe_psql('postgres', $answers), $answered, 'replay, byte for byte');
is(outcome($standby, "'c', $_->[0]"), "$_->[1]|", "$_->[0]: $_->[1]")
  for (
	[ "'live', $fp",        'in_flight' ],
	[ "'live', '\\x02'",    'mismatch' ],
	[ "'done', '\\x02'",    'mismatch' ],
	[ "'stale', '\\x02'",   'mismatch' ],
	[ "'done', $fp, token => '$done'",     'replay' ],
	[ "'live', $fp, wait => '20 ms'",      'in_flight' ],
	[ "'open', $fp",        'in_flight' ],
	[ "'stale', $fp",       'in_flight' ]);
is(state($standby, "'c', '$_->[0]'"), $_->[1], "$_->[0]: $_->[1]")
  for (
	[ 'done',  'completed|1' ], [ 'live',    'in_progress|1' ],
	[ 'stale', 'stale|1' ],     [ 'expired', 'absent|' ],
	[ 'none',  'absent|' ],     [ 'open',    'absent|' ]);
is($standby->safe_psql('postgres', 'SELECT count(*) FROM idem_keys'), 4, 'idem_keys');

# A wait ends when it is over, also where the rival runs on another server
is( sqlstate($standby,
		"SET statement_timeout = '20 s'; SELECT outcome FROM idem_reserve('c', '$_', $fp, wait => '20 ms')"
	),
	'',
	"$_: a bounded wait for a transaction of the primary")
  for 'open', 'stale';

$open->query_safe('ROLLBACK');
$open->quit;
$primary->safe_psql('postgres', 'INSERT INTO payment VALUES ($$flush$$)');
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));

# What cannot

is(sqlstate($standby, "SELECT $_->[0]"), $_->[1], "$_->[0]: " . ($_->[1] || 'no error'))
  for (
	[ "FROM idem_reserve('c', 'none', $fp)",    '25006' ],
	[ "FROM idem_reserve('c', 'open', $fp)",    '25006' ],
	[ "FROM idem_reserve('c', 'stale', $fp)",   '25006' ],
	[ "FROM idem_reserve('c', 'expired', $fp)", '25006' ],
	[ "FROM idem_reserve('c', 'live', $fp, token => '$live')", '25006' ],
	[ "idem_complete('c', 'live', '$live', 200)", '25006' ],
	[ "idem_complete('c', 'live', '$done', 200)", 'ID001' ],
	[ "idem_complete('c', 'none', '$done', 200)", 'ID002' ],
	[ "idem_complete('c', 'done', '$done', 200)", 'ID003' ],
	[ "idem_complete_bytes('c', 'done', '$done', 201, $every_byte, '{\"a\": \"b\"}')", '' ],
	[ "idem_release('c', 'live', '$live')",       '25006' ],
	[ "idem_release('c', 'done', '$done')",       'ID003' ],
	[ 'idem_sweep()',                             '25006' ]);
is( $standby->safe_psql(
		'postgres', q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'idem worker'}),
	0, 'no worker');

# The primary is killed under load. Every client writes down what it was told,
# which psql does once the commit has been acknowledged.

$primary->safe_psql(
	'postgres', qq{
CREATE FUNCTION pay(key text) RETURNS text LANGUAGE plpgsql AS
\$\$
DECLARE
	r idem_reservation;
BEGIN
	r := idem_reserve('load', key, $fp);
	IF r.outcome = 'new' THEN
		INSERT INTO payment VALUES (key);
		PERFORM idem_complete('load', key, r.token, 201, 'paid ' || key || gen_random_uuid());
		SELECT body INTO r.body FROM idem_key k WHERE k.client = 'load' AND k.key = pay.key;
	END IF;
	RETURN concat_ws('|', 'paid', key, r.outcome, encode(sha256(r.body), 'hex'));
END
\$\$;
ALTER SYSTEM SET synchronous_standby_names = '*';
SELECT pg_reload_conf();});
$primary->poll_query_until('postgres',
	"SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'");

my $dir = PostgreSQL::Test::Utils::tempdir;
my @clients;
for my $client (1 .. 4)
{
	append_to_file(
		"$dir/load$client",
		join '',
		map { "SELECT pay('$client-$_');\nSELECT concat_ws('|', 'held', '$client-$_ held', outcome, token) FROM idem_reserve('load', '$client-$_ held', $fp, '1 h');\n" }
		  1 .. 20000);
	push @clients,
	  IPC::Run::start(
		[ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-f', "$dir/load$client",
			'-d', $primary->connstr('postgres') ],
		'>', "$dir/told$client", '2>', "$dir/err$client");
}
$primary->poll_query_until('postgres', 'SELECT count(*) > 400 FROM payment');
$primary->stop('immediate');
for my $client (@clients)
{
	eval { $client->finish };
}
$standby->promote;

my @told = map { split /\n/, slurp_file("$dir/told$_") } 1 .. 4;
cmp_ok(scalar(@told), '>', 400, 'answers were given before the kill');
is(scalar(grep { !/^(?:paid\|.*\|new\|\w{64}|held\|.*\|new\|[-\w]{36})$/ } @told),
	0, 'every one of them new');
append_to_file("$dir/told", join '', map { "$_\n" } @told);
$standby->safe_psql(
	'postgres', qq{
CREATE TABLE told (kind text, key text, outcome text, proof text);
\\copy told from '$dir/told' with (delimiter '|')
});
is( $standby->safe_psql(
		'postgres', qq{
SELECT count(*) FROM told, idem_reserve('load', key, $fp) r
 WHERE kind = 'paid' AND (r.outcome <> 'replay' OR encode(sha256(body), 'hex') <> proof)}),
	0, 'every acknowledged answer is known, byte for byte');
is( $standby->safe_psql(
		'postgres', q{
SELECT count(*) FROM told WHERE kind = 'paid' AND (SELECT count(*) FROM payment p WHERE p.key = told.key) <> 1}),
	0, 'with its business row');
is( $standby->safe_psql(
		'postgres', q{
SELECT count(*) FROM told, idem_lookup('load', key) l
 WHERE kind = 'held' AND (l.state, l.attempt) IS DISTINCT FROM ('in_progress', 1)}),
	0, 'every acknowledged lease is held');
is( $standby->safe_psql(
		'postgres', q{
SELECT count(*) FROM told WHERE kind = 'held' AND idem_complete('load', key, proof::uuid, 200) IS NULL}),
	0, 'and its owner can answer');
$standby->safe_psql('postgres',
	q{SELECT count(pay(i || '-' || j)) FROM generate_series(1, 4) i, generate_series(1, 400) j});
is( $standby->safe_psql(
		'postgres',
		q{SELECT count(*) FROM (SELECT FROM payment WHERE key <> 'flush' GROUP BY key HAVING count(*) > 1) x}
	),
	0, 'after all are sent again, nothing was done twice');

$standby->safe_psql('postgres',
	"CREATE TABLE drawn AS SELECT token FROM generate_series(1, 2000) i, idem_reserve('drawn', i::text, $fp)");
is( $standby->safe_psql(
		'postgres', q{
SELECT count(*), count(DISTINCT token),
       count(*) FILTER (WHERE token IN (SELECT proof::uuid FROM told WHERE kind = 'held' UNION ALL SELECT token FROM idem_key WHERE client <> 'drawn'))
  FROM drawn}),
	'2000|2000|0', 'no token is drawn again after the promotion');

# What a standby never received is not known there, neither a lease nor an
# answer, though it was acknowledged; the token of the old primary is worth nothing

$standby->safe_psql('postgres', 'ALTER SYSTEM RESET synchronous_standby_names');
$standby->backup('backup');
my $third = PostgreSQL::Test::Cluster->new('third');
$third->init_from_backup($standby, 'backup', has_streaming => 1);
$third->start;
$standby->wait_for_catchup($third, 'replay', $standby->lsn('insert'));
$third->stop;
my ($outcome, $lost) = reserve($standby, "'c', 'lost', $fp, '1 h'");
is($outcome, 'new', 'a reservation that is not replicated');
$standby->safe_psql('postgres',
	"SELECT idem_complete('c', 'lost answer', token, 201, 'acknowledged') FROM idem_reserve('c', 'lost answer', $fp)");
is(outcome($standby, "'c', 'lost answer', $fp"), 'replay|', 'nor is an answer');
$standby->stop('immediate');
$third->start;
$third->promote;
my ($again, $token, $attempt) = reserve($third, "'c', 'lost', $fp, '1 h'");
is("$again $attempt", 'new 1', 'is free after the failover');
isnt($token, $lost, 'under another token');
is(sqlstate($third, "SELECT idem_complete('c', 'lost', '$lost', 200)"),
	'ID001', 'the zombie is refused');
is(outcome($third, "'c', 'lost answer', $fp"),
	'new|1', 'an answer that only the old primary had is forgotten');
is($third->safe_psql('postgres', $answers), $answered, 'replay, two failovers later');

# The sweeper is there by itself

$third->safe_psql('postgres', 'ALTER SYSTEM SET idem.sweeper = on; SELECT pg_reload_conf()');
ok( $third->poll_query_until(
		'postgres', q{SELECT count(*) = 0 FROM idem_key WHERE key = 'expired'}),
	'the sweeper works on the promoted server');

$third->stop;
done_testing();
