# The benchmarks run, each with counts too small to mean anything, and the
# report makes its table of what they write.

use strict;
use warnings;

use FindBin;
use JSON::PP ();
use PostgreSQL::Test::Utils;
use Test::More;

my $python = $ENV{PYTHON} || '/usr/bin/python3';
if (system("$python -c 'import psycopg' >/dev/null 2>&1") != 0)
{
	plan skip_all => "$python has no psycopg (Debian: python3-psycopg)"
	  unless $ENV{PYTHON};
	BAIL_OUT("PYTHON=$python has no psycopg");
}

# Those that compare one thing with another and are of no use without a program
# that tests do not bring.
my %takes = (instructions => 'valgrind', lease => 'valgrind');

my $bench = "$FindBin::RealBin/../bench";
my $results = PostgreSQL::Test::Utils::tempdir();

# A socket's path has little room, so the directory is the system's choice.
local %ENV = (
	%ENV,
	TINY          => 1,
	PG_CONFIG     => $ENV{PG_CONFIG} || 'pg_config',
	BENCH_WORK    => PostgreSQL::Test::Utils::tempdir_short() . '/b',
	BENCH_RESULTS => $results,
	BENCH_CONF    => $ENV{TEMP_CONFIG} // '',
	PYTHONDONTWRITEBYTECODE => 1);
delete @ENV{qw(FULL BENCH_ROUNDS BENCH_SECONDS PGHOST PGPORT PGDATABASE PGUSER PGOPTIONS)};

# What bench/run runs
my ($names) = slurp_file("$bench/run") =~ /^\tnames=\((.*?)\)/ms;
my @names = split ' ', $names;
cmp_ok(scalar @names, '>=', 13, 'bench/run has benchmarks');

my $targets = 0;
foreach my $name (@names)
{
  SKIP:
	{
		skip "$takes{$name} is not there", 2
		  if $takes{$name} && system("command -v $takes{$name} >/dev/null") != 0;

		my $output = `$python $bench/$name.py 2>&1`;
		is($?, 0, "$name runs") or diag $output;
		my $result = -e "$results/$name.json"
		  ? JSON::PP->new->utf8->decode(slurp_file("$results/$name.json"))
		  : { targets => [] };
		my @judged = grep { defined $_->{met} && $_->{measured} =~ /\d/ } @{ $result->{targets} };
		ok(@judged && @judged == @{ $result->{targets} }, "$name measures and judges");
		$targets += @judged;
	}
}

# What counts seconds, while the benchmark has a session of its own
{
	delete local $ENV{TINY};
	my $output = `cd $bench && $python - 2>&1 <<'PYTHON'
import suite
suite.WARM_UP = 1
with suite.Server(buffers="32MB") as server, server.connect():
    load = server.load("SELECT 1;\\n", 2, 2)
    print(load.transactions > 2 and load.rate == load.transactions / 2, 0 < load.cpu < 2e6 / load.rate * 4)
    load = server.load("SELECT 1;\\n", 2, {"transactions": 5})
    print(load.transactions == 10)
PYTHON`;
	is($output, "True True\nTrue\n", 'a load is measured by the second, and by the transaction');
}

my $report = `$python $bench/report $results 2>&1`;
is($?, 0, 'the report is made') or diag $report;
my @lines = $report =~ /^\|.*\| (?:met|\*\*not met\*\*) \|$/mg;
is(scalar @lines, $targets, 'and has every target');
ok(-s "$results/results.md", 'and is kept');

done_testing();
