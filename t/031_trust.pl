# What is run or decided on somebody's behalf stays within what they may do: the
# worker fires no trigger with its own rights, and a session that loads the
# library in the middle of a parallel query keeps its pin.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemCluster;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# A table given away to a role that hangs a trigger on it

my $node = new_idem_server('trust', "idem.lease = '1 ms'\nidem.sweeper = on");
$node->safe_psql(
	'postgres', q{
	ALTER SYSTEM SET idem.sweeper = off;
	SELECT pg_reload_conf();
	CREATE ROLE bob;
	GRANT ALL ON SCHEMA public TO bob;
	ALTER TABLE idem_reminder_1 OWNER TO bob;
	SET ROLE bob;
	CREATE FUNCTION whoami() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO public.fired VALUES (current_user, pg_has_role(current_user, 'pg_read_all_data', 'MEMBER'));
		RETURN NULL;
	END $$;
	CREATE TABLE fired (who name, trusted boolean);
	CREATE TRIGGER whoami BEFORE TRUNCATE ON idem_reminder_1 EXECUTE FUNCTION whoami();
});
$node->safe_psql('postgres',
	q{SELECT count(*) FROM generate_series(1, 25000) i, idem_reserve('c', i::text, '\x01');
	SELECT count(idem_complete(client, key, token, 200)) FROM idem_key WHERE key::int > 100}
);
$node->safe_psql('postgres', 'ALTER SYSTEM RESET idem.sweeper');
$node->safe_psql('postgres', 'SELECT pg_reload_conf()');
ok( $node->poll_query_until('postgres', 'SELECT count(*) > 0 FROM fired'),
	'the worker empties a large table of reminders');
is($node->safe_psql('postgres', 'SELECT DISTINCT who, trusted FROM fired'),
	'bob|f', 'and its triggers run as the owner of the table, and no more');
is( $node->safe_psql(
		'postgres',
		q{SELECT count(*) FROM idem_claim_stale(20000)}),
	100,
	'every lease that became stale is there to be claimed');
$node->stop;

# A pin, where the first call is made while a parallel query runs

$node = PostgreSQL::Test::Cluster->new('parallel');
$node->init;
$node->append_conf('postgresql.conf', "idem.retention = '3 h'\n");
$node->start;
$node->safe_psql(
	'postgres', q{
	CREATE EXTENSION idem;
	CREATE ROLE app LOGIN;
	ALTER ROLE app SET idem.client = 'acme';
	SELECT idem_grant('app');
	CREATE TABLE big AS SELECT i, repeat('x', 100) AS p FROM generate_series(1, 20000) i;
	GRANT SELECT ON big TO app;
	ANALYZE big;
	SELECT idem_complete('other', 'k', token, 200, 'secret of other') FROM idem_reserve('other', 'k', '\x01');
});
my $parallel = q{
	SET parallel_setup_cost = 0;
	SET parallel_tuple_cost = 0;
	SET min_parallel_table_scan_size = 0;
};
my $first = q{SELECT count(*) FROM (SELECT idem_lookup('other', 'k') l FROM big WHERE p LIKE 'y%' OR i < 5 OFFSET 0) s WHERE (l).state IS NOT NULL};
like(
	$node->safe_psql('postgres', "$parallel EXPLAIN $first"),
	qr/Gather/, 'the first call is made above a Gather');
{
	local $ENV{PGOPTIONS} = '-c idem.client=other';
	my ($status, $out, $err) = $node->psql('postgres',
		qq{$parallel $first;\nSELECT convert_from(body, 'UTF8') FROM idem_reserve('other', 'k', '\\x01')},
		extra_params => [ '-U', 'app', '-v', 'VERBOSITY=sqlstate' ],
		on_error_stop => 0);
	unlike($out, qr/secret/, 'a pinned role does not see another client');
	my @states = $err =~ /ERROR:\s+(\w+)/g;
	is("@states", '42501 42501', 'it is refused, from the first call on');
}
{
	local $ENV{PGOPTIONS} = '-c idem.retention=5h';
	is( $node->safe_psql(
			'postgres',
			qq{SELECT outcome FROM idem_reserve('acme', 'r', '\\x01'); SELECT expires_at - created_at FROM idem_lookup('acme', 'r')},
			),
		"new\n05:00:00",
		'a superuser may choose for the session');
}
$node->stop;

done_testing();
