# What doc/high-availability.md says of waiting for a synchronous standby: an
# answer that is waiting is nobody's yet; who cancels the wait is told of it, and
# so is every retry, and a standby that never had it is promoted without it. A
# statement_timeout does not cancel the wait.

use strict;
use warnings;

use FindBin;
use IPC::Run ();
use lib "$FindBin::RealBin/lib";

use IdemCluster;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $fp      = q{'\x01'};
my $primary = new_idem_server('primary', '', allows_streaming => 1);
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;
$primary->safe_psql(
	'postgres', q{
CREATE FUNCTION pay(request jsonb) RETURNS jsonb LANGUAGE sql RETURN '{"payment": 1}'::jsonb;
ALTER SYSTEM SET synchronous_standby_names = '*';
SELECT pg_reload_conf();});
$primary->poll_query_until('postgres',
	q{SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'});
$primary->safe_psql('postgres', q{SELECT idem_call('c', 'kept', 'pay(jsonb)', '{}')});

# The standby is there, and hears nothing.
my $receiver = $standby->safe_psql('postgres',
	q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walreceiver'});
kill 'STOP', $receiver or BAIL_OUT("cannot stop the WAL receiver: $!");

my $what  = q{'c', 'k', 'pay(jsonb)', '{}'};
my $retry = qq{SELECT outcome FROM idem_call($what)};
my $waiting = q{SELECT wait_event FROM pg_stat_activity WHERE application_name = 'caller' AND wait_event = 'SyncRep'};
my ($caller, $out, $err, $seconds);

# On a very slow machine the call itself may fall to the time-out; then nothing
# has happened, and it gets more of it.
for (2, 10, 60)
{
	$seconds = $_;
	($out, $err) = ('', '');
	$caller = IPC::Run::start(
		[ 'psql', '-XAtq', '-d', $primary->connstr('postgres') ],
		'<', \"SET application_name = 'caller'; SET statement_timeout = '$seconds s';\nSELECT 'done', outcome FROM idem_call($what);\n",
		'>', \$out, '2>', \$err);
	select undef, undef, undef, 0.05
	  while $caller->pumpable
	  && ($caller->pump_nb || 1)
	  && $primary->safe_psql('postgres', $waiting) ne 'SyncRep';
	last if $caller->pumpable;
	$caller->finish;
}
is($primary->safe_psql('postgres', $waiting),
	'SyncRep', 'the caller waits for the standby');
$primary->poll_query_until('postgres',
	"SELECT clock_timestamp() > query_start + '1 s' + '$seconds s'::interval FROM pg_stat_activity WHERE application_name = 'caller'");
is($primary->safe_psql('postgres', $waiting),
	'SyncRep', '... longer than its statement_timeout');
is($primary->safe_psql('postgres', $retry),
	'in_flight', 'while it waits a retry is in flight');

$primary->safe_psql('postgres',
	q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'caller'});
$caller->finish;
is($out, "done|new\n", 'cancelled, the call succeeds all the same');
like(
	$err,
	qr/WARNING:  canceling wait for synchronous replication/,
	'... with a warning');
is($primary->safe_psql('postgres', $retry),
	'replay', '... and a retry is told the answer');

# The primary dies, and the standby never heard of it.
$primary->stop('immediate');
my ($postmaster) = slurp_file($standby->data_dir . '/postmaster.pid') =~ /^(\d+)/;
$standby->kill9;
kill 'KILL', $receiver;
for (1 .. 600)    # until it is gone, a start would take it for the one that it started
{
	last unless kill 0, $postmaster;
	select undef, undef, undef, 0.1;
}
for (1 .. 600)    # its other processes take a moment to notice
{
	last if $standby->start(fail_ok => 1);
	select undef, undef, undef, 0.1;
}
$standby->promote;
is($standby->safe_psql('postgres', q{SELECT outcome FROM idem_call('c', 'kept', 'pay(jsonb)', '{}')}),
	'replay', 'after the promotion: what was acknowledged by the standby is known');
is($standby->safe_psql('postgres', $retry),
	'new', '... and what was not is new');
$standby->stop;

done_testing();
