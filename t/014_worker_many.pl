# Many databases, few worker slots that others fight for, and some databases
# that are broken: each of the others gets its turn, and the log stays readable.
#
# ENDURANCE_DATABASES=500 makes it 500 databases, a tenth of them with the
# extension.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemWorker;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $databases = $ENV{ENDURANCE_DATABASES} || 36;
my $every     = $databases >= 100 ? 10 : 4;
my $slots     = $databases >= 100 ? 8 : 4;

# The postmaster tells about each worker that is asked for at this level.
my $node = new_server('many', qq{
max_worker_processes = $slots
max_parallel_workers = $slots
log_min_messages = debug1
fsync = off
});
wait_process($node, 'idem launcher');

my $parallel =
  $node->safe_psql('postgres', 'SHOW server_version_num') >= 160000
  ? 'debug_parallel_query'
  : 'force_parallel_mode';

# Copies, so that nobody tells the launcher where the extension is

add_database($node, 'model');
$node->safe_psql(
	'postgres', join '', map {
		$_ % $every
		  ? "CREATE DATABASE d$_ STRATEGY file_copy;\n"
		  : "CREATE DATABASE d$_ TEMPLATE model STRATEGY file_copy;\n"
	} 1 .. $databases);
my @with = map { "d$_" } grep { $_ % $every == 0 } 1 .. $databases;

# Broken in several ways; the first five of those that have the extension

my $log = -s $node->logfile;
my ($without_table, $decoy, $no_connections, $invalid, $dropped) = splice @with, 0, 5;
$node->safe_psql(
	$without_table, q{
ALTER EXTENSION idem DROP TABLE idem_state;
DROP TABLE idem_state});
$node->safe_psql(
	$decoy, q{
CREATE ROLE stranger;
BEGIN;
ALTER EXTENSION idem DROP TABLE idem_key;
ALTER TABLE idem_key RENAME TO elsewhere;
CREATE TABLE idem_key (LIKE elsewhere INCLUDING ALL);
INSERT INTO idem_key (expires_at, lease_until, began_at, token, client, key)
SELECT '2000-01-01', '2000-01-01', '2000-01-01', gen_random_uuid(), 'c', i::text
FROM generate_series(1, 10) i;
ALTER TABLE idem_key OWNER TO stranger;
COMMIT});
$node->safe_psql('postgres', "ALTER DATABASE $no_connections CONNECTION LIMIT 0");
$node->safe_psql('postgres',
	"UPDATE pg_database SET datconnlimit = -2 WHERE datname IN ('$invalid', 'd1')");

# Parallel queries take what slots they can get

my @rivals = map {
	IPC::Run::start(
		[
			'psql', '-XAtq', '-d', $node->connstr('postgres'), '-c',
			"SET $parallel = on",
			'-c', "DO 'BEGIN LOOP PERFORM pg_sleep(0.01); END LOOP; END'"
		],
		'2>', '/dev/null')
} 1 .. $slots - 1;
ok(wait_process($node, 'parallel worker'), 'worker slots are contended');

for my $round (1 .. 3)
{
	expire($node, $_, 50) for @with;
	expire($node, $dropped, 50) if $round == 1;
	if ($round == 2)
	{
		$node->safe_psql('postgres', "DROP DATABASE $dropped WITH (FORCE)");
		pass('one is dropped meanwhile');
	}
	my @left = grep { !wait_swept($node, $_) } @with;
	is("@left", '', "all databases are swept, round $round");
}

# Nobody starved: between two visits to a database there are so many others,
# three for each database at most (right after the start all are visited equally
# often). Worked out from the visits, so that it does not matter how fast they
# were.

my %name = map { split /\|/ } split /\n/,
  $node->safe_psql('postgres', 'SELECT oid, datname FROM pg_database');
my @visits = map { $name{$_} // '' }
  substr(slurp_file($node->logfile), $log) =~
  /registering background worker "idem worker for database (\d+)"/g;
my (%last, %longest);
for my $i (0 .. $#visits)
{
	my $db  = $visits[$i];
	my $gap = $i - ($last{$db} // $i);
	$longest{$db} = $gap if $gap > ($longest{$db} // 0);
	$last{$db} = $i;
}
$longest{$_} = @visits - $last{$_} for grep { @visits - $last{$_} > ($longest{$_} // 0) } @with;
my ($most) = sort { $b <=> $a } map { $longest{$_} } @with;
note scalar(@visits) . " visits; at most $most others between two to the same database";
cmp_ok($most, '<', 3 * $databases, 'each is visited again after a bounded number of visits');
cmp_ok(scalar(grep { $_ eq 'd2' } @visits), '<', @visits / 10,
	'one without the extension is hardly visited');

$node->safe_psql('postgres',
	"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'DO %'"
);
$_->finish for @rivals;

# Log and strangers' rows

for my $db ($without_table, $decoy)
{
	is( log_count($node,
			qr/idem worker ERROR:.*\n(?:.*HINT:.*\n)?.*CONTEXT:  background worker of idem in database "$db"/, $log),
		1, "$db is broken, which is logged once");
}
is(log_count($node, qr/idem worker (?:ERROR|FATAL|PANIC):/, $log), 2, 'and no other error');
is(log_count($node, qr/idem launcher LOG:  (?!no slot)/, $log),
	log_count($node, qr/idem launcher LOG:  slots .* are free again/, $log),
	'no word about what does not change');
is($node->safe_psql($decoy, 'SELECT count(*) FROM idem_key'),
	10, 'rows of a stranger are not touched');
is(log_count($node, qr/cannot connect to invalid database/, $log),
	0, 'invalid databases are not tried');

# Databases that are dropped are forgotten

$node->safe_psql('postgres', join '',
	map { "DROP DATABASE IF EXISTS d$_;\n" } 1 .. 24);
my $rest = $node->safe_psql('postgres',
	'SELECT count(*) FROM pg_database WHERE datallowconn AND datconnlimit <> -2');
ok( $node->poll_query_until(
		'postgres', qq{
SELECT query LIKE '$rest databases, %' FROM pg_stat_activity
WHERE backend_type = 'idem launcher'}),
	'dropped databases are forgotten');

$node->stop('immediate');
done_testing();
