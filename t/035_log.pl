# What is kept with a key stays there: whatever a server is told to log, and whatever
# goes wrong, no answer, header, request, recovery data or token is in a log line, an
# error, or a view.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemCluster;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Which statements there were is for pg_stat_statements to say, where it is.
my ($pkglibdir) = `pg_config --pkglibdir` =~ /(.*)/;
my $statements = -e "$pkglibdir/pg_stat_statements.so";

# Parameters of statements are the server's to log, or not (SECURITY.md). From 16 on
# auto_explain does so, too.
my ($major) = `pg_config --version` =~ /(\d+)/;
my $parameters = $major >= 16 ? "auto_explain.log_parameter_max_length = 0\n" : '';
my $node = new_idem_server(
	'log', "shared_preload_libraries = '" . ($statements ? 'pg_stat_statements, ' : '') . "idem, auto_explain'\n$parameters" . q{
log_statement = all
log_duration = on
log_error_verbosity = verbose
log_min_messages = debug2
log_min_error_statement = debug5
log_lock_waits = on
deadlock_timeout = '10 ms'
log_autovacuum_min_duration = 0
log_parameter_max_length = 0
log_parameter_max_length_on_error = 0
auto_explain.log_min_duration = 0
auto_explain.log_nested_statements = on
auto_explain.log_analyze = on
auto_explain.log_verbose = on
idem.max_response_size = '10 kB'
idem.retention = '3 s'
});

# They come out of a table, so that no statement has them in its text.
my $token = '5ec4e75e-0000-4000-8000-00000000aaaa';
$node->safe_psql(
	'postgres', qq{
SET log_statement = none; SET log_min_messages = panic; SET auto_explain.log_min_duration = -1; SET log_duration = off; SET log_min_error_statement = panic; SET pg_stat_statements.track = none;
CREATE TABLE secret AS
SELECT 'sesame-body'::text AS body, '{"x": "sesame-header"}'::jsonb AS headers, '{"pin": "sesame-request"}'::jsonb AS request,
       '{"step": "sesame-data"}'::jsonb AS data, '$token'::uuid AS token, '"sesame-scalar"'::jsonb AS scalar, repeat('sesame-large', 2000) AS large,
       (repeat('[', 2000) || '"sesame-deep"' || repeat(']', 2000))::jsonb AS deep;
CREATE FUNCTION work(request jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT request FROM secret';
CREATE FUNCTION too_much(request jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT to_jsonb(large) FROM secret';
CREATE FUNCTION not_json(request jsonb) RETURNS text LANGUAGE sql AS 'SELECT body FROM secret'});

my $start = -s $node->logfile;
my ($out, $err) = ('', '');
$node->psql(
	'postgres', q{
SELECT count(*) FROM secret, idem_reserve('c', 'k', request => request, token => token);
SELECT idem_checkpoint('c', 'k', token, 'point', data) FROM secret;
SELECT idem_checkpoint('c', 'k', token, 'point', to_jsonb(large)) FROM secret;
SELECT idem_checkpoint('c', 'k', token, 'point', deep) FROM secret;
SELECT count(*) FROM secret, idem_reserve('c', 'k', request => scalar);
SELECT count(*) FROM secret, idem_reserve('c', 'k', request => to_jsonb(large));
SELECT count(*) FROM secret, idem_reserve('c', 'k2', request => deep, fp => '\x01');
SELECT count(*) FROM secret, idem_reserve('c', 'k2', fp => large::bytea);
SELECT idem_complete('c', 'k', gen_random_uuid(), 200, body, headers) FROM secret;
SELECT idem_complete('c', 'k', token, 999, body, headers) FROM secret;
SELECT idem_complete('c', 'k', token, 200, large, headers) FROM secret;
SELECT idem_complete('c', 'k', token, 200, body, scalar) FROM secret;
SELECT idem_complete('c', 'k', token, 200, body, deep) FROM secret;
SELECT idem_complete_json('c', 'k', token, 200, to_jsonb(large)) IS NULL FROM secret;
SELECT idem_complete('c', 'none', token, 200, body, headers) FROM secret;
BEGIN READ ONLY;
SELECT idem_complete('c', 'k', token, 200, body, headers) FROM secret;
ROLLBACK;
SELECT idem_complete('c', 'k', token, 200, body, headers) FROM secret;
SELECT idem_complete('c', 'k', token, 200, body || 'x', headers) FROM secret;
SELECT idem_complete_bytes('c', 'k', token, 200, body::bytea) FROM secret;
SELECT idem_complete_json('c', 'k', token, 200, request) FROM secret;
SELECT idem_release('c', 'k', token) FROM secret;
SELECT idem_renew('c', 'k', token) FROM secret;
SELECT idem_once('c', 'k');
SELECT count(idem_explain('c', 'k', request => request)) FROM secret;
SELECT count(idem_explain('c', 'k', request => scalar)) FROM secret;
SELECT outcome, length(body) FROM secret, idem_reserve('c', 'k', request => request) r (outcome, t, a, s, h, body);
SELECT count(*) FROM secret, idem_call('c', 'call', 'work(jsonb)', request);
SELECT count(*) FROM secret, idem_call('c', 'call2', 'too_much(jsonb)', request);
SELECT count(*) FROM secret, idem_call('c', 'call2', 'not_json(jsonb)', request);
SELECT count(idem_canonical_json(request, '{$.no}')) FROM secret;
SELECT count(idem_parse_key(repeat(' ', 5) || '"' || body || E'\x01"')) FROM secret WHERE false;
SELECT count(*) FROM secret, idem_reserve('c', 'stale', '\x01', '1 us', request => request, token => token);
SELECT count(*) FROM secret, idem_reserve('c', 'held', '\x01', request => request, token => token);
SET statement_timeout = '50 ms';
SELECT count(*) FROM secret, idem_reserve('c', 'held', '\x01', wait => '1 min', request => request);
RESET statement_timeout;
SELECT count(*) FROM idem_claim_stale();
TABLE idem_keys;
TABLE idem_stat;
SELECT query FROM pg_stat_activity;
},
	stdout        => \$out,
	stderr        => \$err,
	on_error_stop => 0,
	extra_params  => [ '-v', 'VERBOSITY=verbose' ]);
like($err, qr/$_/, "there was an error $_") foreach qw(ID001 ID002 ID003 54000 54001 22023 25006 55000 57014);
unlike($err, qr/sesame|$token/, 'no error shows what is kept');
like($out, qr/completed/, 'the views show keys');
unlike($out, qr/sesame|$token/, 'and nothing of what is kept');

if ($statements)
{
	$node->safe_psql('postgres', 'CREATE EXTENSION pg_stat_statements');
	$out = $node->safe_psql('postgres', 'SELECT query FROM pg_stat_statements');
	like($out, qr/idem_complete/, 'pg_stat_statements has the calls');
	unlike($out, qr/sesame|$token/, 'and nothing of what is kept');
}

# The worker removes it all, which is logged as well.
$node->safe_psql('postgres', 'ALTER SYSTEM SET idem.sweeper = on; SELECT pg_reload_conf()');
ok($node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM idem_key'), 'the worker sweeps');
$node->safe_psql('postgres', 'VACUUM idem_key');
$node->stop;
my $log = substr(slurp_file($node->logfile), $start);
cmp_ok(length $log, '>', 50_000, 'much was logged');
like($log, qr/idem_complete\('c', 'k', token, 200, body, headers\)/, 'every statement');
like($log, qr/Query Text/, 'and every plan');
is(join('', map { "$_\n" } grep { /sesame|$token/ } split /\n/, $log), '', 'and nothing of what is kept');

done_testing();
