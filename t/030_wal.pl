# Answering for a committed key only reads: no transaction id, no row lock, no
# dead row, no WAL.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemCluster;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Nothing else writes. With checksums even a hint bit would be seen, once.
my $fp   = q{'\x01'};
my $node = new_idem_server(
	'wal', q{
autovacuum = off
checkpoint_timeout = 1h
max_wal_size = 10GB
}, extra => ['--data-checksums']);

$node->safe_psql(
	'postgres', qq{
SELECT idem_complete_bytes('c', 'done', token, 200, $every_byte, '{"a": "b"}') FROM idem_reserve('c', 'done', $fp);
SELECT idem_complete('c', 'large', token, 200, string_agg(md5(i::text), '')) FROM idem_reserve('c', 'large', $fp), generate_series(1, 1000) i GROUP BY token;
SELECT count(*) FROM idem_reserve('c', 'live', $fp, '1 h');
SELECT count(*) FROM idem_reserve('c', 'stale', $fp, '1 ms');
});
wait_over($node, "'c', 'stale'");
my ($done, $live) = split /\n/,
  $node->safe_psql('postgres',
	"SELECT token FROM idem_key WHERE key IN ('done', 'live') ORDER BY key");

# What each call must answer, and nothing but answer
my @calls = (
	[ 'replay',    "outcome FROM idem_reserve('c', 'done', $fp)" ],
	[ 'replay',    "outcome FROM idem_reserve('c', 'large', $fp)", 'a large answer' ],
	[ 'replay',    "outcome FROM idem_reserve('c', 'done', $fp, wait => '1 s')", 'and would have waited' ],
	[ 'replay',    "outcome FROM idem_reserve('c', 'done', $fp, token => '$done')", 'to the owner' ],
	[ 'replay',    qq{outcome FROM idem_reserve('c', 'done', $fp, request => '{"a": 1}')}, 'with a request' ],
	[ 'in_flight', "outcome FROM idem_reserve('c', 'live', $fp)" ],
	[ 'in_flight', "outcome FROM idem_reserve('c', 'live', $fp, wait => '3 ms')", 'after a wait' ],
	[ 'mismatch',  "outcome FROM idem_reserve('c', 'done', '\\x02')", 'completed' ],
	[ 'mismatch',  "outcome FROM idem_reserve('c', 'live', '\\x02')", 'live' ],
	[ 'mismatch',  "outcome FROM idem_reserve('c', 'stale', '\\x02')", 'stale' ],
	[ 'mismatch',  "outcome FROM idem_reserve('c', 'live', '\\x02', token => '$live')", 'to the owner' ],
	[ 'completed', "state FROM idem_lookup('c', 'done')" ],
	[ 'in_progress', "state FROM idem_lookup('c', 'live')" ],
	[ 'stale',     "state FROM idem_lookup('c', 'stale')" ],
	[ 'absent',    "state FROM idem_lookup('c', 'absent')" ],
	[ '4',         'count(*) FROM idem_keys' ],
	[ '',          "idem_complete_bytes('c', 'done', '$done', 200, $every_byte, '{\"a\": \"b\"}')", 'the same answer again' ],);

my $rows = q{SELECT string_agg(k.ctid || ' ' || k.xmin || ' ' || k.xmax, ',' ORDER BY key) FROM idem_key k};
my $lsn = 'SELECT pg_current_wal_insert_lsn()';
# In the transaction: its id, what it counted as written, its locks on the keys
my $traces = q{
SELECT pg_current_xact_id_if_assigned() IS NULL,
       (SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_xact_user_tables),
       (SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
         WHERE pid = pg_backend_pid() AND relname ~ '^idem_(key|key_pkey|reminder_.)$');};

for my $level ('READ COMMITTED', 'READ COMMITTED READ ONLY', 'REPEATABLE READ',
	'REPEATABLE READ READ ONLY')
{
	my $session = $node->background_psql('postgres');
	for my $warm_up (1, 0)
	{
		my ($rows_before, $lsn_before) =
		  ($session->query_safe($rows), $session->query_safe($lsn));
		for my $call (@calls)
		{
			my ($expected, $sql, $detail) = @$call;
			my $locks = $sql =~ /FROM idem_keys/ ? 2 : 0;	# a plain SELECT's
			my $name = "$expected $level" . ($detail ? " ($detail)" : '');
			my $result = $session->query_safe(
				"BEGIN ISOLATION LEVEL $level; SELECT $sql; $traces COMMIT;");
			is( $result, "$expected\nt|0|$locks",
				"$name: answer, no xid, nothing written, no lock kept")
			  unless $warm_up;
		}
		next if $warm_up;
		is($session->query_safe($lsn), $lsn_before, "$level: no WAL");
		is($session->query_safe($rows),
			$rows_before, "$level: every row is where it was, and not locked");
	}
	$session->quit;
}

# In SERIALIZABLE as well, where reading leaves predicate locks
my $session = $node->background_psql('postgres');
$session->query_safe("BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT $_->[1]; COMMIT")
  for @calls;
my $lsn_before = $session->query_safe($lsn);
is( $session->query_safe(
		"BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT $_->[1]; $traces COMMIT"),
	"$_->[0]\nt|0|2",
	"$_->[0] SERIALIZABLE")
  for grep { $_->[1] =~ /reserve/ && $_->[0] ne 'mismatch' } @calls;
is($session->query_safe($lsn), $lsn_before, 'SERIALIZABLE: no WAL');

# A hot key, with many calls
$lsn_before = $session->query_safe($lsn);
is( $session->query_safe(
		"SELECT outcome, count(*) FROM generate_series(1, 10000) i, idem_reserve('c', 'done', $fp) GROUP BY 1"
	),
	'replay|10000',
	'many replays in one statement');
is($session->query_safe($lsn), $lsn_before, 'no WAL');

# A refusal of somebody who does not own the key
is(sqlstate($node, "SELECT idem_complete('c', 'live', '$done', 200)"),
	'ID001', 'complete by a stranger');
is(sqlstate($node, "SELECT idem_release('c', 'live', '$done')"),
	'ID001', 'release by a stranger');
is(sqlstate($node, "SELECT idem_complete('c', 'done', '$done', 500)"),
	'ID003', 'complete with another answer');
is($session->query_safe($lsn), $lsn_before, 'no WAL either');

# A sweep that finds nothing
$session->query_safe('SELECT idem_sweep(); SELECT idem_sweep()');
$lsn_before = $session->query_safe($lsn);
is( $session->query_safe(
		"BEGIN; SELECT idem_sweep(); SELECT pg_current_xact_id_if_assigned() IS NULL; COMMIT"
	),
	"(0,0)\nt",
	'a sweep in vain assigns no transaction id');
is($session->query_safe($lsn), $lsn_before, 'and writes no WAL');

# The statistics agree
$session->quit;
$node->safe_psql('postgres',
	'SELECT pg_stat_force_next_flush(); SELECT 1');
is( $node->safe_psql(
		'postgres', q{SELECT n_tup_ins, n_tup_upd, n_tup_del, n_dead_tup FROM pg_stat_user_tables WHERE relname = 'idem_key'}
	),
	'4|2|0|2',
	'rows inserted and answered by the preparation, and nothing since');

$node->stop;
done_testing();
