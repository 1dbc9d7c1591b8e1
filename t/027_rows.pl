# What a key takes on its page: no column that says nothing, no null bitmap, and
# room beside it for its answer.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemCluster;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $fp   = q{decode(repeat('e3', 32), 'hex')};
my $node = new_idem_server('rows', 'autovacuum = off');
my ($rc) = $node->psql('postgres', 'CREATE EXTENSION pageinspect; CREATE EXTENSION amcheck');
plan skip_all => 'pageinspect and amcheck are not here' if $rc != 0;

# Columns that are stored, bytes before the first one, whether there is a null
# bitmap, and bytes of the columns: of the newest version of a row
sub shape
{
	my ($key) = @_;

	return $node->safe_psql('postgres', qq{
SELECT t_infomask2 & 2047, t_hoff, t_infomask & 1, lp_len - t_hoff
  FROM idem_key k, heap_page_items(get_raw_page('idem_key', (k.ctid::text::point)[0]::int))
 WHERE k.client = 'c' AND k.key = '$key' AND lp = (k.ctid::text::point)[1]::int});
}

sub seen
{
	my ($key) = @_;

	return $node->safe_psql('postgres', qq{
SELECT concat_ws(' ', l.state, l.attempt, l.created_at = k.began_at, k.created_at = l.created_at AND k.attempt = l.attempt)
  FROM idem_lookup('c', '$key') l, idem_keys k WHERE k.client = 'c' AND k.key = '$key'});
}

my (undef, $token) = reserve($node, "'c', 'k', $fp, '1 h'");
is(shape('k'), '7|24|0|77', 'in progress: up to the fingerprint');
is(seen('k'), 'in_progress 1 t t', 'as the first attempt, which began when the key was created');
complete($node, "'c', 'k', '$token', 200, 'answer'");
is(shape('k'), '10|24|0|99', 'completed: up to the body');
is(seen('k'), 'completed 1 t t', 'still the first attempt');

(undef, $token) = reserve($node, "'c', 'headers', $fp, '1 h'");
complete($node, "'c', 'headers', '$token', 200, 'answer', '{}'");
is(shape('headers'), '11|24|0|112', 'with headers');

(undef, $token) = reserve($node, "'c', 'empty', $fp, '1 h'");
complete($node, "'c', 'empty', '$token', 204, NULL");
is(shape('empty'), '9|24|0|100', 'without a body');

$node->safe_psql('postgres', q{SELECT idem_once('c', 'once')});
is(shape('once'), '8|24|1|56', 'a mark has a null bitmap that takes no room');

(undef, $token) = reserve($node, "'c', 'request', $fp, '1 h', request => '{}'");
is(shape('request'), '17|32|1|88', 'a longer one needs room: a key with its request');
complete($node, "'c', 'request', '$token', 200, 'answer', '{}'");
is(shape('request'), '12|24|0|117', 'and none again once it has everything, as after idem_call');

# What is too long for a row: the answer, the request. Hashes cannot be compressed.
my $long  = q{(SELECT string_agg(sha512(i::text::bytea), '') FROM generate_series(1, 50) i)};
my $pairs = q{(SELECT jsonb_object_agg(i, sha512(i::text::bytea)) FROM generate_series(1, 50) i)};
my $toast = q{SELECT count(DISTINCT chunk_id) FROM } .
  $node->safe_psql('postgres', q{SELECT reltoastrelid::regclass FROM pg_class WHERE oid = 'idem_key'::regclass});
(undef, $token) = reserve($node, "'c', 'long', $fp, '1 h'");
complete($node, "'c', 'long', '$token', 200, $long");
like(shape('long'), qr/^17\|32\|1\|/, 'an answer out of line');
is($node->safe_psql('postgres', $toast), 1, 'is out of line');
is($node->safe_psql('postgres', qq{SELECT body = $long FROM idem_reserve('c', 'long', $fp)}), 't', 'and is replayed');
$node->safe_psql('postgres', q{UPDATE idem_key SET expires_at = clock_timestamp() WHERE key = 'long'});
(undef, $token) = reserve($node, "'c', 'long', $fp, '1 h'");
is(shape('long'), '7|24|0|80', 'nothing is left of it when the key is reserved anew');
complete($node, "'c', 'long', '$token', 200, 'answer'");
is($node->safe_psql('postgres', qq{SELECT body FROM idem_reserve('c', 'long', $fp)}), '\x616e73776572', 'with another answer');
(undef, $token) = reserve($node, "'c', 'long request', $fp, '1 min', request => $pairs");
$node->safe_psql('postgres', qq{SELECT idem_renew('c', 'long request', '$token', '1 h')});
complete($node, "'c', 'long request', '$token', 200, 'answer', '{}'");
is($node->safe_psql('postgres', qq{SELECT request = $pairs FROM idem_key WHERE key = 'long request'}), 't', 'a request out of line');

reserve($node, "'c', 'again', $fp, '1 ms'");
wait_over($node, "'c', 'again'");
(undef, $token) = reserve($node, "'c', 'again', $fp, '1 h'");
is(shape('again'), '17|32|1|133', 'a takeover is told of');
is(seen('again'), 'in_progress 2 f t', 'as is when the key was created');

reserve($node, "'c', 'expires', $fp, '1 ms'");
wait_over($node, "'c', 'expires'");
reserve($node, "'c', 'expires', $fp, '1 ms'");
$node->safe_psql('postgres', q{UPDATE idem_key SET expires_at = clock_timestamp() WHERE key = 'expires'});
reserve($node, "'c', 'expires', $fp, '1 h'");
is(shape('expires'), '7|24|0|83', 'and of that no more in the first attempt anew');
is(seen('expires'), 'in_progress 1 t t', 'which creates the key anew');

# Written anew by the server, rows have all their columns. They are the same keys.
my $verify = q{SELECT count(*) FROM verify_heapam('idem_key', check_toast => true)};
is($node->safe_psql('postgres', $verify), 0, 'the table is sound');
is($node->safe_psql('postgres', $toast), 1, 'with one value out of line');
$node->safe_psql('postgres', 'VACUUM FULL idem_key');
is(shape('k'), '17|32|1|99', 'after VACUUM FULL');
is(seen('k'), 'completed 1 t t', 'the first attempt is the first');
is(outcome($node, "'c', 'k', $fp"), 'replay|', 'and is replayed');
is(seen('again'), 'in_progress 2 f t', 'the second is the second');
complete($node, "'c', 'again', '$token', 200, 'answer'");
is(shape('again'), '17|32|1|120', 'so it is once completed');
is(seen('again'), 'completed 2 f t', 'still the second');
is($node->safe_psql('postgres', $verify), 0, 'the table is sound');

# The answer is stored beside the row in progress, so that no index is changed:
# by another transaction, with answers of some hundred bytes.
$node->safe_psql('postgres', qq{
TRUNCATE idem_key;
CREATE PROCEDURE answer(prefix text, bytes int) LANGUAGE plpgsql AS \$\$
DECLARE
	r record;
	hash text;
BEGIN
	FOR i IN 1 .. 1000 LOOP
		hash := prefix || md5(i::text);
		r := idem_reserve('c', hash, $fp);
		COMMIT;
		PERFORM idem_complete('c', hash, r.token, 200, repeat('x', bytes));
		COMMIT;
	END LOOP;
END \$\$});
for my $bytes (200, 500)
{
	cmp_ok($node->safe_psql('postgres', qq{
SELECT FROM pg_stat_reset_single_table_counters('idem_key'::regclass);
CALL answer('$bytes ', $bytes);
SELECT FROM pg_stat_force_next_flush();
SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'idem_key' AND n_tup_upd = 1000}),
		'>', 970, "completes are HOT updates: answers of $bytes bytes");
}

$node->stop('fast');
done_testing();
