# Documents that are made to hurt: numbers that are long when written out, strings
# of 100 MB, texts beyond what the server can hold, deep nesting. They take little
# memory, or end with an error; and every call can be cancelled.

use strict;
use warnings;

use Digest::SHA;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('hostile');
$node->init(extra => [ '--no-locale', '--encoding=UTF8' ]);
$node->append_conf('postgresql.conf', "autovacuum = off\nfsync = off\n");
$node->start;
$node->safe_psql('postgres',
	"CREATE DATABASE latin1 TEMPLATE template0 ENCODING LATIN1 LOCALE 'C'");
foreach my $db ('postgres', 'latin1')
{
	$node->safe_psql($db, q{
		CREATE EXTENSION idem;
		CREATE UNLOGGED TABLE document (name text, doc jsonb);
		ALTER TABLE document ALTER doc SET STORAGE EXTERNAL});
}

sub add
{
	my ($db, $name, $expression) = @_;
	$node->safe_psql($db, "INSERT INTO document SELECT '$name', $expression");
}

# What psql is told by a statement; an SQLSTATE for an error.
sub outcome
{
	my ($db, $sql) = @_;
	my ($status, $out, $err) =
	  $node->psql($db, "\\set VERBOSITY sqlstate\n$sql");

	return $err =~ /(?:ERROR|FATAL):  (\w{5})/ ? $1 : $out;
}

# The megabytes by which a call on a document makes the largest size of its
# process grow, beyond that of a call that only reads the document.
my $measurable = -w '/proc/self/clear_refs' && slurp_file('/proc/self/status') =~ /VmHWM/;

sub megabytes
{
	my ($db, $name, $call) = @_;
	my @peaks;

	foreach my $expression ('octet_length(jsonb_typeof(doc))', $call)
	{
		my $session = $node->background_psql($db);
		my $pid = $session->query_safe('SELECT pg_backend_pid()');

		$session->query_safe("SELECT $expression FROM document WHERE name = '$name'");
		push @peaks, slurp_file("/proc/$pid/status") =~ /VmHWM:\s+(\d+)/;
		$session->quit;
	}
	return ($peaks[1] - $peaks[0]) / 1024;
}

sub takes_little
{
	my ($db, $name, $call, $limit) = @_;

	SKIP:
	{
		skip 'the size of a process cannot be read here', 1 unless $measurable;
		cmp_ok(megabytes($db, $name, $call), '<', $limit,
			"$name in $db: $call takes less than $limit MB");
	}
}

#
# Numbers
#

add('postgres', 'exponents', "jsonb_agg('1e131071'::jsonb) FROM generate_series(1, 100000)");
is( outcome('postgres',
		q{SELECT idem_canonical_fingerprint(doc) = sha256(convert_to('[1e+131071' || repeat(',1e+131071', 99999) || ']', 'UTF8'))
		  FROM document WHERE name = 'exponents'}),
	't',
	'100,000 numbers of 131,072 digits each');
takes_little('postgres', 'exponents', 'idem_canonical_fingerprint(doc)', 8);
takes_little('postgres', 'exponents', q{idem_canonical_fingerprint(doc, exclude => '{$[0]}')}, 8);
takes_little('postgres', 'exponents', 'length(idem_canonical_json(doc))', 16);

# As many digits as a number can have
my $digits = '9' x 131072 . '.' . '9' x 16383;
is( outcome('postgres',
		"SELECT idem_canonical_json(n) = '9.' || repeat('9', 147454) || 'e+131071', idem_canonical_json(n)::jsonb = n FROM (SELECT '$digits'::jsonb) v(n)"),
	't|t',
	'a number of 147,455 digits');

#
# Strings
#

my $mb = 1_000_000;
add('postgres', 'string', "to_jsonb(repeat('0123456789', 10 * $mb))");
add('latin1', 'string', "to_jsonb(repeat(chr(233) || '12345678' || chr(255), 10 * $mb))");
my %digest;
foreach my $db ('postgres', 'latin1')
{
	my $sha = Digest::SHA->new(256);
	my $piece = $db eq 'latin1' ? "\xc3\xa912345678\xc3\xbf" : '0123456789';

	$sha->add('"');
	$sha->add($piece x 1000) foreach 1 .. 10 * $mb / 1000;
	$sha->add('"');
	is( outcome($db, q{SELECT encode(idem_canonical_fingerprint(doc), 'hex') FROM document WHERE name = 'string'}),
		$sha->hexdigest, "100 MB in $db");
	takes_little($db, 'string', 'idem_canonical_fingerprint(doc)', 8);
	takes_little($db, 'string', q{idem_canonical_fingerprint(doc, include => '{$}', exclude => '{$.a}')}, 8);
}
is( outcome('latin1',
		q{SELECT length(idem_canonical_json(doc)) FROM document WHERE name = 'string'}),
	100 * $mb + 2,
	'the text, converted and back');

# Six characters for each byte. HOSTILE_LARGE (environment) makes it more than a
# gigabyte, which is too long for a text, but not for a digest; it takes 2 GB.
my $large = $ENV{HOSTILE_LARGE};
my $escapes = ($large ? 180 : 50) * $mb;
add('postgres', 'escapes', "to_jsonb(repeat(chr(1), $escapes))");
my $sha = Digest::SHA->new(256);
$sha->add('"');
$sha->add('\u0001' x 1000) foreach 1 .. $escapes / 1000;
$sha->add('"');
is( outcome('postgres', q{SELECT encode(idem_canonical_fingerprint(doc), 'hex') FROM document WHERE name = 'escapes'}),
	$sha->hexdigest,
	"a fingerprint of a text of 6 * $escapes bytes");
SKIP:
{
	skip 'HOSTILE_LARGE is not set', 2 unless $large;

	takes_little('postgres', 'escapes', 'idem_canonical_fingerprint(doc)', 8);
	is( outcome('postgres', q{SELECT length(idem_canonical_json(doc)) FROM document WHERE name = 'escapes'}),
		'54000',
		'which no text can be');
}

#
# Depth: a fingerprint or an error, and no crash
#

$node->safe_psql('postgres', q{
	CREATE FUNCTION at_depth(opening text, closing text, depth int, include jsonpath[], exclude jsonpath[]) RETURNS text LANGUAGE plpgsql AS $$
	BEGIN
		RETURN octet_length(idem_canonical_fingerprint((repeat(opening, depth) || '1' || repeat(closing, depth))::jsonb, include, exclude));
	EXCEPTION WHEN OTHERS THEN
		RETURN SQLSTATE;
	END $$});
is( $node->safe_psql('postgres', q{
		SET max_stack_depth = '7MB';
		SELECT depth, got
		FROM unnest('{1000,6000,12000,25000,50000,100000,1000000}'::int[]) depth,
		     (VALUES ('[', ']'), ('{"":', '}')) n(opening, closing),
		     (VALUES (NULL::jsonpath[], NULL::jsonpath[]), (NULL, '{$.**.b}'), ('{$.**.b,$}', NULL)) s(include, exclude),
		     at_depth(opening, closing, depth, include, exclude) got
		WHERE got NOT IN ('32', '54001') OR got <> '32' AND depth <= 6000 OR got <> '54001' AND depth = 1000000}),
	'',
	'deep: a fingerprint; too deep: 54001');

#
# Cancelling: of the time that the processor spends on a call at least a quarter
# is saved.
#

add('postgres', 'elements', 'jsonb_agg(i) FROM generate_series(1, 3000000) i');
add('postgres', 'members', q{jsonb_object_agg('a common begin of the key ' || i, 1) FROM generate_series(1, 700000) i});

# Ticks of the clock that a process has had the processor for.
sub ticks
{
	my ($pid) = @_;
	my @fields = split ' ', slurp_file("/proc/$pid/stat") =~ s/.*\) //sr;

	return $fields[11] + $fields[12];
}

sub can_be_cancelled
{
	my ($name, $call) = @_;
	my $query = "SELECT length($call) FROM document WHERE name = '$name'";
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = $session->query_safe('SELECT pg_backend_pid()');

	# Once to have it in memory, and once more to see what it takes
	$session->query_safe($query);
	my $before = ticks($pid);
	$session->query_safe($query);
	my $whole = ticks($pid) - $before;

	# On a busy machine the signal may come late, so there are several tries; a call
	# that cannot be cancelled needs its whole time in each.
	my $cancelled;
	foreach my $try (1 .. 10)
	{
		my $patience = 100 * $PostgreSQL::Test::Utils::timeout_default;

		$before = ticks($pid);
		$session->query_until(qr/begun/, "\\echo begun\n$query;\n");
		while (ticks($pid) - $before < $whole / 4 && $patience-- > 0)
		{
			select undef, undef, undef, 0.01;
		}
		kill 'INT', $pid;
		$session->query('SELECT 1');
		$cancelled = ticks($pid) - $before;
		last if $cancelled < 0.75 * $whole;
	}

	like($session->{stderr}, qr/canceling statement due to user request/,
		"$name: $call is cancelled");
	cmp_ok($cancelled, '<', 0.75 * $whole, "... before its end, which takes $whole ticks");
	$session->quit;
}

SKIP:
{
	skip 'the time of a process cannot be read here', 1 unless -r '/proc/self/stat';

	can_be_cancelled('escapes', 'idem_canonical_fingerprint(doc)');
	can_be_cancelled('elements', 'idem_canonical_fingerprint(doc)');
	can_be_cancelled('elements', q{idem_canonical_fingerprint(doc, exclude => '{$.**.a}')});
	can_be_cancelled('members', 'idem_canonical_fingerprint(doc)');
	can_be_cancelled('members', q{idem_canonical_fingerprint(doc, include => '{$.**.b,$[0]}')});
}

is(outcome('postgres', 'SELECT 1'), '1', 'the server is there');
$node->stop;
done_testing();
