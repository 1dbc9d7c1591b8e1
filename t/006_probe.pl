# A row that is always there is never missed, however often it is moved: the
# index page is read before the row is, which may have a new place by then.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemCluster;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $fp   = q{'\x01'};
my $node = new_idem_server('probe');

# An index on what a renewal changes leaves no update HOT
$node->safe_psql(
	'postgres', q{
CREATE INDEX moves ON idem_key (lease_until);
CREATE UNLOGGED TABLE asked (what text, answer text, times bigint);

-- Ask for a key many times, each time as if by a statement of its own
CREATE FUNCTION ask(what text, call text, n int) RETURNS void LANGUAGE plpgsql AS
$$
DECLARE
	answer text;
	answers jsonb := '{}';
BEGIN
	FOR i IN 1 .. n LOOP
		BEGIN
			EXECUTE call INTO answer;
		EXCEPTION WHEN OTHERS THEN
			answer := sqlstate;
		END;
		answers := answers || jsonb_build_object(answer, coalesce((answers->>answer)::int, 0) + 1);
	END LOOP;
	INSERT INTO asked SELECT what, key, value::int FROM jsonb_each_text(answers);
END
$$;});
my (undef, $token) = reserve($node, "'c', 'k', $fp, '1 h'");
my $stranger = '00000000-0000-4000-8000-000000000000';

# What is asked, and the only answers there may be. A row with an unfinished
# change on it may be in_flight where its holder asks.
my %asks = (
	lookup   => [ "SELECT state FROM idem_lookup('c', 'k')",                'in_progress' ],
	reserve  => [ "SELECT outcome FROM idem_reserve('c', 'k', $fp)",        'in_flight' ],
	mismatch => [ "SELECT outcome FROM idem_reserve('c', 'k', '\\x02')",    'mismatch' ],
	complete => [ "SELECT idem_complete('c', 'k', '$stranger', 200)::text", 'ID001' ],
	release  => [ "SELECT idem_release('c', 'k', '$stranger')::text",       'ID001' ]);

# Two clients move the row about, as its owner does when he renews his lease
my $dir = PostgreSQL::Test::Utils::tempdir;
append_to_file("$dir/renew.sql",
	"SELECT outcome FROM idem_reserve('c', 'k', $fp, '1 h', token => '$token');\n");
my $updater = IPC::Run::start(
	[ 'pgbench', '-n', '-M', 'prepared', '-c', 2, '-T', 600, '-f', "$dir/renew.sql",
		'-h', $node->host, '-p', $node->port, 'postgres' ],
	'>', "$dir/out", '2>', "$dir/err");
$node->poll_query_until('postgres',
	q{SELECT n_tup_upd > 100 AND n_tup_hot_upd = 0 FROM pg_stat_user_tables WHERE relname = 'idem_key'});

my @scripts;
for my $what (sort keys %asks)
{
	append_to_file("$dir/$what.sql",
		"SELECT ask('$what', " . quoted($asks{$what}[0]) . ", 200);\n");
	push @scripts, '-f', "$dir/$what.sql";
}
$node->command_ok(
	[ 'pgbench', '-n', '-c', 4, '-T', 12, @scripts,
		'-h', $node->host, '-p', $node->port, 'postgres' ],
	'ask while the row is moved');
$updater->kill_kill;

sub quoted
{
	my ($text) = @_;
	return "'" . ($text =~ s/'/''/gr) . "'";
}

note $node->safe_psql('postgres',
	'SELECT what, answer, sum(times) FROM asked GROUP BY 1, 2 ORDER BY 1, 2');
for my $what (sort keys %asks)
{
	is( $node->safe_psql(
			'postgres', "SELECT DISTINCT answer FROM asked WHERE what = '$what' ORDER BY 1"),
		$asks{$what}[1],
		"$what: no other answer than $asks{$what}[1]");
}
is(state($node, "'c', 'k'"), 'in_progress|1', 'the row is still there');
is( $node->safe_psql(
		'postgres', q{SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'idem_key'}),
	0, 'every update moved it');

$node->stop;
done_testing();
