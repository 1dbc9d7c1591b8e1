# idem: idempotency keys inside PostgreSQL
#
#   make test       everything a machine needs, then all tests, in a private server
#   make demo       the same for the demonstration
#   make examples   a payments service in six languages, a browser, and more: ONLY="go checkout" SCREENSHOTS=1
#   make monitoring     the real exporters and Prometheus' own tool on what is in monitoring/
#   make torture    many clients, few keys and a nemesis: SECONDS=60 CLIENTS=16 SEED=...
#   make mutants    whether the tests find each of the copies of src/ that have one rule broken
#   make endurance  500 databases, a week's backlog, 100,000 visits, 8 GB of NOTIFY: DATABASES=500 KEYS=5000000 PASSES=100000
#   make fuzz       the fuzzer: SECONDS=60 for each target, SEED=..., MERGE=1
#   make clients    the fingerprint in Python, JavaScript, Go and Java, as doc/fingerprint.md shows it
#   make failover   the same clients at a Patroni cluster whose leader is killed and cut off: SECONDS=180 MODE=sync|async
#   make sharded    PL/Proxy over four servers; clients move between them: SECONDS=40
#   make bench      what it costs, and beside it what others cost: ONLY=all ONLY="steady growth" FULL=1 ROUNDS=3 SECONDS=1
#   make poolers    5,000 clients through PgBouncer: SECONDS=20 CLIENTS=5000 RATE=500
#   make analyze    warnings, analyzers, sanitizers, valgrind, coverage: QUICK=1 CHECKS="gcc ubsan"; make asan, as root
#   make matrix     all tests with PostgreSQL 15, 17 and 18, each in its Debian; as root: VERSIONS=17 RECORD=1
#   make dist       the release, into dist/
#   make deb        Debian packages, into dist/; make deb-check installs, tests, upgrades and removes them, as root
#   make doc        the pictures in doc/ from their sources
#
#   make            build against the pg_config on PATH, or PG_CONFIG=/path/to/pg_config
#   make install    into that PostgreSQL
#   make installcheck   the tests against the installed extension; not as root
#   make WERROR=1   a warning is an error

MODULE_big = idem
EXTENSION = idem
DATA = idem--1.0.sql
PGFILEDESC = "idem - idempotency keys inside PostgreSQL"

# Also from another directory: make -f .../Makefile VPATH=..., as packagers do.
here := $(dir $(firstword $(MAKEFILE_LIST)))
found = $(sort $(patsubst $(here)%,%,$(wildcard $(here)$(1))))
ifdef VPATH
$(shell mkdir -p src)
endif

OBJS = $(patsubst %.c,%.o,$(call found,src/*.c))

# The fingerprint is OpenSSL's SHA-256, called directly.
SHLIB_LINK += -lcrypto

# -Wextra without the three warnings that PostgreSQL's own headers and macros raise.
PG_CFLAGS = -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers
ifdef WERROR
PG_CFLAGS += -Werror
endif

# Bitcode lets the JIT inline an extension's functions into expressions. These
# work on tables, so inlining gains nothing, and it would need clang on every
# machine that builds. with_llvm=yes on the command line brings it back.
ifneq ($(origin with_llvm),command line)
override with_llvm = no
endif

# Tests. A file in sql/, specs/ or t/ is a test by being there; sql/setup.sql
# creates the extension and comes first. Each kind starts a server of its own, in
# a directory that is not called tmp_check: the TAP step deletes that one.
REGRESS_FOUND := $(patsubst sql/%.sql,%,$(call found,sql/*.sql))
REGRESS := $(strip $(filter setup,$(REGRESS_FOUND)) $(filter-out setup,$(REGRESS_FOUND)))
REGRESS_OPTS = --temp-instance=tmp_regress --temp-config=$(here)test/regress.conf
ISOLATION := $(patsubst specs/%.spec,%,$(call found,specs/*.spec))
ifneq ($(filter $(REGRESS),$(ISOLATION)),)
$(error in sql/ and in specs/: $(filter $(REGRESS),$(ISOLATION)); they share expected/, so the names must differ)
endif
ISOLATION_OPTS = --temp-instance=tmp_isolation --temp-config=$(here)test/regress.conf
ifneq ($(call found,t/*.pl),)
TAP_TESTS = 1
endif
ENCODING = UTF8
NO_LOCALE = 1

EXTRA_CLEAN = tmp_regress tmp_isolation

# `make test` and `make demo` bring what they need, so they must not need it to start.
STANDALONE = test demo torture mutants endurance monitoring failover sharded poolers fuzz clients bench examples
STANDALONE += matrix dist deb deb-check doc analyze asan
ifneq ($(if $(MAKECMDGOALS),$(filter-out $(STANDALONE),$(MAKECMDGOALS)),all),)

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)
ifeq ($(and $(PGXS),$(wildcard $(PGXS))),)
define NO_PGXS_MESSAGE
$(PG_CONFIG) was not found, or the server headers that belong to it were not.
  Debian, Ubuntu:  apt-get install gcc libssl-dev postgresql-server-dev-NN   (NN: the server's major version)
  elsewhere:       make PG_CONFIG=/path/to/pg_config
  no PostgreSQL:   `make test` and `make demo` install what they need
endef
$(error $(NO_PGXS_MESSAGE))
endif
include $(PGXS)

# PGXS does not know which source includes which header.
$(OBJS): $(call found,src/*.h)

# Else it would be initdb that says so, in a log.
installcheck: not-as-root
not-as-root:
	@test "$$(id -u)" != 0 || { echo "The servers of the tests do not run as root; use another user, or \`make test\`." >&2; exit 1; }
.PHONY: not-as-root

endif

# What the two need, how they get it, and the temporary home they run in: tools/.
test:
	@tools/sandbox test tools/run-tests
demo:
	@tools/sandbox demo tools/run-demo
torture:
	@tools/torture $(foreach v,SECONDS CLIENTS SEED OPERATIONS,$(if $($(v)),$(v)=$($(v))))
mutants:
	@tools/sandbox test torture/mutants/run
monitoring:
	@REGRESS= ISOLATION= PROVE_TESTS=t/034_monitoring.pl tools/sandbox monitoring tools/run-tests
endurance:
	@REGRESS= ISOLATION= TEST_TIMEOUT=$(or $(TEST_TIMEOUT),28800) PG_TEST_TIMEOUT_DEFAULT=$(or $(PG_TEST_TIMEOUT_DEFAULT),1800) \
		ENDURANCE_DATABASES=$(or $(DATABASES),500) ENDURANCE_KEYS=$(or $(KEYS),5000000) ENDURANCE_PASSES=$(or $(PASSES),100000) ENDURANCE_NOTIFY=1 \
		PROVE_TESTS='$(or $(ONLY),t/014_worker_many.pl t/015_worker_backlog.pl t/018_worker_memory.pl t/025_notify.pl t/026_reminder_steps.pl)' tools/sandbox test tools/run-tests
clients:
	@CLIENT_LANGUAGES='python js go java' REGRESS= ISOLATION= PROVE_TESTS=t/023_clients.pl tools/sandbox clients tools/run-tests
fuzz:
	@tools/fuzz $(foreach v,SECONDS SEED MERGE,$(if $($(v)),$(v)=$($(v))))
failover sharded poolers:
	@tools/sandbox $@ scaling/run $@ $(foreach v,SECONDS CLIENTS SEED MODE FAULTS RATE POOL,$(if $($(v)),$(v)=$($(v))))
bench:
	@tools/bench $(foreach v,FULL ROUNDS SECONDS HUGE_PAGES,$(if $($(v)),$(v)=$($(v)))) $(if $(ONLY),"ONLY=$(ONLY)")
examples:
	@tools/examples $(if $(ONLY),"ONLY=$(ONLY)") $(if $(SCREENSHOTS),"SCREENSHOTS=$(SCREENSHOTS)")
.PHONY: test demo torture mutants endurance monitoring failover sharded poolers fuzz clients bench examples

# Releasing, and looking closer.
matrix:
	@tools/matrix $(VERSIONS)
analyze:
	@tools/analyze $(CHECKS)
dist deb deb-check doc asan:
	@tools/$@
.PHONY: matrix analyze asan dist deb deb-check doc
