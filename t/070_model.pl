# The model of the protocol: spin goes through all of its states, for small
# bounds, and finds each of the broken variants out. model/README.md says what
# is checked.

use strict;
use warnings;

use FindBin;
use Test::More;

# Both are small packages, so that where tests count they have to be there.
foreach my $program ('spin', 'gcc')
{
	next if grep { -x "$_/$program" } split /:/, $ENV{PATH};
	BAIL_OUT("$program is missing") if $ENV{CI};
	plan skip_all => "$program is missing (Debian: $program)";
}

# One test for each check, so that the counts are real.
open my $output, '-|', "$FindBin::RealBin/../model/run" or BAIL_OUT('cannot run model/run');
while (my $line = <$output>)
{
	chomp $line;
	if ($line =~ /^(not )?ok - (.*)/)
	{
		ok(!$1, $2);
	}
	else
	{
		diag $line =~ s/^# ?//r;
	}
}
close $output;
is($?, 0, 'every check came to its end');
done_testing();
