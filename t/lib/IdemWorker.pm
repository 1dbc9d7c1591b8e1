# What the tests of the background worker share.

package IdemWorker;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes qw(usleep);

our @EXPORT = qw(new_server expire keys_left wait_swept wait_process
  process_pid worker_pid log_count errors_in_log add_database sweeper);

# A server with the library preloaded, at a quick pace, started.
sub new_server
{
	my ($name, $conf, %init) = @_;

	my $node = PostgreSQL::Test::Cluster->new($name);
	$node->init(%init);
	$node->append_conf(
		'postgresql.conf', qq{
shared_preload_libraries = 'idem'
idem.sweep_interval = '100 ms'
log_line_prefix = '%m [%p] %b '
log_checkpoints = off
log_statement = none
} . ($conf // ''));
	$node->start;
	return $node;
}

# A database, with the extension unless told otherwise.
sub add_database
{
	my ($node, $db, $extension) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $db");
	$node->safe_psql($db, 'CREATE EXTENSION idem') if $extension // 1;
	return;
}

# Switch the sweeper, and wait until the launcher has taken it up.
sub sweeper
{
	my ($node, $switch) = @_;

	$node->append_conf('postgresql.conf', "idem.sweeper = $switch");
	$node->reload;
	return $node->poll_query_until(
		'postgres', q{
SELECT query = 'idem.sweeper is off' FROM pg_stat_activity
WHERE backend_type = 'idem launcher'}, $switch eq 'off' ? 't' : 'f');
}

# Some keys whose retention is over almost as soon as they are there.
sub expire
{
	my ($node, $db, $n) = @_;

	$node->safe_psql(
		$db, qq{
SELECT count(*) FROM idem_once_batch('worker test',
	ARRAY(SELECT gen_random_uuid()::text FROM generate_series(1, $n)), '1 ms')});
	return;
}

sub keys_left
{
	my ($node, $db) = @_;

	return $node->safe_psql($db, 'SELECT count(*) FROM idem_key');
}

# Wait until nothing of what was expired is left.
sub wait_swept
{
	my ($node, $db) = @_;

	return $node->poll_query_until($db,
		"SELECT count(*) = 0 FROM idem_key WHERE expires_at <= now()");
}

sub process_pid
{
	my ($node, $type) = @_;

	return $node->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE backend_type = '$type'");
}

# The worker, once there is one.
sub worker_pid
{
	my ($node) = @_;

	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		my $pid = process_pid($node, 'idem worker');
		return $pid if $pid ne '';
		usleep(100_000);
	}
	die 'no worker';
}

# Wait for a process of this type, other than the one given.
sub wait_process
{
	my ($node, $type, $not) = @_;

	$not //= 0;
	return $node->poll_query_until('postgres',
		"SELECT count(*) > 0 FROM pg_stat_activity WHERE backend_type = '$type' AND pid <> $not"
	);
}

# How often something is in the server's log, from a place in it on.
sub log_count
{
	my ($node, $pattern, $from) = @_;

	my $log = substr(slurp_file($node->logfile), $from // 0);
	my $count = () = $log =~ /$pattern/g;
	return $count;
}

# Lines that idem's processes should not have written.
sub errors_in_log
{
	my ($node, $from) = @_;

	my $log = substr(slurp_file($node->logfile), $from // 0);
	return join '', grep {
		/\] idem (?:launcher|worker) (?:WARNING|ERROR|FATAL|PANIC|LOG):/
		  || /background worker "idem worker".*exited/
		  || /terminated by signal/
	} split /^/m, $log;
}

1;
