# Every function is called with values that nobody should pass: NULL, empty, huge,
# in no encoding, not finite, overflowing; in every kind of transaction; by a role
# without privileges but these. Each call succeeds or fails with an SQLSTATE that is
# documented for it; the server logs no internal error and loses no process; and what
# is left in the tables can be dumped, restored and read.
#
# BAD_INPUT_CALLS: how many calls (2,000). BAD_INPUT_SEED: which; it is printed.
# BAD_INPUT_HUGE=1: with bodies of up to 1 GB as well; takes some 5 GB of memory.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemCluster;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $calls = $ENV{BAD_INPUT_CALLS} || 2000;
my $seed  = $ENV{BAD_INPUT_SEED} || int(rand(2**31));
my $huge  = $ENV{BAD_INPUT_HUGE};
srand($seed);
note "BAD_INPUT_SEED=$seed BAD_INPUT_CALLS=$calls";

# What each function may fail with (README.md, Reference), besides what the server
# says of a value that is none of the argument's type.

my @write = qw(25006 40001);
my @owner = (qw(22004 22023 ID001 ID002 ID003), @write);
my @kept  = qw(54000 54001);
my %documented = (
	idem_reserve               => [ qw(22004 22023 57014), @kept, @write ],
	idem_complete              => [ @owner, @kept ],
	idem_complete_bytes        => [ @owner, @kept ],
	idem_complete_json         => [ @owner, @kept ],
	idem_release               => \@owner,
	idem_renew                 => \@owner,
	idem_checkpoint            => [ @owner, @kept ],
	idem_claim_stale           => [ qw(22004 22023), @write ],
	idem_call                  => [ qw(42883 42501 57014 P0042), @owner, @kept ],
	idem_once                  => [ qw(22004 22023 55000), @write ],
	idem_once_batch            => [ qw(22004 22023 55000), @write ],
	idem_lookup                => [qw(22004 22023)],
	idem_explain               => [qw(22004 22023 40001 54001)],
	idem_pinned_client         => [],
	idem_canonical_fingerprint => [qw(0A000 22004 22023 54001)],
	idem_canonical_json        => [qw(0A000 22004 22023 54001)],
	idem_provider_key          => [qw(22004 22023)],
	idem_parse_key             => [qw(ID400)],
	idem_sweep                 => [qw(22023 25006)],
	idem_forget                => [qw(22004 22023 25006)],
	idem_grant                 => [qw(22004 42501 42704 25006)],
	idem_revoke                => [qw(22004 42501 42704 25006)],
	idem_health                => [],
	idem_stat_reset            => [qw(55000)],
	idem_stat_rows             => [qw(55000)]);

# What the server says before the function is called
my %not_of_type = (
	'text'         => [qw(22021)],
	'uuid'         => [qw(22P02 22021)],
	'bytea'        => [qw(22P02 22023 22021)],
	'jsonb'        => [qw(22P02 22P05 22003 22021 54001)],
	'interval'     => [qw(22007 22008 22015 22021)],
	'integer'      => [qw(22P02 22003 22021)],
	'boolean'      => [qw(22P02 22021)],
	'regprocedure' => [qw(22P02 42704 42883 42601 22021 42602)],
	'regrole'      => [qw(22P02 42704 42602 22021)],
	'jsonpath[]'   => [qw(42601 22P02 22021 22003)],
	'text[]'       => [qw(22P02 22021)]);

# What is passed, as SQL. Bytes are written as they are, so that the encoding is
# the server's to check.

sub pick { return $_[ int(rand(@_)) ] }
sub quote { return "'" . ($_[0] =~ s/'/''/gr) . "'" }

my @broken_text = map { quote($_) } (
	"\xff", "a\xc0\x80", "\xe2\x82", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80",
	"ok\x80");
my @names = (
	'NULL', "''", "' '", "'k'", "'held'", "'done'", "'stale'", "'mark'", "'K'", "'k '",
	"repeat('k', 1000)", "repeat('k', 1001)", "repeat('k', 255)", "repeat('k', 256)",
	"repeat(U&'\\00e9', 128)", "repeat('k', 1000000)", "U&'\\+01F600'", "U&'\\FFFF'",
	"E'\\x01\\t\\n\\r\\x7f'", "'%s%n%1\$n'", q{'"quoted"; a="b"'}, q{'\\'}, q{'\\N'}, q{''''},
	q{'\.'}, "chr(1114111)", "'0'", "'null'", "md5(random()::text)", "repeat(md5(random()::text), 31)");

sub random_text
{
	my $n = int(rand(2) < 1 ? rand(12) : rand(300));
	return 'E' . quote(join '', map {
		my $c = int(rand(3)) ? 32 + int(rand(95)) : 1 + int(rand(127));
		sprintf('\\x%02x', $c)
	} 1 .. $n);
}

my @documents = (
	'NULL', "'null'", "'{}'", "'[]'", "'1'", "'true'", q{'"x"'}, q{'{"a": 1}'}, q{'{"a": 1.0}'},
	q{'{"content-type": "x"}'}, q{'[["a", "b"], ["a", "c"]]'}, q{'[["a"], 1, null, [[]], {}]'},
	q{'{"a": {"b": [1, {"c": null}]}}'}, q{'{"a": 1, "a": 2, "": 3}'}, q{'{"fail": true}'},
	q{'{"\u0000": 1}'}, q{'{"a": "\ud800"}'}, q~'{"a":'~, q{''}, q{'nan'}, q{'[1e999999999]'},
	"to_jsonb(repeat('x', 1048570))", "to_jsonb(repeat('x', 2000000))", "to_jsonb(repeat(chr(1), 200000))",
	'(SELECT jsonb_agg(1e131071) FROM generate_series(1, 20))', "'1e131071'", "'-1e-16383'",
	'nested(100)', 'nested(1000)', 'nested(1001)', 'nested(5000)', 'nested(100000)',
	'(SELECT jsonb_object_agg(i, i) FROM generate_series(1, 5000) i)', '(SELECT jsonb_agg(i) FROM generate_series(1, 20000) i)',
	"jsonb_build_object('k', random())");

my @spans = (
	'NULL', "'0'", "'1 us'", "'1 ms'", "'10 ms'", "'1 s'", "'1 h'", "'1 h 1 us'", "'24 h'", "'1 day'", "'24 h 1 us'",
	"'-1 us'", "'-1 s'", "'1 day -24:00:00'", "'1 mon -30 days'", "'-1 mon 31 days'", "'infinity'", "'-infinity'",
	"'178000000 years'", "'-178000000 years'", "'2147483647 mons'", "'2147483647 days 9223372036854.775807 s'",
	"'-2147483648 mons -2147483648 days'", "'99999999999 years'", "'P1Y2M3DT4H5M6S'", "'soon'", "''",
	"interval '9223372036854.775807 s'", "interval '-9223372036854.775807 s'", 'justify_interval(interval \'1e6 days\')');

my @numbers = (
	'NULL', '0', '1', '-1', '99', '100', '200', '418', '599', '600', '1000', '2147483647', '-2147483648',
	"'2147483648'", "''", "'1.5'", "'x'");

my @tokens = (
	'NULL', 'gen_random_uuid()', "'00000000-0000-0000-0000-000000000000'",
	"'ffffffff-ffff-ffff-ffff-ffffffffffff'", "'11111111-1111-4111-8111-111111111111'", "'not one'", "''");
my @bytes = (
	'NULL', "''", q{'\\x00'}, q{'\\x01'}, q{'\\x01'}, "decode(repeat('00', 64), 'hex')", "decode(repeat('00', 65), 'hex')",
	"decode(repeat('ff', 1048576), 'hex')", "decode(repeat('ff', 1048577), 'hex')", q{'\\x0'}, q{'\\xzz'}, q{'\\400'},
	'sha256(random()::text::bytea)');
if ($huge)
{
	push @names, "repeat(repeat('k', 1000000), 1000)";
	push @bytes, "convert_to(repeat(repeat('b', 1000000), 500), 'UTF8')";
}

my %values = (
	'text' => sub { rand() < 0.1 ? pick(@broken_text) : rand() < 0.2 ? random_text() : pick(@names) },
	'uuid'    => sub { pick(@tokens) },
	'bytea'   => sub { pick(@bytes) },
	'jsonb'   => sub { pick(@documents) },
	'interval' => sub { pick(@spans) },
	'integer'  => sub { rand() < 0.3 ? int(rand(700)) : pick(@numbers) },
	'boolean'  => sub { pick('NULL', 'true', 'false', "'maybe'") },
	'regprocedure' => sub {
		pick('NULL', ("'works(jsonb)'") x 3, "'fails(jsonb)'", "'answers_itself(jsonb)'", "'releases_itself(jsonb)'",
			"'calls_itself(jsonb)'", "'catches(jsonb)'", "'forbidden(jsonb)'", "'two(jsonb,jsonb)'", "'huge(jsonb)'",
			"'0'", "'4294967295'", "'1'", "'pg_sleep(double precision)'", "'jsonb_agg(anyelement)'", "'nothing(jsonb)'",
			"'works'", "''", "')('");
	},
	'regrole' => sub { pick('NULL', "'app'", "'pg_monitor'", "'nobody_knows'", "'0'", "'4294967295'", "'\"'", "''") },
	'jsonpath[]' => sub {
		pick('NULL', "'{}'", q{'{$}'}, q{'{$.a}'}, q{'{NULL}'}, q{'{$.a,NULL}'}, q{'{"$.a ? (@ > 1)"}'}, q{'{strict $.a}'},
			q{'{$.**}'}, q{'{$.**{2}}'}, q{'{$[*]}'}, q{'{$[0],$[last]}'}, q{'{$[99999999999]}'}, q{'{$.a.b[*].c}'},
			q{'{"$.\\"\\""}'}, q{'{{$.a},{$.b}}'}, q{'{"$."}'}, q{'{$.a.size()}'}, q{'{$x}'});
	},
	'text[]' => sub {
		pick('NULL', "'{}'", "'{a,b,a}'", "'{NULL}'", "'{a,NULL}'", q{'{""}'}, "ARRAY[repeat('k', 1001)]",
			"'{{a,b},{b,c}}'", "'[5:6]={p,q}'", "'{a'", 'array(SELECT i::text FROM generate_series(1, 500) i)',
			"ARRAY['held']", "ARRAY['mark', 'done']", 'array_fill(\'x\'::text, \'{0}\')');
	});

# Those that matter most come more often: keys that are there, owned by that token.
my %by_name = (
	client => sub { rand() < 0.6 ? "'c'" : $values{text}->() },
	key    => sub { rand() < 0.5 ? pick("'held'", "'done'", "'stale'", "'mark'", "'k'", "'new' || random()") : $values{text}->() },
	token  => sub { rand() < 0.5 ? "'11111111-1111-4111-8111-111111111111'" : $values{uuid}->() },
	wait   => sub { rand() < 0.9 ? pick("'0'", "'1 ms'", "'5 ms'", 'NULL', "'-1 s'", "'infinity'", "'-infinity'") : $values{interval}->() });

# What is good, for the calls that are to get on.
my %good = (
	client => ["'c'"], key => [ map { "'$_'" } qw(held done stale mark k) ], token => ["'11111111-1111-4111-8111-111111111111'"],
	fp => [q{'\\x01'}], lease => [ "'1 us'", "'10 min'", 'NULL' ], retention => [ "'1 us'", "'1 h'" ], wait => [ "'0'", "'1 ms'" ],
	status_code => [ 200, 402, 599 ], request => [q{'{"a": 1}'}], headers => [ "'{}'", q{'[["a", "b"]]'} ], body => ["'1'"],
	fn => ["'works(jsonb)'"], max_keys => [10], recovery_point => ["'point'"]);

my $node = new_idem_server(
	'bad', q{
log_line_prefix = '%e %p '
log_min_messages = error
log_min_error_statement = panic
max_prepared_transactions = 5
idem.sweeper = on
},
	extra => [qw(--no-locale --encoding=UTF8)]);
$node->safe_psql(
	'postgres', q{
CREATE ROLE app LOGIN;
GRANT ALL ON SCHEMA public TO app;
CREATE FUNCTION nested(levels int) RETURNS jsonb LANGUAGE sql AS $$
	SELECT (repeat('{"a":', levels) || '1' || repeat('}', levels))::jsonb
$$;
CREATE FUNCTION works(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION two(jsonb, jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION forbidden(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
REVOKE ALL ON FUNCTION forbidden(jsonb) FROM PUBLIC;
CREATE FUNCTION huge(jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT jsonb_agg(1e131071) FROM generate_series(1, 10000) $$;
CREATE FUNCTION fails(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = 'P0042'; END $$;
-- at the key of the call that runs it: whatever is in progress
CREATE FUNCTION answers_itself(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_complete('c', 'k', '11111111-1111-4111-8111-111111111111', 200);
	RETURN $1;
END $$;
CREATE FUNCTION releases_itself(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_release('c', 'k', '11111111-1111-4111-8111-111111111111');
	RETURN $1;
END $$;
CREATE FUNCTION calls_itself(jsonb) RETURNS jsonb LANGUAGE sql AS $$
	SELECT to_jsonb(outcome) FROM idem_call('c', 'k', 'works(jsonb)', $1, '\x01');
$$;
CREATE FUNCTION catches(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_reserve('c', 'k', '\x01');
	PERFORM 1 / 0;
	RETURN '1';
EXCEPTION WHEN division_by_zero THEN
	RETURN '2';
END $$;
});

# The functions as the catalog has them, so that none is left out.

my %signature;
foreach (
	split /\n/,
	$node->safe_psql(
		'postgres', q{
SELECT p.oid::regproc, pronargdefaults,
       (SELECT string_agg(proargnames[n] || '=' || format_type(t, NULL), ',' ORDER BY n) FROM unnest(proargtypes::oid[]) WITH ORDINALITY a(t, n))
  FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
  JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
 WHERE e.extname = 'idem'}))
{
	my ($name, $defaults, $arguments) = split /\|/;
	$signature{$name} = { defaults => $defaults, arguments => [ map { [ split /=/ ] } split /,/, $arguments // '' ] };
}
cmp_ok(scalar keys %signature, '>', 20, 'there are functions to call');
is(join(' ', grep { !$documented{$_} } sort keys %signature), '', 'the errors of each are documented');
$node->safe_psql('postgres', join ';', map { "GRANT EXECUTE ON FUNCTION $_ TO app" } keys %signature);
$node->safe_psql('postgres', 'GRANT SELECT ON idem_keys TO app');

# A call by name, with a random part of what is optional.
sub call
{
	my ($name) = @_;
	my @arguments = @{ $signature{$name}{arguments} };
	my $required  = @arguments - $signature{$name}{defaults};
	my $bad       = pick(0, 0.15, 0.7);
	my @passed;

	for my $i (0 .. $#arguments)
	{
		my ($argument, $type) = @{ $arguments[$i] };
		next if $i >= $required && rand() < 0.5 && $argument ne 'fp';
		my $value =
		    $good{$argument} && rand() >= $bad ? pick(@{ $good{$argument} })
		  : $by_name{$argument} ? $by_name{$argument}->()
		  :                       $values{$type}->();
		push @passed, "$argument => $value";
	}
	return "$name(" . join(', ', @passed) . ')';
}

my @around = (
	([ '', '' ]) x 8,
	[ 'BEGIN;',                               'COMMIT;' ],
	[ 'BEGIN; SAVEPOINT s;',                  'ROLLBACK TO s; COMMIT;' ],
	[ 'BEGIN READ ONLY;',                     'COMMIT;' ],
	[ 'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1;', 'COMMIT;' ],
	[ 'BEGIN ISOLATION LEVEL SERIALIZABLE;',  'COMMIT;' ],
	[ 'BEGIN;',                               "PREPARE TRANSACTION 'p'; COMMIT PREPARED 'p';" ],
	[ 'BEGIN;',                               "PREPARE TRANSACTION 'p'; ROLLBACK PREPARED 'p';" ],
	[ "SET statement_timeout = '20 ms';",     "SET statement_timeout = '500 ms';" ]);

# Keys of every state, owned by the token that is mostly passed; over and over,
# since the calls use them up.
my $prepare = q{
SELECT idem_forget('c');
SELECT outcome FROM idem_reserve('c', 'held', '\x01', '1 h', token => '11111111-1111-4111-8111-111111111111', request => '{"a": 1}');
SELECT outcome FROM idem_reserve('c', 'stale', '\x01', '1 us', token => '11111111-1111-4111-8111-111111111111');
SELECT idem_complete('c', 'done', '11111111-1111-4111-8111-111111111111', 200, 'x') FROM idem_reserve('c', 'done', '\x01', token => '11111111-1111-4111-8111-111111111111') WHERE outcome = 'new';
SELECT idem_once('c', 'mark');
};

my (@called, $script);
my @functions = sort keys %signature;
$script = "SET statement_timeout = '500 ms';\n\\o /dev/null\n";
for my $n (0 .. $calls - 1)
{
	my $name = $functions[ $n % @functions ];
	my $call = call($name);
	my ($before, $after) = @{ pick(@around) };

	$script .= $prepare if $n % 60 == 0;
	$script .= "ROLLBACK;\n$before\nSELECT * FROM $call;\n\\echo $n :SQLSTATE\n$after\n";
	$called[$n] = [ $name, "$before $call" ];
}

my $log_start = -s $node->logfile;
my ($out, $err) = ('', '');
$node->psql(
	'postgres', $script,
	stdout        => \$out,
	stderr        => \$err,
	on_error_stop => 0,
	extra_params  => [ '-U', 'app', '-v', 'VERBOSITY=sqlstate' ]);

my (%wrong, %count, $answered);
while ($out =~ /^(\d+) (\w{5})$/mg)
{
	my ($name, $what) = @{ $called[$1] };
	my $state = $2;
	my %allowed = map { $_ => 1 } '00000', '57014', @{ $documented{$name} },
	  map { @{ $not_of_type{ $_->[1] } } } @{ $signature{$name}{arguments} };

	$answered++;
	$count{$name}{$state}++;
	# on a busy machine the time-out may end what came before
	$allowed{'25P02'} = 1 if $what =~ /^(?:BEGIN|SET)/;
	push @{ $wrong{$name} }, "$state: " . substr($what, 0, 300) unless $allowed{$state};
}
is($answered, $calls, 'every call has an answer');
foreach my $name (@functions)
{
	is(join("\n", @{ $wrong{$name} // [] }), '', "$name fails with documented SQLSTATEs only");
	note "$name: ", join ' ', map { "$_=$count{$name}{$_}" } sort keys %{ $count{$name} };
}
my %seen = map { $_ => 1 } map { keys %$_ } values %count;
ok(!(grep { !$seen{$_} } qw(00000 22004 22023 ID002 ID400 54000 25006 0A000 22021)), 'all kinds were met')
  if $calls >= 2000;

sub logged { return join '', grep { /$_[0]/ } split /^/m, substr(slurp_file($node->logfile), $log_start) }
is(logged(qr/^XX\w{3} |PANIC|TRAP:|terminated by signal|terminated abnormally/), '', 'the server logs no internal error and no crash');

# Very large bodies, on their way in

my $owned = q{'c', 'large', '22222222-2222-4222-8222-222222222222', 200};
reserve($node, q{'c', 'large', '\x01', '1 h', token => '22222222-2222-4222-8222-222222222222'});
my $mb    = $huge ? 1000 : 100;
my %large = map { $_ => "repeat(repeat('x', 1000000), " . $mb / $_ . ')' } 1, 2, 4;
foreach my $body (
	"idem_complete($owned, $large{1})",
	"idem_complete_bytes($owned, convert_to($large{2}, 'UTF8'))",
	"idem_complete_json($owned, to_jsonb($large{4}))",
	"idem_complete($owned, 'x', jsonb_build_object('h', $large{4}))",
	"idem_checkpoint('c', 'large', '22222222-2222-4222-8222-222222222222', $large{1})",
	"idem_reserve('c', 'other', '\\x01', request => to_jsonb($large{4}))",
	"idem_reserve('c', $large{1}, '\\x01')",
	"idem_parse_key($large{1})")
{
	my ($name) = $body =~ /^(\w+)/;
	like(sqlstate($node, "SELECT $body"), qr/^(?:54000|22023|ID400)$/, "$name of $mb MB");
}
is(state($node, q{'c', 'large'}), 'in_progress|1', 'the key is as it was');

# What is left can be read, dumped and restored.

my $content = q{SELECT count(*), md5(string_agg(k::text, '' ORDER BY client, key)) FROM idem_key k};
$node->safe_psql('postgres', 'ALTER SYSTEM SET idem.sweeper = off; SELECT pg_reload_conf(); SELECT pg_sleep(0); TABLE idem_keys');
ok( $node->poll_query_until('postgres', q{SELECT query = 'idem.sweeper is off' FROM pg_stat_activity WHERE backend_type = 'idem launcher'}),
	'nothing changes any more');
$node->safe_psql('postgres', 'CREATE DATABASE copy');
my $dump = $node->basedir . '/dump';
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, '-d', $node->connstr('postgres') ], 'it is dumped');
$node->command_ok([ 'pg_restore', '-e', '-d', $node->connstr('copy'), $dump ], 'and restored');
is($node->safe_psql('copy', $content), $node->safe_psql('postgres', $content), 'the same');
cmp_ok($node->safe_psql('copy', 'SELECT count(*) FROM idem_key'), '>', 0, 'there was something');
is( $node->safe_psql('postgres', 'CREATE EXTENSION amcheck; SELECT bt_index_check(c.oid, true) FROM pg_class c WHERE relname ~ \'^idem_key.*pkey$\''),
	'', 'the index has every row');
$node->stop;
is(logged(qr/^XX\w{3} |PANIC|TRAP:|terminated by signal|terminated abnormally/), '', 'nor in the end');

done_testing();
