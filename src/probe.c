/*-------------------------------------------------------------------------
 *
 * probe.c
 *	  Finding the row of a key, and waiting for those who are changing it.
 *
 * A probe asks the unique index with a dirty snapshot, which shows the newest
 * committed version and, of transactions still running, that they are there.
 * It takes no row lock, no transaction id, and gives its relation locks back
 * (the caller closes the table before it does anything that may wait).
 *
 * What makes it safe to rely on:
 *
 * - A row may be missed while it is moved: the scan copies an index page,
 *   the row gets a new version outside its HOT chain, and the copied entry
 *   leads to the dead one only.  Seeing entries but no row therefore means
 *   "look again with a snapshot": an MVCC snapshot taken after that scan
 *   cannot miss a row that was there all the time.
 *
 * - Deciding and changing are two steps.  Whoever changes a version that was
 *   found here does so by compare-and-swap on that version (store.c).  Its
 *   place cannot be reused in between, since the snapshot of the calling
 *   statement is older than whatever would remove it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/sysattr.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "common/pg_prng.h"
#include "compat.h"
#include "miscadmin.h"
#include "probe.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/* Pauses while waiting for a lease: 1/16 of the time waited so far, within */
#define MIN_PAUSE_US	1000
#define MAX_PAUSE_US	50000

/*
 * Scan with a dirty snapshot.  Of several versions the later one in the scan
 * counts: within a HOT chain it is the newer one, and outside of it an older
 * one is seen at all only if it was alive when its turn came.  One that nobody
 * is changing was the newest at that moment, so there is no need to go on.
 *
 * Returns whether the index had an entry at all.
 */
static bool
DirtyScan(IdemTable *table, TupleTableSlot *slot, IdemProbe *probe)
{
	SnapshotData dirty;
	IndexScanDesc scan;
	bool		entries = false;

	IdemTableOpenKey(table);
	InitDirtySnapshot(dirty);
	scan = IdemIndexBeginScan(table->rel, table->pk, &dirty, 2);
	index_rescan(scan, table->scankeys, 2, NULL, 0);
	while (scan->xs_heap_continue ||
		   index_getnext_tid(scan, ForwardScanDirection) != NULL)
	{
		entries = true;
		if (!index_fetch_heap(scan, slot))
			continue;
		if (TransactionIdIsValid(dirty.xmin))
		{
			probe->inserter = dirty.xmin;
			probe->speculative = dirty.speculativeToken;
			continue;
		}
		IdemRowRead(table, slot, &probe->row);
		probe->found = true;
		probe->changer = dirty.xmax;
		if (!TransactionIdIsValid(dirty.xmax))
			break;
	}
	index_endscan(scan);
	return entries;
}

/*
 * Read the key's row as this snapshot sees it.  With the transaction's own
 * snapshot in SERIALIZABLE this is what conflict detection knows of us.
 *
 * An old snapshot may see two: one that somebody has removed since then, and
 * the one that this transaction has put in its place.  The own one counts.
 */
bool
IdemReadKey(IdemTable *table, Snapshot snapshot, IdemRow *row)
{
	TupleTableSlot *slot = table_slot_create(table->rel, NULL);
	IndexScanDesc scan;
	bool		found = false;

	IdemTableOpenKey(table);
	scan = IdemIndexBeginScan(table->rel, table->pk, snapshot, 2);
	index_rescan(scan, table->scankeys, 2, NULL, 0);
	while (!(found && row->own) &&
		   index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		if (found)
			heap_freetuple(row->tuple);
		IdemRowRead(table, slot, row);
		found = true;
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	return found;
}

/* Look for the key: see IdemProbe for what comes back */
void
IdemProbeKey(IdemTable *table, IdemProbe *probe)
{
	TupleTableSlot *slot = table_slot_create(table->rel, NULL);
	bool		entries;

	probe->found = false;
	probe->changer = probe->inserter = InvalidTransactionId;
	probe->speculative = 0;

	if (IsolationIsSerializable())
	{
		IdemRow		ignored;

		if (IdemReadKey(table, GetTransactionSnapshot(), &ignored))
			heap_freetuple(ignored.tuple);
	}
	entries = DirtyScan(table, slot, probe);
	ExecDropSingleTupleTableSlot(slot);

	if (entries && !probe->found)
	{
		Snapshot	latest = RegisterSnapshot(GetLatestSnapshot());

		probe->found = IdemReadKey(table, latest, &probe->row);
		UnregisterSnapshot(latest);
	}

	/* the successor of a row that was found is its changer's */
	if (probe->found)
		probe->inserter = InvalidTransactionId;
}

/*
 * The row that this transaction has written at this place, if it is the key's
 * that is looked for.  Its own row is not hidden by anything, and nobody else
 * can have changed it, so that this is as good as a probe.
 */
bool
IdemProbePlace(IdemTable *table, ItemPointer tid, IdemProbe *probe)
{
	TupleTableSlot *slot = table_slot_create(table->rel, NULL);
	bool		found;

	found = table_tuple_fetch_row_version(table->rel, tid, SnapshotSelf, slot);
	if (found)
	{
		IdemRowRead(table, slot, &probe->row);
		found = probe->row.own && IdemRowHasKey(table, &probe->row);
	}
	ExecDropSingleTupleTableSlot(slot);
	probe->found = found;
	probe->changer = probe->inserter = InvalidTransactionId;
	probe->speculative = 0;
	return found;
}

/* Let go of what a probe has copied, before the next one */
void
IdemProbeFree(IdemProbe *probe)
{
	if (probe->found)
		heap_freetuple(probe->row.tuple);
}

/*
 * Under REPEATABLE READ and SERIALIZABLE a row that the transaction's
 * snapshot does not see must not decide anything: 40001, as INSERT ... ON
 * CONFLICT does (ExecCheckTupleVisible in nodeModifyTable.c).  Rows of the
 * transaction itself are exempt there and here.
 */
void
IdemCheckVisible(IdemTable *table, const IdemProbe *probe)
{
	IdemRow		visible;

	if (!IsolationUsesXactSnapshot() || !probe->found || probe->row.own)
		return;
	if (IdemReadKey(table, GetTransactionSnapshot(), &visible) &&
		ItemPointerEquals(&visible.tid, (ItemPointer) &probe->row.tid))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not serialize access due to concurrent update"),
			 errdetail("The key was changed by another transaction after this one took its snapshot."),
			 errhint("Retry the transaction.")));
}

/*
 * Call wait(arg), which takes a lock of the lock manager, but give up after so
 * many milliseconds.  Returns whether it came back.
 *
 * The lock manager knows one limit only, lock_timeout; so that is lowered for
 * this wait where ours is shorter, and its error is caught then and only
 * then.  The subtransaction is what catching an error takes; it costs no
 * transaction id, and a lock taken in it stays with its parent.
 */
bool
IdemWaitAtMost(int ms, void (*wait) (void *), void *arg)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	int			callers_timeout = LockTimeout;
	bool		ours = (callers_timeout <= 0 || ms < callers_timeout);
	volatile bool came_back = true;

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		if (ours)
			LockTimeout = ms;
		wait(arg);
		LockTimeout = callers_timeout;
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		LockTimeout = callers_timeout;
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		if (!ours || error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
			ReThrowError(error);
		FreeErrorData(error);
		came_back = false;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return came_back;
}

static void
WaitForTransaction(void *xid)
{
	XactLockTableWait(*(TransactionId *) xid, NULL, NULL, XLTW_None);
}

/*
 * Wait until the transaction has ended, at most until the deadline; it may
 * come back before either.  Going through the lock manager makes the wait
 * visible in pg_locks and pg_blocking_pids and part of deadlock detection.
 * On a standby the primary's transactions hold no locks, so we look now and
 * then, the longer we have been waiting (`since`) the more rarely.
 */
void
IdemWaitForTransaction(TransactionId xid, TimestampTz since,
					   TimestampTz deadline)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		us = deadline - now;

	if (us <= 0)
		return;
	if (RecoveryInProgress())
		IdemPause(now - since, deadline);
	else
		(void) IdemWaitAtMost((int) Min((us + 999) / 1000, INT_MAX),
							  WaitForTransaction, &xid);
}

/*
 * Sleep for a moment while somebody's lease runs, at most until `until`.
 *
 * The pause grows with the time waited already, so that an answer is seen at
 * once relative to how long it took, and hundreds of waiters stay cheap; the
 * jitter keeps them from looking all at the same instant.
 */
void
IdemPause(int64 waited_us, TimestampTz until)
{
	static uint32 wait_event = 0;
	int64		us = Min(Max(waited_us / 16, MIN_PAUSE_US), MAX_PAUSE_US);

	if (wait_event == 0)
		wait_event = WaitEventExtensionNew("IdemLease");
	us = us / 2 + (int64) (pg_prng_double(&pg_global_prng_state) * us);
	us = Min(us, until - GetCurrentTimestamp());
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 (long) Max(us / 1000, 1), wait_event);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}
