/*-------------------------------------------------------------------------
 *
 * sweep.c
 *	  Removing expired keys and finding stale leases, in bounded steps.
 *
 * There is no index on expiry: it would cost every reservation more than the
 * sweep costs altogether.  The table is walked by blocks, a part of it in
 * each visit, so that a full round is done several times per retention.
 * Blocks where something is removed do not count against that part: a backlog
 * is followed to its end.  Each step is one small transaction of the caller's.
 *
 * The walk waits for nobody.  It reads through a ring of buffers, takes the
 * content lock of one page at a time, and deletes a row only if that very
 * version is still the newest and nobody is changing it.
 *
 * Where the walk stopped is kept in idem_state.  That is an unlogged table:
 * after a crash the walk starts at the beginning, which is as good a place as
 * any, and the position neither reaches another server nor a dump.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/xact.h"
#include "args.h"
#include "catalog/dependency.h"
#include "catalog/pg_class.h"
#include "commands/extension.h"
#include "compat.h"
#include "fmgr.h"
#include "launcher.h"
#include "miscadmin.h"
#include "reminder.h"
#include "settings.h"
#include "storage/bufmgr.h"
#include "sweep.h"
#include "table.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(idem_sweep);

/* Blocks read in a visit even where the pace asks for fewer: 8 MB */
#define MIN_BLOCKS_PER_VISIT	1024

/* Blocks read in one step: what bounds its time when nothing is expired */
#define MAX_BLOCKS_PER_STEP		1024

/* Time that the worker walks in one step, in us; DROP DATABASE waits for it */
#define MAX_TIME_PER_STEP		INT64CONST(500000)

/* Full rounds of the walk in the time of one retention */
#define ROUNDS_PER_RETENTION	8

/* Column of idem_state */
#define STATE_NEXT_BLOCK		0
#define STATE_NCOLS				1

/* One step over the table */
typedef struct Step
{
	Relation	rel;
	Snapshot	snapshot;
	TimestampTz horizon;
	BufferAccessStrategy ring;
	int64		end;			/* when to stop, monotonic us */
} Step;

/* What one block has: the expired rows, and how many others */
typedef struct BlockContents
{
	int			nexpired;
	int			nkept;
	int64		kept_bytes;
	ItemPointerData tids[MaxHeapTuplesPerPage];
	TimestampTz ends[MaxHeapTuplesPerPage];
} BlockContents;

/* ----------
 * Where the walk stopped
 * ----------
 */

/* Find the row of idem_state into the slot; false when there is none yet */
static bool
ReadState(Relation state, TupleTableSlot *slot)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TableScanDesc scan = table_beginscan(state, snapshot, 0, NULL);
	bool		found = table_scan_getnextslot(scan, ForwardScanDirection, slot);

	if (found)
		ExecMaterializeSlot(slot);
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
	return found;
}

static BlockNumber
LoadPosition(Oid nsp)
{
	Relation	state = IdemRelationOpen(nsp, "idem_state", AccessShareLock);
	TupleTableSlot *slot = table_slot_create(state, NULL);
	BlockNumber block = 0;
	bool		isnull;

	if (ReadState(state, slot))
		block = (BlockNumber) DatumGetInt64(slot_getattr(slot,
														 STATE_NEXT_BLOCK + 1,
														 &isnull));
	ExecDropSingleTupleTableSlot(slot);
	table_close(state, AccessShareLock);
	return block;
}

/*
 * Store the position, unless somebody else is just doing that: theirs is as
 * good as ours.
 */
static void
SavePosition(IdemSweep *sweep)
{
	Relation	state = IdemRelationOpen(sweep->nsp, "idem_state", RowExclusiveLock);
	TupleTableSlot *old = table_slot_create(state, NULL);
	TupleTableSlot *new = MakeSingleTupleTableSlot(RelationGetDescr(state),
												   &TTSOpsVirtual);
	CommandId	cid = GetCurrentCommandId(true);
	TM_FailureData failure;
	LockTupleMode mode;
	TU_UpdateIndexes indexes;

	new->tts_values[STATE_NEXT_BLOCK] = Int64GetDatum((int64) sweep->next);
	new->tts_isnull[STATE_NEXT_BLOCK] = false;
	ExecStoreVirtualTuple(new);
	if (!ReadState(state, old))
		table_tuple_insert(state, new, cid, 0, NULL);
	else if (table_tuple_lock(state, &old->tts_tid, SnapshotAny, old, cid,
							  LockTupleNoKeyExclusive, LockWaitSkip, 0,
							  &failure) == TM_Ok)
		(void) table_tuple_update(state, &old->tts_tid, new, cid,
								  InvalidSnapshot, InvalidSnapshot, true,
								  &failure, &mode, &indexes);
	CommandCounterIncrement();
	ExecDropSingleTupleTableSlot(old);
	ExecDropSingleTupleTableSlot(new);
	table_close(state, NoLock);
	sweep->saved = sweep->next;
}

/* ----------
 * Walking
 * ----------
 */

/*
 * Blocks that this visit may read in vain.  A call by hand may read them all,
 * since its caller takes "nothing removed" for "nothing left".
 */
static BlockNumber
VisitQuota(BlockNumber nblocks, bool by_hand)
{
	double		rounds = ROUNDS_PER_RETENTION * (double) idem_sweep_interval /
		(idem_retention * 1000.0);

	if (by_hand || rounds >= 1.0)
		return nblocks;
	return (BlockNumber) Max(MIN_BLOCKS_PER_VISIT, ceil(nblocks * rounds));
}

/* Set out where the last visit stopped */
static void
BeginWalk(IdemSweep *sweep, Relation rel)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(rel);

	sweep->next = sweep->saved = LoadPosition(sweep->nsp);
	sweep->round = nblocks;
	sweep->quota = VisitQuota(nblocks, sweep->by_hand);
	sweep->walking = true;
}

/* The rows of one block, as far as this snapshot sees them */
static void
ReadBlock(Step *step, BlockNumber block, BlockContents *contents)
{
	Buffer		buffer = ReadBufferExtended(step->rel, MAIN_FORKNUM, block,
											RBM_NORMAL, step->ring);
	Page		page = BufferGetPage(buffer);
	OffsetNumber offset;

	contents->nexpired = contents->nkept = contents->kept_bytes = 0;
	heap_page_prune_opt(step->rel, buffer);
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	for (offset = FirstOffsetNumber; offset <= PageGetMaxOffsetNumber(page);
		 offset++)
	{
		ItemId		item = PageGetItemId(page, offset);
		HeapTupleData tuple;
		bool		isnull;
		TimestampTz expires_at;

		if (!ItemIdIsNormal(item))
			continue;
		tuple.t_tableOid = RelationGetRelid(step->rel);
		tuple.t_data = (HeapTupleHeader) PageGetItem(page, item);
		tuple.t_len = ItemIdGetLength(item);
		ItemPointerSet(&tuple.t_self, block, offset);
		if (!HeapTupleSatisfiesVisibility(&tuple, step->snapshot, buffer))
			continue;
		expires_at = DatumGetTimestampTz(heap_getattr(&tuple, IDEM_COL_EXPIRES_AT + 1,
													  RelationGetDescr(step->rel),
													  &isnull));
		if (expires_at <= step->horizon)
		{
			contents->tids[contents->nexpired] = tuple.t_self;
			contents->ends[contents->nexpired++] = expires_at;
		}
		else
		{
			contents->nkept++;
			contents->kept_bytes += MAXALIGN(tuple.t_len) + sizeof(ItemIdData);
		}
	}
	UnlockReleaseBuffer(buffer);
}

/* The earlier of two points in time, of which 0 is none */
static TimestampTz
Earlier(TimestampTz a, TimestampTz b)
{
	return a == 0 || (b != 0 && b < a) ? b : a;
}

/*
 * Remove the expired rows of one block, at most `limit` of them.  A row that
 * somebody has changed, or is changing, is none of ours any more.
 */
static int64
RemoveExpired(IdemSweep *sweep, Step *step, BlockNumber block, int64 limit)
{
	BlockContents contents;
	int64		removed = 0;
	int			i;

	ReadBlock(step, block, &contents);
	for (i = 0; i < contents.nexpired && removed < limit; i++)
	{
		TM_FailureData failure;

		if (table_tuple_delete(step->rel, &contents.tids[i],
							   GetCurrentCommandId(true), InvalidSnapshot,
							   InvalidSnapshot, false, &failure, false) == TM_Ok)
		{
			removed++;
			sweep->removed_end = Earlier(sweep->removed_end, contents.ends[i]);
		}
		else
			sweep->pass.oldest_expired = Earlier(sweep->pass.oldest_expired,
												 contents.ends[i]);
	}
	sweep->read_blocks++;
	sweep->read_keys += contents.nkept;
	sweep->read_bytes += contents.kept_bytes;
	return removed;
}

/*
 * Walk on until the step, the quota or the round is used up.  A block that
 * took the last removal of a step is looked at again in the next one.
 */
static void
Walk(IdemSweep *sweep, Step *step)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(step->rel);
	int64		left = sweep->batch;
	int			blocks;

	sweep->nblocks = nblocks;
	if (nblocks == 0)
		sweep->next = sweep->round = 0;
	for (blocks = 0; blocks < MAX_BLOCKS_PER_STEP && sweep->round > 0 &&
		 sweep->quota > 0; blocks++)
	{
		int64		removed;

		CHECK_FOR_INTERRUPTS();
		if (sweep->next >= nblocks)
			sweep->next = 0;
		removed = RemoveExpired(sweep, step, sweep->next, left);
		sweep->expired += removed;
		left -= removed;
		if (left == 0)
			break;
		sweep->next++;
		sweep->round--;
		if (removed == 0)
			sweep->quota--;
		if (IdemMonotonicTime() > step->end)
			break;
	}
	if (sweep->next >= nblocks)
		sweep->next = 0;
}

/* Note how much there is, by the share of the table that was read */
static void
Measure(IdemSweep *sweep, Relation rel)
{
	if (sweep->read_blocks > 0)
	{
		double		share = (double) RelationGetNumberOfBlocks(rel) / sweep->read_blocks;

		sweep->pass.keys = (int64) rint(sweep->read_keys * share);
		sweep->pass.row_bytes = (int64) rint(sweep->read_bytes * share);
	}
	sweep->pass.bytes = IdemTotalSize(sweep->nsp);
}

/* One bounded walk in the current transaction; true while there is more */
static bool
WalkStep(IdemSweep *sweep)
{
	Step		step;

	step.rel = IdemRelationOpen(sweep->nsp, "idem_key", RowExclusiveLock);
	step.horizon = sweep->by_hand ? GetCurrentTimestamp() : sweep->horizon;
	step.end = IdemMonotonicTime() + MAX_TIME_PER_STEP;
	step.snapshot = RegisterSnapshot(GetLatestSnapshot());
	step.ring = GetAccessStrategy(BAS_VACUUM);
	if (!sweep->walking)
		BeginWalk(sweep, step.rel);
	Walk(sweep, &step);
	Measure(sweep, step.rel);
	CommandCounterIncrement();
	FreeAccessStrategy(step.ring);
	UnregisterSnapshot(step.snapshot);
	table_close(step.rel, NoLock);

	if (sweep->next != sweep->saved)
		SavePosition(sweep);
	return sweep->round > 0 && sweep->quota > 0;
}

/* ----------
 * What may be swept
 * ----------
 */

/*
 * The sweep removes rows with more rights than anybody has to put tables in
 * its way.  Where the extension is there and one of its tables is not, one of
 * the same name may be anybody's.
 */
static void
CheckTables(Oid nsp)
{
	static const char *const swept[] = {"idem_key", "idem_reminder_1", "idem_reminder_2", "idem_state"};
	Oid			extension = get_extension_oid("idem", false);
	int			i;

	for (i = 0; i < lengthof(swept); i++)
	{
		Relation	rel = IdemRelationOpen(nsp, swept[i], AccessShareLock);

		if (getExtensionOfObject(RelationRelationId,
								 RelationGetRelid(rel)) != extension)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("table \"%s\" is not the one that extension idem created",
							RelationGetRelationName(rel)),
					 errhint("It must belong to the extension.")));
		table_close(rel, AccessShareLock);
	}
}

/*
 * Begin a visit; `batch` is the most rows that one step removes, and the
 * context is to last as long as the visit.
 */
void
IdemSweepBegin(IdemSweep *sweep, Oid nsp, int batch, MemoryContext context)
{
	memset(sweep, 0, sizeof(IdemSweep));
	sweep->nsp = nsp;
	sweep->batch = batch;
	sweep->context = context;
	sweep->began = GetCurrentTimestamp();
}

/* Take one step of a pass over the leases */
static void
LeaseStep(IdemSweep *sweep)
{
	int64		found;
	bool		more;

	if (sweep->leases == NULL)
		sweep->leases = IdemReminderPassBegin(sweep->nsp, sweep->by_hand,
											  sweep->context);
	sweep->reminders_read = true;
	more = IdemReminderPassStep(sweep->leases, sweep->batch, &found);
	sweep->stale += found;
	IdemCountBy(IDEM_COUNT_STALE, found);
	if (more)
		return;
	sweep->pass.oldest_stale = IdemReminderPassEnd(sweep->leases);
	sweep->leases = NULL;
	sweep->leases_known = true;
	sweep->leases_over = true;
}

/*
 * Is it the leases' turn?  They come first, since that is quickly done; where
 * it is not, the walk gets every other step.
 */
static bool
LeasesAreNext(const IdemSweep *sweep)
{
	if (sweep->leases == NULL)
		return !sweep->reminders_read;
	return sweep->by_hand || sweep->leases_only || sweep->walked ||
		!sweep->was_leases;
}

/*
 * Do one bounded step of a visit, in the caller's transaction and under its
 * active snapshot.  Returns whether there is more to do in this visit.
 */
bool
IdemSweepStep(IdemSweep *sweep)
{
	int64		before = sweep->expired;

	CheckTables(sweep->nsp);
	sweep->was_leases = LeasesAreNext(sweep);
	if (sweep->was_leases)
		LeaseStep(sweep);
	else
	{
		sweep->walked = !WalkStep(sweep);
		IdemCountBy(IDEM_COUNT_EXPIRED, sweep->expired - before);
	}
	return sweep->leases != NULL || !sweep->walked;
}

/*
 * The visit is over: count it.  If the walk has not been all the way round, an
 * expired key may be left that is older than all that it came by.
 */
void
IdemSweepReport(IdemSweep *sweep)
{
	IdemPass   *pass = &sweep->pass;

	if (!sweep->walking || !sweep->leases_known)
		return;
	if (sweep->round > 0 && sweep->quota > 0)
		pass->oldest_expired = Earlier(pass->oldest_expired, sweep->removed_end);
	pass->ended = GetCurrentTimestamp();
	pass->duration = Max(pass->ended - sweep->began, 0);
	IdemReportPass(pass);
}

/*
 * idem_sweep(max_keys int) returns idem_sweep_result
 *
 * What the worker does, by hand, in the caller's transaction: at most that
 * many removals, going on where the last call stopped.
 */
Datum
idem_sweep(PG_FUNCTION_ARGS)
{
	Datum		values[2];
	bool		isnull[2] = {false, false};
	IdemSweep	sweep;
	int64		max_keys;

	max_keys = PG_ARGISNULL(0) ? (int64) 10 * idem_sweep_batch : PG_GETARG_INT32(0);
	if (max_keys < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_keys must be positive, not " INT64_FORMAT, max_keys),
				 errhint("NULL stands for ten times idem.sweep_batch.")));
	PreventCommandIfReadOnly("idem_sweep()");
	IdemLauncherNotice();
	IdemSweepBegin(&sweep, IdemSchema(fcinfo), 0, CurrentMemoryContext);
	sweep.by_hand = true;
	do
	{
		sweep.batch = max_keys - sweep.expired;
	} while (sweep.batch > 0 && IdemSweepStep(&sweep));
	if (sweep.stale > 0)
		IdemReminderNotify();
	IdemSweepReport(&sweep);

	values[0] = Int64GetDatum(sweep.expired);
	values[1] = Int64GetDatum(sweep.stale);
	return IdemResult(fcinfo, lengthof(values), values, isnull);
}
