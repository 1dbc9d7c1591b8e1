# The examples do what they say: each demonstration runs against a server of its
# own, and every count in it is right.

use strict;
use warnings;

use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;

my $python = $ENV{PYTHON} || '/usr/bin/python3';
if (system("$python -c 'import psycopg' >/dev/null 2>&1") != 0)
{
	plan skip_all => "$python has no psycopg (Debian: python3-psycopg)"
	  unless $ENV{PYTHON} || $ENV{CI};
	BAIL_OUT("$python has no psycopg (Debian: python3-psycopg)");
}

# What the demonstrations expect of whoever runs them. Here the extension is
# installed already, or TEMP_CONFIG says where it is.
my $settings = $ENV{TEMP_CONFIG};
if (!$settings)
{
	$settings = PostgreSQL::Test::Utils::tempdir() . '/none.conf';
	append_to_file($settings, "# the extension is installed\n");
}

foreach my $run (sort glob("$FindBin::RealBin/../examples/*/run"))
{
	my ($example) = $run =~ m{([^/]+)/run$};
	next if $example eq 'checkout';    # takes a browser: make examples
	my $checks = 0;

	# A socket's path has little room, so the directory is the system's choice.
	my $sandbox = PostgreSQL::Test::Utils::tempdir_short();
	local %ENV = (
		%ENV,
		PYTHON      => $python,
		PG_CONFIG   => $ENV{PG_CONFIG} || 'pg_config',
		SANDBOX     => $sandbox,
		TEMP_CONFIG => $settings,
		TMPDIR      => $sandbox);

	open my $output, '-|', $run or BAIL_OUT("cannot run $run: $!");
	while (my $line = <$output>)
	{
		chomp $line;
		note $line;
		next unless $line =~ /^\s+(.*\S)\s+(ok|WRONG)$/;
		$checks++;
		ok($2 eq 'ok', "$example: $1");
	}
	close $output;
	is($?, 0, "$example ends well");
	cmp_ok($checks, '>=', 5, "$example has shown something");
}
done_testing();
