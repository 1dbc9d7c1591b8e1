# A user who may call the functions, and wants more than that: other clients' answers
# and keys, keys for longer, the server's memory, a stopped sweeper, a backup that
# cannot be restored.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemCluster;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $fp   = q{'\x01'};
my $held = '11111111-1111-4111-8111-111111111111';
my $node = new_idem_server(
	'attack', q{
max_prepared_transactions = 5
idem.retention = '1 h'
idem.max_lease = '10 min'
idem.max_response_size = '100 kB'
log_line_prefix = '%e %p '
},
	extra => [qw(--no-locale --encoding=UTF8)]);

# mallory speaks for one client, eve for any; both have what an application has, and
# what monitoring has, and what is never granted by idem_grant besides.
$node->safe_psql(
	'postgres', qq{
CREATE ROLE mallory LOGIN;
CREATE ROLE eve LOGIN;
ALTER ROLE mallory SET idem.client = 'mallory';
SELECT idem_grant(r), idem_grant(r, true) FROM unnest('{mallory,eve}'::regrole[]) r;
GRANT EXECUTE ON FUNCTION idem_forget TO mallory;
GRANT CREATE ON SCHEMA public TO mallory, eve;
CREATE FUNCTION echo(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT \$1';
SELECT idem_complete('victim', 'answered', token, 200, 'their secret', '{"x": "their secret"}') FROM idem_reserve('victim', 'answered', $fp, request => '{"pin": "their secret"}');
SELECT outcome FROM idem_reserve('victim', 'held', $fp, '10 min', request => '{"pin": "their secret"}', token => '$held');
SELECT outcome FROM idem_reserve('victim', 'stale', $fp, '1 us', request => '{"pin": "their secret"}');
SELECT outcome FROM idem_reserve('mallory', 'stale', $fp, '1 us');
SELECT idem_once('victim', 'mark');
});
my $everything = q{SELECT md5(string_agg(concat_ws(' ', k.ctid, k.xmin, k.xmax, k), '' ORDER BY client, key)) FROM idem_key k WHERE client = 'victim'};
my $before = $node->safe_psql('postgres', $everything);

# Statements as a role; what comes back, and their SQLSTATEs
sub as
{
	my ($role, $sql, $db, %more) = @_;
	my ($out, $err) = ('', '');

	local $ENV{PGOPTIONS} = $more{options} // '';
	$node->psql(
		$db // 'postgres', $sql,
		stdout        => \$out,
		stderr        => \$err,
		on_error_stop => 0,
		extra_params  => [ '-U', $role, '-v', 'VERBOSITY=' . ($more{verbosity} // 'sqlstate') ]);
	return ($out, join(' ', $err =~ /(?:ERROR|FATAL|PANIC): +(\w{5})\b/g), $err);
}

# Each of these statements as a role, in one session, fails with this SQLSTATE.
sub refused
{
	my ($role, $state, @statements) = @_;
	my ($out) = as($role, "\\o /dev/null\n" . join '', map { "$_;\n\\echo :SQLSTATE\n" } @statements);
	my @got = split /\n/, $out;

	is($got[$_], $state, "$role: $statements[$_]") foreach 0 .. $#statements;
	return;
}

# Another client's keys

# Every function that takes a client, from the catalog, so that none is forgotten.
my %argument = (
	key => "'%s'", token => "'$held'", fp => $fp, request => "'{}'", status_code => '200', body => "'1'",
	fn => "'echo(jsonb)'", recovery_point => "'p'", keys => "ARRAY['%s', 'other']");
my @calls;
foreach (
	split /\n/,
	$node->safe_psql(
		'postgres', q{
SELECT p.proname, pronargs - pronargdefaults, array_to_string(proargnames[1:pronargs], ',')
  FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
  JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
 WHERE e.extname = 'idem' AND 'client' = ANY (proargnames[1:pronargs]) AND proname <> 'idem_provider_key'}))
{
	my ($name, $required, $arguments) = split /\|/;
	my @arguments = split /,/, $arguments;
	my @passed = grep { $_ ne 'client' } @arguments[ 0 .. $required - 1 ];
	push @passed, 'request' if $name eq 'idem_reserve' || $name eq 'idem_explain';

	push @calls, "$name(" . join(', ', "client => 'victim'", map { "$_ => $argument{$_}" } @passed) . ')';
}
cmp_ok(scalar @calls, '>=', 14, 'functions that take a client');

my @all = map { my $key = $_; map { 'SELECT ' . sprintf $_, $key } @calls } qw(answered held stale mark none);
refused('mallory', '42501', @all);
my (undef, undef, $said) = as('mallory', join(';', @all), undef, verbosity => 'default');
my %said = map { $_ => 1 } split /(?=^psql.*ERROR)/m, $said =~ s/^psql:\S+ //mgr;
is(scalar keys %said, 1, 'whatever there is of the key, the error is the same');

# It is refused before anything is looked at: behind an exclusive lock, too.
my $admin = $node->background_psql('postgres');
$admin->query_safe('BEGIN; LOCK TABLE idem_key, idem_reminder_1, idem_reminder_2');
my (undef, $states) = as('mallory', "SET lock_timeout = '1 ms';" . join(';', map { 'SELECT ' . sprintf $_, 'held' } @calls));
is($states, join(' ', ('42501') x @calls), 'nothing of another client is waited for');
$admin->query_safe('ROLLBACK');
$admin->quit;

is((as('mallory', 'SELECT client, key FROM idem_claim_stale()'))[0], 'mallory|stale', 'its own stale keys are all it can claim');
is((as('mallory', 'SELECT DISTINCT client FROM idem_keys'))[0], 'mallory', 'its own keys are all it can see');
refused(
	'mallory', '42501',
	'TABLE idem_key', 'TABLE idem_reminder_1', 'TABLE idem_reminder_2', 'TABLE idem_state', 'SELECT body FROM idem_key', 'DELETE FROM idem_key', 
	'DO $$ BEGIN LOCK TABLE idem_key; END $$', 'COPY idem_key TO STDOUT', "SET idem.client = 'victim'", "SET idem.client = ''",
	'RESET idem.client', 'ALTER ROLE mallory RESET idem.client',
	"ALTER ROLE mallory SET idem.client = 'victim'", "SELECT set_config('idem.client', 'victim', false)",
	"UPDATE pg_settings SET setting = 'victim' WHERE name = 'idem.client'",
	"CREATE FUNCTION f() RETURNS text LANGUAGE sql SET idem.client = 'victim' AS 'SELECT 1::text'",
	'SET SESSION AUTHORIZATION eve', 'SET ROLE eve');
is((as('mallory', "$_; SELECT idem_lookup('victim', 'held')"))[1], '42501', "mallory: after $_") foreach ('RESET ALL; DISCARD ALL; ALTER ROLE mallory RESET ALL');
like((as('mallory', 'SELECT 1', undef, options => '-c idem.client=victim'))[2], qr/permission denied to set parameter/, 'mallory: not in the connection string');

# What one's own keys are for, under another's name: nothing leaks by a collision.
is((as('mallory', "SELECT outcome FROM idem_reserve('mallory', 'answered', $fp)"))[0], 'new', 'the same key is new to another client');

# Keys without their token

my @tokens = ("'5eed5eed-0000-4000-8000-000000000000'", "'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'");
refused('eve', 'ID001', map { my $key = $_; map { my $token = $_;
	map { sprintf "SELECT $_", "'victim', '$key', $token" } ("idem_complete(%s, 200, 'mine')", 'idem_complete_bytes(%s, 200)',
		"idem_complete_json(%s, 200, '1')", 'idem_release(%s)', 'idem_renew(%s)', "idem_checkpoint(%s, 'mine')") } @tokens } qw(answered held stale));
refused('eve', 'ID003', map { sprintf $_, "'victim', 'mark', $tokens[1]" } 'SELECT idem_release(%s)', 'SELECT idem_complete(%s, 200)', 'SELECT idem_renew(%s)', "SELECT idem_checkpoint(%s, 'x')");
my ($out) = as('eve', q{SELECT outcome, token, headers, convert_from(body, 'UTF8'), recovery_data FROM idem_reserve('victim', 'answered', '\x02'), (SELECT) x});
like($out, qr/^mismatch\|/, 'another request is told so');
unlike($out, qr/secret|$held/, 'and nothing of the answer');
is((as('eve', "SELECT outcome, token FROM idem_reserve('victim', 'held', $fp)"))[0], 'in_flight|', 'a lease is held');
($out) = as('eve', q{SELECT * FROM idem_keys});
unlike($out, qr/secret|$held/, 'the view shows neither answers nor tokens');
refused('eve', '42501', "SELECT idem_forget('victim')", 'SELECT idem_sweep()', "SELECT idem_grant('eve')", "SELECT idem_revoke('mallory')");
is($node->safe_psql('postgres', $everything), $before, 'nothing of the victim was changed, or even locked');

# Longer, larger

refused('eve', '42501', map { ("SET $_", "ALTER ROLE eve SET $_", "ALTER DATABASE postgres SET $_") }
	("idem.retention = '1 year'", "idem.max_lease = '1 year'", "idem.max_response_size = '100 MB'"));
refused('eve', '55P02', 'SET idem.sweeper = off');
refused('eve', '22023', "SELECT idem_reserve('eve', 'k', $fp, retention => '1 h 1 us')", "SELECT idem_once('eve', 'k', '1 year')", "SELECT idem_reserve('eve', 'k', $fp, '11 min')");
is( (as('eve', "SET idem.lease = '1 year'; SELECT lease_until - created_at <= '10 min' FROM idem_reserve('eve', 'lease', $fp, token => '$held'), LATERAL idem_lookup('eve', 'lease')"))[0],
	't', 'a default lease is cut');
is( (as('eve', qq{
SELECT expires_at AS e FROM idem_reserve('eve', 'short', $fp, retention => '1 min', token => '$held'), LATERAL idem_lookup('eve', 'short') \\gset
SELECT idem_renew('eve', 'short', '$held', '10 min') = :'e';
SELECT outcome FROM idem_reserve('eve', 'short', $fp, '10 min', retention => '1 h', token => '$held');
SELECT expires_at = :'e', lease_until = :'e' FROM idem_lookup('eve', 'short');
}))[0], "t\nnew\nt|t", 'no renewal moves the end of a key');
refused('eve', '54000', "SELECT idem_complete('eve', 'short', '$held', 200, repeat('x', 102401))");

# Shared memory, and the stack

is( (as('eve', qq{
BEGIN;
SELECT count(*) FROM generate_series(1, 20000) i, idem_reserve('eve', 'many ' || i, $fp);
SELECT count(*) < 30 FROM pg_locks WHERE pid = pg_backend_pid();
ROLLBACK}))[0], "20000\nt", 'any number of keys takes no more locks than one');
is( (as('eve', qq{
BEGIN;
DO \$\$
BEGIN
	FOR i IN 1 .. 2000 LOOP
		BEGIN
			PERFORM idem_reserve('eve', 'sub ' || i, $fp);
		EXCEPTION WHEN division_by_zero THEN
			NULL;
		END;
	END LOOP;
END \$\$;
SELECT count(*) < 2100 FROM pg_locks WHERE pid = pg_backend_pid();
ROLLBACK}))[0], 't', 'nor do savepoints, but for the one of each transaction id');
as('eve', q{
CREATE FUNCTION deeper(jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(outcome) FROM public.idem_call('eve', gen_random_uuid()::text, 'public.deeper(jsonb)', $1) $$});
refused('eve', '54001', q{SELECT idem_call('eve', 'k', 'deeper(jsonb)', '{}')});
is(state($node, "'eve', 'k'"), 'absent|', 'has left nothing');

# The sweeper, with all that a user can hold

my @holds;
sub hold
{
	my ($role, $sql) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 0, extra_params => [ '-U', $role ]);

	$session->query_safe($sql);
	push @holds, $session;
	return;
}
$node->safe_psql('postgres', qq{SELECT count(*) FROM generate_series(1, 3000) i, idem_reserve('victim', 'due ' || i, $fp, retention => '2 s')});
hold('eve', "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM idem_keys");
hold('eve', "BEGIN; SELECT idem_complete(client, key, '$held', 200) FROM idem_reserve('eve', 'locked', $fp, token => '$held'), (VALUES ('eve', 'locked')) k (client, key); LOCK TABLE idem_keys IN ACCESS SHARE MODE");
hold('eve', "BEGIN; SELECT count(*) FROM generate_series(1, 1000) i, idem_reserve('eve', 'open ' || i, $fp, '1 ms')");
hold('eve', 'LISTEN idem_stale; BEGIN; SELECT count(pg_advisory_lock(i)) FROM generate_series(0, 2000) i');
as('eve', "BEGIN; SELECT count(*) FROM generate_series(1, 1000) i, idem_reserve('eve', 'prepared ' || i, $fp, '1 ms'); PREPARE TRANSACTION 'eve'");
# a row that is soon due itself, and held by its unfinished answer
hold('eve', "SELECT outcome FROM idem_reserve('eve', 'due', $fp, retention => '3 s', token => '$held'); BEGIN; SELECT idem_complete('eve', 'due', '$held', 200)");
$node->safe_psql('postgres', qq{SELECT outcome FROM idem_reserve('victim', 'late', $fp, '1 ms'); ALTER SYSTEM SET idem.sweeper = on; SELECT pg_reload_conf()});
ok($node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM idem_key WHERE key LIKE 'due %'}), 'expired keys are swept all the same');
ok($node->poll_query_until('postgres', q{SELECT count(*) > 0 FROM (TABLE idem_reminder_1 UNION ALL TABLE idem_reminder_2) r WHERE key = 'late' AND announced}),
	'and stale leases found');
is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ '^idem' AND cardinality(pg_blocking_pids(pid)) > 0}), 0, 'nobody is waited for');
$_->quit foreach @holds;
$node->safe_psql('postgres', "ROLLBACK PREPARED 'eve'");
ok($node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM idem_key WHERE expires_at <= now()}), 'what was held is swept afterwards');

# What is due is told without saying what: anybody may listen.
my $listener = $node->background_psql('postgres', extra_params => [ '-U', 'mallory' ]);
$listener->query_safe('LISTEN idem_stale');
$node->safe_psql('postgres', qq{SELECT outcome FROM idem_reserve('victim', 'their secret', $fp, '1 ms')});
my $told = '';
for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
{
	$told = $listener->query('SELECT pg_sleep(0.1)');
	last if $told =~ /idem_stale/;
}
like($told, qr/Asynchronous notification "idem_stale" received/, 'a stale lease is announced');
unlike($told, qr/payload|secret|victim/, 'without its name');
$listener->quit;

# A backup that cannot be restored

$node->safe_psql('postgres', 'ALTER SYSTEM SET idem.sweeper = off; SELECT pg_reload_conf()');
ok( $node->poll_query_until('postgres', q{SELECT query = 'idem.sweeper is off' FROM pg_stat_activity WHERE backend_type = 'idem launcher'}),
	'nothing is swept any more');
as('eve', q{
CREATE FUNCTION nested(levels int) RETURNS jsonb LANGUAGE sql AS $$
	SELECT (repeat('{"a":', levels) || '1' || repeat('}', levels))::jsonb
$$;
CREATE FUNCTION big(jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT jsonb_agg(1e131071) FROM generate_series(1, 10000) $$;
SELECT outcome FROM idem_reserve('eve', 'numbers', '\x01', request => big('1'));
SELECT outcome FROM idem_reserve('eve', 'deep', '\x01', request => nested(5000));
SELECT outcome FROM idem_reserve('eve', 'bytes', '\x01', request => to_jsonb(repeat(chr(92), 48000)), token => '11111111-1111-4111-8111-111111111111');
SELECT idem_checkpoint('eve', 'bytes', '11111111-1111-4111-8111-111111111111', chr(92) || E'.\n' || chr(92) || E'N\t' || repeat(chr(1), 50000), to_jsonb(repeat(chr(1), 8000)));
SELECT idem_complete_bytes('eve', 'bytes', '11111111-1111-4111-8111-111111111111', 200, decode(repeat('00', 100000), 'hex'), nested(100));
SELECT outcome FROM idem_reserve(E'eve\n' || chr(92) || '.', chr(92) || E'.\n' || chr(92) || 'N', '\x01', request => nested(1000));
SELECT idem_once(E'\n', chr(92) || 'N');
SELECT idem_once(chr(1114111), E'\r');
SELECT idem_call('eve', 'call', 'big(jsonb)', '1');
SELECT idem_complete('eve', 'lease', '11111111-1111-4111-8111-111111111111', 200, 'x', big('1'));
SELECT idem_complete('eve', 'lease', '11111111-1111-4111-8111-111111111111', 200, 'x', nested(5000));
SELECT idem_checkpoint('eve', 'lease', '11111111-1111-4111-8111-111111111111', 'p', big('1'));
SELECT idem_checkpoint('eve', 'lease', '11111111-1111-4111-8111-111111111111', 'p', nested(5000));
});
my $rows = q{SELECT count(*), md5(string_agg(k::text, '' ORDER BY client, key)) FROM idem_key k};
my $dump = $node->basedir . '/dump';
$node->safe_psql('postgres', 'CREATE DATABASE copy');
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, '-d', $node->connstr('postgres') ], 'everything can be dumped');
$node->command_ok([ 'pg_restore', '-e', '-d', $node->connstr('copy'), $dump ], 'and restored');
is($node->safe_psql('copy', $rows), $node->safe_psql('postgres', $rows), 'the same');
is($node->safe_psql('copy', q{SELECT count(*) FROM idem_keys WHERE client = chr(1114111) OR client ~ '\n' OR key = 'bytes'}), 4, 'with the odd ones');

$node->stop;
unlike(slurp_file($node->logfile), qr/^XX\w{3} |PANIC|TRAP:|terminated by signal/m, 'no internal error and no crash');
done_testing();
