# Nothing runs on a standby; after its promotion the worker is there by
# itself.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemWorker;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = new_server('primary', 'idem.sweeper = off',
	allows_streaming => 1);
add_database($primary, 'one');
$primary->backup('base');

my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', 'idem.sweeper = on');
$standby->start;

expire($primary, 'one', 100);
my $left = keys_left($primary, 'one');
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
is(process_pid($standby, 'idem launcher'), '', 'no launcher on a standby');
is(keys_left($standby, 'one'), $left, 'and nothing is swept');
is( $standby->safe_psql('one', q{SELECT ok, detail FROM idem_health() WHERE check_name IN ('sweeper', 'autovacuum') ORDER BY check_name DESC}),
	"t|a standby is not swept; sweeping starts with its promotion\nt|dead rows in idem_key: 0",
	'which idem_health does not complain about');
is(errors_in_log($standby), '', 'not a word in its log');

$primary->stop('fast');
$standby->promote;
ok(wait_process($standby, 'idem launcher'), 'launcher starts at promotion');
ok(wait_swept($standby, 'one'), 'and does its work');
is(errors_in_log($standby), '', 'without a word in the log');

$standby->stop('fast');
done_testing();
