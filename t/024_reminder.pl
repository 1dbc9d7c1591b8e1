# A takeover that commits while the sweep goes through the reminders keeps its
# own: the sweep sees the reminder, but not yet the key as that transaction has
# left it. Promises: rule 13 (idem_claim_stale finds what is stale).

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemCluster;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_idem_server('reminder', 'autovacuum = off');

# So many stale leases that going through them takes a while
$node->safe_psql('postgres', q{
SELECT count(*) FROM generate_series(1, 30000) i, idem_reserve('many', i::text, '\x01', lease => '1 ms');
SELECT idem_sweep();
CREATE TABLE sweep (began timestamptz, ended timestamptz);
CREATE PROCEDURE sweep() LANGUAGE plpgsql AS $$
DECLARE
	began timestamptz := clock_timestamp();
BEGIN
	PERFORM idem_sweep();
	INSERT INTO sweep VALUES (began, clock_timestamp());
END $$});

my $owner   = $node->background_psql('postgres');
my $sweeper = $node->background_psql('postgres');

# Only a takeover that begins and ends its commit within a sweep says anything.
my ($hits, $lost) = (0, 0);
foreach my $i (1 .. 100)
{
	$node->safe_psql('postgres',
		"SELECT idem_reserve('c', 'k$i', '\\x01', lease => '1 ms'); SELECT pg_sleep(0.002); TRUNCATE sweep");
	$owner->query_safe("BEGIN; SELECT idem_reserve('c', 'k$i', '\\x01', lease => '1 ms')");
	$sweeper->query_until(qr/begins/, "\\echo begins\nCALL sweep();\n");
	my $before = $owner->query_safe('SELECT clock_timestamp()');
	$owner->query_safe('COMMIT');
	my $after = $owner->query_safe('SELECT clock_timestamp()');
	$sweeper->query_safe('SELECT 1');

	my $hit = $node->safe_psql('postgres', "SELECT began < '$before' AND ended > '$after' FROM sweep");
	my $claimed = $node->safe_psql('postgres', q{SELECT string_agg(key, ' ') FROM idem_claim_stale(client => 'c')});
	$node->safe_psql('postgres', q{SELECT idem_forget('c')});
	next if $hit ne 't';
	$hits++;
	$lost++ if $claimed ne "k$i";
	last if $hits == 10;
}
cmp_ok($hits, '>', 0, 'takeovers have committed in the middle of a sweep');
is($lost, 0, 'and their keys were found stale by the next one to ask');

$owner->quit;
$sweeper->quit;
$node->stop;
done_testing();
