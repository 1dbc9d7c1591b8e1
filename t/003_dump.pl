# Keys, answers, leases and reminders come along with a dump, into another
# database, another server, another encoding; and with a copied database.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemCluster;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $fp   = q{'\x01'};
my $node = new_idem_server('dump');

# Another server, with another provider of collations where there is one
my $other = PostgreSQL::Test::Cluster->new('other');
my $icu   = check_pg_config('#define USE_ICU 1');
$other->init(
	extra => $icu
	? [qw(--encoding=UTF8 --locale-provider=icu --icu-locale=und)]
	: [qw(--encoding=UTF8 --locale=C)]);
configure($other);
$other->start;

$node->safe_psql('postgres', 'CREATE ROLE app LOGIN; CREATE ROLE monitor LOGIN');
$other->safe_psql('postgres', 'CREATE ROLE app LOGIN; CREATE ROLE monitor LOGIN');

# A key of every kind. Names that a dump has to quote; all of them are in
# LATIN1 as well.

$node->safe_psql(
	'postgres', qq{
SELECT idem_grant('app');
SELECT idem_grant('monitor', true);
CREATE TABLE payment (key text);
INSERT INTO payment VALUES ('done');
SELECT idem_complete_bytes('c', 'done', token, 201, $every_byte, '[["Set-Cookie","a=1, b"],["set-cookie",""]]')
  FROM idem_reserve('c', 'done', $fp, request => '{"b": 1, "a": 1.50}');
SELECT idem_complete_bytes('c', 'none', token, 204, NULL) FROM idem_reserve('c', 'none', $fp);
SELECT idem_complete_bytes('c', 'empty', token, 200, '', '{}') FROM idem_reserve('c', 'empty', $fp);
SELECT idem_complete('c', 'large', token, 200, string_agg(md5(i::text), ''))
  FROM idem_reserve('c', 'large', $fp), generate_series(1, 2000) i GROUP BY token;
SELECT idem_complete('caf\\u00e9', E'\\t''"\\\\\\\\.\\n', token, 200, 'caf\\u00e9') FROM idem_reserve('caf\\u00e9', E'\\t''"\\\\\\\\.\\n', $fp);
} =~ s/\\u00e9/\xc3\xa9/gr);
my (undef, $live) = reserve($node, "'c', 'live', $fp, '1 h'");
for (1 .. 3)
{
	is(outcome($node, "'c', 'again', $fp, '1 ms'"), "new|$_", "attempt $_");
	wait_over($node, "'c', 'again'");
}
my (undef, $again) = reserve($node, "'c', 'again', $fp, '1 h'");
reserve($node, "'c', 'stale', $fp, '1 ms'");
wait_over($node, "'c', 'stale'");
reserve($node, "'c', 'expired', $fp, retention => '1 ms'");

# What must not come along: where a sweep stands, and what is not committed
$node->safe_psql('postgres', 'INSERT INTO idem_state VALUES (4711)');
my $open = $node->background_psql('postgres');
$open->query_safe("BEGIN; SELECT outcome FROM idem_reserve('c', 'open', $fp)");

my %all_rows = map {
	$_ =>
	  qq{SET TimeZone = 'UTC'; SELECT count(*), encode(sha256(string_agg(r::text, E'\\n' ORDER BY r::text COLLATE "C")::bytea), 'hex') FROM $_ r}
} qw(idem_key idem_reminder_1 idem_reminder_2);
my $answers =
  q{SET TimeZone = 'UTC'; SELECT (r).outcome, key, (r).status_code, (r).headers, encode(sha256((r).body), 'hex')
  FROM (SELECT key, idem_reserve(client, key, fingerprint) r FROM idem_key WHERE completed_at IS NOT NULL) x ORDER BY 2};

my %rows     = map { $_ => $node->safe_psql('postgres', $all_rows{$_}) } keys %all_rows;
my $answered = $node->safe_psql('postgres', $answers);
is(() = $answered =~ /^replay/mg, 5, 'answers to compare with');

# Is everything there, and does it go on from there? Changes the copy. Rows
# differ as text in another encoding.
my $asks = qq{
SELECT (idem_lookup('c', 'open')).state;
SELECT outcome, attempt, retry_after > interval '1 min' FROM idem_reserve('c', 'live', $fp);
SELECT state, attempt FROM idem_lookup('c', 'again');
SELECT outcome FROM idem_reserve('c', 'done', '\\x02');
SELECT expired, stale FROM idem_sweep();
SELECT outcome, attempt FROM idem_reserve('c', 'stale', $fp);
SELECT 'answered' FROM idem_complete('c', 'live', '$live', 200) a, idem_complete('c', 'again', '$again', 200) b;
SELECT outcome FROM idem_reserve('c', 'again', $fp);
SELECT has_function_privilege('app', 'idem_lookup(text, text)', 'EXECUTE'),
       has_function_privilege('monitor', 'idem_lookup(text, text)', 'EXECUTE'),
       has_table_privilege('monitor', 'idem_keys', 'SELECT'),
       has_table_privilege('app', 'idem_key', 'SELECT')};
my $tells = join "\n",
  'absent',              # nothing uncommitted
  'in_flight||t',        # a lease is held
  'in_progress|4',       # under the attempt that it was
  'mismatch',            # the fingerprint is there
  '1|1',                 # the sweep finds the expired key and the stale lease
  'new|2',               # a takeover is the next attempt
  'answered',            # the owners answer there
  'replay',
  't|f|t|f';             # privileges are there, and no others

sub check_copy
{
	my ($server, $db, $what, $utf8) = @_;

	my $copied = $server->safe_psql($db,
		join(';', map { $all_rows{$_} } sort keys %all_rows) . ';' . $answers);
	my ($same_rows, $same_answers) = $copied =~ /\A((?:[^\n]*\n){3})(.*)\z/s;
	is($same_rows, join('', map { "$rows{$_}\n" } sort keys %all_rows), "$what: rows")
	  if $utf8 // 1;
	is($same_answers, $answered, "$what: the same answers, byte for byte");
	is($server->safe_psql($db, $asks), $tells, "$what: it goes on from there");
	return;
}

# The three formats

my $dir = PostgreSQL::Test::Utils::tempdir;
my @from = ('-d', $node->connstr('postgres'));
$node->command_ok([ 'pg_dump', @from, '-Fp', '-f', "$dir/plain" ], 'pg_dump, plain');
$node->command_ok([ 'pg_dump', @from, '-Fc', '-f', "$dir/custom" ], 'pg_dump, custom');
$node->command_ok([ 'pg_dump', @from, '-Fd', '-j2', '-f', "$dir/directory" ],
	'pg_dump, directory');

$open->quit;

my $plain = slurp_file("$dir/plain");
unlike($plain, qr/idem_state|4711/, 'where the sweep stands is not dumped');
is(() = $plain =~ /CREATE EXTENSION/g, 1, 'the extension is');
unlike($plain, qr/CREATE (?:UNLOGGED )?(?:TABLE|TYPE|DOMAIN|FUNCTION|VIEW) public\.idem/,
	'and nothing that belongs to it');

for my $server ($node, $other)
{
	my $name = $server->name;
	my %restore = (
		plain  => sub { [ 'psql', '-X', '-v', 'ON_ERROR_STOP=1', '-1', '-f', "$dir/plain", '-d', $_[0] ] },
		custom => sub { [ 'pg_restore', '-e', '-1', '-d', $_[0], "$dir/custom" ] },
		directory => sub { [ 'pg_restore', '-e', '-j2', '-d', $_[0], "$dir/directory" ] });
	for my $format ($server == $other ? sort keys %restore : 'plain')
	{
		$server->safe_psql('postgres', "CREATE DATABASE $format");
		$server->command_ok($restore{$format}->($server->connstr($format)),
			"$format into $name");
		check_copy($server, $format, "$format into $name");
	}
}

# Another encoding; bytes are bytes

$other->safe_psql('postgres',
	q{CREATE DATABASE latin1 TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C' }
	  . ($icu ? q{LOCALE_PROVIDER 'libc'} : ''));
$other->command_ok(
	[ 'pg_restore', '-e', '-d', $other->connstr('latin1'), "$dir/custom" ],
	'into LATIN1');
check_copy($other, 'latin1', 'into LATIN1', 0);

# Data and schema apart

$node->command_ok([ 'pg_dump', @from, '--schema-only', '-f', "$dir/schema" ],
	'pg_dump --schema-only');
unlike(slurp_file("$dir/schema"), qr/^COPY|^INSERT/m, 'has no rows');
$node->safe_psql('postgres', 'CREATE DATABASE apart');
$node->command_ok(
	[ 'psql', '-X', '-v', 'ON_ERROR_STOP=1', '-f', "$dir/schema", '-d', $node->connstr('apart') ],
	'schema first');
is($node->safe_psql('apart', 'SELECT count(*) FROM idem_key'), 0, 'no keys yet');
$node->command_ok(
	[ 'pg_restore', '-e', '--data-only', '-d', $node->connstr('apart'), "$dir/custom" ],
	'then the rows');
check_copy($node, 'apart', 'in two parts');

# The worker of the other server finds the stale lease by itself

$other->safe_psql('postgres', 'CREATE DATABASE swept');
$other->command_ok(
	[ 'pg_restore', '-e', '-d', $other->connstr('swept'), "$dir/custom" ],
	'for the worker');
$other->safe_psql('postgres', 'ALTER SYSTEM SET idem.sweeper = on; SELECT pg_reload_conf()');
ok( $other->poll_query_until(
		'swept',
		q{SELECT string_agg(key, ' ') = 'stale' FROM (TABLE idem_reminder_1 UNION ALL TABLE idem_reminder_2) r WHERE announced}
	),
	'the worker finds the stale lease');
ok( $other->poll_query_until(
		'swept', q{SELECT count(*) = 0 FROM idem_key WHERE key = 'expired'}),
	'and the expired key');
is(outcome($other, "'c', 'live', $fp", 'swept'), 'in_flight|', 'but no other');

# Another schema, with a name that has to be quoted

$node->safe_psql(
	'postgres', q{CREATE DATABASE elsewhere});
$node->safe_psql(
	'elsewhere', qq{
CREATE SCHEMA "Idem ""X";
CREATE EXTENSION idem SCHEMA "Idem ""X";
SET search_path = "Idem ""X";
SELECT idem_complete('c', 'k', token, 200, 'x') FROM idem_reserve('c', 'k', $fp);});
$node->safe_psql('postgres', 'CREATE DATABASE elsewhere_copy');
$node->command_ok(
	[ 'pg_dump', '-d', $node->connstr('elsewhere'), '-Fc', '-f', "$dir/elsewhere" ],
	'pg_dump, another schema');
$node->command_ok(
	[ 'pg_restore', '-e', '-d', $node->connstr('elsewhere_copy'), "$dir/elsewhere" ],
	'and back');
is( $node->safe_psql(
		'elsewhere_copy', qq{SELECT outcome FROM "Idem ""X".idem_reserve('c', 'k', $fp)}),
	'replay',
	'another schema comes along');

# A copied database. Nobody may be connected to the one that is copied.

ok( $node->poll_query_until(
		'template1', "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = 'postgres'"),
	'nobody is connected');
$node->safe_psql('template1', 'CREATE DATABASE copied TEMPLATE postgres');
check_copy($node, 'copied', 'TEMPLATE');
is($node->safe_psql('postgres', $all_rows{idem_key}),
	$rows{idem_key}, 'the original is as it was');

$node->stop;
$other->stop;
done_testing();
