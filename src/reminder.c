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
 * leases among the rest.
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

#include "access/htup_details.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_collation_d.h"
#include "commands/async.h"
#include "common/hashfn.h"
#include "compat.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "probe.h"
#include "reminder.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "store.h"
#include "utils/builtins.h"
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

/* which about so many of them tell; a block holds about so many */
#define SAMPLE_SIZE			200
#define REMINDERS_PER_BLOCK	80

/* How long a pass queues for a table that it wants to empty, in ms */
#define TRUNCATE_PATIENCE	200

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

/* One pass over one reminder table */
typedef struct Pass
{
	Oid			nsp;
	Relation	rel;			/* the table that is read */
	Snapshot	snapshot;
	TimestampTz now;
	MemoryContext context;		/* of what outlives one reminder */
	void		(*consider) (struct Pass *pass, TupleTableSlot *slot);

	/* of the sweeper's pass */
	Relation	carry;			/* where to put what is kept; NULL: leave it */
	int64		found;			/* leases that have become stale */
	TimestampTz oldest_stale;	/* end of the oldest stale one; 0: none */
	HTAB	   *announced;		/* Lease: the stale ones known of so far */
	int64		step;			/* one reminder in so many is sampled */
	int64		seen;			/* reminders met while sampling */
	int64		sampled;		/* looked at */
	int64		needless;		/* and found to be needed no more */

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
			return table_open(relid, NoLock);
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
 * where they were; then idem_reserve still takes over what becomes stale, but
 * nobody is reminded of it.)
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

	if (pass->carry != NULL)
		return true;			/* the whole table will be emptied */
	return table_tuple_delete(pass->rel, &slot->tts_tid,
							  GetCurrentCommandId(true), InvalidSnapshot,
							  InvalidSnapshot, false, &failure, false) == TM_Ok;
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

	if (pass->carry == NULL &&
		DatumGetTimestampTz(slot->tts_values[REMINDER_LEASE_UNTIL]) > pass->now)
		return;
	needed = ReadReminded(pass, slot, &row);
	stale = needed && IdemRowLeaseUntil(&row) <= pass->now;
	if (!needed || (stale && !announced && Announced(pass, slot)))
	{
		(void) Drop(pass, slot);
		return;
	}
	if (stale && (pass->oldest_stale == 0 ||
				  IdemRowLeaseUntil(&row) < pass->oldest_stale))
		pass->oldest_stale = IdemRowLeaseUntil(&row);
	news = stale && !announced;
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

/*
 * Read one table through, as it is now.  No snapshot: it is a whole table, and
 * in SERIALIZABLE that would be a conflict with everybody who writes to it.
 */
static void
ReadTable(Pass *pass)
{
	MemoryContext each = AllocSetContextCreate(CurrentMemoryContext,
											   "idem reminder",
											   ALLOCSET_DEFAULT_SIZES);
	TupleTableSlot *slot = table_slot_create(pass->rel, NULL);
	TableScanDesc scan;

	pass->now = GetCurrentTimestamp();
	pass->snapshot = RegisterSnapshot(GetLatestSnapshot());
	scan = table_beginscan(pass->rel, SnapshotSelf, 0, NULL);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		MemoryContext before = MemoryContextSwitchTo(each);

		CHECK_FOR_INTERRUPTS();
		slot_getallattrs(slot);
		if (Settled(pass, slot))
			pass->consider(pass, slot);
		MemoryContextSwitchTo(before);
		MemoryContextReset(each);
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(pass->snapshot);
	MemoryContextDelete(each);
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

/*
 * Empty the table as a whole, carrying over to the other one what is kept.
 * Returns false when its lock is not to be had: a transaction that was
 * prepared, or a pg_dump, may hold it for hours.
 */
static bool
PassByTruncate(Pass *pass, int which)
{
	Oid			relid = RelationGetRelid(pass->rel);
	Oid			owner = pass->rel->rd_rel->relowner;

	if (!IdemWaitAtMost(TRUNCATE_PATIENCE, LockExclusively, &relid))
		return false;
	pass->carry = IdemRelationOpen(pass->nsp,
								   reminder_tables[(which + 1) % NTABLES],
								   RowExclusiveLock);
	ReadTable(pass);
	table_close(pass->carry, NoLock);
	pass->carry = NULL;
	table_close(pass->rel, NoLock);
	TruncateAsOwner(pass->nsp, reminder_tables[which], owner);
	return true;
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

	if (nblocks < TRUNCATE_BLOCKS)
		return false;
	pass->seen = pass->sampled = pass->needless = 0;
	pass->step = Max(1, (int64) nblocks * REMINDERS_PER_BLOCK / SAMPLE_SIZE);
	pass->consider = Sample;
	ReadTable(pass);
	pass->consider = consider;
	return pass->needless * TRUNCATE_SHARE >= pass->sampled;
}

/* Go through one table, and empty it as a whole if that is asked for */
static void
PassOver(Pass *pass, int which, bool whole)
{
	pass->rel = IdemRelationOpen(pass->nsp, reminder_tables[which],
								 RowExclusiveLock);
	if (!whole || !WorthTruncating(pass) || !PassByTruncate(pass, which))
	{
		ReadTable(pass);
		table_close(pass->rel, NoLock);
	}
	CommandCounterIncrement();
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
 * Go through all reminders.  Returns how many leases were found to have
 * become stale, and if there are any, tells those who listen; also since when
 * the oldest of all stale ones is (0: there is none).
 *
 * At most one table is emptied as a whole, and that one last, so that writers
 * always have one to go to.
 *
 * The notification has no payload: LISTEN needs no privilege, so a payload
 * would show keys to every role.
 */
int64
IdemReminderPass(Oid nsp, bool may_truncate, TimestampTz *oldest_stale)
{
	Pass		pass = {.nsp = nsp, .consider = CollectAnnounced,
	.context = CurrentMemoryContext};
	int			last = LargestTable(nsp);
	int			i;

	for (i = 0; i < NTABLES; i++)
		PassOver(&pass, i, false);
	pass.consider = Consider;
	for (i = 0; i < NTABLES; i++)
	{
		if (i != last)
			PassOver(&pass, i, false);
	}
	PassOver(&pass, last, may_truncate);
	if (pass.found > 0)
		Async_Notify("idem_stale", NULL);
	*oldest_stale = pass.oldest_stale;
	return pass.found;
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
