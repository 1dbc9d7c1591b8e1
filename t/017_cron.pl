# Where the library cannot be preloaded: idem_sweep() from pg_cron, and from a
# systemd timer.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemClock;
use IdemWorker;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('cron');
$node->init;
$node->append_conf('postgresql.conf', "log_statement = none\nfsync = off");
$node->start;

# A role that may sweep, and nothing else

$node->safe_psql('postgres', q{
CREATE EXTENSION idem;
CREATE ROLE sweeper LOGIN;
GRANT EXECUTE ON FUNCTION idem_sweep TO sweeper});

# The systemd units

my $units = "$FindBin::RealBin/../examples/systemd";
SKIP:
{
	my $analyze = `command -v systemd-analyze 2>/dev/null`;
	skip 'systemd-analyze or psql is not here', 1 if $analyze eq '' || !-x '/usr/bin/psql';
	my ($out, $err) = run_command([ 'systemd-analyze', 'verify', glob "$units/*.{service,timer}" ]);
	skip 'systemd-analyze has no /run/systemd here', 1 if $err =~ m{create directory '/run/systemd};
	is("$out$err", '', 'the units are valid');
}
my ($command) = slurp_file("$units/idem-sweep.service") =~ /^ExecStart=\S*psql (.*)/m;
ok(defined $command, 'the unit calls psql');
expire($node, 'postgres', 100);
{
	local %ENV = (%ENV, PGHOST => $node->host, PGPORT => $node->port,
		PGUSER => 'sweeper', PGDATABASE => 'postgres');
	is(system("psql $command"), 0, 'which works');
}
is(keys_left($node, 'postgres'), 0, 'and sweeps');

# pg_cron, as README.md shows it. It knows minutes only, so the server's clock is
# set to the end of one.

my ($there) = $node->psql('postgres', q{
SELECT 1 / count(*) FROM pg_available_extensions WHERE name = 'pg_cron'});
my ($schedule) = slurp_file("$FindBin::RealBin/../README.md") =~ /(SELECT cron\.schedule\(.*?\);)/s;
ok(defined $schedule, 'README.md shows the job');
SKIP:
{
	skip 'pg_cron is not here (Debian: postgresql-15-cron)', 4 if $there != 0;

	$node->append_conf('postgresql.conf', qq{
shared_preload_libraries = 'pg_cron'
cron.database_name = 'postgres'
cron.host = '@{[ $node->host ]}'
});
	$node->stop;
	if (make_clock())
	{
		set_clock(56 - time % 60);
		with_clock(sub { $node->start });
	}
	else
	{
		$node->start;
	}
	$node->safe_psql('postgres', q{
CREATE EXTENSION pg_cron;
GRANT USAGE ON SCHEMA cron TO sweeper});
	expire($node, 'postgres', 100);
	is($node->safe_psql('postgres', $schedule, extra_params => [ '-U', 'sweeper' ]),
		1, 'a job');
	ok(wait_swept($node, 'postgres'), 'pg_cron sweeps');
	ok( $node->poll_query_until('postgres', q{
SELECT count(*) > 0 FROM cron.job_run_details WHERE username = 'sweeper' AND status = 'succeeded' AND return_message = '1 row'}),
		'as the role that has the job');
	is($node->safe_psql('postgres', q{SELECT count(*) FROM cron.job_run_details WHERE status = 'failed'}),
		0, 'without a failure');
}

$node->stop('fast');
done_testing();
