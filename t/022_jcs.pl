# The canonical text is that of other implementations of RFC 8785, wherever a
# double holds every number: two well-kept packages for Node.js, over random
# documents, and ECMAScript's own text of numbers.
#
# JCS_SEED and JCS_DOCUMENTS (environment) choose other and more documents.

use strict;
use warnings;

use FindBin;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $jcs = "$FindBin::RealBin/../test/jcs";
my $node_js = $ENV{NODE} || 'node';

system("cd '$jcs' && $node_js -e 'require(\"canonicalize\"), require(\"json-canonicalize\")' >/dev/null 2>&1") == 0
  or plan skip_all => "no Node.js, or not the packages in test/jcs (npm ci --prefix test/jcs)";

my $seed = $ENV{JCS_SEED} || 1 + int(rand(1_000_000_000));
my $documents = $ENV{JCS_DOCUMENTS} || 5000;
my $numbers = 20000;
diag "JCS_SEED=$seed JCS_DOCUMENTS=$documents";

my $node = PostgreSQL::Test::Cluster->new('jcs');
$node->init(extra => [ '--no-locale', '--encoding=UTF8' ]);
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION idem');

# Copies what a run of documents.js prints into a table.
sub generate
{
	my ($table, $columns, @arguments) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir() . "/$table";

	system("$node_js '$jcs/documents.js' @arguments >'$file'") == 0
	  or BAIL_OUT('documents.js failed');
	chmod 0644, $file;
	$node->safe_psql('postgres',
		"CREATE TABLE $table ($columns); COPY $table FROM '$file'");
}

generate('document',
	'input text, canonicalize text, json_canonicalize text, sha256 text',
	'documents', $seed, $documents);
generate('number', 'bits text, input text, ecmascript text', 'numbers', $numbers);

# How many rows there are, and the first that are not as they should be.
sub check
{
	my ($table, $count, $right, $name) = @_;

	is($node->safe_psql('postgres', "SELECT count(*) FROM $table"),
		$count, "$name: $count of them");
	is( $node->safe_psql('postgres',
			"SELECT * FROM $table WHERE ($right) IS NOT TRUE LIMIT 3"),
		'', $name);
}

check('document', $documents, 'canonicalize = json_canonicalize',
	'the packages agree');
check('document', $documents,
	'idem_canonical_json(input::jsonb) = canonicalize', 'text');
check('document', $documents,
	"encode(idem_canonical_fingerprint(input::jsonb), 'hex') = sha256",
	'fingerprint');
check('document', $documents,
	'idem_canonical_json(canonicalize::jsonb) = canonicalize',
	'canonical text stays as it is');
check('number', $numbers, 'idem_canonical_json(input::jsonb) = ecmascript',
	'number');
check('number', $numbers,
	'ecmascript::float8 = input::float8 AND ecmascript::jsonb = input::jsonb',
	'the same number');

$node->stop;
done_testing();
