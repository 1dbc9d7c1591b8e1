/*-------------------------------------------------------------------------
 *
 * launcher.c
 *	  The background process that knows which database is to be visited next.
 *
 * The launcher is connected to no database.  It reads the list of databases
 * from the shared catalogs, keeps an entry for each in its own memory, and
 * starts one short-lived worker at a time, for the one that has waited longest
 * in terms of its own pause.  Nothing it knows has to survive: after a restart
 * every database is due once.
 *
 * The launcher:
 *
 *				   sweeper off
 *		 off <----------------------.
 *		  |  sweeper on				|		 a database is due
 *		  '----------------------> idle -------------------------> visiting
 *									^								  |
 *									'--- worker ended (or no slot) ---'
 *
 * Leaving "visiting" by way of the sweeper being switched off is the worker's
 * business: it reads the configuration itself.
 *
 * An entry, by the result of its last visit, and when it is due again:
 *
 *	never visited				at once
 *	done						after idem.sweep_interval
 *	more						at once, but then like one with an interval's
 *								pause
 *	absent						after the interval, doubled with every visit
 *								that found nothing; after a notice from
 *								50 ms on, since the transaction that creates
 *								the extension may not have ended yet
 *	yielded, stopped			after a second at most, doubled, up to the
 *								interval
 *	gone, failed, unreported	after the interval, doubled with every failure
 *
 * A notice makes an entry due before all others, unless the extension is
 * known to be there.
 *
 * Exit code: 1, always, so that the postmaster starts the launcher again
 * (which it does not while the server shuts down).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <float.h>

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "compat.h"
#include "counters.h"
#include "launcher.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "settings.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "sweep.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "worker.h"

#define MS						INT64CONST(1000)	/* in microseconds */

/* Bounds on how often the list of databases is read, in us */
#define LIST_MIN				(250 * MS)
#define LIST_MAX				(60000 * MS)

/*
 * Pause before asking for a worker slot again, in us.  Doubled only with
 * every so many refusals, and never long: where others fight for the slots, a
 * free one does not last, and asking costs next to nothing.
 */
#define SLOT_PAUSE				(10 * MS)
#define SLOT_PAUSE_TRIES		64
#define SLOT_PAUSE_MAX			(200 * MS)

/* How long none may be refused for the shortage to be over: an interval */
#define SLOTS_MIN				(10000 * MS)
#define SLOTS_MAX				(60000 * MS)

/* First pause after a notice, and the number of visits that it is good for */
#define NOTICE_PAUSE			(50 * MS)
#define NOTICE_VISITS			10

/* First pause after a visit that gave way */
#define YIELD_PAUSE				(1000 * MS)

/* Back-off without the extension: at most so many intervals, or so long */
#define ABSENT_INTERVALS		64
#define ABSENT_MIN				(5000 * MS)
#define ABSENT_MAX				(3600000 * MS)

/* The same for a database that cannot be visited; it is to recover sooner */
#define FAILED_INTERVALS		16
#define FAILED_MIN				(1000 * MS)
#define FAILED_MAX				(600000 * MS)

/* How long a jump ahead of the system clock is waited out, at most, in us */
#define CLOCK_PATIENCE			(3600000 * MS)

/* What the launcher knows about one database */
typedef struct DatabaseEntry
{
	Oid			oid;			/* hash key */
	NameData	name;			/* as of the last list */
	uint32		listed;			/* the last list it was in */
	bool		visited;		/* false: never, and so due */
	bool		present;		/* the extension was there when last seen */
	bool		urgent;			/* noticed, and not visited since */
	bool		noticed;		/* found nothing since it was noticed */
	bool		failing;		/* the log says that it cannot be visited */
	int			sqlstate;		/* which the log says, 0 when not known */
	IdemTelling telling;		/* of stale leases; IDEM_TELL at first */
	IdemVisitResult result;		/* of the last visit */
	int			repeats;		/* how often in a row, the first not counted */
	int64		last;			/* end of the last visit, monotonic us */
} DatabaseEntry;

/* Everything below is the launcher process's own */
static HTAB *databases = NULL;
static uint32 list_number = 0;	/* of the last list */
static int64 list_due = 0;		/* when to read it again */
static BackgroundWorkerHandle *visit_handle = NULL; /* the worker on a visit */
static Oid	visit_database = InvalidOid;	/* where it is */
static bool visit_hurried = false;	/* it has been told that others wait */
static bool no_slot = false;	/* the log says that no worker can be had */
static int64 slot_refused = 0;	/* when one was refused last */
static int	slot_tries = 0;		/* how often it was so in a row */
static int64 slot_due = 0;		/* when to ask for one again */
static int64 clock_offset = 0;	/* system clock less monotonic one; 0: not read */
static int64 clock_lead = 0;	/* how far it jumped ahead, while that is new */
static int64 clock_believed = 0;	/* when to take its word for it */

/*
 * Arrange for the launcher to run.  Only while libraries are preloaded, and
 * not in a server that pg_upgrade runs: there nobody else may connect.
 */
void
IdemLauncherInit(void)
{
	BackgroundWorker worker;

	if (IsBinaryUpgrade)
		return;

	IdemSharedInit();

	memset(&worker, 0, sizeof(worker));
	strlcpy(worker.bgw_name, "idem launcher", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "idem launcher", BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = IDEM_LAUNCHER_RESTART;
	strlcpy(worker.bgw_library_name, "idem", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "IdemLauncherMain",
			sizeof(worker.bgw_function_name));
	RegisterBackgroundWorker(&worker);
}

/*
 * Let the launcher know that this database has the extension.  Called with
 * every write; after the first in a backend it is one read of shared memory,
 * until the launcher asks for another round.  Never fails, and does nothing
 * when the library was not preloaded.
 */
void
IdemLauncherNotice(void)
{
	static uint32 told = 0;
	uint32		notice_round;
	int			i;

	if (idem_shared == NULL)
		return;
	notice_round = pg_atomic_read_u32(&idem_shared->notice_round);
	if (likely(notice_round == told))
		return;
	told = notice_round;

	LWLockAcquire(idem_shared->lock, LW_EXCLUSIVE);
	for (i = 0; i < idem_shared->nnotices; i++)
	{
		if (idem_shared->notices[i] == MyDatabaseId)
			break;
	}
	if (i == IDEM_MAX_NOTICES)
		idem_shared->notice_all = true;
	else if (i == idem_shared->nnotices)
		idem_shared->notices[idem_shared->nnotices++] = MyDatabaseId;
	if (idem_shared->launcher_latch != NULL)
		SetLatch(idem_shared->launcher_latch);
	LWLockRelease(idem_shared->lock);
}

/* A pause doubled with every repetition, up to a cap that is never below it */
static int64
BackOff(int64 pause, int repeats, int64 cap)
{
	cap = Max(cap, pause);
	while (repeats-- > 0 && pause < cap)
		pause *= 2;
	return Min(pause, cap);
}

/* So many intervals, within bounds */
static int64
Cap(int64 intervals, int64 least, int64 most)
{
	return Max(Min(intervals * idem_sweep_interval * MS, most), least);
}

/*
 * The pause after the last visit.  Worked out anew each time, so that a
 * changed interval holds at once.
 */
static int64
PauseAfter(const DatabaseEntry *entry)
{
	int64		interval = idem_sweep_interval * MS;

	switch (entry->result)
	{
		case IDEM_VISIT_DONE:
			return interval;
		case IDEM_VISIT_MORE:
			return 0;
		case IDEM_VISIT_ABSENT:
			return BackOff(entry->noticed ? Min(NOTICE_PAUSE, interval) : interval,
						   entry->repeats,
						   Cap(ABSENT_INTERVALS, ABSENT_MIN, ABSENT_MAX));
		case IDEM_VISIT_YIELDED:
		case IDEM_VISIT_STOPPED:
			return BackOff(Min(YIELD_PAUSE, interval), entry->repeats, interval);
		case IDEM_VISIT_GONE:
		case IDEM_VISIT_FAILED:
		case IDEM_VISIT_UNREPORTED:
			break;
	}
	return BackOff(interval, entry->repeats,
				   Cap(FAILED_INTERVALS, FAILED_MIN, FAILED_MAX));
}

/* When is this database due? */
static int64
DueAt(const DatabaseEntry *entry)
{
	if (entry->urgent || !entry->visited)
		return 0;
	return entry->last + PauseAfter(entry);
}

/*
 * How much has a database waited beyond its time, in terms of its pause?
 * Negative: it is not due.  Where more is due than can be done, each then
 * gets the same part of the visits that it should have; with the plain time,
 * hundreds of databases without the extension would get as many as the rest.
 */
static double
Claim(const DatabaseEntry *entry, int64 now)
{
	int64		due = DueAt(entry);

	if (entry->urgent)
		return DBL_MAX;
	if (!entry->visited)
		return DBL_MAX / 2;
	return (double) (now - due) /
		(double) Max(due - entry->last, idem_sweep_interval * MS);
}

/*
 * The database that has the strongest claim to be visited, or NULL when none
 * is due; then *due is when the next one will be.  The one being visited does
 * not count.
 */
static DatabaseEntry *
NextDatabase(int64 now, int64 *due)
{
	HASH_SEQ_STATUS status;
	DatabaseEntry *entry;
	DatabaseEntry *next = NULL;
	double		strongest = 0;

	*due = PG_INT64_MAX;
	hash_seq_init(&status, databases);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		double		claim = Claim(entry, now);

		if (visit_handle != NULL && entry->oid == visit_database)
			continue;
		*due = Min(*due, DueAt(entry));
		if (claim >= strongest)
		{
			strongest = claim;
			next = entry;
		}
	}
	return next;
}

/* Keep the entry of a database that the list shows, or make one */
static void
ListDatabase(Form_pg_database form)
{
	DatabaseEntry *entry;
	bool		found;

	entry = hash_search(databases, &form->oid, HASH_ENTER, &found);
	if (!found)
	{
		memset(entry, 0, sizeof(DatabaseEntry));
		entry->oid = form->oid;
	}
	entry->name = form->datname;
	entry->listed = list_number;
}

/* Forget the databases that the last list did not show */
static void
ForgetDatabases(void)
{
	HASH_SEQ_STATUS status;
	DatabaseEntry *entry;

	hash_seq_init(&status, databases);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		if (entry->listed != list_number)
			hash_search(databases, &entry->oid, HASH_REMOVE, NULL);
	}
}

/*
 * Read the list of databases.  A connection limit, 0 included, does not hold
 * for background workers; -2 marks a database whose DROP did not get to its
 * end.  No name is special: whoever installs the extension in a template
 * has it swept there.
 */
static void
ListDatabases(int64 now)
{
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	list_number++;
	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);

		if (form->datallowconn && form->datconnlimit != DATCONNLIMIT_INVALID_DB)
			ListDatabase(form);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();

	ForgetDatabases();
	list_due = now + Min(Max(idem_sweep_interval * MS, LIST_MIN), LIST_MAX);
}

/* Make a database due at once, unless the extension is known to be there */
static void
NoticeDatabase(DatabaseEntry *entry)
{
	if (entry->present)
		return;
	entry->urgent = true;
	entry->noticed = true;
	entry->repeats = 0;
}

/* Take up the notices.  One about a database not known yet needs a new list. */
static void
TakeNotices(int64 now)
{
	HASH_SEQ_STATUS status;
	DatabaseEntry *entry;
	Oid			notices[IDEM_MAX_NOTICES];
	int			nnotices;
	bool		all;
	int			i;

	LWLockAcquire(idem_shared->lock, LW_EXCLUSIVE);
	nnotices = idem_shared->nnotices;
	memcpy(notices, idem_shared->notices, nnotices * sizeof(Oid));
	all = idem_shared->notice_all;
	idem_shared->nnotices = 0;
	idem_shared->notice_all = false;
	LWLockRelease(idem_shared->lock);

	for (i = 0; i < nnotices; i++)
	{
		entry = hash_search(databases, &notices[i], HASH_FIND, NULL);
		if (entry == NULL)
		{
			ListDatabases(now);
			entry = hash_search(databases, &notices[i], HASH_FIND, NULL);
		}
		if (entry != NULL)
			NoticeDatabase(entry);
	}

	if (all)
	{
		hash_seq_init(&status, databases);
		while ((entry = hash_seq_search(&status)) != NULL)
			NoticeDatabase(entry);
	}
}

/* Tell the log, once, that a database can or cannot be visited */
static void
ReportChange(DatabaseEntry *entry, IdemVisitResult result, int sqlstate)
{
	if (result == IDEM_VISIT_UNREPORTED && !entry->failing)
		ereport(LOG,
				(errmsg("background worker of idem in database \"%s\" ended without a report",
						NameStr(entry->name)),
				 errhint("It is started again, ever more rarely. There is no further message until that changes.")));

	if (result == IDEM_VISIT_FAILED || result == IDEM_VISIT_UNREPORTED)
	{
		/* of an error the worker has told the log itself */
		entry->failing = true;
		entry->sqlstate = sqlstate;
	}
	else if (entry->failing && (result == IDEM_VISIT_DONE ||
								result == IDEM_VISIT_MORE ||
								result == IDEM_VISIT_ABSENT))
	{
		entry->failing = false;
		entry->sqlstate = 0;
		ereport(LOG,
				(errmsg("background worker of idem in database \"%s\" works again",
						NameStr(entry->name))));
	}
}

/*
 * Note down how a visit ended.  Where the extension has gone, or did not
 * appear after a notice, every backend is asked to speak up once more: it may
 * be there again soon, and the backends that would say so have spoken.
 */
static void
NoteResult(DatabaseEntry *entry, IdemVisitResult result, int sqlstate)
{
	bool		ask = false;

	ReportChange(entry, result, sqlstate);

	entry->repeats = entry->visited && entry->result == result ?
		entry->repeats + 1 : 0;
	if (result == IDEM_VISIT_ABSENT)
	{
		if (entry->present)
			ask = true;
		else if (entry->noticed && entry->repeats >= NOTICE_VISITS)
		{
			entry->noticed = false;
			entry->repeats = 0;
			ask = true;
		}
		entry->present = false;
	}
	else if (result == IDEM_VISIT_DONE || result == IDEM_VISIT_MORE)
	{
		entry->present = true;
		entry->noticed = false;
	}

	entry->visited = true;
	entry->result = result;
	entry->last = IdemMonotonicTime();
	if (ask)
		pg_atomic_fetch_add_u32(&idem_shared->notice_round, 1);
}

/* See whether the worker has ended, and take up what it left */
static void
CollectVisit(void)
{
	DatabaseEntry *entry;
	IdemVisitResult result;
	IdemTelling telling;
	int			sqlstate;
	pid_t		pid;

	if (visit_handle == NULL ||
		GetBackgroundWorkerPid(visit_handle, &pid) != BGWH_STOPPED)
		return;
	pfree(visit_handle);
	visit_handle = NULL;

	LWLockAcquire(idem_shared->lock, LW_SHARED);
	result = idem_shared->visit.result;
	sqlstate = idem_shared->visit.sqlstate;
	telling = idem_shared->visit.telling;
	LWLockRelease(idem_shared->lock);

	entry = hash_search(databases, &visit_database, HASH_FIND, NULL);
	if (entry != NULL)
	{
		entry->telling = telling;
		NoteResult(entry, result, sqlstate);
	}
}

/* Tell the worker that other databases wait */
static void
HurryVisit(void)
{
	if (visit_hurried)
		return;
	LWLockAcquire(idem_shared->lock, LW_EXCLUSIVE);
	idem_shared->visit.hurry = true;
	LWLockRelease(idem_shared->lock);
	visit_hurried = true;
}

/*
 * Describe the next visit in shared memory.  False while the worker of an
 * earlier launcher has not left yet; it does so within a batch.
 */
static bool
PrepareVisit(const DatabaseEntry *entry, uint32 *serial)
{
	IdemVisit  *visit = &idem_shared->visit;
	bool		is_free;

	LWLockAcquire(idem_shared->lock, LW_EXCLUSIVE);
	is_free = visit->worker == 0;
	if (is_free)
	{
		*serial = ++visit->serial;
		visit->database = entry->oid;
		visit->name = entry->name;
		visit->known_failure = entry->sqlstate;
		visit->hurry = false;
		visit->clock_offset = clock_offset;
		visit->clock_lead = clock_lead;
		visit->telling = entry->telling;
		visit->result = IDEM_VISIT_UNREPORTED;
		visit->sqlstate = 0;
	}
	LWLockRelease(idem_shared->lock);
	return is_free;
}

/* Ask the postmaster for a worker.  False when it has no slot for one. */
static bool
RegisterWorker(Oid database, uint32 serial)
{
	BackgroundWorker worker;
	MemoryContext old;
	bool		registered;

	memset(&worker, 0, sizeof(worker));
	snprintf(worker.bgw_name, BGW_MAXLEN, "idem worker for database %u", database);
	strlcpy(worker.bgw_type, "idem worker", BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_library_name, "idem", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "IdemWorkerMain",
			sizeof(worker.bgw_function_name));
	worker.bgw_main_arg = UInt32GetDatum(serial);
	worker.bgw_notify_pid = MyProcPid;

	old = MemoryContextSwitchTo(TopMemoryContext);
	registered = RegisterDynamicBackgroundWorker(&worker, &visit_handle);
	MemoryContextSwitchTo(old);
	return registered;
}

/* Remember, and let everybody know, whether workers can be had */
static void
SetNoSlot(bool value)
{
	no_slot = value;
	LWLockAcquire(idem_shared->lock, LW_EXCLUSIVE);
	idem_shared->no_slot = value;
	LWLockRelease(idem_shared->lock);
}

/*
 * Tell the log, once, that workers can or cannot be had.  Where others fight
 * for the slots it changes all the time; so it counts as over only when
 * nothing was refused for a while.
 */
static void
ReportSlots(bool got_one, int64 now)
{
	if (got_one)
	{
		if (!no_slot || now - slot_refused < Cap(1, SLOTS_MIN, SLOTS_MAX))
			return;
		SetNoSlot(false);
		ereport(LOG,
				(errmsg("slots for background workers of idem are free again")));
		return;
	}

	slot_refused = now;
	if (no_slot)
		return;
	SetNoSlot(true);
	ereport(LOG,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("no slot for a background worker of idem"),
			 errdetail("Expired keys stay where they are meanwhile; no answer depends on it."),
			 errhint("Consider increasing the configuration parameter \"%s\". There is no further message until that changes.",
					 "max_worker_processes")));
}

/* Tell the log that the system clock has jumped by so many us */
static void
ReportClock(int64 jump)
{
	if (jump > 0)
		ereport(LOG,
				(errmsg("system clock has jumped ahead by " INT64_FORMAT " seconds",
						jump / 1000000),
				 errdetail("Leases and keys that are over by the new time are over. For " INT64_FORMAT " seconds idem leaves in place what the jump has made expire, in case the clock is set right.",
						   Min(clock_lead, CLOCK_PATIENCE) / 1000000)));
	else
		ereport(LOG,
				(errmsg("system clock has jumped back by " INT64_FORMAT " seconds",
						-jump / 1000000),
				 errdetail("Leases run, and keys of idem are kept, for that much longer.")));
}

/*
 * Compare the system clock with one that nobody sets.  What a jump ahead has
 * made expire is absent to every caller, but is not removed as long as the
 * jump may be a mistake: for as long as it was, an hour at most.  Set right
 * again, the clock finds everything as it was.  (A machine that was suspended
 * looks the same.)
 */
static void
WatchClock(int64 now)
{
	int64		offset = GetCurrentTimestamp() - now;
	int64		jump = offset - clock_offset;

	if (IdemMonotonicTime() - now > IDEM_CLOCK_TOLERANCE / 2)
		return;					/* we were stopped in between */

	if (clock_offset != 0 &&
		(jump > IDEM_CLOCK_TOLERANCE || jump < -IDEM_CLOCK_TOLERANCE))
	{
		clock_lead = Max(clock_lead + jump, 0);
		clock_believed = now + Min(clock_lead, CLOCK_PATIENCE);
		ReportClock(jump);
	}
	clock_offset = offset;
	if (now >= clock_believed)
		clock_lead = 0;
}

/* Send a worker; where that is not possible, try again a little later */
static void
StartVisit(DatabaseEntry *entry, int64 now)
{
	uint32		serial;

	WatchClock(IdemMonotonicTime());
	slot_due = now + BackOff(SLOT_PAUSE, slot_tries++ / SLOT_PAUSE_TRIES,
							 SLOT_PAUSE_MAX);
	if (!PrepareVisit(entry, &serial))
		return;
	if (!RegisterWorker(entry->oid, serial))
	{
		ReportSlots(false, now);
		return;
	}
	ReportSlots(true, now);
	slot_tries = 0;
	slot_due = 0;
	visit_database = entry->oid;
	visit_hurried = false;
	entry->urgent = false;
}

/*
 * One turn of a launcher that is switched on: start the visit that is due.
 * Returns when there may be something to do again; the end of a visit and a
 * notice set the latch.
 */
static int64
TakeTurn(int64 now)
{
	DatabaseEntry *entry;
	int64		due;

	if (now >= list_due)
		ListDatabases(now);

	entry = NextDatabase(now, &due);
	if (entry == NULL)
		return Min(due, list_due);

	if (visit_handle != NULL)
		HurryVisit();
	else if (now >= slot_due)
		StartVisit(entry, now);
	return slot_due > now ? Min(slot_due, list_due) : list_due;
}

/* Show in pg_stat_activity what is known */
static void
ReportActivity(void)
{
	HASH_SEQ_STATUS status;
	DatabaseEntry *entry;
	char		activity[128];
	int			present = 0;
	int			failing = 0;

	if (!idem_sweeper)
	{
		pgstat_report_activity(STATE_IDLE, "idem.sweeper is off");
		return;
	}
	hash_seq_init(&status, databases);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		present += entry->present;
		failing += entry->failing;
	}
	snprintf(activity, sizeof(activity),
			 "%ld databases, %d with idem, %d cannot be visited",
			 hash_get_num_entries(databases), present, failing);
	pgstat_report_activity(STATE_IDLE, activity);
}

/* Wait for the latch, or until a point in time; -1: for the latch alone */
static void
Wait(int64 until)
{
	static uint32 wait_event = 0;
	int			events = WL_LATCH_SET | WL_EXIT_ON_PM_DEATH;
	long		timeout = -1;

	if (wait_event == 0)
		wait_event = WaitEventExtensionNew("IdemLauncherMain");
	if (until >= 0)
	{
		int64		left = Max(until - IdemMonotonicTime(), 0);

		events |= WL_TIMEOUT;
		timeout = (long) ((left + MS - 1) / MS);
	}
	(void) WaitLatch(MyLatch, events, timeout, wait_event);
	ResetLatch(MyLatch);
}

/* Take the worker along, and let nobody set the latch any more */
static void
LeaveLauncher(int code, Datum arg)
{
	if (visit_handle != NULL)
		TerminateBackgroundWorker(visit_handle);
	LWLockAcquire(idem_shared->lock, LW_EXCLUSIVE);
	idem_shared->launcher = 0;
	idem_shared->launcher_latch = NULL;
	LWLockRelease(idem_shared->lock);
}

/* Signals, session, shared memory, and the table of databases */
static void
EnterLauncher(void)
{
	HASHCTL		control;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	/* there is no statement that could be cancelled */
	pqsignal(SIGINT, SIG_IGN);
	BackgroundWorkerUnblockSignals();

	IdemHardenSession("idem launcher");
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	memset(&control, 0, sizeof(control));
	control.keysize = sizeof(Oid);
	control.entrysize = sizeof(DatabaseEntry);
	databases = hash_create("idem databases", 64, &control,
							HASH_ELEM | HASH_BLOBS);

	LWLockAcquire(idem_shared->lock, LW_EXCLUSIVE);
	idem_shared->launcher = MyProcPid;
	idem_shared->launcher_latch = MyLatch;
	LWLockRelease(idem_shared->lock);
	before_shmem_exit(LeaveLauncher, (Datum) 0);
}

/* Entry point of the process */
void
IdemLauncherMain(Datum main_arg)
{
	MemoryContext turn_context;

	EnterLauncher();
	turn_context = AllocSetContextCreate(TopMemoryContext, "idem launcher turn",
										 ALLOCSET_DEFAULT_SIZES);
	for (;;)
	{
		int64		now = IdemMonotonicTime();
		int64		until = -1;

		MemoryContextReset(turn_context);
		MemoryContextSwitchTo(turn_context);
		CHECK_FOR_INTERRUPTS();
		if (ShutdownRequestPending)
			proc_exit(1);
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}

		CollectVisit();
		TakeNotices(now);
		if (idem_sweeper)
			until = TakeTurn(now);
		ReportActivity();
		Wait(until);
	}
}
