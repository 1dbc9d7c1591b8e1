# Counters and checks, as far as they take a server of their own. Promises:
# section 4 (idem_stat, idem_health), section 5 (55000 without preloading) and
# section 6 (idem.max_databases).

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemCluster;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $fp   = q{'\x01'};
my $node = new_idem_server('stat', "idem.max_databases = 2\nidem.retention = '7300d'\nautovacuum = off\n");
my $file = $node->data_dir . '/pg_stat/idem.stat';

sub stat_of
{
	my ($columns, $db) = @_;
	$db //= 'postgres';
	return $node->safe_psql('postgres', "SELECT $columns FROM idem_stat WHERE datname = '$db'");
}

sub health
{
	my ($check) = @_;
	return $node->safe_psql('postgres', "SELECT ok, detail FROM idem_health() WHERE check_name = '$check'");
}

# More sessions than there are stripes count in one row.
reserve($node, "'c', 'k$_', $fp") foreach 1 .. 20;
is(stat_of('reserved, replay'), '20|0', 'what many sessions did is added up');

# A clean restart keeps them, and so does the next one; a crash does not.
$node->restart;
is(stat_of('reserved'), 20, 'kept over a restart');
ok(!-e $file, 'the file is gone while the server runs');
reserve($node, "'c', 'after', $fp");
$node->restart;
is(stat_of('reserved'), 21, 'and counted on');
$node->append_conf('postgresql.conf', 'restart_after_crash = on');
$node->reload;
my $checkpointer = $node->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'});
kill 'KILL', $checkpointer;
ok($node->poll_query_until('postgres',
	"SELECT pid <> $checkpointer FROM pg_stat_activity WHERE backend_type = 'checkpointer'"), 'the server has crashed and is back');
is(stat_of('reserved'), 0, 'begun again after a crash');
like(health('table_size'), qr/^t\|\d+ \w+ on disk; no pass has looked at the table yet$/, 'nothing is known of the table yet');

# A file that is none of ours.
$node->stop;
append_to_file($file . '.other', 'x');
rename $file . '.other', $file or die;
$node->start;
is(stat_of('reserved'), 0, 'a file that cannot be read is passed over');
like(slurp_file($node->logfile), qr/ignoring file "pg_stat\/idem\.stat"/, 'and the log says so');

# One that cannot be read, or opened at all; it is written anew at the end.
$node->stop;
chmod 0, $file or die;
my $log = -s $node->logfile;
$node->start;
like(substr(slurp_file($node->logfile), $log), qr/LOG: +could not open file "pg_stat\/idem\.stat"/, 'a file that cannot be opened is passed over, too');
reserve($node, "'c', 'anew', $fp");
$node->restart;
is(stat_of('reserved'), 1, 'and written anew at the end');

# Room for two databases. One that is dropped makes room for another.
$node->safe_psql('postgres', "CREATE DATABASE $_") foreach qw(second third);
foreach my $db (qw(second third))
{
	$node->safe_psql($db, 'CREATE EXTENSION idem');
	is(reserve($node, "'c', 'k', $fp", $db), 3, "reserved in $db");
}
is(stat_of('reserved', 'second'), 1, 'the second database is counted');
is(stat_of('count(*)', 'third'), 0, 'there is no room for the third');
is( $node->safe_psql('third', q{SELECT ok, detail FROM idem_health() WHERE check_name = 'counters'}),
	'f|this database is not counted: as many others are as there is room for',
	'and idem_health says so');
$node->safe_psql('postgres', 'DROP DATABASE second');
is(stat_of('count(*)', 'second'), 0, 'a dropped database is not shown');
reserve($node, "'c', 'k2', $fp", 'third');
is(stat_of('reserved', 'third'), 1, 'and makes room for another');
$node->safe_psql('postgres', 'ALTER DATABASE third RENAME TO fourth');
is(stat_of('reserved', 'fourth'), 1, 'a renamed one goes on');

# A thousand keys in what the file says is a long time are nothing to worry
# about; in ten minutes, and for twenty years, they are more than a disk has.
$node->safe_psql('postgres',
	q{SELECT count(*) FROM (SELECT idem_once_batch('many', array_agg(i::text)) FROM generate_series(1, 50000) i) s; SELECT idem_sweep()});
like(health('retention'), qr/^t\|too few keys, or too little time/, 'nothing can be foreseen yet');

# Moves the beginning of all counters: the file has, after 12 bytes, for each
# database its OID, and 8 bytes further the time in microseconds since 2000.
sub backdate
{
	my ($seconds) = @_;

	$node->stop;
	open my $fh, '+<:raw', $file or die "$file: $!";
	read $fh, my $header, 12;
	my (undef, $size, $n) = unpack 'L3', $header;
	foreach my $i (0 .. $n - 1)
	{
		seek $fh, 12 + $i * $size + 8, 0;
		read $fh, my $time, 8;
		seek $fh, 12 + $i * $size + 8, 0;
		print $fh pack('q', unpack('q', $time) - $seconds * 1_000_000);
	}
	close $fh or die;
	$node->start;
	return;
}
backdate(10 * 86_400);
like(health('retention'), qr/^[tf]\|0\.1 new keys a second at \d+ bytes each, kept for 7300d, come to \d+ [MG]B; /,
	'foreseen at a slow pace')
  or diag(health('retention'));
$node->append_conf('postgresql.conf', "idem.retention = '36500d'");
$node->safe_psql('postgres', q{SELECT idem_stat_reset()});
$node->safe_psql('postgres',
	q{SELECT count(*) FROM (SELECT idem_once_batch('more', array_agg(i::text)) FROM generate_series(1, 50000) i) s; SELECT idem_sweep()});
backdate(660);
like(health('retention'), qr/^f\|/, 'more than fits on the disk') or diag(health('retention'));

# Settings that are not as they should be.
like(health('autovacuum'), qr/^f\|autovacuum is off/, 'autovacuum is off');
like(health('sweeper'), qr/^f\|idem.sweeper is off/, 'the sweeper is off');
$node->append_conf('postgresql.conf', "autovacuum = on\ntrack_counts = off\nidem.sweeper = on\nfsync = on\nsynchronous_commit = off");
$node->reload;
ok($node->poll_query_until('postgres', q{SELECT ok FROM idem_health() WHERE check_name = 'sweeper'}), 'the sweeper is on');
ok($node->poll_query_until('postgres', q{SELECT passes > 0 AND last_pass IS NOT NULL FROM idem_stat WHERE datname = 'postgres'}),
	'passes of the worker are counted');
like(health('autovacuum'), qr/^f\|track_counts is off/, 'autovacuum sees nothing');
like(health('durability'), qr/^f\|synchronous_commit is off/, 'commits are not waited for');
$node->append_conf('postgresql.conf', "track_counts = on\nsynchronous_commit = on");
$node->reload;
ok($node->poll_query_until('postgres', q{SELECT bool_and(ok) FROM idem_health() WHERE check_name IN ('autovacuum', 'durability', 'sweeper')}),
	'all is well again');

# More dead rows than autovacuum should ever leave; here it is told to leave them.
$node->safe_psql('postgres', q{ALTER TABLE idem_key SET (autovacuum_vacuum_threshold = 2000000000)});
is($node->safe_psql('postgres', q{SELECT idem_forget('many')}), 50000, 'many rows are removed');
ok($node->poll_query_until('postgres', q{SELECT NOT ok AND detail ~ '^\d{5} dead rows in idem_key wait for autovacuum$' AND remedy ~ 'cannot keep up'
  FROM idem_health() WHERE check_name = 'autovacuum'}), 'autovacuum does not keep up');
$node->safe_psql('postgres', q{ALTER TABLE idem_key RESET (autovacuum_vacuum_threshold); VACUUM idem_key});
ok($node->poll_query_until('postgres', q{SELECT ok FROM idem_health() WHERE check_name = 'autovacuum'}), 'it does again');

# No slot for a worker: said by the check as well as by the log.
$node->append_conf('postgresql.conf', "max_worker_processes = 2\nmax_parallel_workers = 0");
$node->restart;
ok($node->poll_query_until('postgres', q{SELECT NOT ok FROM idem_health() WHERE check_name = 'worker_slots'}),
	'no slot for a worker');
like( $node->safe_psql('postgres', q{SELECT remedy FROM idem_health() WHERE check_name = 'worker_slots'}),
	qr/max_worker_processes, which is 2/, 'and what to do about it');

# No slot for the launcher either.
$node->adjust_conf('postgresql.conf', 'max_worker_processes', 0);
$node->restart;
like(health('sweeper'), qr/^f\|the launcher does not run$/, 'the launcher does not run');

# A file that cannot be written: the counters begin again, and the log says why.
mkdir "$file.tmp" or die "$file.tmp: $!";
$log = -s $node->logfile;
$node->restart;
like(substr(slurp_file($node->logfile), $log), qr/LOG: +could not write file "pg_stat\/idem\.stat\.tmp"/, 'counters cannot be kept');
is(stat_of('reserved'), 0, 'and begin again');
rmdir "$file.tmp" or die "$file.tmp: $!";

# Without preloading.
$node->adjust_conf('postgresql.conf', 'shared_preload_libraries', undef);
$node->restart;
foreach my $call ('* FROM idem_stat', '* FROM idem_stat_rows()', 'idem_stat_reset()')
{
	my ($code, undef, $stderr) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT $call");
	like($stderr, qr/ERROR:  55000: there are no counters: idem is not preloaded.*HINT: .*shared_preload_libraries/s,
		"55000: $call");
}
is( $node->safe_psql('postgres', q{SELECT check_name FROM idem_health() WHERE NOT ok ORDER BY 1}),
	"preloaded\nsweeper", 'what idem_health says then');
is($node->safe_psql('postgres', 'SHOW idem.max_databases'), 2, 'the setting can be read');

$node->stop;
done_testing();
