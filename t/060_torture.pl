# A minute of the torture test: many clients, few keys, and a nemesis that kills
# what they talk to. torture/README.md says what is checked.

use strict;
use warnings;

use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;

# The bootstrap names a Python that has what is needed, or fails.
my $python = $ENV{PYTHON} || '/usr/bin/python3';
if (system("$python -c 'import psycopg' >/dev/null 2>&1") != 0)
{
	plan skip_all => "$python has no psycopg (Debian: python3-psycopg)"
	  unless $ENV{PYTHON};
	BAIL_OUT("PYTHON=$python has no psycopg");
}

my $bindir = `"@{[ $ENV{PG_CONFIG} || 'pg_config' ]}" --bindir`;
chomp $bindir;

# A socket's path has little room, so the directory is the system's choice.
my $directory = PostgreSQL::Test::Utils::tempdir_short() . '/torture';
my @command   = (
	$python, "$FindBin::RealBin/../torture/torture.py",
	'--bindir'    => $bindir,
	'--directory' => $directory,
	'--seconds'   => $ENV{TORTURE_SECONDS} || 30,
	'--clients'   => $ENV{TORTURE_CLIENTS} || 8,
	$ENV{TORTURE_SEED} ? ('--seed' => $ENV{TORTURE_SEED}) : (),
	$ENV{TEMP_CONFIG}  ? ('--conf' => $ENV{TEMP_CONFIG})  : ());

# One test for each check, so that the counts are real.
open my $output, '-|', @command or BAIL_OUT("cannot run $command[0]: $!");
while (my $line = <$output>)
{
	chomp $line;
	if ($line =~ /^(not )?ok - (.*)/)
	{
		ok(!$1, $2);
	}
	else
	{
		note $line =~ s/^# ?//r;
		diag $line =~ s/^# ?//r if $line =~ /SEED=|^#  /;
	}
}
close $output;
is($?, 0, 'the torture ends well');
done_testing();
