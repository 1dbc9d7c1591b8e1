# Many callers with one key: exactly one is told "new", and somebody is.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemCluster;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $fp      = q{'\x01'};
my $clients = 16;
my $node    = new_idem_server('race');

$node->safe_psql(
	'postgres', qq{
CREATE TABLE payment (key text);
CREATE UNLOGGED TABLE told (client text, key text, outcome text, attempt int);

-- The whole cycle in one transaction; does not wait
CREATE FUNCTION pay(key text) RETURNS void LANGUAGE plpgsql AS
\$\$
DECLARE
	r idem_reservation;
BEGIN
	r := idem_reserve('pay', key, $fp);
	INSERT INTO told VALUES ('pay', key, r.outcome, r.attempt);
	IF r.outcome = 'new' THEN
		INSERT INTO payment VALUES (key);
		PERFORM idem_complete('pay', key, r.token, 201, 'paid');
	END IF;
END
\$\$;

-- One try at a key, all clients at the same moment: the key is the moment
CREATE FUNCTION try_together() RETURNS void LANGUAGE plpgsql AS
\$\$
DECLARE
	now float8 := extract(epoch FROM clock_timestamp());
	moment bigint := ceil(now * 100 + 0.2);
BEGIN
	PERFORM pg_sleep(moment / 100.0 - now);
	INSERT INTO told SELECT 'together', moment, outcome, attempt
	  FROM idem_reserve('together', moment::text, $fp);
END
\$\$;

-- Tries at keys in another state, which all clients go through in one order
CREATE FUNCTION try_prepared(n int) RETURNS void LANGUAGE sql AS
\$\$
INSERT INTO told SELECT client, n, outcome, attempt
  FROM (VALUES ('stale'), ('expired'), ('released')) c (client), idem_reserve(client, n::text, $fp);
\$\$;
SELECT count(*) FROM generate_series(1, 300) n, idem_reserve('stale', n::text, $fp, '1 ms');
SELECT count(*) FROM generate_series(1, 300) n, idem_reserve('expired', n::text, $fp, retention => '1 ms');
SELECT count(idem_release('released', n::text, token)) FROM generate_series(1, 300) n, idem_reserve('released', n::text, $fp);
});
$node->poll_query_until('postgres',
	q{SELECT count(*) = 0 FROM idem_keys WHERE state <> 'stale'});

sub race
{
	my ($name, $options, $script) = @_;
	$node->pgbench(
		"-n -M prepared -c $clients -j 2 $options",
		0,
		[qr/number of failed transactions: 0 /],
		[qr/^$/],
		$name,
		{ "007_race_$name" => $script });
	return;
}

# Keys with anything but this are counted
sub wrong
{
	my ($client, $condition) = @_;
	return $node->safe_psql(
		'postgres', qq{
SELECT count(*) FROM (
	SELECT key, count(*) AS tries, count(*) FILTER (WHERE outcome = 'new') AS new,
	       count(*) FILTER (WHERE outcome NOT IN ('new', 'in_flight', 'replay')) AS other,
	       min(attempt) AS attempt
	  FROM told WHERE client = '$client' GROUP BY key) k
 WHERE NOT ($condition)});
}

race('pay', '-t 300 -D n=0', "\\set n :n + 1\nSELECT pay(:n::text);\n");
is(wrong('pay', "tries = $clients AND new = 1 AND other = 0"),
	0, 'one transaction: every key is new to one caller, all others are told');
is( $node->safe_psql(
		'postgres',
		'SELECT count(*), count(DISTINCT key), (SELECT count(DISTINCT key) FROM told) FROM payment'),
	'300|300|300',
	'and every key is paid once');

race('together', '-T 6', "SELECT try_together();\n");
is(wrong('together', 'new = 1 AND other = 0'),
	0, 'many at once: one is told "new", never two, never nobody');
is( $node->safe_psql(
		'postgres',
		q{SELECT count(*) > 20 FROM (SELECT FROM told WHERE client = 'together' GROUP BY key HAVING count(*) >= 3) k}
	),
	't',
	'there were many at once');

race('prepared', '-t 300 -D n=0', "\\set n :n + 1\nSELECT try_prepared(:n::int);\n");
is(wrong('stale', "tries = $clients AND new = 1 AND other = 0 AND attempt = 2"),
	0, 'a stale lease is taken over by one');
is(wrong('expired', "tries = $clients AND new = 1 AND other = 0 AND attempt = 1"),
	0, 'an expired key is used again by one');
is(wrong('released', "tries = $clients AND new = 1 AND other = 0 AND attempt = 1"),
	0, 'a released key is reserved by one');

# Waiting: all are told the answer

race('waiting', '-t 30 -D n=1000',
	"\\set n :n + 1\nINSERT INTO told SELECT 'waiting', :n, outcome, attempt FROM idem_reserve('pay', :n::text, $fp, wait => '1 min');\n"
	  . "SELECT idem_complete('pay', key, token, 200) FROM idem_key WHERE client = 'pay' AND key = :n::text AND completed_at IS NULL;\n");
is(wrong('waiting', "tries = $clients AND new = 1 AND other = 0"),
	0, 'with a wait: every key is new to one caller');
is( $node->safe_psql(
		'postgres',
		q{SELECT count(*) FROM told WHERE client = 'waiting' AND outcome = 'in_flight'}),
	0, 'and the others get the answer');

is( $node->safe_psql(
		'postgres', q{SELECT count(*) FROM (SELECT FROM idem_key GROUP BY client, key HAVING count(*) > 1) k}),
	0, 'no key has two rows');

$node->stop;
done_testing();
