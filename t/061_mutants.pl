# The torture test can fail: in a copy of the source the token is not checked, the
# unique index is not asked, a row is not looked at again once it is locked; each
# time it has to find that out. torture/mutants has more such patches, and `make
# mutants` tries them all.

use strict;
use warnings;

use FindBin;
use Test::More;

# A build, in the place that tools/sandbox gives.
plan skip_all => 'runs in `make test`' unless $ENV{SANDBOX} && $ENV{PG_CONFIG};
plan skip_all => 'PYTHON is not set, or it has no psycopg' unless $ENV{PYTHON};

chdir "$FindBin::RealBin/.." or BAIL_OUT("no source: $!");
# As much time as it takes on a machine that is busy
$ENV{MUTANT_SECONDS} //= '6 15 40';

open my $output, '-|',
  'torture/mutants/run', 'quick', 'no-token-check', 'insert-anyway', 'takeover-without-comparing'
  or BAIL_OUT("cannot run the mutants: $!");
while (my $line = <$output>)
{
	chomp $line;
	if ($line =~ /^(not )?ok - (.*)/)
	{
		ok(!$1, $2);
	}
	else
	{
		diag $line unless $line =~ /^\d+ passed/;
	}
}
close $output;
is($?, 0, 'all are found');
done_testing();
