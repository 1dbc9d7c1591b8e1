/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  The background process that visits one database: connects, hardens its
 *	  session, looks whether the extension is there, sweeps in small
 *	  transactions with pauses between, and ends.
 *
 * A visit ends when nothing is left to do, when its time is over (sooner when
 * other databases wait), when somebody wants a lock on the database or on the
 * extension, when the launcher is gone or the sweeper switched off, and with
 * the first error.  Nothing is held between two batches: no transaction, no
 * snapshot, no lock.
 *
 * Exit codes.
 *	0	the visit ended; IdemVisit.result says how.  That includes errors and
 *		termination: the postmaster writes a line to the log for every worker
 *		that ends with 1, and a database that stays broken would fill it.
 *	1	the worker could not even begin (the library did not load, no shared
 *		memory); the launcher finds IDEM_VISIT_UNREPORTED
 *	anything else is a crash, and the server restarts as after any other
 *
 * The log gets the first report of an error and no repetition of it: see
 * FilterLog.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/pg_database.h"
#include "catalog/pg_extension.h"
#include "compat.h"
#include "counters.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "settings.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "sweep.h"
#include "tcop/tcopprot.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/snapmgr.h"
#include "worker.h"

#define IDEM_EXTENSION_NAME		"idem"

/* What this process is doing */
static struct
{
	uint32		serial;			/* number of the visit */
	pid_t		launcher;		/* who asked for it */
	Oid			database;		/* where to */
	NameData	name;			/* for messages: the name it had */
	int			known_failure;	/* SQLSTATE the log has already, or 0 */
	int64		clock_offset;	/* what the launcher knows of the clock */
	int64		clock_lead;
	bool		connecting;		/* not connected yet */
	IdemVisitResult result;		/* how the visit ended */
	int			sqlstate;		/* of IDEM_VISIT_FAILED */
	Oid			extension;		/* found by the first batch, or InvalidOid */
	Oid			schema;			/* where it lives */
	int64		looked;			/* when the leases were looked at */
	IdemTelling telling;		/* whether listeners know what was found */
	bool		notifying;		/* just telling them */
	IdemSweep	sweep;			/* what is still to do */
} visit;

static emit_log_hook_type prev_emit_log_hook = NULL;

/*
 * Settings of our own that a configuration file, ALTER DATABASE or ALTER ROLE
 * must not change, since nobody is there to be surprised by them.
 */
static const struct
{
	const char *name;
	const char *value;
}			hardened[] =
{
	/* no name is to be found in a schema that others can write to */
	{"search_path", ""},
	/* ALTER DATABASE ... SET role would make us somebody else */
	{"role", "none"},
	/* damage is for people to look at, not to be passed over unattended */
	{"zero_damaged_pages", "off"},
	{"ignore_checksum_failure", "off"},
	/* a batch is bounded by its size, and is to come to its end */
	{"statement_timeout", "0"},
	{"transaction_timeout", "0"},
	{"idle_in_transaction_session_timeout", "0"},
	/* a table locked for long must not hold up the other databases */
	{"lock_timeout", IDEM_WORKER_LOCK_TIMEOUT},
	/* no conflicts for others and none for us; and we do write */
	{"default_transaction_isolation", "read committed"},
	{"default_transaction_read_only", "off"},
	{"default_transaction_deferrable", "off"},
	/* what a crash takes back is swept again; nobody waits for a standby */
	{"synchronous_commit", "off"},
	/* judge by what is, not by what was when the transaction looked first */
	{"stats_fetch_consistency", "none"},
};

/*
 * Make the session independent of how the server, the database and the role
 * are configured.  Comes before the connection, so that it holds while
 * connecting as well.  Settings that this server does not have are passed
 * over.
 */
void
IdemHardenSession(const char *name)
{
	int			i;

	for (i = 0; i < lengthof(hardened); i++)
	{
		if (GetConfigOption(hardened[i].name, true, false) != NULL)
			SetConfigOption(hardened[i].name, hardened[i].value,
							PGC_SUSET, PGC_S_OVERRIDE);
	}
	SetConfigOption("application_name", name, PGC_USERSET, PGC_S_OVERRIDE);
}

/*
 * Take the visit that the launcher asked for.  False when this worker is not
 * wanted any more: another visit has been asked for since.
 */
static bool
ClaimVisit(uint32 serial)
{
	IdemVisit  *shared = &idem_shared->visit;
	bool		mine;

	LWLockAcquire(idem_shared->lock, LW_EXCLUSIVE);
	mine = shared->serial == serial && shared->worker == 0 &&
		idem_shared->launcher != 0;
	if (mine)
	{
		shared->worker = MyProcPid;
		visit.serial = serial;
		visit.launcher = idem_shared->launcher;
		visit.database = shared->database;
		visit.name = shared->name;
		visit.known_failure = shared->known_failure;
		visit.clock_offset = shared->clock_offset;
		visit.clock_lead = shared->clock_lead;
		visit.telling = shared->telling;
	}
	LWLockRelease(idem_shared->lock);
	return mine;
}

/*
 * Leave word of how the visit ended.  An exit that FilterLog did not see the
 * reason of (the log takes no errors) counts as a failure for reasons unknown.
 */
static void
LeaveVisit(int code, Datum arg)
{
	if (code != 0 && visit.result == IDEM_VISIT_UNREPORTED)
		visit.result = IDEM_VISIT_FAILED;

	LWLockAcquire(idem_shared->lock, LW_EXCLUSIVE);
	idem_shared->visit.result = visit.result;
	idem_shared->visit.sqlstate = visit.sqlstate;
	idem_shared->visit.telling = visit.telling;
	idem_shared->visit.worker = 0;
	LWLockRelease(idem_shared->lock);
}

/*
 * End with 0, whatever the reason: see the exit codes above.  proc_exit goes
 * on where it was when one of its callbacks calls it again.
 */
static void
ExitZero(int code, Datum arg)
{
	if (code == 1)
		proc_exit(0);
}

/* What an error says about the visit */
static IdemVisitResult
ClassifyError(int sqlstate)
{
	switch (sqlstate)
	{
		case ERRCODE_ADMIN_SHUTDOWN:
			return IDEM_VISIT_STOPPED;
		case ERRCODE_LOCK_NOT_AVAILABLE:
		case ERRCODE_T_R_DEADLOCK_DETECTED:
			return IDEM_VISIT_YIELDED;
		case ERRCODE_UNDEFINED_DATABASE:

			/*
			 * Dropped since the launcher looked; but once the server has
			 * found the catalog entry, the files are missing.
			 */
			return OidIsValid(MyDatabaseId) ? IDEM_VISIT_FAILED : IDEM_VISIT_GONE;
		case ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE:
			/* half dropped, or closed to connections, since then */
			return visit.connecting ? IDEM_VISIT_GONE : IDEM_VISIT_FAILED;
		default:
			return IDEM_VISIT_FAILED;
	}
}

/*
 * Stands before the server's log.  The first error is how the visit ended.
 * It is logged when it is a failure, and not the one that the last visit to
 * this database reported already.  Warnings that every connection to this
 * database raises (a collation version, an unknown setting), and those of how
 * full the notification queue is, are left to the sessions of people.
 */
static void
FilterLog(ErrorData *edata)
{
	if (prev_emit_log_hook)
		prev_emit_log_hook(edata);

	if (edata->elevel == WARNING && (visit.connecting || visit.notifying))
		edata->output_to_server = false;
	else if (edata->elevel == ERROR || edata->elevel == FATAL)
	{
		IdemVisitResult result = ClassifyError(edata->sqlerrcode);

		if (visit.result == IDEM_VISIT_UNREPORTED)
		{
			visit.result = result;
			visit.sqlstate = edata->sqlerrcode;
		}
		if (result != IDEM_VISIT_FAILED ||
			edata->sqlerrcode == visit.known_failure)
			edata->output_to_server = false;
	}
}

/* Say in every report which database it is about */
static void
AddContext(void *arg)
{
	errcontext("background worker of idem in database \"%s\"",
			   NameStr(visit.name));
}

/*
 * Try a lock without waiting for it; neither for who holds it nor for who
 * asked for it first.
 */
static bool
TryObjectLock(Oid database, Oid class, Oid object, LOCKMODE mode, LOCKTAG *tag)
{
	SET_LOCKTAG_OBJECT(*tag, database, class, object, 0);
	return LockAcquire(tag, mode, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * Does somebody want this database to himself?  DROP, RENAME, SET TABLESPACE
 * and CREATE ... TEMPLATE lock the database's object and then wait, five
 * seconds at most, for its sessions to leave.  The lock tried is the one that
 * connecting takes, and is let go at once: holding it would make them wait
 * for a batch, and DROP ... WITH (FORCE) could not end us.
 */
static bool
DatabaseIsWanted(void)
{
	LOCKTAG		tag;

	if (!TryObjectLock(InvalidOid, DatabaseRelationId, MyDatabaseId,
					   RowExclusiveLock, &tag))
		return true;
	LockRelease(&tag, RowExclusiveLock, false);
	return false;
}

/*
 * Look the extension up where only the owner of the server can have put it;
 * a schema or tables of the same name mean nothing.
 */
static bool
FindExtension(Oid *extension, Oid *schema)
{
	Relation	rel;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found;

	rel = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber,
				F_NAMEEQ, CStringGetDatum(IDEM_EXTENSION_NAME));
	scan = systable_beginscan(rel, ExtensionNameIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	found = HeapTupleIsValid(tuple);
	if (found)
	{
		*extension = ((Form_pg_extension) GETSTRUCT(tuple))->oid;
		*schema = ((Form_pg_extension) GETSTRUCT(tuple))->extnamespace;
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

/*
 * Find the extension and keep it until the end of the transaction.  DROP
 * EXTENSION locks the extension before anything that belongs to it, so that
 * while we hold it no table goes away, and no deadlock can come about.
 */
static IdemVisitResult
HoldExtension(Oid *extension, Oid *schema)
{
	LOCKTAG		tag;
	Oid			before;

	if (!FindExtension(extension, schema))
		return IDEM_VISIT_ABSENT;
	if (!TryObjectLock(MyDatabaseId, ExtensionRelationId, *extension,
					   AccessShareLock, &tag))
		return IDEM_VISIT_YIELDED;

	/* it may have been dropped before we had the lock */
	AcceptInvalidationMessages();
	before = *extension;
	if (!FindExtension(extension, schema))
		return IDEM_VISIT_ABSENT;
	return *extension == before ? IDEM_VISIT_MORE : IDEM_VISIT_YIELDED;
}

/*
 * Until when must a key have expired to be removed?  Until now; but where the
 * system clock has jumped ahead, until what it would show without the jump
 * (see WatchClock in launcher.c), be that before this visit or during it.
 */
static TimestampTz
Horizon(int64 now)
{
	return Min(GetCurrentTimestamp(),
			   now + visit.clock_offset + IDEM_CLOCK_TOLERANCE) -
		visit.clock_lead;
}

/*
 * Set the sweep up for its next step.  A lease is to be found within an
 * interval of becoming stale, so a long visit looks at them more than once;
 * at every other step at most, or the walk would never get anywhere.
 */
static void
PrepareStep(void)
{
	IdemSweep  *sweep = &visit.sweep;
	int64		now = IdemMonotonicTime();

	sweep->batch = idem_sweep_batch;
	sweep->horizon = Horizon(now);
	if (sweep->leases != NULL)
		return;
	if (!sweep->was_leases &&
		now - visit.looked >= idem_sweep_interval * INT64CONST(1000))
		sweep->reminders_read = false;
	if (!sweep->reminders_read)
		visit.looked = now;
}

/*
 * What one transaction does.  Starts the sweep with the first one; an
 * extension that was dropped and created again since is left to another
 * visit.
 */
static IdemVisitResult
SweepBatch(void)
{
	IdemVisitResult result;
	Oid			extension;
	Oid			schema;
	int64		stale;

	if (DatabaseIsWanted())
		return IDEM_VISIT_YIELDED;
	result = HoldExtension(&extension, &schema);
	if (result != IDEM_VISIT_MORE)
		return result;

	if (!OidIsValid(visit.extension))
	{
		visit.extension = extension;
		visit.schema = schema;
		IdemSweepBegin(&visit.sweep, schema, idem_sweep_batch, TopMemoryContext);
	}
	else if (visit.extension != extension || visit.schema != schema)
		return IDEM_VISIT_YIELDED;
	PrepareStep();

	PushActiveSnapshot(GetTransactionSnapshot());
	stale = visit.sweep.stale;
	if (!IdemSweepStep(&visit.sweep) && visit.sweep.walked)
		result = IDEM_VISIT_DONE;
	if (visit.sweep.stale > stale && visit.telling == IDEM_TOLD)
		visit.telling = IDEM_TELL;
	PopActiveSnapshot();
	return result;
}

/* Show in pg_stat_activity how far the visit has come */
static void
ReportProgress(void)
{
	char		activity[192];

	snprintf(activity, sizeof(activity),
			 "sweeping: block %u of %u, " INT64_FORMAT " expired keys removed, " INT64_FORMAT " stale leases found",
			 visit.sweep.next, visit.sweep.nblocks,
			 visit.sweep.expired, visit.sweep.stale);
	pgstat_report_activity(STATE_RUNNING, activity);
}

/* Tell the log, once, whether listeners can be told; the reason: they cannot */
static void
ReportTelling(const char *reason)
{
	if (reason == NULL && visit.telling == IDEM_TELLING_REFUSED)
		ereport(LOG,
				(errmsg("listeners are notified of stale leases again")));
	else if (reason != NULL && visit.telling != IDEM_TELLING_REFUSED)
		ereport(LOG,
				(errmsg("listeners cannot be notified of stale leases: %s", reason),
				 errdetail("idem_claim_stale finds them all the same, and keys are swept."),
				 errhint("Look for a session that listens and stays in a transaction, or one that hangs in its commit. It is tried again with every pass; there is no further message until that changes.")));
	visit.telling = reason == NULL ? IDEM_TOLD : IDEM_TELLING_REFUSED;
}

/*
 * Send the notification, in a transaction of its own.  Its commit fails where
 * the queue is full, and waits for a lock that every session which notifies
 * holds until it has committed, and so for a standby that is not there; the
 * sweep must not depend on either.
 */
static void
Notify(void)
{
	visit.notifying = true;
	pgstat_report_activity(STATE_RUNNING, "notifying of stale leases");
	PG_TRY();
	{
		StartTransactionCommand();
		if (visit.telling == IDEM_TELLING_REFUSED)
			(void) IdemReminderQueueHasRoom();
		IdemReminderNotify();
		CommitTransactionCommand();
		ReportTelling(NULL);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(TopMemoryContext);
		error = CopyErrorData();
		FlushErrorState();
		AbortCurrentTransaction();
		if (error->sqlerrcode != ERRCODE_PROGRAM_LIMIT_EXCEEDED &&
			error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
			ReThrowError(error);
		ReportTelling(error->message);
		FreeErrorData(error);
	}
	PG_END_TRY();
	visit.notifying = false;
	pgstat_report_activity(STATE_IDLE, NULL);
}

/*
 * After a pass over the leases: is there something that listeners have not
 * been told?  A launcher that does not know begins with yes.
 */
static void
TellListeners(void)
{
	if (!visit.sweep.leases_over)
		return;
	visit.sweep.leases_over = false;
	if (visit.sweep.pass.oldest_stale != 0 && visit.telling != IDEM_TOLD)
		Notify();
	else if (visit.telling == IDEM_TELL)
		visit.telling = IDEM_TOLD;
}

/* One transaction, from beginning to end, for everyone to see */
static IdemVisitResult
RunBatch(void)
{
	IdemVisitResult result;

	SetCurrentStatementStartTimestamp();
	ReportProgress();

	StartTransactionCommand();
	result = SweepBatch();
	CommitTransactionCommand();

	(void) pgstat_report_stat(false);
	pgstat_report_activity(STATE_IDLE, NULL);
	TellListeners();
	return result;
}

/*
 * Pause about as long as the batch took, so that a busy server slows us down
 * and we use half of one processor at most.  A reload ends the pause.
 */
static void
Pause(int64 batch_time)
{
	static uint32 wait_event = 0;
	int64		end = IdemMonotonicTime() +
		Min(batch_time, IDEM_PACE_MAX * INT64CONST(1000));

	if (wait_event == 0)
		wait_event = WaitEventExtensionNew("IdemWorkerPace");

	for (;;)
	{
		int64		left = end - IdemMonotonicTime();

		CHECK_FOR_INTERRUPTS();
		if (left <= 0 || ConfigReloadPending)
			break;
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 (long) (left / 1000 + 1), wait_event);
		ResetLatch(MyLatch);
	}
}

/*
 * May the visit go on after this time, in us?  A pass over the leases that was
 * begun is brought to its end, since the next one has to begin at the
 * beginning.  Also the place where a changed configuration is taken up.
 */
static bool
MayGoOn(int64 elapsed, IdemVisitResult *result)
{
	bool		hurry;
	bool		current;

	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}

	LWLockAcquire(idem_shared->lock, LW_SHARED);
	current = idem_shared->launcher == visit.launcher &&
		idem_shared->visit.serial == visit.serial;
	hurry = idem_shared->visit.hurry;
	LWLockRelease(idem_shared->lock);

	if (!current || !idem_sweeper)
	{
		*result = IDEM_VISIT_STOPPED;
		return false;
	}
	visit.sweep.leases_only =
		elapsed >= (hurry ? IDEM_VISIT_TURN : IDEM_VISIT_MAX) * INT64CONST(1000);
	return !visit.sweep.leases_only || visit.sweep.leases != NULL;
}

/* Batches and pauses, until one of the reasons at the head of the file */
static IdemVisitResult
SweepDatabase(void)
{
	int64		start = IdemMonotonicTime();
	int64		batch_start = start;
	IdemVisitResult result = IDEM_VISIT_MORE;

	while (MayGoOn(batch_start - start, &result))
	{
		CHECK_FOR_INTERRUPTS();
		result = RunBatch();
		if (result != IDEM_VISIT_MORE)
			break;
		Pause(IdemMonotonicTime() - batch_start);
		batch_start = IdemMonotonicTime();
	}
	if (OidIsValid(visit.extension))
		IdemSweepReport(&visit.sweep);
	return result;
}

/* Entry point of the process; the argument is the number of the visit */
void
IdemWorkerMain(Datum main_arg)
{
	ErrorContextCallback context = {0};

	if (idem_shared == NULL || !ClaimVisit(DatumGetUInt32(main_arg)))
		proc_exit(0);
	on_shmem_exit(LeaveVisit, (Datum) 0);
	on_proc_exit(ExitZero, (Datum) 0);

	prev_emit_log_hook = emit_log_hook;
	emit_log_hook = FilterLog;
	context.callback = AddContext;
	context.previous = error_context_stack;
	error_context_stack = &context;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	visit.connecting = true;
	IdemHardenSession("idem worker");
	BackgroundWorkerInitializeConnectionByOid(visit.database, InvalidOid, 0);
	visit.connecting = false;

	visit.result = SweepDatabase();

	error_context_stack = context.previous;
	proc_exit(0);
}
