# README.md is right: every SQL example in it runs, in the order in which it
# stands there, and gives the output that is shown; the programs run, where
# their driver is there; the reference has every function, every argument,
# every view and every setting, and nothing that does not exist.

use strict;
use warnings;

use FindBin;
use IPC::Run ();
use JSON::PP ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $root   = "$FindBin::RealBin/..";
my $readme = slurp_file("$root/README.md");

my $node = PostgreSQL::Test::Cluster->new('readme');
# Drivers give text as bytes where the encoding is SQL_ASCII.
$node->init(extra => [ '--no-locale', '--encoding=UTF8' ]);
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'idem'
idem.sweeper = off
});
$node->start;

# The examples are a superuser's of this name.
$node->safe_psql(
	'postgres', q{
DO $$ BEGIN CREATE ROLE postgres SUPERUSER LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$});

# The examples: SQL, the line it begins at, and the output that is shown right
# after it, if any.

my $fence = qr/^```(\w*)\n(.*?)^```\n/ms;
my (@examples, $end);
while ($readme =~ /$fence/g)
{
	my ($language, $text) = ($1, $2);
	my $line = 1 + (substr($readme, 0, $-[0]) =~ tr/\n//);

	if ($language eq 'sql')
	{
		push @examples, { sql => $text, line => $line };
		$end = $+[0];
	}
	elsif ($language eq '')
	{
		ok(defined $end && $-[0] == $end,
			"line $line: output belongs to the SQL before it");
		$examples[-1]{shown} = $text;
	}
}
cmp_ok(scalar(grep { defined $_->{shown} } @examples),
	'>=', 10, 'there are examples');

# One session of psql for all of them, since one example builds on another.

my $psql = '';
my $output = '';
my $timer = IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default // 180);
my $session = IPC::Run::start(
	[ 'psql', '-X', '-q', '-d', $node->connstr('postgres') . ' user=postgres' ],
	'<', \$psql, '>', \$output, '2>&1', $timer);

sub run_example
{
	my ($sql, $n) = @_;

	$output = '';
	$psql .= "$sql\n\\echo example $n ends\n";
	$timer->start($PostgreSQL::Test::Utils::timeout_default // 180);
	$session->pump while $output !~ /^example $n ends\n/m;
	$output =~ s/^example $n ends\n//m;
	return $output;
}

# Tokens are random (UUIDs of version 4): those of this run stand for those
# that are shown, in the SQL that follows too.

my $random = qr/\b[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b/;
my %token;

sub learn_tokens
{
	my ($shown, $got) = @_;
	my @shown = $shown =~ /$random/g;

	@token{@shown} = $got =~ /$random/g;
	delete @token{ grep { !defined $token{$_} } @shown };
	return;
}

# Tokens and times are different every time, and the width of a column with them.
sub comparable
{
	my ($text) = @_;

	$text =~ s/$random/<token>/g;
	$text =~ s/\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?[+-]\d\d(?::\d\d)?/<time>/g;
	$text =~ s/\b(?:(?:\d+ days? )?\d\d:\d\d:\d\d|another \K\d+ days?)\b/<span>/g;
	$text =~ s/(?<=: )"\d+"(?=[,}])/"<seconds>"/g if $text =~ /retry-after/;
	$text =~ s/-{2,}/--/g;
	$text =~ s/ +/ /g;
	$text =~ s/ $//mg;
	$text =~ s/\n+\z/\n/;
	return $text;
}

foreach my $n (0 .. $#examples)
{
	my ($sql, $shown, $line) = @{ $examples[$n] }{qw(sql shown line)};

	$sql =~ s{($random)}{$token{$1} // $1}ge;
	my $got = run_example($sql, $n);
	if (defined $shown)
	{
		is(comparable($got), comparable($shown), "line $line: output as shown");
		learn_tokens($shown, $got);
	}
	else
	{
		unlike($got, qr/^(?:ERROR|FATAL|psql|invalid)/m, "line $line: runs");
	}
}
$psql .= "\\q\n";
$session->finish;

# The programs. Each defines one function, which is called twice with the same
# request: one payment, and the same bytes.

sub run_program
{
	my ($language, $command, $probe, $call) = @_;
	my ($program) = $readme =~ /^```$language\n(.*?)^```\n/ms;

  SKIP:
	{
		my ($out, $err) = ('', '');

		skip "no driver for $language", 1
		  unless eval {
			IPC::Run::run([ @$command, $probe ], '<', \undef, '>', \$out, '2>', \$err);
		  };
		($out, $err) = ('', '');
		IPC::Run::run([ @$command, $program . $call ], '<', \undef, '>', \$out, '2>', \$err);
		is("$out$err", "201 201 same 422\n", "the program in $language");
	}
	return;
}

my $python = -x '/usr/bin/python3' ? '/usr/bin/python3' : 'python3';
run_program('python', [ $python, '-c' ], 'import psycopg', sprintf <<'PYTHON', $node->connstr('postgres'));

db = psycopg.connect("%s user=postgres", autocommit=True, row_factory=namedtuple_row)
first, again, other = [create_payment(db, "py", '"k-1"', {"amount": amount}) for amount in (5, 5, 6)]
print(first[0], again[0], "same" if first == again else "other", other[0])
PYTHON

run_program('js', [ 'node', '-e' ], q{require('pg')}, sprintf <<'JS', $node->host, $node->port);

(async () => {
  const pool = new (require('pg').Pool)({ host: '%s', port: %d, user: 'postgres', database: 'postgres' });
  let calls = 0;
  const answers = [];
  for (const amount of [5, 5, 6]) {
    answers.push(await createPayment(pool, 'js', '"k-1"', { amount }, async () => `ch_${++calls}`));
  }
  const [first, again, other] = answers;
  const same = calls === 1 && first.body.equals(again.body);
  console.log(first.status, again.status, same ? 'same' : 'other', other.status);
  await pool.end();
})();
JS

# The reference. A function is described by a paragraph that begins with its
# name and arguments in bold.

my @functions = split /\n/,
  $node->safe_psql(
	'postgres', q{
SELECT proname, array_to_string(proargnames, ' ')
  FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
  JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
 WHERE e.extname = 'idem' ORDER BY 1});
cmp_ok(scalar @functions, '>', 20, 'the extension has functions');

my %known;
foreach (@functions)
{
	my ($name, $arguments) = split /\|/;
	my ($described) = $readme =~ /\*\*`$name\((.*?)\)`\*\*/s;

	$known{$name} = 1;
	if (!defined $described)
	{
		fail("reference has $name");
		next;
	}
	is(join(' ', $described =~ /(?:^|,\s*)(\w+)/g), $arguments // '', "reference has $name and its arguments");
}

my $relations = $node->safe_psql(
	'postgres', q{
SELECT string_agg(relname, ' ') FROM pg_class WHERE relname ~ '^idem_'});
$known{$_} = 1 foreach split / /, $relations;
like($readme, qr/\*\*`$_`\*\*/, "reference has $_")
  foreach split /\n/, $node->safe_psql('postgres',
	q{SELECT relname FROM pg_class WHERE relkind = 'v' AND relname ~ '^idem_'});
$known{$_} = 1 foreach split /\n/, $node->safe_psql('postgres',
	q{SELECT typname FROM pg_type WHERE typname ~ '^idem_'});

# What is said to be missing must be, and nothing else may be unknown.
my ($missing) = $readme =~ /^## What does not work yet\n(.*?)^## /ms;
my %missing = map { $_ => 1 } $missing =~ /`(idem_\w+)`/g;
is(join(' ', grep { $known{$_} } sort keys %missing), '', 'what is not there yet is not there');
my %used = map { $_ => 1 } $readme =~ /\b(idem_[a-z_0-9]+)\b/g;
is(join(' ', grep { !$known{$_} && !$missing{$_} && $_ ne 'idem_stale' } sort keys %used),
	'', 'whatever else is named exists');

# Settings: name, default and who may set it.

my %who = (user => 'anybody', superuser => 'superuser', sighup => 'reload', postmaster => 'restart');
my @settings = split /\n/, $node->safe_psql(
	'postgres', q{SELECT name, context FROM pg_settings WHERE name LIKE 'idem.%' ORDER BY name});
foreach (@settings)
{
	my ($name, $context) = split /\|/;
	like($readme, qr/^\| `\Q$name\E` \|.*\| $who{$context} \|$/m, "settings have $name");
}
my %setting = map { (split /\|/)[0] => 1 } @settings;
is(join(' ', grep { !$setting{$_} } $readme =~ /`(idem\.[a-z_]+)`/g), '', 'and no others');

# Links to files and to headings.

foreach my $link ($readme =~ /\]\((?!https?:)([^)]*)\)/g)
{
	my ($file, $heading) = $link =~ /^([^#]*)(?:#(.*))?$/;

	ok(-e "$root/$file", "link to $file") if $file ne '';
	next if !defined $heading || $file ne '';
	my %seen;
	my @headings = map {
		my $anchor = lc =~ s/[^\w -]//gr =~ tr/ /-/r;
		$seen{$anchor}++ ? "$anchor-" . ($seen{$anchor} - 1) : $anchor
	} $readme =~ /^#+ (.*)$/mg;
	ok(scalar(grep { $_ eq $heading } @headings), "link to #$heading");
}

# PGXN's description of the same.

my $meta = JSON::PP->new->decode(slurp_file("$root/META.json"));
ok(-e "$root/$meta->{provides}{idem}{$_}", "META.json: its $_ is there") foreach qw(file docfile);

$node->stop;
done_testing();
