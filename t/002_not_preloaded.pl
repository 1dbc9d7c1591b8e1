# Without shared_preload_libraries everything works but the background worker
# and the counters; and what a superuser has set cannot be got around by
# calling before the library is there.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemCluster;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $fp   = q{'\x01'};
my $node = PostgreSQL::Test::Cluster->new('not_preloaded');
$node->init;
$node->start;
$node->safe_psql('postgres', 'CREATE ROLE app LOGIN');
my $messages = '';
$node->psql(
	'postgres',
	'SET client_min_messages = notice; CREATE EXTENSION idem',
	stderr => \$messages);
is($messages, '', 'CREATE EXTENSION without a word');

# Every function, each first in a session that has never seen the library

sub first_call
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', "SELECT $sql");
}

my ($outcome, $token, $attempt) = reserve($node, "'c', 'k', $fp");
is("$outcome $attempt", 'new 1', 'idem_reserve');
first_call("idem_complete('c', 'k', '$token', 200, 'body')");
is( first_call("(convert_from(body, 'UTF8'), outcome) FROM idem_reserve('c', 'k', $fp)"),
	'(body,replay)', 'idem_complete');
(undef, $token) = reserve($node, "'c', 'bytes', $fp");
first_call(qq{idem_complete_bytes('c', 'bytes', '$token', 200, '\\x00ff')});
is(first_call("body FROM idem_reserve('c', 'bytes', $fp)"),
	'\x00ff', 'idem_complete_bytes');
(undef, $token) = reserve($node, "'c', 'json', $fp");
is( first_call(qq{convert_from(idem_complete_json('c', 'json', '$token', 200, '{"b":1,"a":2}'), 'UTF8')}),
	'{"a": 2, "b": 1}', 'idem_complete_json');
(undef, $token) = reserve($node, "'c', 'released', $fp");
first_call("idem_release('c', 'released', '$token')");
is(state($node, "'c', 'released'"), 'absent|', 'idem_release, idem_lookup');
is(first_call('count(*) FROM idem_keys'), 3, 'idem_keys');
is(first_call(q{idem_canonical_json('{"b":1,"a":1.50}')}),
	'{"a":1.5,"b":1}', 'idem_canonical_json');
is(first_call(q{length(idem_canonical_fingerprint('{}'))}),
	32, 'idem_canonical_fingerprint');
is(first_call(q{idem_parse_key(' "k" ')}), 'k', 'idem_parse_key');
is(first_call(q{idem_provider_key('c', 'k') = idem_provider_key('c', 'k', '')}),
	't', 'idem_provider_key');
first_call(q{idem_grant('app')});
is(first_call(q{has_function_privilege('app', 'idem_lookup(text, text)', 'EXECUTE')}),
	't', 'idem_grant');
first_call(q{idem_revoke('app')});
is(first_call(q{has_function_privilege('app', 'idem_lookup(text, text)', 'EXECUTE')}),
	'f', 'idem_revoke');
first_call(q{idem_grant('app')});
first_call(q{idem_grant('app', true)});

# Reminders are written by the very transaction that loads the library

reserve($node, "'c', 'first', $fp");
$node->safe_psql(
	'postgres', qq{
BEGIN;
SAVEPOINT s;
SELECT count(*) FROM idem_reserve('c', 'undone', $fp);
ROLLBACK TO s;
SELECT count(*) FROM idem_reserve('c', 'done', $fp);
SELECT idem_complete('c', 'done', token, 200) FROM idem_key WHERE key = 'done';
SELECT count(*) FROM idem_reserve('c', 'left', $fp);
COMMIT;});
is( first_call(
		'string_agg(key, $$ $$ ORDER BY key) FROM (TABLE idem_reminder_1 UNION ALL TABLE idem_reminder_2) r'
	),
	'bytes first json k left released',
	'a reminder for each key that a commit left in progress');

# Nobody sweeps but a call by hand

is( first_call(q{count(*) FROM pg_stat_activity WHERE backend_type LIKE 'idem%'}),
	0, 'no worker');
first_call("count(*) FROM generate_series(1, 5) i, idem_reserve('c', 'expired' || i, $fp, retention => '1 ms')");
first_call("count(*) FROM idem_reserve('c', 'stale', $fp, '1 ms')");
wait_over($node, "'c', 'stale'");
my $listener = $node->background_psql('postgres');
$listener->query_safe('LISTEN idem_stale');
is(first_call('* FROM idem_sweep()'), '5|1', 'idem_sweep finds what is due');
like($listener->query('SELECT 1'),
	qr/notification "idem_stale" received/, 'and tells those who listen');
$listener->quit;
is(first_call('* FROM idem_sweep()'), '0|0', 'each once');

# What a superuser sets is out of reach, also for a session in which the
# library is loaded after the attempt

sub granted
{
	my ($key) = @_;
	return first_call(
		"extract(epoch FROM expires_at - began_at)::int FROM idem_key WHERE key = '$key'"
	);
}

my @verbose = ('-v', 'VERBOSITY=sqlstate');
my $forbidden = '-c idem.max_lease=1s -c idem.retention=';

sub ask_for_retention
{
	my ($key, $set, $options) = @_;
	local $ENV{PGOPTIONS} = $options // '';
	is( sqlstate(
			$node, "$set SELECT count(*) FROM idem_reserve('c', '$key', $fp, '10 min')",
			'postgres', extra_params => [ '-U', 'app', @verbose ]),
		'',
		"idem.max_lease is not for a role without privileges to set ($key)");
	$ENV{PGOPTIONS} = '';
	return granted($key);
}

is(ask_for_retention('SET', "SET idem.retention = '1 s'; SET idem.max_lease = '1 s';"),
	86400, 'nor is idem.retention, by SET');
is(ask_for_retention('option', '', "${forbidden}1s"), 86400, 'nor by PGOPTIONS');
$node->safe_psql('postgres', "ALTER DATABASE postgres SET idem.retention = '2 h'");
is(ask_for_retention('database', '', "${forbidden}5h"),
	7200, 'that of the database holds');
$node->safe_psql('postgres', "ALTER DATABASE postgres RESET idem.retention");
$node->append_conf('postgresql.conf', "idem.retention = '3 h'");
$node->reload;
$node->poll_query_until('postgres', "SELECT current_setting('idem.retention') = '3 h'");
is(ask_for_retention('file', ''), 10800, 'that of the configuration file holds');
is(ask_for_retention('file and option', '', "${forbidden}5h"),
	10800, 'also against PGOPTIONS');
is( $node->safe_psql(
		'postgres', qq{
SET idem.lease = '7 s';
SELECT outcome FROM idem_reserve('c', 'user', $fp);
SELECT extract(epoch FROM lease_until - began_at)::int FROM idem_key WHERE key = 'user';}
	),
	"new\n7",
	'what a user may set holds from the first call on');

# A role that is pinned to a client stays so. The calls are made first thing,
# by a session that has tried to get out.

$node->safe_psql('postgres', "ALTER ROLE app SET idem.client = 'mine'");

# Returns what the session got: an SQLSTATE for every call that was refused
sub try_clients
{
	my ($clients, $set, %how) = @_;
	local $ENV{PGOPTIONS} = $how{options} // '';
	my ($out, $err) = ('', '');
	$node->psql(
		'postgres',
		join("\n", $set,
			map { "SELECT outcome FROM idem_reserve('$_', 'pin', $fp);" } @$clients),
		connstr => $node->connstr('postgres') . ' user=app ' . ($how{connstr} // ''),
		on_error_stop => 0,
		stdout        => \$out,
		stderr        => \$err,
		extra_params  => \@verbose);
	return join ' ', grep { $_ ne '' } $out, $err =~ /(?:ERROR|FATAL): +(\w{5})$/mg;
}

sub is_pinned
{
	my ($how, @how) = @_;
	like(try_clients([ 'other', 'third' ], @how),
		qr/^(?:(?:other )?42501 ?)+$/, "pinned $how");
	return;
}

is_pinned('without trying', '');
is_pinned("by $_", "$_;")
  for (
	"SET idem.client = 'other'", "SET idem.client = ''",
	'RESET idem.client',         'RESET ALL',
	'DISCARD ALL',               'SET idem.client TO DEFAULT',
	"ALTER ROLE app SET idem.client = 'other'");
is_pinned('by set_config', q{SELECT set_config('idem.client', 'other', false);});
for my $options ('-c idem.client=other', '-c idem.client=', '--idem.client=other')
{
	is_pinned("by PGOPTIONS=$options", '', options => $options);
	is_pinned("by options='$options'", '', connstr => "options='$options'");
	is_pinned("by PGOPTIONS=$options and RESET",
		'RESET idem.client;', options => $options);
	is_pinned(
		"by PGOPTIONS=$options and a first call that is rolled back",
		"BEGIN; SELECT FROM idem_reserve('mine', 'undone', $fp); ROLLBACK;",
		options => $options);
}
for my $set ("SET LOCAL idem.client = 'other'", "SET idem.client = 'other'",
	"SAVEPOINT s; SET idem.client = 'other'; RELEASE s",
	"SAVEPOINT s; SET idem.client = 'other'; ROLLBACK TO s")
{
	is(try_clients(['other'], "BEGIN; $set;"), '42501', "pinned in BEGIN; $set");
}
is(try_clients([ 'mine', 'other' ], '', options => '-c idem.client=other'),
	'new 42501', 'the client of its own is within reach');
is($node->safe_psql('postgres', q{SELECT count(*) FROM idem_key WHERE client IN ('other', 'third')}),
	0, 'nothing was reserved for another client');

# Views are as pinned as functions

sub visible
{
	my ($options) = @_;
	local $ENV{PGOPTIONS} = $options;
	return $node->safe_psql(
		'postgres',
		q{SELECT string_agg(DISTINCT client, ',') FROM idem_keys},
		extra_params => [ '-U', 'app' ]);
}
is(visible(''), 'mine', 'idem_keys shows the own client only');
is(visible('-c idem.client=c'), 'mine', 'also to a role that asks for another');

# ALTER DATABASE and ALTER ROLE IN DATABASE pin as well

$node->safe_psql(
	'postgres', q{
ALTER ROLE app RESET idem.client;
ALTER ROLE app IN DATABASE postgres SET idem.client = 'mine'});
is_pinned('in one database', '');
is_pinned('in one database, by PGOPTIONS', '', options => '-c idem.client=other');
$node->safe_psql(
	'postgres', q{
ALTER ROLE app IN DATABASE postgres RESET idem.client;
ALTER DATABASE postgres SET idem.client = 'mine'});
is_pinned('by the database, by PGOPTIONS', '', options => '-c idem.client=other');
$node->safe_psql('postgres', 'ALTER DATABASE postgres RESET idem.client');
is(try_clients(['other'], ''), 'new', 'no pin any more');

$node->stop;
done_testing();
