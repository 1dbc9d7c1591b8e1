# The release: what META.json says is what PGXN expects, `make dist` packs all
# that is needed, and PGXN's own client builds and installs from the archive
# what a server then takes.

use strict;
use warnings;

use FindBin;
use File::Find;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $root   = "$FindBin::RealBin/..";
my $python = '/usr/bin/python3';
my $pg_config = $ENV{PG_CONFIG} || 'pg_config';

# Runs a command; returns what it printed, and whether it succeeded.
sub output_of
{
	my @command = @_;
	my $output  = '';

	my $ok = eval { IPC::Run::run(\@command, '<', \undef, '>', \$output, '2>&1') };
	return ($output, $ok);
}

# META.json after the schema; and a copy with one thing wrong is refused.

my $validate = q{
import json, sys
from jsonschema import Draft7Validator
schema = json.load(open(sys.argv[1]))
Draft7Validator.check_schema(schema)
meta = json.load(open(sys.argv[2]))
wrong = dict(meta, version='1.0'), dict(meta, licence='postgresql'), {k: meta[k] for k in meta if k != 'provides'}
validator = Draft7Validator(schema)
for error in validator.iter_errors(meta):
    print('/'.join(map(str, error.path)), error.message)
print('wrong ones accepted:', sum(validator.is_valid(other) for other in wrong))
};

SKIP:
{
	skip 'no jsonschema (Debian: python3-jsonschema)', 1
	  unless (output_of($python, '-c', 'import jsonschema'))[1];
	my ($said) = output_of($python, '-W', 'ignore', '-c', $validate,
		"$root/test/pgxn-meta-1.0.schema.json", "$root/META.json");
	is($said, "wrong ones accepted: 0\n", 'META.json is valid');
}

# The archives

SKIP:
{
	skip "no $python", 1 unless -x $python;

	my $dist = PostgreSQL::Test::Utils::tempdir();
	my ($files, $packed) = output_of("$root/tools/dist", $dist);
	ok($packed, 'the release is packed') or diag $files;
	my ($zip, $tar) = split /\n/, $files;
	my ($list) = output_of($python, '-m', 'zipfile', '-l', $zip);
	my ($list_tar) = output_of('tar', 'tzf', $tar);

	my ($top) = $zip =~ m{([^/]+)\.zip$};
	my @names = sort map { m{^(\Q$top\E/\S+)} ? $1 : () } split /\n/, $list;
	is(join("\n", sort split /\n/, $list_tar), join("\n", @names), 'zip and tar have the same files');
	my %has = map { $_ => 1 } @names;
	is(join(' ', grep { !$has{"$top/$_"} } qw(META.json Makefile idem.control LICENSE README.md CHANGELOG.md doc/design.md src/store.c)),
		'', 'all that is needed is in them');
	is(join(' ', grep { m{\.(?:o|so|bc|log|diffs)$|/tmp_|/\.git|__pycache__} } @names), '', 'and nothing that was built');

	# Installing, with PGXN's client, into a directory of this test's own

  SKIP:
	{
		skip 'no PGXN client (Debian: pgxnclient)', 1 unless (output_of('pgxn', '--version'))[1];

		my $stage = PostgreSQL::Test::Utils::tempdir();
		my $said;
		{
			# Its check that the server's directories can be written to is only made
			# without a sudo, and DESTDIR makes it pointless. The make that runs this
			# test is not that one's business.
			local %ENV = (%ENV, DESTDIR => $stage, HOME => $dist, COPT => '-O1 -g0');
			delete @ENV{qw(MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES)};
			($said) = output_of('pgxn', 'install', '--yes', '--sudo', 'env', '--pg_config', $pg_config, $zip);
		}
		my ($sharedir) = output_of($pg_config, '--sharedir');
		chomp $sharedir;
		ok(-s "$stage$sharedir/extension/idem.control", 'PGXN\'s client installs from it') or diag $said;
		unlike($said, qr/warning:/, 'without a warning of the compiler');

		local $ENV{PG_CONFIG} = $pg_config;
		my ($settings, $known) = output_of("$root/tools/stage", '--only-settings', $stage);
		skip 'this server finds extensions in its own directories only', 1 unless $known;

		my $node = PostgreSQL::Test::Cluster->new('package');
		$node->init;
		$node->append_conf('postgresql.conf', "$settings\nshared_preload_libraries = 'idem'\nidem.sweeper = off\n");
		$node->start;
		is( $node->safe_psql(
				'postgres', q{
CREATE EXTENSION idem;
SELECT outcome, attempt FROM idem_reserve('c', 'k', request => '{}')}),
			'new|1', 'and a server runs what it has installed');
		$node->stop;
	}
}

done_testing();
