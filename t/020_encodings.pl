# A fingerprint does not depend on the database: not on its encoding and not
# on its collation. Nor does a derived key.

use strict;
use warnings;
use utf8;

use Encode;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# What psql prints is UTF-8, whatever the database's encoding.
$ENV{PGCLIENTENCODING} = 'UTF8';

my $node = PostgreSQL::Test::Cluster->new('encodings');
$node->init(extra => [ '--no-locale', '--encoding=UTF8' ]);
$node->start;

sub create_database
{
	my ($db, $options) = @_;
	my ($status) = $node->psql('postgres',
		"CREATE DATABASE $db TEMPLATE template0 $options");

	$node->safe_psql($db, 'CREATE EXTENSION idem') if $status == 0;
	return $status == 0;
}

sub query
{
	my ($db, $sql) = @_;

	return decode('UTF-8', $node->safe_psql($db, encode('UTF-8', $sql)));
}

# The SQLSTATE that a statement ends with.
sub sqlstate
{
	my ($db, $sql) = @_;
	my ($status, $out, $err) =
	  $node->psql($db, "\\set VERBOSITY sqlstate\n$sql");

	return $err =~ /ERROR:  (\w{5})/ ? $1 : $out;
}

my %databases = (
	utf8 => q{ENCODING UTF8 LOCALE 'C'},
	latin1 => q{ENCODING LATIN1 LOCALE 'C'},
	euc_jp => q{ENCODING EUC_JP LOCALE 'C'},
	sql_ascii => q{ENCODING SQL_ASCII LOCALE 'C'},
	icu => q{ENCODING UTF8 LOCALE 'C' LOCALE_PROVIDER icu ICU_LOCALE 'und'});
my @created = grep { create_database($_, $databases{$_}) } sort keys %databases;

# Documents, and the databases that can hold them. Long strings are converted
# in pieces; keys are sorted after the conversion.
my %western = map { $_ => 1 } qw(utf8 latin1 sql_ascii icu);
my %japanese = map { $_ => 1 } qw(utf8 euc_jp sql_ascii icu);
my @documents = (
	[ '{"b": 1, "a": [true, "x"]}', { %western, %japanese } ],
	[ '{"é": "É\u0001\"", "z": "ÿ", "à": {"ü": "' . 'aß' x 10000 . '"}}', \%western ],
	[ '{"日本": "' . '金額a' x 5000 . '", "か": 1, "z": ["ﾊ", "ー"], "亜": 3}', \%japanese ]);

foreach my $i (0 .. $#documents)
{
	my ($document, $holds) = @{ $documents[$i] };
	my $want = query('utf8', "SELECT idem_canonical_fingerprint('$document')");
	my $text = query('utf8', "SELECT idem_canonical_json('$document')");

	foreach my $db (grep { $holds->{$_} } @created)
	{
		is(query($db, "SELECT idem_canonical_fingerprint('$document')"),
			$want, "fingerprint $i in $db");
		ok(query($db, "SELECT idem_canonical_json('$document')") eq $text,
			"text $i in $db");
	}
}

# Escapes are characters where the encoding has them.
foreach my $db (grep { $western{$_} && $_ ne 'sql_ascii' } @created)
{
	is( query($db, q{SELECT idem_canonical_fingerprint('{"\u00e9": "\u00ff"}')}),
		query('utf8', q{SELECT idem_canonical_fingerprint('{"é": "ÿ"}')}),
		"escapes in $db");
}

# Members selected by a key that needs converting
foreach my $db (grep { $western{$_} } @created)
{
	is( query(
			$db,
			q{SELECT idem_canonical_json('{"é": {"ü": 1, "u": 2}, "e": 3}', '{$.é}', '{$.*.ü}')}),
		'{"é":{"u":2}}',
		"selection in $db");
}

# Derived keys
foreach my $db (grep { $western{$_} } @created)
{
	is( query($db, q{SELECT idem_provider_key('café', 'clé', 'étape')}),
		query('utf8', q{SELECT idem_provider_key('café', 'clé', 'étape')}),
		"derived key in $db");
}

# An answer that is text or JSON is stored as UTF-8, and so replayed.
foreach my $db (grep { $western{$_} } @created)
{
	my ($text, $json) = map { unpack 'H*', encode('UTF-8', $_) } 'é, ß', '{"é": "ß"}';

	is( query($db, q{
SELECT count(idem_complete('c', 'text', token, 200, 'é, ß')) FROM idem_reserve('c', 'text', '\x01');
SELECT encode(idem_complete_json('c', 'json', token, 200, '{"é": "ß"}'), 'hex') FROM idem_reserve('c', 'json', '\x01');
SELECT encode(body, 'hex') FROM idem_reserve('c', 'text', '\x01');
SELECT encode(body, 'hex') FROM idem_reserve('c', 'json', '\x01')}),
		join("\n", 1, $json, $text, $json),
		"answers in $db");
}

# SQL_ASCII does not say what its bytes are: UTF-8 or an error.
my $latin1 = "convert_from('\\x22e922', 'SQL_ASCII')::jsonb";
is(sqlstate('sql_ascii', "SELECT idem_canonical_fingerprint($latin1)"),
	'22021', 'a string that is not UTF-8');
is( sqlstate(
		'sql_ascii',
		"SELECT idem_canonical_json(jsonb_build_object($latin1 #>> '{}', 1))"),
	'22021',
	'a key that is not UTF-8');
is( sqlstate(
		'sql_ascii',
		"SELECT idem_provider_key(convert_from('\\xe9', 'SQL_ASCII'), 'k')"),
	'22021',
	'a client that is not UTF-8');
is( sqlstate(
		'sql_ascii',
		"SELECT idem_parse_key(convert_from('\\xe9', 'SQL_ASCII'))"),
	'ID400',
	'a header that is not ASCII');

# What an error message shows is cut, but not within a character.
my $long = encode('UTF-8', 'x' . 'é' x 200);
is(sqlstate('sql_ascii', "SELECT idem_provider_key('$long', 'k')"),
	'22023', 'a client that is too long');
is(sqlstate('sql_ascii', "SELECT idem_parse_key('$long')"),
	'ID400', 'a header that is too long');
is( sqlstate(
		'sql_ascii',
		"SELECT idem_canonical_json('{}', exclude => ARRAY['\$.$long.size()'::jsonpath])"),
	'0A000',
	'a path that is too long');

# An error leaves nothing behind.
is( sqlstate(
		'sql_ascii',
		"SELECT idem_canonical_fingerprint($latin1, exclude => '{\$.a}')"),
	'22021',
	'an error in the middle of a document');
is( query('sql_ascii', q{SELECT idem_canonical_json('{"a": 1}')}),
	'{"a":1}', 'and the next call works');

$node->stop;
done_testing();
