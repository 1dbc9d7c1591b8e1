# The fuzzer's corpus, and inputs that were made by hand, through the
# fuzzer's targets: sanitizers on, one run each. See fuzz/README.md.

use strict;
use warnings;

use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;

my $fuzz = "$FindBin::RealBin/../fuzz";
my $clang = $ENV{CLANG} || 'clang';
my ($arch) = split /\s/, `uname -m`;

# Has the compiler the libraries that this takes?
foreach my $library ('asan', 'fuzzer_no_main')
{
	my $suffix = $library eq 'asan' ? 'so' : 'a';
	my $path =
	  `$clang -print-file-name=libclang_rt.$library-$arch.$suffix 2>/dev/null`;

	plan skip_all => "no clang with libclang_rt.$library (Debian: clang, libclang-rt-dev)"
	  unless $path =~ m{^/};
}

# The server changes to its data directory, so the names are absolute.
my $build = PostgreSQL::Test::Utils::tempdir('build');
my $data = PostgreSQL::Test::Utils::tempdir('data');
$ENV{FUZZ_BUILD} = $build;
$ENV{FUZZ_DATA} = $data;
system_or_bail("$fuzz/build", $build);
system_or_bail('initdb', '-D', $data, '--no-locale', '--encoding=UTF8',
	'--no-sync');

foreach my $target ('canonical', 'keys')
{
	my @directories = grep { -d } map { "$fuzz/$_/$target" } 'corpus', 'seeds';
	my @files = map { glob "$_/*" } @directories;
	local $ENV{FUZZ_TARGET} = $target;

	# Executed besides them is the empty input.
	my $output = `'$fuzz/backend' -runs=0 -max_len=65536 -artifact_prefix='$build' @directories 2>&1`;
	is($?, 0, "$target: nothing is found") or diag $output;
	like($output, qr/seed corpus: files: (\d+)/, "$target: the corpus is read");
	cmp_ok(($output =~ /seed corpus: files: (\d+)/ ? $1 : 0),
		'>=', 20, "$target: and it is not empty");
	is(($output =~ /seed corpus: files: (\d+)/ ? $1 : 0),
		scalar(@files), "$target: all of it");
}
done_testing();
