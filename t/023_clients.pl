# What doc/fingerprint.md shows for other languages computes what the server
# computes: its programs, taken from there, run over the vectors in test/vectors,
# over random documents, and over random keys.
#
# CLIENT_LANGUAGES (environment) says which languages: python js go java. JCS_SEED chooses
# other documents.

use strict;
use warnings;

use Encode;
use FindBin;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $root = "$FindBin::RealBin/..";
my $python = $ENV{PYTHON} || 'python3';
my $javapath = join ':', '.', map { "/usr/share/java/jackson-$_.jar" } qw(core databind annotations);

# How a language is found, and how its program is made out of the files that it
# consists of and run.
my %languages = (
	python => {
		files => [ 'clients.py' ],
		has   => "$python --version",
		run   => "$python clients.py" },
	js => {
		files => [ 'clients.js' ],
		has   => 'node --version',
		run   => 'node clients.js',
		doubles => 1 },
	go => {
		files => [ 'fingerprint.go', 'provider_key.go' ],
		has   => 'go version',
		build => 'GO111MODULE=off GOCACHE="$PWD/cache" go build -o clients *.go',
		run   => './clients' },
	java => {
		files => [ 'Fingerprint.java', 'ProviderKey.java' ],
		has   => "javac -version && test -e /usr/share/java/jackson-databind.jar",
		build => "javac -cp $javapath *.java",
		run   => "java -cp $javapath Driver" });

my @wanted = split ' ', $ENV{CLIENT_LANGUAGES} || 'python js';
my @found;
foreach my $language (@wanted)
{
	$languages{$language} or BAIL_OUT("CLIENT_LANGUAGES: no such language: $language");
	if (system("($languages{$language}{has}) >/dev/null 2>&1") == 0)
	{
		push @found, $language;
	}
	else
	{
		diag "no $language here";
	}
}
plan skip_all => "none of these is here: @wanted" unless @found;

my $json = JSON::PP->new->ascii->allow_nonref;

# The document's blocks of code, by language.
my $document = slurp_file("$root/doc/fingerprint.md");
my %blocks;
push @{ $blocks{$1} }, $2 while $document =~ /^```(\w+)\n(.*?)^```$/msg;

# Makes a language's program in a directory of its own.
sub build
{
	my ($language) = @_;
	my $how = $languages{$language};
	my $directory = PostgreSQL::Test::Utils::tempdir($language);
	my @code = @{ $blocks{$language} };
	my @files = @{ $how->{files} };

	is(scalar(@code), 2, "$language: two programs in the document");
	s/^package idem$/package main/m foreach @code;
	if (@files == 1)
	{
		# Both need the same import, once
		my ($import) = $code[0] =~ /^(const .* = require.*\n)/m;
		$code[1] =~ s/^\Q$import\E//m if $import;
		@code = (join "\n", @code);
	}
	append_to_file("$directory/$files[$_]", $code[$_]) foreach 0 .. $#files;

	my ($driver) = glob "$root/test/clients/[dD]river." . ($files[0] =~ /(\w+)$/)[0];
	my $name = @files == 1 ? $files[0] : $driver =~ s{.*/}{}r;
	append_to_file("$directory/$name", slurp_file($driver));

	is(system("cd '$directory' && $how->{build}"), 0, "$language: compiles")
	  if $how->{build};
	return $directory;
}

# What a language's program prints for arguments, each a document or the parts of
# a key.
sub answers
{
	my ($language, $directory, @arguments) = @_;

	append_to_file("$directory/input", $json->encode($_) . "\n") foreach @arguments;
	my @lines = split /\n/, `cd '$directory' && $languages{$language}{run} <input`;
	is($?, 0, "$language: ends well");
	unlink "$directory/input";
	return @lines;
}

# Documents and their fingerprints: exact ones, and those that doubles hold.
my (@exact, @doubles);
sub vectors
{
	my ($file) = @_;
	return map { $json->decode($_) } split /\n/, slurp_file("$root/test/vectors/$file.jsonl");
}
foreach my $vector (vectors('jcs'))
{
	push @{ $vector->{jcs_same} ? \@doubles : \@exact }, [ $vector->{input}, $vector->{sha256} ];
}
push @exact, [ $_->{a}, $_->{sha256} ], [ $_->{b}, $_->{sha256} ] foreach vectors('must_equal');
push @exact, [ $_->{a}, $_->{sha_a} ], [ $_->{b}, $_->{sha_b} ] foreach vectors('must_differ');

# Random documents, where there are other implementations to say what is right.
my $seed = $ENV{JCS_SEED} || 1 + int(rand(1_000_000_000));
if (system("cd '$root/test/jcs' && node -e 'require(\"canonicalize\")' >/dev/null 2>&1") == 0)
{
	diag "JCS_SEED=$seed";
	# Encode's UTF-8 would not take noncharacters; its utf8 does.
	foreach my $line (split /\n/, `node '$root/test/jcs/documents.js' documents $seed 500`)
	{
		my ($input, $text, $other, $sha256) = split /\t/, decode('utf8', $line);

		$input =~ s/\\(.)/{ t => "\t", n => "\n", r => "\r" }->{$1} || $1/ge;
		push @doubles, [ $input, $sha256 ];
	}
}

# Random keys, and what the server makes of them.
my $node = PostgreSQL::Test::Cluster->new('clients');
$node->init(extra => [ '--no-locale', '--encoding=UTF8' ]);
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION idem');
my @keys = map { $json->decode($_) } split /\n/, decode 'UTF-8', $node->safe_psql('postgres', q{
	SELECT json_build_array(idem_provider_key(client, key, step), client, key, step)
	FROM (SELECT 'c' || repeat('é', i % 120) AS client, md5(random()::text) || chr(100 + i * 300) AS key,
	             CASE i % 3 WHEN 0 THEN '' WHEN 1 THEN 'capture' ELSE repeat('😀', i) END AS step
	      FROM generate_series(1, 100) i) x});
$node->stop;

# ... and those that the document shows.
my $shown = 0;
while ($document =~ /^\| `(\S+)` \| `(\S+)` \| (?:`(\S+)`)? *\| `([0-9a-f-]{36})` \|$/mg)
{
	push @keys, [ $4, map { decode('UTF-8', $_ // '') } $1, $2, $3 ];
	$shown++;
}
cmp_ok($shown, '>=', 5, 'the document shows derived keys');

foreach my $language (@found)
{
	my $directory = build($language);
	my @documents = (@doubles, $languages{$language}{doubles} ? () : @exact);
	my @got = answers($language, $directory, map { $_->[0] } @documents);
	my @wrong = grep { ($got[$_] // '') ne $documents[$_][1] } 0 .. $#documents;

	is(scalar(@wrong), 0, "$language: fingerprints of " . @documents . ' documents')
	  or diag $json->encode($documents[$wrong[0]]);

	@got = answers($language, $directory, map { [ @{$_}[1 .. 3] ] } @keys);
	@wrong = grep { ($got[$_] // '') ne $keys[$_][0] } 0 .. $#keys;
	is(scalar(@wrong), 0, "$language: " . @keys . ' derived keys')
	  or diag $json->encode($keys[$wrong[0]]);
}
done_testing();
