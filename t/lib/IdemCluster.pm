# What the tests that need a server of their own share: a server with the
# extension, and the calls in a form that is short to compare.

package IdemCluster;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw($every_byte configure new_idem_server reserve outcome complete
  state sqlstate wait_blocked wait_over);

# A body in which every byte occurs, as an SQL expression.
our $every_byte =
  q{(SELECT string_agg(set_byte('\x00'::bytea, 0, b), '' ORDER BY b) FROM generate_series(0, 255) b)};

# Settings that every such server has. The sweeper is off: who wants it turns
# it on, so that nothing moves while a test counts.
sub configure
{
	my ($node, $conf) = @_;

	$node->append_conf(
		'postgresql.conf', qq{
shared_preload_libraries = 'idem'
idem.sweeper = off
idem.sweep_interval = '100 ms'
log_statement = none
max_connections = 50
shared_buffers = 32MB
} . ($conf // ''));
	return;
}

# A server with the library preloaded, started, with the extension in its
# database postgres.
sub new_idem_server
{
	my ($name, $conf, %init) = @_;

	my $node = PostgreSQL::Test::Cluster->new($name);
	$node->init(%init);
	configure($node, $conf);
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION idem');
	return $node;
}

# Reserve in a transaction of its own; the arguments as SQL text. Returns the
# outcome, the token and the attempt.
sub reserve
{
	my ($node, $args, $db) = @_;

	return split /\|/,
	  $node->safe_psql($db // 'postgres',
		"SELECT outcome, token, attempt FROM idem_reserve($args)");
}

# The same for comparison: "new|1", "in_flight|", "replay|" ...
sub outcome
{
	my ($node, $args, $db) = @_;

	return $node->safe_psql($db // 'postgres',
		"SELECT outcome, attempt FROM idem_reserve($args)");
}

# Complete in a transaction of its own; the arguments as SQL text.
sub complete
{
	my ($node, $args, $db) = @_;

	$node->safe_psql($db // 'postgres', "SELECT idem_complete_bytes($args)");
	return;
}

# The state of a key: "in_progress|1", "absent|" ...
sub state
{
	my ($node, $args, $db) = @_;

	return $node->safe_psql($db // 'postgres',
		"SELECT state, attempt FROM idem_lookup($args)");
}

# The SQLSTATE that these statements fail with, or '' if they succeed.
sub sqlstate
{
	my ($node, $sql, $db, @more) = @_;
	my $errors = '';

	$node->psql(
		$db // 'postgres', $sql,
		stderr       => \$errors,
		extra_params => [ '-v', 'VERBOSITY=sqlstate' ], @more);
	return join ' ', $errors =~ /(?:ERROR|FATAL|PANIC): +(\w{5})$/mg;
}

# Wait until a backend waits for another one.
sub wait_blocked
{
	my ($node, $pid) = @_;

	return $node->poll_query_until('postgres',
		"SELECT cardinality(pg_blocking_pids($pid)) > 0");
}

# Wait until the lease of a key is over.
sub wait_over
{
	my ($node, $args, $db) = @_;

	return $node->poll_query_until($db // 'postgres',
		"SELECT state = 'stale' FROM idem_lookup($args)");
}

1;
