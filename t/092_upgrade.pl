# An extension that was updated is the one that is installed afresh: the same
# objects, columns, privileges and comments, for every version that has a script of
# its own and a way to the newest; and its keys are still there.
#
# That this would be noticed is tried with a version made up here, whose way from
# the newest is right once, and then wrong in one thing at a time.

use strict;
use warnings;

use FindBin;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $root      = "$FindBin::RealBin/..";
my $pg_config = $ENV{PG_CONFIG} || 'pg_config';
my ($newest)  = slurp_file("$root/idem.control") =~ /^default_version = '(.*)'$/m;

# The extension in a directory of this test's own, where scripts can be added.
my $stage    = PostgreSQL::Test::Utils::tempdir();
my $settings = do {
	local %ENV = (%ENV, PG_CONFIG => $pg_config);
	delete @ENV{qw(MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES)};
	`"$root/tools/stage" "$stage" 2>/dev/null`;
};
plan skip_all => 'this server finds extensions in its own directories only'
  if $? != 0;
chomp(my $scripts = `"$pg_config" --sharedir`);
$scripts = "$stage$scripts/extension";

my $node = PostgreSQL::Test::Cluster->new('upgrade');
$node->init;
$node->append_conf('postgresql.conf', "$settings\nshared_preload_libraries = 'idem'\nidem.sweeper = off\n");
$node->start;

# All that belongs to the extension, as pg_dump would have to make it again: in this
# mode it writes the members out one by one, and with what privileges they were
# given. OIDs and transaction ids are the database's own.
sub definition
{
	my ($db) = @_;
	my ($dump, $errors);

	IPC::Run::run(
		[ 'pg_dump', '--schema-only', '--binary-upgrade', '-d', $node->connstr($db) ],
		'>', \$dump, '2>', \$errors)
	  or die "pg_dump: $errors";
	$dump =~ s/^SELECT pg_catalog\.binary_upgrade_set_next_.*\n//mg;
	$dump =~ s/^(?:SET relfrozenxid = |WHERE oid = ).*\n//mg;
	$dump =~ s/^\\(?:un)?restrict .*\n//mg;
	$dump =~ s/'[\d.]+', '\{[\d,]*\}'/'<version>', '<tables>'/g;
	$dump =~ s/^--.*\n//mg;
	$dump =~ s/\n\n+/\n/g;
	return $dump;
}

# What is in one and not in the other.
sub difference
{
	my ($got, $expected) = map { { map { $_ => 1 } split /\n/ } } @_;

	return join "\n", (map { "+ $_" } grep { !$expected->{$_} } sort keys %$got),
	  (map { "- $_" } grep { !$got->{$_} } sort keys %$expected);
}

sub same
{
	my ($got, $expected, $name) = @_;

	ok($got eq $expected, $name)
	  or diag(difference($got, $expected) || 'the same lines in another order');
	return;
}

my $databases = 0;

sub installed
{
	my ($version, $update_to) = @_;
	my $db = 'd' . ++$databases;

	$node->safe_psql('postgres', "CREATE DATABASE $db");
	$node->safe_psql($db, "CREATE EXTENSION idem VERSION '$version'");
	if (defined $update_to)
	{
		$node->safe_psql(
			$db, q{
SELECT idem_complete('c', 'k', token, 201, 'kept') FROM idem_reserve('c', 'k', request => '{}')});
		$node->safe_psql($db, "ALTER EXTENSION idem UPDATE TO '$update_to'");
		is( $node->safe_psql(
				$db, q{
SELECT outcome, status_code, convert_from(body, 'UTF8') FROM idem_reserve('c', 'k', request => '{}')}),
			'replay|201|kept', "$version to $update_to: keys are kept");
	}
	return definition($db);
}

# The versions there are

my $fresh = installed($newest);
like($fresh, qr/CREATE FUNCTION public\.idem_reserve/, 'a definition has the functions');
like($fresh, qr/GRANT|REVOKE/, 'and privileges');

foreach my $script (sort glob("$root/idem--*.sql"))
{
	my ($old) = $script =~ m{/idem--([^-]+)\.sql$} or next;
	next if $old eq $newest;
	same(installed($old, $newest), $fresh, "$old to $newest: the same as a fresh install");
}

# A version of this test's own

sub add_version
{
	my ($version, $from, $more_fresh, $more_update) = @_;

	append_to_file("$scripts/idem--$version.sql",
		slurp_file("$scripts/idem--$from.sql") . $more_fresh);
	append_to_file("$scripts/idem--$from--$version.sql", $more_update);
	return;
}

my $function = q{
CREATE FUNCTION @extschema@.idem_new() RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 1';
};
my $closed  = q{REVOKE ALL ON FUNCTION @extschema@.idem_new() FROM PUBLIC;
};
my $comment = q{COMMENT ON FUNCTION @extschema@.idem_new() IS 'new';
};
my $table = q{CREATE TABLE @extschema@.idem_more (a int, b int);
REVOKE ALL ON @extschema@.idem_more FROM PUBLIC;
};
my $whole = $function . $closed . $comment . $table;

add_version('98.0', $newest, $whole, $whole);
same(installed($newest, '98.0'), installed('98.0'), 'an update that is right');

my %wrong = (
	'98.1' => [ 'does not revoke',       $function . $comment . $table ],
	'98.2' => [ 'has no comment',        $function . $closed . $table ],
	'98.3' => [ 'forgets a column',      ($whole =~ s/, b int//r) ],
	'98.4' => [ 'forgets a function',    $table ],
	'98.5' => [ 'has another volatility', ($whole =~ s/IMMUTABLE/STABLE/r) ],
	'98.6' => [ 'sets an option',        $whole . 'ALTER TABLE @extschema@.idem_key SET (fillfactor = 50);' ]);
foreach my $version (sort keys %wrong)
{
	add_version($version, $newest, $whole, $wrong{$version}[1]);
	my $difference = difference(installed($newest, $version), installed($version));
	isnt($difference, '', "an update that $wrong{$version}[0] is noticed");
	note $difference;
}

$node->stop;
done_testing();
