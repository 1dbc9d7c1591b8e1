# A hundred thousand reservations in one transaction: bounded memory, one
# transaction id, a reminder for each; and those go again.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemCluster;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $n    = 100_000;
my $fp   = q{'\x01'};
my $node = new_idem_server('memory', q{
autovacuum = off
max_wal_size = 2GB
});

# Memory that a transaction holds after so many calls, in a loop of statements
# and in one statement; measured while it still runs them.
$node->safe_psql(
	'postgres', qq{
CREATE TABLE bare (client text, key text, PRIMARY KEY (client, key));
CREATE FUNCTION bare(client text, key text) RETURNS void LANGUAGE sql AS 'INSERT INTO bare VALUES (client, key)';

CREATE FUNCTION used() RETURNS bigint LANGUAGE sql AS
	'SELECT sum(total_bytes)::bigint FROM pg_backend_memory_contexts';

CREATE FUNCTION in_loop(n int, call text) RETURNS bigint LANGUAGE plpgsql AS
\$\$
DECLARE
	before bigint;
BEGIN
	EXECUTE call USING 'warm', 'up';
	before := used();
	FOR i IN 1 .. n LOOP
		EXECUTE call USING 'loop', i::text;
	END LOOP;
	RETURN used() - before;
END
\$\$;

CREATE FUNCTION in_statement(n int, call text) RETURNS bigint LANGUAGE plpgsql AS
\$\$
DECLARE
	before bigint;
	after bigint;
BEGIN
	EXECUTE format('SELECT count(*) FROM (SELECT %s OFFSET 0) x', call) USING 'warm', 'up';
	before := used();
	EXECUTE format('SELECT max(CASE WHEN i = %s THEN used() END) FROM (SELECT i, (SELECT %s) FROM generate_series(1, %s) i OFFSET 0) x',
				   n, replace(call, '\$2', 'i::text'), n) INTO after USING 'statement';
	RETURN after - before;
END
\$\$;
});
my $bare    = 'bare($1, $2)';
my $reserve = "idem_reserve(\$1, \$2, $fp, ''1 h'')" =~ s/''/'/gr;
my $both    = "(SELECT idem_complete(\$1, \$2, token, 200) FROM idem_reserve(\$1, \$2, $fp) WHERE outcome = 'new')";

sub quoted
{
	my ($text) = @_;
	return "'" . ($text =~ s/'/''/gr) . "'";
}

# Each in a session of its own. Returns the bytes and the transaction ids taken.
sub measure
{
	my ($how, $call) = @_;
	$call = "SELECT $call" if $how eq 'in_loop';
	return split /\n/,
	  $node->safe_psql(
		'postgres', qq{
BEGIN;
SELECT 'x' FROM pg_current_xact_id();
SAVEPOINT warm_up;
SELECT 'x' FROM $how(100, } . quoted($call) . qq{);
ROLLBACK TO warm_up;
SELECT 'x' FROM pg_snapshot_xmax(pg_current_snapshot());
SELECT $how($n, } . quoted($call) . qq{);
SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint - pg_current_xact_id()::text::bigint;
COMMIT;} =~ s/^SELECT 'x' FROM (.*);$/DO \$x\$ BEGIN PERFORM $1; END \$x\$;/gmr);
}

my $in_reminders =
  'SELECT count(*) FROM (TABLE idem_reminder_1 UNION ALL TABLE idem_reminder_2) r';
my ($bare_bytes) = measure('in_loop', $bare);
my ($bytes, $xids) = measure('in_loop', $reserve);
note "bare $bare_bytes, reserved $bytes";
cmp_ok(($bytes - $bare_bytes) / $n, '<=', 100, 'bytes per reservation, in a loop');
cmp_ok($xids, '<', 64, 'no transaction id for each, so no overflow of subtransactions');
is($node->safe_psql('postgres', $in_reminders),
	$n + 1, 'the commit wrote a reminder for each');

$node->safe_psql('postgres', 'TRUNCATE idem_key, idem_reminder_1, idem_reminder_2, bare');
($bytes, $xids) = measure('in_loop', $both);
cmp_ok(($bytes - $bare_bytes) / $n, '<=', 10, 'bytes per reservation and answer, in a loop');
cmp_ok($xids, '<', 64, 'no transaction id for each');
is($node->safe_psql('postgres', $in_reminders), 0, 'no reminder for what is answered');

$node->safe_psql('postgres', 'TRUNCATE idem_key, idem_reminder_1, idem_reminder_2, bare');
($bytes, $xids) = measure('in_statement', $reserve);
note "one statement $bytes";
cmp_ok($bytes / $n, '<=', 100, 'bytes per reservation, in one statement');
cmp_ok($xids, '<', 64, 'no transaction id for each');
is($node->safe_psql('postgres', $in_reminders), $n + 1, 'a reminder for each');

# The worker empties a large table as a whole, whoever looks at an old snapshot

my $old = $node->background_psql('postgres');
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM bare');
$node->safe_psql(
	'postgres', qq{
SELECT count(idem_complete(client, key, token, 200)) FROM idem_key WHERE key::text <> '7';
SELECT FROM idem_reserve('c', 'stale', $fp, '1 ms');});
is( $node->safe_psql(
		'postgres', q{SELECT pg_relation_size('idem_reminder_1') >= 128 * 8192}), 't',
	'a large table of reminders');
my $listener = $node->background_psql('postgres');
$listener->query_safe('LISTEN idem_stale');
$node->safe_psql('postgres', 'ALTER SYSTEM SET idem.sweeper = on; SELECT pg_reload_conf()');
ok( $node->poll_query_until(
		'postgres', q{SELECT pg_relation_size('idem_reminder_1') = 0}),
	'is emptied');
is( $node->safe_psql(
		'postgres', q{
SELECT key, announced FROM (TABLE idem_reminder_1 UNION ALL TABLE idem_reminder_2) r ORDER BY 1}),
	"7|f\nstale|t",
	'what is in progress is carried over');
like($listener->query('SELECT 1'),
	qr/notification "idem_stale"/, 'and what is stale is told');
$listener->quit;
$old->quit;
is( $node->safe_psql('postgres', 'SELECT count(*) FROM idem_key'),
	$n + 2, 'no key was touched');

$node->stop;
done_testing();
