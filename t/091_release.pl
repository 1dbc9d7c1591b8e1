# One version everywhere; what has been released stays as it is; the pictures are
# those of their sources.

use strict;
use warnings;

use Digest::SHA ();
use FindBin;
use JSON::PP ();
use PostgreSQL::Test::Utils;
use Test::More;

my $root = "$FindBin::RealBin/..";

# The version. idem.control has the two numbers that SQL has, everything else three.

sub version_in
{
	my ($file, $pattern) = @_;

	my ($version) = slurp_file("$root/$file") =~ $pattern;
	return $version // "none";
}

my $version = version_in('idem.control', qr/^default_version = '(\d+\.\d+)'$/m);
my $meta    = JSON::PP->new->decode(slurp_file("$root/META.json"));
my $full    = $meta->{version};

like($full, qr/^\Q$version\E\.\d+$/, 'META.json has the version of idem.control');
is($meta->{provides}{idem}{version}, $full, 'and what it provides is that');
is($meta->{provides}{idem}{file}, "idem--$version.sql", 'from the script of that version');
ok(-s "$root/idem--$version.sql", 'which is there');
is(version_in('CHANGELOG.md', qr/^## (\S+)/m), $full, 'CHANGELOG.md begins with it');
is(version_in('README.md', qr/^Version (\S+?)\.(?= |$)/m), $full, 'README.md says it');

# A packager's debian/ is in git and not in the release.
if (-e "$root/debian/changelog")
{
	is(version_in('debian/changelog', qr/^idem \((\S+)-[^-\s]+\)/), $full, 'debian/changelog begins with it');
	foreach my $name (qw(debian/control debian/control.in debian/changelog))
	{
		is(version_in($name, qr/^(?:Maintainer:| --) (.*?) <\S+\@\S+>/m), $meta->{maintainer}, "$name and META.json have one maintainer");
	}
}

foreach my $image (glob("$root/packaging/Dockerfile*"))
{
	my ($name) = $image =~ m{(packaging/.*)};
	is(version_in($name, qr/image\.version="([^"]+)"/), $full, "$name is labelled with it");
}

my ($data) = slurp_file("$root/Makefile") =~ /^DATA = (.*)$/m;
is(join(' ', sort split ' ', $data), join(' ', sort map { s{.*/}{}r } glob("$root/idem--*.sql")),
	'the Makefile installs every script');

# What has been released: a checksum of each script, as sha256sum writes it.

my $released = slurp_file("$root/test/released.sha256");
my %frozen   = map { /^([0-9a-f]{64})  (\S+)$/ ? ($2 => $1) : () } grep { !/^#/ } split /\n/, $released;
foreach my $script (sort keys %frozen)
{
	is( -e "$root/$script" ? Digest::SHA->new(256)->addfile("$root/$script")->hexdigest : 'missing',
		$frozen{$script}, "$script is as it was released");
}
if (version_in('CHANGELOG.md', qr/^## \S+ (\(not released\))$/m) eq 'none')
{
	is($meta->{release_status}, 'stable', 'META.json says that it is released');
	is(join(' ', grep { !$frozen{$_} } split ' ', $data), '', 'and its scripts are frozen');
	is(version_in('debian/control', qr/^Maintainer: .*(\@example\.)/m), 'none', 'and somebody reads mail for it') if -e "$root/debian/control";
}
else
{
	is($meta->{release_status}, 'testing', 'META.json says that it is not released');
	ok(!$frozen{"idem--$version.sql"}, 'and nobody relies on its script yet');
}

# The pictures

foreach my $source (glob("$root/doc/*.dot"))
{
	my ($name) = $source =~ m{([^/]+)\.dot$};
	my $checksum = Digest::SHA->new(256)->addfile($source)->hexdigest;

	ok(-e "$root/doc/$name.svg" && slurp_file("$root/doc/$name.svg") =~ /^<!-- \Q$name\E\.dot sha256 $checksum -->$/m,
		"doc/$name.svg is made from its source (make doc)");
}

done_testing();
