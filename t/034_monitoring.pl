# Monitoring as it is described: the real exporters are asked over HTTP, and
# Prometheus' own tool reads the rules. Promises: section 4 (idem_stat,
# idem_health), idem_grant(role, monitor).

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use HTTP::Tiny;
use IPC::Run;
use IdemCluster;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir      = "$FindBin::RealBin/../monitoring";

# Where a program is, or undef
sub program
{
	my ($name) = @_;
	my ($found) = grep { -x } map { "$_/$name" } split(/:/, $ENV{PATH}), '/usr/bin', '/usr/sbin';
	return $found;
}

# What the files name must be one of these
my @metrics = slurp_file("$dir/postgres_exporter.yml") =~ /^    - (\w+): \{usage: "(?:COUNTER|GAUGE)"/mg;
my %known = map { ($_ eq 'ok' ? "idem_health_$_" : "idem_stat_$_") => 1 } @metrics;
cmp_ok(scalar keys %known, '>', 20, 'there are metrics');

my $node = PostgreSQL::Test::Cluster->new('monitoring');
$node->init;
configure($node, "listen_addresses = '127.0.0.1'\n");
$node->append_conf('pg_hba.conf', 'host all watch 127.0.0.1/32 trust');
$node->start;
$node->safe_psql('postgres',
	q{CREATE EXTENSION idem; CREATE ROLE watch LOGIN; SELECT idem_grant('watch', monitor => true)});

# Each counter differs from all others, so that none is taken for another.
my %count = (reserved => 7, replay => 3, mismatch => 2, once_first => 5);
$node->safe_psql('postgres', q{SELECT idem_reserve('c', i::text, '\x01') FROM generate_series(1, 7) i});
$node->safe_psql('postgres', q{SELECT idem_complete('c', '1', token, 200) FROM idem_key WHERE key = '1'});
$node->safe_psql('postgres', q{SELECT idem_reserve('c', '1', '\x01') FROM generate_series(1, 3)});
$node->safe_psql('postgres', q{SELECT idem_reserve('c', '1', '\x02') FROM generate_series(1, 2)});
$node->safe_psql('postgres', q{SELECT idem_once('m', i::text) FROM generate_series(1, 5) i});
$node->safe_psql('postgres', q{SELECT idem_sweep()});

# Starts an exporter and asks it until it has our metrics, a minute at most;
# returns the page that it then shows.
sub scrape
{
	my ($port, $wanted, $environment, @command) = @_;
	my $log = '';
	my $page = '';

	local %ENV = (%ENV, %$environment);
	my $exporter = IPC::Run::start(\@command, '<', \undef, '>', \$log, '2>&1');
	foreach (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		$exporter->pump_nb;
		my $answer = HTTP::Tiny->new(timeout => 10)->get("http://127.0.0.1:$port/metrics");
		$page = $answer->{content} if $answer->{success};
		last if $page =~ $wanted;
		select undef, undef, undef, 0.1;
	}
	$exporter->kill_kill;
	diag($log) if $page !~ $wanted;
	return $page;
}

SKIP:
{
	my $program = program('prometheus-postgres-exporter');
	skip 'no prometheus-postgres-exporter', 1 if !$program;
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $page = scrape(
		$port, qr/^idem_health_ok/m,
		{ DATA_SOURCE_NAME => 'host=' . $node->host . ' port=' . $node->port . ' user=watch dbname=postgres' },
		$program, "--extend.query-path=$dir/postgres_exporter.yml",
		"--web.listen-address=127.0.0.1:$port", '--disable-default-metrics', '--disable-settings-metrics');
	like($page, qr/^idem_stat_$_\{[^}]*datname="postgres"[^}]*\} $count{$_}$/m, "postgres-exporter: $_") foreach sort keys %count;
	like($page, qr/^$_\{/m, "postgres-exporter has $_") foreach sort keys %known;
	like($page, qr/^# TYPE idem_stat_reserved counter$/m, 'a counter is one');
	like($page, qr/^idem_health_ok\{[^}]*check_name="sweeper"[^}]*\} 0$/m, 'a check that fails');
	like($page, qr/^idem_health_ok\{[^}]*check_name="preloaded"[^}]*\} 1$/m, 'and one that does not');
}

SKIP:
{
	my $program = program('prometheus-sql-exporter');
	skip 'no prometheus-sql-exporter', 1 if !$program;
	my $port   = PostgreSQL::Test::Cluster::get_free_port();
	my $config = slurp_file("$dir/sql_exporter.yml");
	my $ours   = "$PostgreSQL::Test::Utils::tmp_check/sql_exporter.yml";
	my $server = $node->port;
	is($config =~ s/localhost:5432\/shop/127.0.0.1:$server\/postgres/, 1, 'the server is named once');
	$config =~ s/interval: '15s'/interval: '1s'/;
	append_to_file($ours, $config);
	my $page = scrape($port, qr/^sql_idem_health\{/m, {}, $program, '-config.file', $ours, '-web.listen-address', "127.0.0.1:$port");
	like($page, qr/^sql_idem_stat\{(?=[^}]*col="$_")(?=[^}]*datname="postgres")[^}]*\} $count{$_}$/m, "sql-exporter: $_")
	  foreach sort keys %count;
	foreach my $metric (sort keys %known)
	{
		my ($query, $col) = $metric =~ /^(idem_(?:stat|health))_(\w+)$/;
		like($page, qr/^sql_$query\{[^}]*col="$col"/m, "sql-exporter has $metric");
	}
}

# Rules and configuration, by Prometheus' own tool
SKIP:
{
	my $promtool = program('promtool');
	skip 'no promtool', 1 if !$promtool;
	foreach my $command ([qw(check rules alerts.yml)], [qw(test rules alerts_test.yml)], [qw(check config prometheus.yml)])
	{
		my $output = '';
		IPC::Run::run([ $promtool, @$command ], '>', \$output, '2>&1', init => sub { chdir $dir or die });
		is($?, 0, "promtool @$command") or diag($output);
	}
}

# Rules and dashboard name metrics that there are, and each alert is explained.
my $alerts    = slurp_file("$dir/alerts.yml");
my $dashboard = slurp_file("$dir/grafana.json");
my $runbook   = slurp_file("$dir/../doc/runbook.md");
my %named     = map { $_ => 1 } "$alerts$dashboard" =~ /\b(idem_(?:stat|health)_\w+)/g;
is(join(' ', grep { !$known{$_} } sort keys %named), '', 'rules and dashboard name metrics that there are');
my @alerts = $alerts =~ /alert: (\w+)/g;
cmp_ok(scalar @alerts, '>', 5, 'there are alerts');
like($runbook, qr/^### $_$/m, "the runbook has $_") foreach @alerts;
like($runbook, qr/`$_`/, "the runbook has the check $_")
  foreach split /\n/, $node->safe_psql('postgres', 'SELECT check_name FROM idem_health()');
like($runbook, qr/^### $_$/m, "the runbook has: $_")
  foreach 'A key is stuck', 'The provider is down', 'The table is too large', 'After a failover', 'Restoring a backup';

# What the runbook tells to run can be run: its statements, at a key that there is.
my @statements = ($runbook =~ /^```sql\n(SELECT.*?);$/msg, $runbook =~ /`((?:SELECT|VACUUM FULL \w)[^`]*)`/g);
cmp_ok(scalar @statements, '>', 8, 'the runbook has statements');
foreach my $statement (@statements)
{
	my $ours = $statement =~ s/\s+/ /gr =~ s/(?<=\()client, key\b/'c', '1'/gr =~ s/, fp,/, '\\x01',/r =~ s/ \.\.\./ '{}'/r;
	is(sqlstate($node, $ours), '', "the runbook's $ours");
}
my $panels = JSON::PP->new->decode($dashboard)->{panels};
cmp_ok(scalar @$panels, '>', 5, 'the dashboard has panels');

# The page for those without Prometheus
my ($out, $err) = ('', '');
IPC::Run::run([ 'psql', '-X', '-d', $node->connstr('postgres') . ' user=watch', '-v', 'ON_ERROR_STOP=1', '-f', "$dir/idem.psql" ],
	'>', \$out, '2>', \$err);
is("$?$err", '0', 'the page in psql');
like($out, qr/idem\.sweeper is off/, 'shows what is not well');
like($out, qr/\b7 \|/, 'and the counters');

$node->stop;

# The picture: what it is drawn from is counted while it is made.
SKIP:
{
	skip 'no gnuplot', 1 if !program('gnuplot');
	my $picture = "$PostgreSQL::Test::Utils::tmp_check/dashboard.svg";
	local %ENV = (%ENV, SECONDS_EACH => 1, PICTURE => $picture);
	my $output = '';
	IPC::Run::run(["$dir/picture"], '<', \undef, '>', \$output, '2>&1');
	is($?, 0, 'the picture is drawn') or diag($output);
	like(slurp_file($picture), qr/<svg.*in flight.*taken over.*keys/s, 'with its curves');
}

done_testing();
