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
my $run = slurp_file("$bench/run");
my @names = map { split ' ' } $run =~ /^(?:quick|long)=\((.*?)\)/msg;
is_deeply(
	[ sort @names ],
	[ sort map { m{(\w+)\.py$} } grep { slurp_file($_) =~ /^\s+report\.write\(\)$/m } glob "$bench/*.py" ],
	'bench/run knows every benchmark that reports');

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

# Results of another machine must not stand beside this one's.
my $other = JSON::PP->new->utf8->decode(slurp_file("$results/wal.json"));
$other->{machine}{cpu} = 'another one';
open my $file, '>', "$results/wal.json" or die;
print $file JSON::PP->new->utf8->encode($other);
close $file;
$report = `$python $bench/report $results 2>&1`;
is($?, 0, 'the report is made again');
like($report, qr/^left out, since they are of another machine: wal$/m, 'without results of another machine');
@lines = $report =~ /^\|.*\| (?:met|\*\*not met\*\*) \|$/mg;
is(scalar @lines, $targets - @{ $other->{targets} }, 'which are not in its table');

done_testing();
