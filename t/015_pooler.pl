# Behind PgBouncer in transaction mode a caller has another backend for every
# transaction, and that has been through DISCARD ALL: a token is all there is to
# hold on to. Reserved on one backend, completed on another.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemCluster;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($pgbouncer) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin';
if (!$pgbouncer)
{
	BAIL_OUT('pgbouncer is missing') if $ENV{CI};
	plan skip_all => 'pgbouncer is missing (Debian: pgbouncer)';
}

my $fp   = q{'\x01'};
my $node = new_idem_server('pooled');
$node->safe_psql(
	'postgres', qq{
CREATE TABLE payment (key text);
CREATE UNLOGGED TABLE told (key text, outcome text);
CREATE FUNCTION pay(key text) RETURNS void LANGUAGE plpgsql AS
\$\$
DECLARE
	r idem_reservation;
BEGIN
	r := idem_reserve('pay', key, $fp);
	INSERT INTO told VALUES (key, r.outcome);
	IF r.outcome = 'new' THEN
		INSERT INTO payment VALUES (key);
		PERFORM idem_complete('pay', key, r.token, 201, 'paid ' || key);
	END IF;
END
\$\$;
CREATE ROLE acme LOGIN;
ALTER ROLE acme SET idem.client = 'acme';
SELECT idem_grant('acme');});

# Two backends for each role, taken in turns, each reset before it is handed on.
# Its socket is in a directory with a short name, as the server's is.
my $dir  = PostgreSQL::Test::Utils::tempdir_short;
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $user = $node->safe_psql('postgres', 'SELECT current_user');
append_to_file("$dir/users", qq{"$user" ""\n"acme" ""\n});
append_to_file(
	"$dir/ini", qq{
[databases]
postgres = host=@{[ $node->host ]} port=@{[ $node->port ]}
[pgbouncer]
listen_port = $port
unix_socket_dir = $dir
auth_type = trust
auth_file = $dir/users
pool_mode = transaction
default_pool_size = 2
server_round_robin = 1
server_reset_query = DISCARD ALL
server_reset_query_always = 1
ignore_startup_parameters = extra_float_digits, options
});
my $said    = '';
my $bouncer = IPC::Run::start([ $pgbouncer, "$dir/ini" ], '<', \undef, '>&', \$said);
my $pooled  = "host=$dir port=$port dbname=postgres";

END
{
	# as the server, on every way out
	$bouncer->kill_kill if $bouncer;
}

# Runs this through the pooler; the rows of the last statement that returned any
sub pooled
{
	my ($sql, $role) = @_;
	my $rows = '';
	my $errors = '';
	my $ok = IPC::Run::run(
		[ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-v', 'VERBOSITY=sqlstate',
			'-d', $pooled . ($role ? " user=$role" : '') ],
		'<', \$sql, '>', \$rows, '2>', \$errors);
	chomp $rows;
	return $ok ? $rows : $errors =~ /ERROR:\s+(\w+)/ ? $1 : $errors;
}

my $up;
for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
{
	last if $up = pooled('SELECT 1') eq '1';
	select undef, undef, undef, 0.1;
}
ok($up, 'a pooler') or BAIL_OUT($said);

# It opens a second backend while the first one is taken
my $gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(1)');
my $holder = IPC::Run::start(
	[ 'psql', '-XAtq', '-d', $pooled, '-c', 'SELECT pg_advisory_xact_lock(1)' ],
	'<', \undef, '>&', \my $holding);
$node->poll_query_until('postgres',
	q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted});
my $held = $node->safe_psql('postgres', q{SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted});
isnt(pooled('SELECT pg_backend_pid()'), $held, 'a second backend');
$gate->quit;
$holder->finish;
is(join('', sort map { pooled('SELECT pg_backend_pid()') == $held ? 1 : 0 } 1, 2),
	'01', 'and they take turns');

# Reserve on one, and go on on the other: every call of an owner

sub crosses
{
	my ($what, $reserve, $call) = @_;
	my ($pid, $token) = split /\|/, pooled("SELECT pg_backend_pid(), token FROM $reserve");
	my $other = pooled("SELECT pg_backend_pid() FROM " . $call =~ s/TOKEN/'$token'/r);
	ok($other =~ /^\d+$/ && $other != $pid, "$what on another backend") or diag("$pid, $other");
	return $token;
}

my $done = crosses('complete', "idem_reserve('c', 'done', $fp)",
	"idem_complete('c', 'done', TOKEN, 201, 'the answer')");
crosses('renew', "idem_reserve('c', 'renewed', $fp)", "idem_renew('c', 'renewed', TOKEN, '1 h')");
crosses('checkpoint', "idem_reserve('c', 'noted', $fp)", "idem_checkpoint('c', 'noted', TOKEN, 'half')");
crosses('release', "idem_reserve('c', 'released', $fp)", "idem_release('c', 'released', TOKEN)");
is( pooled("SELECT outcome, convert_from(body, 'UTF8') FROM idem_reserve('c', 'done', $fp)"),
	'replay|the answer', 'replay');
is( pooled("SELECT outcome, convert_from(body, 'UTF8') FROM idem_reserve('c', 'done', $fp)"),
	'replay|the answer', 'replay on the other one');
is(pooled("SELECT idem_complete('c', 'done', '$done', 201, 'the answer')"),
	'', 'the same answer again is a success');
is(state($node, "'c', 'renewed'"),  'in_progress|1', 'renewed');
is(state($node, "'c', 'noted'"),    'in_progress|1', 'noted');
is(state($node, "'c', 'released'"), 'absent|',       'released');

# Everything in one transaction; DISCARD ALL before, between and after

is( pooled(
		qq{
DISCARD ALL;
BEGIN;
SAVEPOINT a;
SELECT FROM idem_reserve('c', 'undone', $fp);
ROLLBACK TO a;
SELECT FROM idem_reserve('c', 'one', $fp, token => '00000000-0000-4000-8000-000000000001');
SELECT FROM idem_complete('c', 'one', '00000000-0000-4000-8000-000000000001', 200, 'one');
COMMIT;
DISCARD ALL;
SELECT outcome, (idem_lookup('c', 'undone')).state FROM idem_reserve('c', 'one', $fp)}),
	'replay|absent',
	'one transaction, with a savepoint');

# A session of one's own that is reset between the calls

is( $node->safe_psql(
		'postgres', qq{
SELECT FROM idem_reserve('c', 'reset', $fp, token => '00000000-0000-4000-8000-000000000001');
DISCARD ALL;
SELECT FROM idem_complete('c', 'reset', '00000000-0000-4000-8000-000000000001', 200, 'x');
DISCARD ALL;
SELECT outcome FROM idem_reserve('c', 'reset', $fp)}),
	'replay',
	'DISCARD ALL between reserve and complete');

# A pinned role stays pinned, whoever had the backend before

is(pooled("SELECT outcome FROM idem_reserve('acme', 'k', $fp)", 'acme'), 'new', 'a pinned role');
for (1, 2)
{
	is(pooled("SELECT outcome FROM idem_reserve('other', 'k', $fp)", 'acme'),
		'42501', 'and not for another client');
	is(pooled("SET idem.client = 'other'", 'acme'), '42501', 'nor by choice');
}

# A caller goes away in the middle of its transaction, the pooler cuts the backend

my $gone = IPC::Run::start(
	[ 'psql', '-XAtq', '-d', $pooled, '-c', 'BEGIN', '-c', "SELECT FROM idem_reserve('c', 'gone', $fp)", '-c', 'SELECT pg_sleep(600)' ],
	'<', \undef, '>&', \my $going);
$node->poll_query_until('postgres',
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ 'pg_sleep' AND pid <> pg_backend_pid() AND wait_event = 'PgSleep'});
is(pooled("SELECT outcome FROM idem_reserve('c', 'gone', $fp)"), 'in_flight', 'held while it is there');
$gone->kill_kill;
$node->safe_psql('postgres',
	q{SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE wait_event = 'PgSleep'});
is(pooled("SELECT outcome, attempt FROM idem_reserve('c', 'gone', $fp)"), 'new|1', 'and free afterwards');

# Many callers, few backends, few keys

append_to_file("$dir/pay.sql", "\\set n :n + 1\nSELECT pay(:n::text);\n");
append_to_file("$dir/wait.sql",
	"\\set n :n + 1\nSELECT outcome FROM idem_reserve('wait', (:n / 4)::text, $fp, '1 ms', wait => '1 s');\n");
command_ok(
	[ 'pgbench', '-n', '-c', 12, '-j', 2, '-t', 150, '-D', 'n=0', '-f', "$dir/pay.sql",
		'-h', $dir, '-p', $port, 'postgres' ],
	'many callers');
is( $node->safe_psql(
		'postgres', q{
SELECT count(*), count(*) FILTER (WHERE tries = 12 AND new = 1) FROM (
	SELECT count(*) AS tries, count(*) FILTER (WHERE outcome = 'new') AS new FROM told GROUP BY key) k}),
	'150|150',
	'every key is new to one of them');
is( $node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT key) FROM payment'),
	'150|150', 'and paid once');
command_ok(
	[ 'pgbench', '-n', '-c', 2, '-t', 100, '-D', 'n=0', '-f', "$dir/wait.sql",
		'-h', $dir, '-p', $port, 'postgres' ],
	'waiting callers');

# The extension is dropped and created under the pooled backends

$node->safe_psql('postgres', 'DROP EXTENSION idem CASCADE; CREATE EXTENSION idem');
is(join(' ', map { pooled("SELECT outcome FROM idem_reserve('c', 'done', $fp)") } 1 .. 3),
	'new in_flight in_flight', 'both go on with a new extension');

# Nothing is left in a session

is( $node->safe_psql(
		'postgres', q{
SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
 WHERE a.application_name IN ('psql', 'pgbench') AND a.pid <> pg_backend_pid() AND a.state <> 'active'}),
	0, 'no lock outlives its transaction');

$bouncer->kill_kill;
undef $bouncer;
$node->stop;
done_testing();
