# A server with a clock that the test can set: clock.c, preloaded.

package IdemClock;

use strict;
use warnings;

use Exporter 'import';
use File::Basename qw(dirname);
use PostgreSQL::Test::Utils;

our @EXPORT = qw(make_clock set_clock with_clock);

my ($file, $library, $handle);

# Compiles it; false where that is not possible.
sub make_clock
{
	my $directory = PostgreSQL::Test::Utils::tempdir_short();
	my $source    = dirname(__FILE__) . '/clock.c';

	($file, $library) = ("$directory/time", "$directory/clock.so");
	open $handle, '+>', $file or die $!;
	set_clock(0);
	return $^O eq 'linux'
	  && system($ENV{CC} || 'gcc', '-shared', '-fPIC', '-o', $library, $source, '-ldl') == 0;
}

# Sets the clock so many seconds ahead of the true one, at once.
sub set_clock
{
	my ($ahead) = @_;

	sysseek $handle, 0, 0;
	syswrite $handle, pack('q', $ahead);
	return;
}

# Runs code that starts a server, which gets this clock.
sub with_clock
{
	my ($code) = @_;
	local %ENV = (%ENV, LD_PRELOAD => $library, CLOCK_FILE => $file);

	return $code->();
}

1;
