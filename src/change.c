/*-------------------------------------------------------------------------
 *
 * change.c
 *	  Changing one version of one row, or saying that it is too late.
 *
 * Each of these is a compare-and-swap: it changes exactly the version that
 * its caller has found and judged, or nothing.  After each the command counter
 * is advanced, since the same statement may go on with the row: a function
 * that reserves and completes, a CTE.
 *
 * The table is open and has been locked for writing.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/xact.h"
#include "change.h"
#include "compat.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/*
 * The indexes that decide: the primary key, and its successor while REINDEX
 * CONCURRENTLY is making one.
 */
static List *
Arbiters(const IdemTable *table)
{
	ResultRelInfo *indexes = table->indexes;
	List	   *arbiters = NIL;
	int			i;

	for (i = 0; i < indexes->ri_NumIndices; i++)
	{
		Relation	index = indexes->ri_IndexRelationDescs[i];
		IndexInfo  *info = indexes->ri_IndexRelationInfo[i];

		if (info->ii_Unique && index->rd_index->indimmediate &&
			info->ii_Predicate == NIL && IdemIndexIsOnKey(index))
			arbiters = lappend_oid(arbiters, RelationGetRelid(index));
	}
	return arbiters;
}

/*
 * What came of changing a version.  TM_Ok: it is changed.  TM_WouldBlock:
 * somebody holds it.  TM_Updated: it is not the newest any more.  Anything else
 * means that the very command that calls us has changed the row itself.
 */
static TM_Result
Checked(TM_Result result)
{
	switch (result)
	{
		case TM_Ok:
		case TM_WouldBlock:
			return result;
		case TM_Updated:
		case TM_Deleted:
			return TM_Updated;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("key is being changed by the command that is running"),
					 errhint("Leave the table to the functions of idem.")));
	}
	pg_unreachable();
}

/*
 * Have the row that was inserted entered into the indexes, and ask those that
 * decide, without waiting, whether it is the only one.
 *
 * The executor's way to do that takes an EState and a description of every
 * index.  With the primary key as the only index, a B-tree that is open
 * already, what is left of it is this one call (ExecInsertIndexTuples in
 * execIndexing.c).
 */
static bool
EnterIntoIndexes(IdemTable *table, IdemRow *row, TupleTableSlot *slot)
{
	bool		conflict = false;

	IdemTableOpenKey(table);
	if (IdemTableHasOneIndex(table))
	{
		Datum		values[2] = {row->values[IDEM_COL_CLIENT], row->values[IDEM_COL_KEY]};
		bool		isnull[2] = {false, false};

		return index_insert(table->pk, values, isnull, &slot->tts_tid, table->rel,
							UNIQUE_CHECK_PARTIAL, false, makeNode(IndexInfo));
	}
	IdemTableOpenIndexes(table);
	(void) IdemInsertIndexTuples(table->indexes, slot, table->estate, true,
								 &conflict, Arbiters(table), false);
	return !conflict;
}

/*
 * Insert the row unless the unique index has an entry for its key that may
 * count.  Nobody is waited for: check and insertion happen under one lock of
 * the index page, so that of several callers exactly one is told "unique".
 * The others withdraw their row before anybody could wait for it.
 */
bool
IdemRowInsert(IdemTable *table, IdemRow *row)
{
	TransactionId xid = GetCurrentTransactionId();
	TupleTableSlot *slot = IdemRowSlot(table, row);
	bool		unique;
	uint32		token;

	token = SpeculativeInsertionLockAcquire(xid);
	table_tuple_insert_speculative(table->rel, slot, GetCurrentCommandId(true),
								   0, NULL, token);
	unique = EnterIntoIndexes(table, row, slot);
	table_tuple_complete_speculative(table->rel, slot, token, unique);
	SpeculativeInsertionLockRelease(xid);
	CommandCounterIncrement();

	row->tid = slot->tts_tid;
	ExecDropSingleTupleTableSlot(slot);
	return unique;
}

/*
 * Replace the version at row->tid by the row as it is now.  Like any UPDATE
 * this waits for an unfinished change by somebody else.  False: the version
 * is not the newest any more.
 */
bool
IdemRowUpdate(IdemTable *table, IdemRow *row)
{
	TupleTableSlot *slot = IdemRowSlot(table, row);
	TM_FailureData failure;
	LockTupleMode lockmode;
	TU_UpdateIndexes updates;
	TM_Result	result;

	result = Checked(table_tuple_update(table->rel, &row->tid, slot,
										GetCurrentCommandId(true),
										InvalidSnapshot, InvalidSnapshot, true,
										&failure, &lockmode, &updates));
	if (result == TM_Ok)
	{
		if (IDEM_UPDATES_INDEXES(updates))
		{
			IdemTableOpenIndexes(table);
			(void) IdemInsertIndexTuples(table->indexes, slot, table->estate,
										 false, NULL, NIL,
										 IDEM_ONLY_SUMMARIZING(updates));
		}
		CommandCounterIncrement();
		row->tid = slot->tts_tid;
	}
	ExecDropSingleTupleTableSlot(slot);
	return result == TM_Ok;
}

/*
 * Prune the page that this version is on, if it is nearly full.
 *
 * New keys are inserted without a look at the page they come to, so that nobody
 * would ever prune it, and each would leave room for two rows behind.  Now that
 * the second version is there, the page is as full as it gets, and the first
 * ones of transactions that have ended make room for the next keys.
 */
void
IdemRowPrunePage(IdemTable *table, const IdemRow *row)
{
	Buffer		buffer = ReadBuffer(table->rel, ItemPointerGetBlockNumber(&row->tid));

	heap_page_prune_opt(table->rel, buffer);
	ReleaseBuffer(buffer);
}

/*
 * Remove the version at this place.  Like any DELETE this waits for an
 * unfinished change by somebody else.  False: it is not the newest any more.
 */
bool
IdemRowDelete(IdemTable *table, ItemPointer tid)
{
	TM_FailureData failure;
	TM_Result	result;

	result = Checked(table_tuple_delete(table->rel, tid,
										GetCurrentCommandId(true),
										InvalidSnapshot, InvalidSnapshot, true,
										&failure, false));
	if (result == TM_Ok)
		CommandCounterIncrement();
	return result == TM_Ok;
}

/* Lock the version at row->tid */
static TM_Result
LockVersion(IdemTable *table, IdemRow *row, LockWaitPolicy policy)
{
	TupleTableSlot *slot = table_slot_create(table->rel, NULL);
	TM_FailureData failure;
	TM_Result	result;

	result = Checked(table_tuple_lock(table->rel, &row->tid, SnapshotAny, slot,
									  GetCurrentCommandId(true),
									  LockTupleNoKeyExclusive, policy, 0,
									  &failure));
	ExecDropSingleTupleTableSlot(slot);
	return result;
}

/*
 * Replace the version at row->tid where waiting matters: lock it, by this
 * policy, let rewrite(row, arg) say what becomes of it now, and update.
 *
 * An update alone would wait for whoever holds the version (heap_update knows
 * no other way), and would write what was true before the wait.  LockWaitSkip
 * does not wait, and says TM_WouldBlock.  It cannot happen that the version is
 * locked and left as it is: what was judged is what was locked.
 */
TM_Result
IdemRowReplace(IdemTable *table, IdemRow *row, LockWaitPolicy policy,
			   void (*rewrite) (IdemRow *row, void *arg), void *arg)
{
	TM_Result	result = LockVersion(table, row, policy);

	if (result != TM_Ok)
		return result;
	rewrite(row, arg);
	if (!IdemRowUpdate(table, row))
		elog(ERROR, "row version of a key was changed under its lock");
	return TM_Ok;
}
