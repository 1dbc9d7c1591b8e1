/*-------------------------------------------------------------------------
 *
 * health.c
 *	  idem_health: whether all is well with idem in this database, in words.
 *
 * Each check is one function.  It looks at one thing, says in `detail` what it
 * saw, and where that is not as it should be, in `remedy` what to do.  What
 * cannot be known, for want of preloading or of a first pass of the sweep, is
 * no reason to worry anybody.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/statvfs.h>

#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "args.h"
#include "common/relpath.h"
#include "compat.h"
#include "counters.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/autovacuum.h"
#include "settings.h"
#include "storage/bufmgr.h"
#include "table.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(idem_health);

/* A pass is late after so many intervals, and a minute */
#define LATE_INTERVALS			3
#define LATE_EXTRA				USECS_PER_MINUTE

/* Keys and time from which on their rate is taken for typical */
#define RATE_MIN_KEYS			1000
#define RATE_MIN_TIME			(10 * USECS_PER_MINUTE)

/* Share of the free disk space that keys may come to need */
#define FREE_SHARE				0.8

/* What a table may have beyond its rows: so many times as much, and so much */
#define SIZE_FACTOR				3
#define SIZE_EXTRA				(16 * 1024 * 1024)

/* Dead rows that autovacuum may have before it: five times what starts it */
#define DEAD_SHARE				0.25
#define DEAD_EXTRA				10000

/* Columns of idem_health_check */
enum
{
	HEALTH_NAME, HEALTH_OK, HEALTH_DETAIL, HEALTH_REMEDY, HEALTH_NCOLS
};

/* What the checks go by */
typedef struct Patient
{
	ReturnSetInfo *result;
	TimestampTz now;
	Relation	rel;			/* idem_key */
	int64		bytes;			/* all tables, on disk */
	bool		preloaded;
	bool		counted;		/* what follows is known */
	IdemTotals	totals;
} Patient;

/* Add one check to the result; the remedy is for what is not well only */
static void
Report(Patient *patient, const char *name, bool ok, const char *detail,
	   const char *remedy)
{
	Datum		values[HEALTH_NCOLS];
	bool		isnull[HEALTH_NCOLS] = {false};

	values[HEALTH_NAME] = CStringGetTextDatum(name);
	values[HEALTH_OK] = BoolGetDatum(ok);
	values[HEALTH_DETAIL] = CStringGetTextDatum(detail);
	values[HEALTH_REMEDY] = ok ? (Datum) 0 : CStringGetTextDatum(remedy);
	isnull[HEALTH_REMEDY] = ok;
	tuplestore_putvalues(patient->result->setResult, patient->result->setDesc,
						 values, isnull);
}

static const char *
Setting(const char *name)
{
	return GetConfigOptionByName(name, NULL, false);
}

static const char *
Pretty(double bytes)
{
	Datum		number = DirectFunctionCall1(pg_size_pretty,
											 Int64GetDatum((int64) Min(bytes, 9e18)));

	return TextDatumGetCString(number);
}

static void
CheckPreloaded(Patient *patient)
{
	if (patient->preloaded)
		Report(patient, "preloaded", true, "idem is preloaded", NULL);
	else
		Report(patient, "preloaded", false,
			   "idem is not preloaded: nothing is swept by itself, and nothing is counted",
			   "Add idem to shared_preload_libraries and restart the server. Where that cannot be, call idem_sweep() every minute from a scheduler.");
}

/* When a pass over this database would be late; the server may be young */
static TimestampTz
LateAt(const IdemTotals *totals)
{
	TimestampTz since = Max(PgStartTime, Max(totals->pass.ended, totals->reset));

	return since + LATE_EXTRA +
		LATE_INTERVALS * (int64) idem_sweep_interval * 1000;
}

static bool
LauncherRuns(void)
{
	bool		runs;

	LWLockAcquire(idem_shared->lock, LW_SHARED);
	runs = idem_shared->launcher != 0;
	LWLockRelease(idem_shared->lock);
	return runs;
}

static void
CheckSweeper(Patient *patient)
{
	const IdemPass *pass = &patient->totals.pass;
	const char *last = pass->ended == 0 ? "none yet" : timestamptz_to_str(pass->ended);

	if (RecoveryInProgress())
		Report(patient, "sweeper", true,
			   "a standby is not swept; sweeping starts with its promotion", NULL);
	else if (!patient->preloaded)
		Report(patient, "sweeper", false,
			   "there is no background worker without preloading",
			   "See the check \"preloaded\".");
	else if (!idem_sweeper)
		Report(patient, "sweeper", false,
			   "idem.sweeper is off: expired keys stay on disk, and nobody is told of stale leases",
			   "Set idem.sweeper to on and reload, or call idem_sweep() from a scheduler.");
	else if (!LauncherRuns())
		Report(patient, "sweeper", false, "the launcher does not run",
			   "It is started again within seconds; if not, the server's log says why.");
	else if (patient->counted && patient->now > LateAt(&patient->totals))
		Report(patient, "sweeper", false,
			   psprintf("the last pass was longer ago than %d times idem.sweep_interval, which is %s: %s",
						LATE_INTERVALS, Setting("idem.sweep_interval"), last),
			   "Look for \"background worker of idem\" in the server's log, and at the check \"worker_slots\".");
	else
		Report(patient, "sweeper", true, psprintf("last pass: %s", last), NULL);
}

static void
CheckWorkerSlots(Patient *patient)
{
	bool		no_slot = false;

	if (patient->preloaded)
	{
		LWLockAcquire(idem_shared->lock, LW_SHARED);
		no_slot = idem_shared->no_slot;
		LWLockRelease(idem_shared->lock);
	}
	Report(patient, "worker_slots", !no_slot,
		   no_slot ? "the server has no free slot for a background worker of idem" :
		   "no background worker was refused",
		   psprintf("Raise max_worker_processes, which is %s, and restart the server.",
					Setting("max_worker_processes")));
}

static void
CheckCounters(Patient *patient)
{
	Report(patient, "counters", patient->counted || !patient->preloaded,
		   patient->counted ? "this database is counted" :
		   patient->preloaded ? "this database is not counted: as many others are as there is room for" :
		   "nothing is counted without preloading",
		   psprintf("Raise idem.max_databases, which is %s, and restart the server.",
					Setting("idem.max_databases")));
}

/* Bytes free where the table is, or -1 when the system does not say */
static double
FreeBytes(Relation rel)
{
	Oid			tablespace = rel->rd_rel->reltablespace;
	struct statvfs fs;

	if (!OidIsValid(tablespace))
		tablespace = MyDatabaseTableSpace;
	if (statvfs(GetDatabasePath(MyDatabaseId, tablespace), &fs) != 0)
		return -1;
	return (double) fs.f_bavail * fs.f_frsize;
}

/* Will what is kept for one retention, at the rate so far, fit on the disk? */
static void
CheckRetention(Patient *patient)
{
	const IdemTotals *totals = &patient->totals;
	double		elapsed = patient->now - totals->reset;
	double		fresh = totals->counts[IDEM_COUNT_RESERVED] +
		totals->counts[IDEM_COUNT_ONCE_FIRST];
	double		room = FreeBytes(patient->rel);
	double		needed;

	if (!patient->counted || totals->pass.keys < RATE_MIN_KEYS ||
		elapsed < RATE_MIN_TIME || room < 0)
	{
		Report(patient, "retention", true,
			   psprintf("too few keys, or too little time, to tell what those of idem.retention, which is %s, will take; now it is %s",
						Setting("idem.retention"), Pretty(patient->bytes)), NULL);
		return;
	}
	needed = fresh / elapsed * IdemRetentionSetting() *
		patient->bytes / totals->pass.keys;
	Report(patient, "retention", needed <= patient->bytes + FREE_SHARE * room,
		   psprintf("%.1f new keys a second at %.0f bytes each, kept for %s, come to %s; now it is %s, and %s are free",
					fresh / elapsed * USECS_PER_SEC,
					(double) patient->bytes / totals->pass.keys,
					Setting("idem.retention"), Pretty(needed),
					Pretty(patient->bytes), Pretty(room)),
		   "Lower idem.retention, store smaller answers, or make the disk larger.");
}

/*
 * Pins that do not hold.  Names of clients are not shown: who monitors is not
 * told whose keys there are.
 */
static const char *const pins_query =
"SELECT count(*), string_agg(problem, '; ' ORDER BY problem)"
"  FROM (SELECT CASE"
"           WHEN s.setrole = 0 THEN 'idem.client is set for a database and not for a role'"
"           WHEN r.rolsuper THEN format('role %s is pinned, but as a superuser it can change that', r.rolname)"
"           WHEN p.client = '' THEN format('role %s has an empty idem.client, which pins it to nobody', r.rolname)"
"           WHEN octet_length(p.client) > 255 THEN format('role %s is pinned to a client of more than 255 bytes, which has no keys', r.rolname)"
"           WHEN has_table_privilege(r.oid, $1, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE') THEN format('role %s is pinned, but has privileges on the table idem_key itself', r.rolname)"
"        END AS problem"
"   FROM pg_db_role_setting s"
"  CROSS JOIN LATERAL (SELECT substr(u.setting, length('idem.client=') + 1) AS client"
"                        FROM unnest(s.setconfig) AS u(setting)"
"                       WHERE starts_with(u.setting, 'idem.client=')) AS p"
"   LEFT JOIN pg_roles r ON r.oid = s.setrole"
"  WHERE s.setdatabase = 0 OR s.setdatabase = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())) AS pins";

static void
CheckPins(Patient *patient)
{
	MemoryContext caller = CurrentMemoryContext;
	Oid			types[1] = {OIDOID};
	Datum		args[1] = {ObjectIdGetDatum(RelationGetRelid(patient->rel))};
	char	   *pins;
	char	   *problems;

	SPI_connect();
	if (SPI_execute_with_args(pins_query, 1, types, args, NULL, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not look for pinned roles");
	pins = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
	problems = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2);
	pins = MemoryContextStrdup(caller, pins);
	if (problems != NULL)
		problems = MemoryContextStrdup(caller, problems);
	SPI_finish();

	Report(patient, "client_pins", problems == NULL,
		   problems != NULL ? problems : psprintf("roles that are pinned to a client: %s", pins),
		   "Pin roles without further rights, one by one: ALTER ROLE name SET idem.client = 'client'.");
}

static void
CheckTableSize(Patient *patient)
{
	double		size = (double) RelationGetNumberOfBlocks(patient->rel) * BLCKSZ;
	double		rows = patient->totals.pass.row_bytes;
	double		fill = RelationGetFillFactor(patient->rel, HEAP_DEFAULT_FILLFACTOR) / 100.0;

	if (patient->totals.pass.ended == 0)
		Report(patient, "table_size", true,
			   psprintf("%s on disk; no pass has looked at the table yet",
						Pretty(patient->bytes)), NULL);
	else
		Report(patient, "table_size",
			   size <= SIZE_EXTRA + SIZE_FACTOR * rows / fill,
			   psprintf("%s on disk; the table itself has %s, of which live keys take %s",
						Pretty(patient->bytes), Pretty(size), Pretty(rows)),
			   "Look for what keeps removed rows: the check \"autovacuum\", long transactions, prepared transactions, replication slots. Then the space is used again; VACUUM FULL gives it back, and locks the table meanwhile.");
}

/* What keeps autovacuum from its work, or shows that it does not keep up */
static const char *
AutovacuumProblem(Patient *patient, int64 dead)
{
	StdRdOptions *options = (StdRdOptions *) patient->rel->rd_options;
	double		rows = Max(patient->rel->rd_rel->reltuples, 0);

	if (RecoveryInProgress())
		return NULL;
	if (!autovacuum_start_daemon)
		return "autovacuum is off";
	if (!pgstat_track_counts)
		return "track_counts is off, so that autovacuum does not know what there is to do";
	if (options != NULL && !options->autovacuum.enabled)
		return "autovacuum is off for the table idem_key";
	if (dead > DEAD_EXTRA + DEAD_SHARE * rows)
		return psprintf(INT64_FORMAT " dead rows in idem_key wait for autovacuum", dead);
	return NULL;
}

static void
CheckAutovacuum(Patient *patient)
{
	Datum		relid = ObjectIdGetDatum(RelationGetRelid(patient->rel));
	int64		dead = DatumGetInt64(DirectFunctionCall1(pg_stat_get_dead_tuples, relid));
	const char *problem = AutovacuumProblem(patient, dead);

	Report(patient, "autovacuum", problem == NULL,
		   problem != NULL ? problem :
		   psprintf("dead rows in idem_key: " INT64_FORMAT, dead),
		   "Turn it on. Where it cannot keep up, lower autovacuum_vacuum_cost_delay, and look for long transactions, prepared transactions and replication slots that hold rows back.");
}

static void
CheckDurability(Patient *patient)
{
	const char *problem = NULL;

	if (!enableFsync)
		problem = "fsync is off: when the machine stops, keys and answers can be lost";
	else if (synchronous_commit == SYNCHRONOUS_COMMIT_OFF)
		problem = "synchronous_commit is off: a crash can forget the keys that were answered last";
	Report(patient, "durability", problem == NULL,
		   problem != NULL ? problem : "a commit is on disk before it is answered",
		   "Set fsync to on, and synchronous_commit at least for the transactions that complete keys.");
}

/* What the counters say about this database; false: it is not counted */
static bool
ReadTotals(IdemTotals *here)
{
	IdemTotals *all;
	int			n;

	if (!IdemTallyHere())
		return false;
	all = palloc(idem_shared->ntallies * sizeof(IdemTotals));
	n = IdemReadTallies(all, idem_shared->ntallies);
	while (n-- > 0)
	{
		if (all[n].database == MyDatabaseId)
			*here = all[n];
	}
	pfree(all);
	return true;
}

/*
 * idem_health() returns setof idem_health_check
 */
Datum
idem_health(PG_FUNCTION_ARGS)
{
	Oid			nsp = IdemSchema(fcinfo);
	Patient		patient = {.result = IdemResultSet(fcinfo, HEALTH_NCOLS)};

	patient.now = GetCurrentTimestamp();
	patient.preloaded = idem_shared != NULL;
	patient.counted = ReadTotals(&patient.totals);
	patient.bytes = IdemTotalSize(nsp);
	patient.rel = IdemRelationOpen(nsp, "idem_key", AccessShareLock);

	CheckPreloaded(&patient);
	CheckSweeper(&patient);
	CheckWorkerSlots(&patient);
	CheckCounters(&patient);
	CheckRetention(&patient);
	CheckPins(&patient);
	CheckTableSize(&patient);
	CheckAutovacuum(&patient);
	CheckDurability(&patient);

	table_close(patient.rel, AccessShareLock);
	return (Datum) 0;
}
