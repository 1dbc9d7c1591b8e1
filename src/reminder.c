/*-------------------------------------------------------------------------
 *
 * reminder.c
 *	  Reminders of leases that are committed and not yet answered.
 *
 * A stale lease has to be found without reading a day of completed keys, and
 * a key that is reserved and completed in one transaction should cost nothing
 * for it.  So the reminder is written when a transaction is about to commit
 * (or to be prepared): the places of the rows that it reserved are remembered,
 * and for each that is still in progress there, a small row is appended to a
 * table.  Rolled-back savepoints need no bookkeeping: their rows are dead.
 *
 * Completing a key leaves its reminder alone.  A pass of the sweeper reads
 * them all, drops those whose key needs none any more, and finds the stale
 * leases among the rest.  It does so in bounded steps, each in a transaction
 * of its own, and keeps nothing between them but what it knows.
 *
 * There are two such tables, of equal standing, so that one can be emptied
 * with TRUNCATE, which gives its space back whatever old snapshot is about.
 * Writers take the first one that they can lock at once.  So while a pass
 * waits for its exclusive lock on one table, or holds it, they go to the other
 * one, and nobody waits for the pass.  A small table is not worth that lock
 * (which a standby has to replay against its readers): its rows are deleted.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_collation_d.h"
#include "commands/async.h"
#include "common/hashfn.h"
#include "compat.h"
#include "counters.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "probe.h"
#include "reminder.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "store.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/* From this size on a table is emptied as a whole, */
#define TRUNCATE_BLOCKS		128

/* and only if at least one in so many of its reminders is not needed any more */
#define TRUNCATE_SHARE		4

/* which about so many of them tell, from so many blocks; one holds about so many */
#define SAMPLE_SIZE			200
#define SAMPLE_BLOCKS		16
#define REMINDERS_PER_BLOCK	80

/*
 * A table that has more blocks than these to go through is worked off in steps
 * before it is emptied, and that until no more are left; at most so many times
 * the blocks that it had, since writers may be faster.
 */
#define WHOLE_BLOCKS		1024
#define CATCH_UP			3

/* How long a pass queues for a table that it wants to empty, in ms */
#define TRUNCATE_PATIENCE	200

/* Time that a step takes, in us, looked at after so many blocks */
#define MAX_TIME_PER_STEP	INT64CONST(500000)
#define BLOCKS_PER_LOOK		16

/* From here on the notification queue has no room for what is no hurry */
#define QUEUE_NEARLY_FULL	0.95

/* Columns of a reminder */
typedef enum ReminderColumn
{
	REMINDER_LEASE_UNTIL,
	REMINDER_TOKEN,
	REMINDER_ANNOUNCED,
	REMINDER_CLIENT,
	REMINDER_KEY,
	REMINDER_NCOLS
} ReminderColumn;

static const char *const reminder_tables[] = {"idem_reminder_1", "idem_reminder_2"};

#define NTABLES		((int) lengthof(reminder_tables))

/* Where this transaction wrote a row that was in progress */
typedef struct Tracked
{
	pg_uuid_t	token;
	ItemPointerData tid;
	Oid			nsp;
	Oid			relid;			/* idem_key */
	Oid			file;			/* of the table, which TRUNCATE changes */
	SubTransactionId subxact;
} Tracked;

static Tracked *tracked = NULL; /* in TopTransactionContext */
static Size ntracked = 0;
static Size maxtracked = 0;

/*
 * What a pass does with a table.  All are gone through to collect what is
 * announced, then all to consider each reminder; the largest comes last, and
 * is then emptied, if that is worth while.
 */
typedef enum Stage
{
	STAGE_COLLECT,
	STAGE_CONSIDER,
	STAGE_EMPTY,
	STAGE_OVER
} Stage;

/* Going through reminders */
typedef struct IdemReminderPass
{
	Oid			nsp;
	MemoryContext context;		/* of what outlives one reminder */

	/* in one transaction */
	Relation	rel;			/* the table that is read */
	Snapshot	snapshot;
	TimestampTz now;
	void		(*consider) (struct IdemReminderPass *pass, TupleTableSlot *slot);

	/* of the sweeper's pass, in one transaction */
	Relation	carry;			/* where to put what is kept; NULL: leave it */
	bool		emptying;		/* the whole table goes afterwards */
	int64		found;			/* leases that have become stale */
	int64		left;			/* reminders that may still be changed */
	int64		stop;			/* when to stop, monotonic us */
	int64		step;			/* one reminder in so many is sampled */
	int64		seen;			/* reminders met while sampling */
	int64		sampled;		/* looked at */
	int64		needless;		/* and found to be needed no more */

	/* of the sweeper's pass, in all of its transactions */
	Stage		stage;
	int			nth;			/* tables that this stage is through with */
	int			last;			/* the one that comes last */
	bool		may_announce;
	bool		may_truncate;
	bool		whole;			/* the table is to be emptied */
	BlockNumber next;			/* where this table is gone on with */
	BlockNumber end;			/* and up to where; 0: not begun */
	int64		patience;		/* blocks that may be read before it is emptied */
	HTAB	   *announced;		/* Lease: the stale ones known of so far */
	TimestampTz oldest_stale;	/* end of the oldest stale one; 0: none */

	/* of the search for stale leases */
	text	   *client;			/* whose; NULL: anybody's */
	List	   *due;			/* IdemDue */
} Pass;

/* ----------
 * Writing
 * ----------
 */

/* Remember that this transaction has a key in progress, and where */
void
IdemReminderTrack(Oid nsp, Relation rel, const IdemRow *row)
{
	Tracked    *entry;

	if (tracked == NULL)
	{
		maxtracked = 16;
		tracked = MemoryContextAlloc(TopTransactionContext,
									 maxtracked * sizeof(Tracked));
	}
	else if (ntracked == maxtracked)
	{
		tracked = repalloc_huge(tracked, 2 * maxtracked * sizeof(Tracked));
		maxtracked *= 2;
	}
	entry = &tracked[ntracked++];
	entry->token = *IdemRowToken(row);
	entry->tid = row->tid;
	entry->nsp = nsp;
	entry->relid = RelationGetRelid(rel);
	entry->file = rel->rd_rel->relfilenode;
	entry->subxact = GetCurrentSubTransactionId();
}

/*
 * The key whose row was here is answered or released.  If that is undone, so
 * is the reservation that was made in the same subtransaction, and only then
 * may it be forgotten here.
 */
void
IdemReminderDone(Relation rel, ItemPointer tid)
{
	Tracked    *last = ntracked > 0 ? &tracked[ntracked - 1] : NULL;

	if (last != NULL && last->relid == RelationGetRelid(rel) &&
		last->subxact == GetCurrentSubTransactionId() &&
		ItemPointerEquals(&last->tid, tid))
		ntracked--;
}

/*
 * Where this subtransaction wrote the row in progress under this token, if
 * that was the last it wrote.  The row is still there: nobody else can have
 * changed it, and nothing of it was rolled back.  (A file that this transaction
 * made is emptied by TRUNCATE where it is; then the place says nothing.)
 */
bool
IdemReminderPlace(Oid nsp, Relation rel, const pg_uuid_t *token, ItemPointer tid)
{
	Tracked    *last = ntracked > 0 ? &tracked[ntracked - 1] : NULL;

	if (last == NULL || last->nsp != nsp ||
		last->relid != RelationGetRelid(rel) ||
		last->file != rel->rd_rel->relfilenode || IdemFileIsNew(rel) ||
		last->subxact != GetCurrentSubTransactionId() ||
		memcmp(&last->token, token, UUID_LEN) != 0)
		return false;
	*tid = last->tid;
	return true;
}

/*
 * Open the reminder table that can be written to without waiting.  When both
 * are locked, which is somebody's deliberate doing, wait for the first.
 */
static Relation
OpenForWriting(Oid nsp)
{
	int			i;

	for (i = 0; i < NTABLES; i++)
	{
		Oid			relid = get_relname_relid(reminder_tables[i], nsp);

		if (OidIsValid(relid) &&
			ConditionalLockRelationOid(relid, RowExclusiveLock))
			return IdemRelationOpen(nsp, reminder_tables[i], RowExclusiveLock);
	}
	return IdemRelationOpen(nsp, reminder_tables[0], RowExclusiveLock);
}

/* Append a reminder */
static void
AppendReminder(Relation rel, TimestampTz lease_until, const pg_uuid_t *token,
			   bool announced, Datum client, Datum key)
{
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel),
													&TTSOpsVirtual);

	memset(slot->tts_isnull, false, REMINDER_NCOLS * sizeof(bool));
	slot->tts_values[REMINDER_LEASE_UNTIL] = TimestampTzGetDatum(lease_until);
	slot->tts_values[REMINDER_TOKEN] = UUIDPGetDatum(token);
	slot->tts_values[REMINDER_ANNOUNCED] = BoolGetDatum(announced);
	slot->tts_values[REMINDER_CLIENT] = client;
	slot->tts_values[REMINDER_KEY] = key;
	ExecStoreVirtualTuple(slot);
	table_tuple_insert(rel, slot, GetCurrentCommandId(true), 0, NULL);
	ExecDropSingleTupleTableSlot(slot);
}

/*
 * Is the row at this place still what was tracked: written by this
 * transaction, in progress, under the same token?
 */
static bool
StillInProgress(Relation rel, BlockNumber nblocks, Tracked *entry,
				TupleTableSlot *slot, IdemRow *row)
{
	IdemTable	table = {.rel = rel};

	if (ItemPointerGetBlockNumber(&entry->tid) >= nblocks ||
		!table_tuple_fetch_row_version(rel, &entry->tid, SnapshotSelf, slot))
		return false;
	IdemRowRead(&table, slot, row);
	return row->own && !IdemRowCompleted(row) &&
		memcmp(IdemRowToken(row), &entry->token, UUID_LEN) == 0;
}

/*
 * Write the reminders of the tracked rows first .. last - 1, which are in one
 * table.  If the extension has gone in the meantime, so have its keys.  (If the
 * table was rewritten in this transaction, by CLUSTER say, the rows are not
 * where they were, and if it was given another column, they are not ours to
 * read; then idem_reserve still takes over what becomes stale, but nobody is
 * reminded of it.)
 */
static void
WriteReminders(Oid nsp, Oid relid, Size first, Size last)
{
	Relation	rel = try_table_open(relid, AccessShareLock);
	Relation	reminders = NULL;
	TupleTableSlot *slot;
	BlockNumber nblocks;

	if (rel == NULL)
		return;
	if (!IdemRelationIsOurs(rel, "idem_key"))
	{
		table_close(rel, AccessShareLock);
		return;
	}
	nblocks = RelationGetNumberOfBlocks(rel);
	slot = table_slot_create(rel, NULL);
	for (; first < last; first++)
	{
		IdemRow		row;

		CHECK_FOR_INTERRUPTS();
		if (!StillInProgress(rel, nblocks, &tracked[first], slot, &row))
			continue;
		if (reminders == NULL)
			reminders = OpenForWriting(nsp);
		AppendReminder(reminders, IdemRowLeaseUntil(&row), IdemRowToken(&row),
					   false, row.values[IDEM_COL_CLIENT],
					   row.values[IDEM_COL_KEY]);
		heap_freetuple(row.tuple);
	}
	ExecDropSingleTupleTableSlot(slot);
	if (reminders != NULL)
		table_close(reminders, NoLock);
	table_close(rel, AccessShareLock);
}

/*
 * The transaction is about to commit: write what it leaves in progress.  Its
 * statements' snapshots are gone by now, and reading a toasted value takes one.
 */
static void
WriteTracked(void)
{
	Size		first;
	Size		last;

	if (ntracked == 0)
		return;
	PushActiveSnapshot(GetTransactionSnapshot());
	for (first = 0; first < ntracked; first = last)
	{
		Oid			relid = tracked[first].relid;

		for (last = first + 1; last < ntracked && tracked[last].relid == relid;)
			last++;
		WriteReminders(tracked[first].nsp, relid, first, last);
	}
	PopActiveSnapshot();
}

static void
ReminderXactCallback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_PRE_PREPARE)
	{
		WriteTracked();
		return;
	}
	tracked = NULL;
	ntracked = maxtracked = 0;
}

/* Called once, when the library is loaded */
void
IdemReminderInit(void)
{
	RegisterXactCallback(ReminderXactCallback, NULL);
}

/* ----------
 * Reading
 * ----------
 */

/* Take a reminder away; if somebody else is at it, it stays for the next pass */
static bool
Drop(Pass *pass, TupleTableSlot *slot)
{
	TM_FailureData failure;

	if (pass->emptying)
		return true;
	if (table_tuple_delete(pass->rel, &slot->tts_tid,
						   GetCurrentCommandId(true), InvalidSnapshot,
						   InvalidSnapshot, false, &failure, false) != TM_Ok)
		return false;
	pass->left--;
	return true;
}

/*
 * The reminder's key, if it still needs one: it is in progress under the
 * reminder's token.
 */
static bool
ReadReminded(Pass *pass, TupleTableSlot *slot, IdemRow *row)
{
	Datum	   *values = slot->tts_values;
	IdemTable	table;
	bool		found;

	IdemTableOpen(&table, pass->nsp,
				  DatumGetTextPP(values[REMINDER_CLIENT]),
				  DatumGetTextPP(values[REMINDER_KEY]));
	found = IdemReadKey(&table, pass->snapshot, row);
	IdemTableClose(&table);
	if (!found)
		return false;

	switch (IdemRowState(row, pass->now))
	{
		case IDEM_IN_PROGRESS:
		case IDEM_STALE:
			return memcmp(IdemRowToken(row),
						  DatumGetUUIDP(values[REMINDER_TOKEN]), UUID_LEN) == 0;
		case IDEM_ABSENT:
		case IDEM_COMPLETED:
			break;
	}
	return false;
}

/* A lease, as the pass remembers it: token, client and key */
typedef struct Lease
{
	pg_uuid_t	token;
	uint64		client;			/* hashes */
	uint64		key;
} Lease;

static uint64
HashText(Datum value)
{
	text	   *string = DatumGetTextPP(value);

	return DatumGetUInt64(hash_any_extended((const unsigned char *) VARDATA_ANY(string),
											VARSIZE_ANY_EXHDR(string), 0));
}

/*
 * Remember the lease as announced.  Returns whether it was already: one that
 * was cut short has two reminders.
 */
static bool
Announced(Pass *pass, TupleTableSlot *slot)
{
	bool		found;
	Lease		lease;

	if (pass->announced == NULL)
	{
		HASHCTL		control = {.keysize = sizeof(Lease),.entrysize = sizeof(Lease),
		.hcxt = pass->context};

		pass->announced = hash_create("idem stale leases", 64, &control,
									  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	lease.token = *DatumGetUUIDP(slot->tts_values[REMINDER_TOKEN]);
	lease.client = HashText(slot->tts_values[REMINDER_CLIENT]);
	lease.key = HashText(slot->tts_values[REMINDER_KEY]);
	(void) hash_search(pass->announced, &lease, HASH_ENTER, &found);
	return found;
}

/* Before a pass: which leases have been announced by an earlier one? */
static void
CollectAnnounced(Pass *pass, TupleTableSlot *slot)
{
	if (DatumGetBool(slot->tts_values[REMINDER_ANNOUNCED]))
		(void) Announced(pass, slot);
}

/*
 * Was the reminder written by this very pass, or by an earlier one in the same
 * transaction?  Then all has been said about it.  (No pass writes to a table
 * that it then empties.)
 */
static bool
WrittenHere(TupleTableSlot *slot)
{
	bool		isnull;
	Datum		xmin = slot_getsysattr(slot, MinTransactionIdAttributeNumber, &isnull);

	return TransactionIdIsCurrentTransactionId(DatumGetTransactionId(xmin));
}

/*
 * One reminder: drop it, leave it or carry it over.  A lease that is stale
 * for the first time is counted, and its reminder written anew to say so.
 */
static void
Consider(Pass *pass, TupleTableSlot *slot)
{
	bool		announced = DatumGetBool(slot->tts_values[REMINDER_ANNOUNCED]);
	bool		needed;
	bool		stale;
	bool		news;
	IdemRow		row;

	if (WrittenHere(slot))
		return;

	/* what is to stay where it is need not be looked at before its time */
	if (pass->carry == NULL &&
		DatumGetTimestampTz(slot->tts_values[REMINDER_LEASE_UNTIL]) > pass->now)
		return;
	needed = ReadReminded(pass, slot, &row);
	stale = needed && IdemRowLeaseUntil(&row) <= pass->now;
	if (!needed ||
		(stale && !announced && pass->may_announce && Announced(pass, slot)))
	{
		(void) Drop(pass, slot);
		return;
	}
	if (stale && (pass->oldest_stale == 0 ||
				  IdemRowLeaseUntil(&row) < pass->oldest_stale))
		pass->oldest_stale = IdemRowLeaseUntil(&row);
	news = stale && !announced && pass->may_announce;
	if ((pass->carry != NULL || news) && Drop(pass, slot))
	{
		AppendReminder(pass->carry != NULL ? pass->carry : pass->rel,
					   IdemRowLeaseUntil(&row), IdemRowToken(&row),
					   announced || news, row.values[IDEM_COL_CLIENT],
					   row.values[IDEM_COL_KEY]);
		pass->found += news ? 1 : 0;
	}
}

/*
 * Has the reminder's transaction ended as far as the pass's snapshot knows?
 * If not, the key would be judged as it was before that transaction, and the
 * reminder taken for one that is not needed.  A later pass will see both.
 */
static bool
Settled(Pass *pass, TupleTableSlot *slot)
{
	bool		isnull;
	TransactionId xmin = DatumGetTransactionId(slot_getsysattr(slot, MinTransactionIdAttributeNumber, &isnull));

	return TransactionIdIsCurrentTransactionId(xmin) ||
		!XidInMVCCSnapshot(xmin, pass->snapshot);
}

/* One transaction's look at the reminders begins, or ends */
static void
BeginLook(Pass *pass)
{
	pass->now = GetCurrentTimestamp();
	pass->snapshot = RegisterSnapshot(GetLatestSnapshot());
}

static void
EndLook(Pass *pass)
{
	UnregisterSnapshot(pass->snapshot);
	pass->snapshot = NULL;
}

/*
 * Read what a scan comes by, as it is now.  No snapshot: it is a whole table,
 * and in SERIALIZABLE that would be a conflict with everybody who writes to it.
 * False when the step is used up; then *stopped is the block where.
 */
static bool
ReadScan(Pass *pass, TableScanDesc scan, BlockNumber *stopped)
{
	MemoryContext each = AllocSetContextCreate(CurrentMemoryContext,
											   "idem reminder",
											   ALLOCSET_DEFAULT_SIZES);
	TupleTableSlot *slot = table_slot_create(pass->rel, NULL);
	bool		room = true;

	while (room && table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		MemoryContext before = MemoryContextSwitchTo(each);

		CHECK_FOR_INTERRUPTS();
		slot_getallattrs(slot);
		if (Settled(pass, slot))
			pass->consider(pass, slot);
		if (pass->left <= 0 && stopped != NULL)
		{
			*stopped = ItemPointerGetBlockNumber(&slot->tts_tid);
			room = false;
		}
		MemoryContextSwitchTo(before);
		MemoryContextReset(each);
	}
	ExecDropSingleTupleTableSlot(slot);
	MemoryContextDelete(each);
	return room;
}

/* Read one table through */
static void
ReadTable(Pass *pass)
{
	TableScanDesc scan;

	BeginLook(pass);
	scan = table_beginscan(pass->rel, SnapshotSelf, 0, NULL);
	(void) ReadScan(pass, scan, NULL);
	table_endscan(scan);
	EndLook(pass);
}

/* Read a few blocks of it, which there are; as ReadScan */
static bool
ReadBlocks(Pass *pass, BlockNumber first, BlockNumber nblocks,
		   BlockNumber *stopped)
{
	TableScanDesc scan = table_beginscan_strat(pass->rel, SnapshotSelf, 0, NULL,
											   true, false);
	bool		room;

	heap_setscanlimits(scan, first, nblocks);
	room = ReadScan(pass, scan, stopped);
	table_endscan(scan);
	return room;
}

/*
 * Go on with the table, as far as this pass goes and the step has room.  A
 * block that took the last change of a step is looked at again in the next.
 */
static void
ReadOn(Pass *pass)
{
	while (pass->next < pass->end)
	{
		BlockNumber nblocks = Min(pass->end - pass->next, BLOCKS_PER_LOOK);
		BlockNumber stopped;

		pass->patience -= nblocks;
		if (!ReadBlocks(pass, pass->next, nblocks, &stopped))
		{
			pass->next = stopped;
			return;
		}
		pass->next += nblocks;
		if (IdemMonotonicTime() > pass->stop)
			return;
	}
}

static void
LockExclusively(void *relid)
{
	LockRelationOid(*(Oid *) relid, AccessExclusiveLock);
}

/*
 * TRUNCATE the table, as its owner and no more: it may fire triggers, which
 * must not run with the worker's rights.
 */
static void
TruncateAsOwner(Oid nsp, const char *name, Oid owner)
{
	char	   *command = psprintf("TRUNCATE ONLY %s",
								   quote_qualified_identifier(get_namespace_name(nsp), name));
	int			nestlevel = NewGUCNestLevel();
	Oid			user;
	int			context;

	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(owner, context | SECURITY_RESTRICTED_OPERATION);
	SPI_connect();
	if (SPI_execute(command, false, 0) != SPI_OK_UTILITY)
		elog(ERROR, "could not empty table \"%s\"", name);
	SPI_finish();
	AtEOXact_GUC(false, nestlevel);
	SetUserIdAndSecContext(user, context);
}

/* Open the other table, for what is kept of the one that is to be emptied */
static void
OpenCarry(Pass *pass, int which)
{
	pass->carry = IdemRelationOpen(pass->nsp,
								   reminder_tables[(which + 1) % NTABLES],
								   RowExclusiveLock);
}

static void
CloseCarry(Pass *pass)
{
	table_close(pass->carry, NoLock);
	pass->carry = NULL;
}

/*
 * Empty the table as a whole, carrying over to the other one what is kept of
 * whatever is in it by now.  Returns false when its lock is not to be had: a
 * transaction that was prepared, or a pg_dump, may hold it for hours.
 */
static bool
EmptyTable(Pass *pass, int which)
{
	Relation	rel = IdemRelationOpen(pass->nsp, reminder_tables[which],
									   RowExclusiveLock);
	Oid			relid = RelationGetRelid(rel);
	Oid			owner = rel->rd_rel->relowner;
	bool		locked = IdemWaitAtMost(TRUNCATE_PATIENCE, LockExclusively, &relid);

	if (locked)
	{
		OpenCarry(pass, which);
		pass->rel = rel;
		pass->emptying = true;
		ReadTable(pass);
		pass->emptying = false;
		CloseCarry(pass);
	}
	table_close(rel, NoLock);
	if (locked)
		TruncateAsOwner(pass->nsp, reminder_tables[which], owner);
	return locked;
}

/* One reminder in so many: is it still needed? */
static void
Sample(Pass *pass, TupleTableSlot *slot)
{
	IdemRow		row;

	if (pass->seen++ % pass->step != 0)
		return;
	pass->sampled++;
	if (!ReadReminded(pass, slot, &row))
		pass->needless++;
}

/*
 * Is the table worth emptying as a whole?  It is large, and a good part of it
 * is not needed any more: what is would only be carried to and fro.
 */
static bool
WorthTruncating(Pass *pass)
{
	void		(*consider) (Pass *, TupleTableSlot *) = pass->consider;
	BlockNumber nblocks = RelationGetNumberOfBlocks(pass->rel);
	int			i;

	if (nblocks < TRUNCATE_BLOCKS)
		return false;
	pass->seen = pass->sampled = pass->needless = 0;
	pass->step = SAMPLE_BLOCKS * REMINDERS_PER_BLOCK / SAMPLE_SIZE;
	pass->consider = Sample;
	for (i = 0; i < SAMPLE_BLOCKS; i++)
		(void) ReadBlocks(pass, (BlockNumber) ((uint64) nblocks * i / SAMPLE_BLOCKS),
						  1, NULL);
	pass->consider = consider;
	return pass->needless * TRUNCATE_SHARE >= pass->sampled;
}

/* The largest of the tables */
static int
LargestTable(Oid nsp)
{
	BlockNumber most = 0;
	int			largest = 0;
	int			i;

	for (i = 0; i < NTABLES; i++)
	{
		Relation	rel = IdemRelationOpen(nsp, reminder_tables[i], AccessShareLock);
		BlockNumber nblocks = RelationGetNumberOfBlocks(rel);

		if (nblocks > most)
		{
			most = nblocks;
			largest = i;
		}
		table_close(rel, AccessShareLock);
	}
	return largest;
}

/*
 * Does the notification queue have room?  To ask is what makes some: once it is
 * full, nothing else in the server removes what all have read by now.
 */
bool
IdemReminderQueueHasRoom(void)
{
	return DatumGetFloat8(DirectFunctionCall1(pg_notification_queue_usage,
											  (Datum) 0)) < QUEUE_NEARLY_FULL;
}

/*
 * Set out to go through all reminders, in steps.
 *
 * At most one table is emptied as a whole, and that one last, so that writers
 * always have one to go to.
 *
 * By hand all steps are in the caller's transaction.  None of its tables is
 * emptied, since the lock would last as long; and the caller's commit must not
 * fail for want of room in the notification queue: what is stale is announced
 * another time then.
 */
IdemReminderPass *
IdemReminderPassBegin(Oid nsp, bool by_hand, MemoryContext parent)
{
	MemoryContext context = AllocSetContextCreate(parent, "idem reminders",
												  ALLOCSET_DEFAULT_SIZES);
	Pass	   *pass = MemoryContextAllocZero(context, sizeof(Pass));

	pass->nsp = nsp;
	pass->context = context;
	pass->may_announce = !by_hand || IdemReminderQueueHasRoom();
	pass->may_truncate = !by_hand;
	pass->last = LargestTable(nsp);
	return pass;
}

/* The next table, and after the last one the next stage */
static void
NextTable(Pass *pass)
{
	pass->next = pass->end = 0;
	if (++pass->nth == NTABLES)
	{
		pass->nth = 0;
		pass->stage = pass->stage == STAGE_COLLECT ? STAGE_CONSIDER : STAGE_OVER;
	}
}

/*
 * Find out up to where to go in this table.  One that is to be emptied is gone
 * through as long as it grows, before that.  (It cannot become shorter while
 * it is open, but may have since the last step.)
 */
static void
SetEnd(Pass *pass)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(pass->rel);

	if (pass->end == 0)
	{
		pass->end = nblocks;
		pass->patience = CATCH_UP * (int64) nblocks;
		pass->whole = pass->stage == STAGE_CONSIDER &&
			pass->nth == NTABLES - 1 && pass->may_truncate &&
			WorthTruncating(pass);
	}
	pass->end = pass->whole ? nblocks : Min(pass->end, nblocks);
}

/* Little of the table is left to go through, or it grows as fast as we go */
static bool
MayEmpty(Pass *pass)
{
	return pass->next >= pass->end || pass->end - pass->next <= WHOLE_BLOCKS ||
		pass->patience < 0;
}

/* Go through a table, or a part of it; false when the step is used up */
static bool
GoThrough(Pass *pass, int which)
{
	bool		through;

	pass->consider = pass->stage == STAGE_COLLECT ? CollectAnnounced : Consider;
	pass->rel = IdemRelationOpen(pass->nsp, reminder_tables[which],
								 RowExclusiveLock);
	SetEnd(pass);
	if (pass->whole && MayEmpty(pass))
	{
		pass->stage = STAGE_EMPTY;
		through = false;		/* in a transaction of its own */
	}
	else
	{
		if (pass->whole)
			OpenCarry(pass, which);
		ReadOn(pass);
		if (pass->whole)
			CloseCarry(pass);
		through = pass->next >= pass->end && !pass->whole;
		if (through)
			NextTable(pass);
	}
	table_close(pass->rel, NoLock);
	return through;
}

/* Empty the table that comes last, or else go through it like the others */
static void
EmptyLast(Pass *pass)
{
	pass->consider = Consider;
	if (EmptyTable(pass, pass->last))
		pass->stage = STAGE_OVER;
	else
	{
		pass->may_truncate = false;
		pass->stage = STAGE_CONSIDER;
		pass->end = 0;
	}
}

/*
 * One step of a pass, in the caller's transaction: at most so many reminders
 * are dropped or written anew, or the table is emptied that comes last.  Says
 * how many leases it found to have become stale; true while there is more to do.
 */
bool
IdemReminderPassStep(Pass *pass, int64 changes, int64 *found)
{
	bool		room = true;

	pass->found = 0;
	pass->left = changes;
	pass->stop = IdemMonotonicTime() + MAX_TIME_PER_STEP;
	if (pass->stage == STAGE_EMPTY)
		EmptyLast(pass);
	else
	{
		BeginLook(pass);
		while (room && pass->stage != STAGE_OVER)
			room = GoThrough(pass, (pass->last + 1 + pass->nth) % NTABLES) &&
				IdemMonotonicTime() <= pass->stop;
		EndLook(pass);
	}
	CommandCounterIncrement();
	*found = pass->found;
	return pass->stage != STAGE_OVER;
}

/*
 * The pass is over.  Returns since when the oldest of all stale leases is so
 * (0: there is none).
 */
TimestampTz
IdemReminderPassEnd(Pass *pass)
{
	TimestampTz oldest_stale = pass->oldest_stale;

	MemoryContextDelete(pass->context);
	return oldest_stale;
}

/*
 * Tell those who listen that leases have become stale, when this transaction
 * commits.  There is no payload: LISTEN needs no privilege, so a payload would
 * show keys to every role.
 */
void
IdemReminderNotify(void)
{
	Async_Notify("idem_stale", NULL);
}

/* A reminder whose lease is over: keep it for the search's caller */
static void
CollectDue(Pass *pass, TupleTableSlot *slot)
{
	MemoryContext before;
	IdemDue    *due;
	IdemRow		row;

	if (DatumGetTimestampTz(slot->tts_values[REMINDER_LEASE_UNTIL]) > pass->now ||
		(pass->client != NULL &&
		 !DatumGetBool(DirectFunctionCall2Coll(texteq, C_COLLATION_OID,
											   PointerGetDatum(pass->client),
											   slot->tts_values[REMINDER_CLIENT]))) ||
		!ReadReminded(pass, slot, &row) ||
		IdemRowLeaseUntil(&row) > pass->now)
		return;

	before = MemoryContextSwitchTo(pass->context);
	due = palloc(sizeof(IdemDue));
	due->lease_until = IdemRowLeaseUntil(&row);
	due->token = *IdemRowToken(&row);
	due->client = DatumGetTextPCopy(row.values[IDEM_COL_CLIENT]);
	due->key = DatumGetTextPCopy(row.values[IDEM_COL_KEY]);
	pass->due = lappend(pass->due, due);
	MemoryContextSwitchTo(before);
}

static int
CompareDue(const ListCell *a, const ListCell *b)
{
	TimestampTz left = ((IdemDue *) lfirst(a))->lease_until;
	TimestampTz right = ((IdemDue *) lfirst(b))->lease_until;

	return left < right ? -1 : left > right ? 1 : 0;
}

/*
 * The leases that are over and unanswered, those of one client or (NULL) all,
 * the one that has been over for longest first.  A list of IdemDue.
 */
List *
IdemReminderDue(Oid nsp, text *client)
{
	Pass		pass = {.nsp = nsp, .consider = CollectDue, .client = client,
	.context = CurrentMemoryContext};
	int			i;

	for (i = 0; i < NTABLES; i++)
	{
		pass.rel = IdemRelationOpen(nsp, reminder_tables[i], AccessShareLock);
		ReadTable(&pass);
		table_close(pass.rel, AccessShareLock);
	}
	list_sort(pass.due, CompareDue);
	return pass.due;
}
