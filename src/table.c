/*-------------------------------------------------------------------------
 *
 * table.c
 *	  Where the tables are, their columns, and rows as C sees them.
 *
 * IdemTableOpen is the one place that turns "the table for this client" into
 * a relation.  It is given the schema, which callers take from the function
 * that was called, and the client, which does not matter while there is one
 * table for all of them.  What is cached here is forgotten with whatever
 * changes it, or is keyed by the index it came from, so that a dropped and
 * re-created extension is simply found again.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heaptoast.h"
#include "access/htup_details.h"
#include "access/nbtree.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type_d.h"
#include "compat.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "table.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#define IDEM_KEY_TABLE		"idem_key"

/*
 * Scan keys "client = ?, key = ?", ready but for their arguments.  Looking up
 * an operator costs as much as half the index descent, and which function is
 * equality for an index never changes.
 */
typedef struct ScanKeyCache
{
	Oid			index;
	ScanKeyData keys[2];
} ScanKeyCache;

static ScanKeyCache scankey_cache;

/*
 * Where idem_key was found last, and whether it has been looked at since then.
 * A look into the system catalog's cache costs as much as opening the table.
 */
typedef struct TableCache
{
	bool		valid;
	bool		checked;
	Oid			nsp;
	Oid			relid;
} TableCache;

static TableCache table_cache;

/*
 * The tables as idem--1.0.sql creates them.  They are read and written by what
 * is known of them here, so that a column too many or of another type, or rows
 * that are stored in another way, would be taken for something else.
 */
typedef struct Layout
{
	const char *name;
	int			ncols;
	Oid			types[IDEM_NCOLS];
} Layout;

static const Layout layouts[] = {
	{IDEM_KEY_TABLE, IDEM_NCOLS, {
		TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, UUIDOID, TEXTOID,
		TEXTOID, BYTEAOID, TIMESTAMPTZOID, INT4OID, BYTEAOID, JSONBOID,
		JSONBOID, INT4OID, TIMESTAMPTZOID, UUIDARRAYOID, TEXTOID, JSONBOID
	}},
	{"idem_reminder_1", 5, {TIMESTAMPTZOID, UUIDOID, BOOLOID, TEXTOID, TEXTOID}},
	{"idem_reminder_2", 5, {TIMESTAMPTZOID, UUIDOID, BOOLOID, TEXTOID, TEXTOID}},
	{"idem_state", 1, {INT8OID}},
};

/* Does this table look like the one of that name? */
bool
IdemRelationIsOurs(Relation rel, const char *name)
{
	TupleDesc	desc = RelationGetDescr(rel);
	const Layout *layout = layouts;
	int			i;

	while (strcmp(layout->name, name) != 0)
		layout++;
	if (rel->rd_rel->relkind != RELKIND_RELATION ||
		rel->rd_rel->relam != HEAP_TABLE_AM_OID ||
		desc->natts != layout->ncols)
		return false;
	for (i = 0; i < desc->natts; i++)
	{
		if (TupleDescAttr(desc, i)->atttypid != layout->types[i])
			return false;
	}
	return true;
}

/* Fill the cache for this index: operator and collation are the index's own */
static void
BuildScanKeys(Relation pk)
{
	int			i;

	scankey_cache.index = InvalidOid;
	for (i = 0; i < 2; i++)
	{
		Oid			type = pk->rd_opcintype[i];
		Oid			operator = get_opfamily_member(pk->rd_opfamily[i], type, type,
												   BTEqualStrategyNumber);
		FmgrInfo	equals;

		if (!OidIsValid(operator))
			elog(ERROR, "no equality operator in index \"%s\"",
				 RelationGetRelationName(pk));
		fmgr_info_cxt(get_opcode(operator), &equals, CacheMemoryContext);
		ScanKeyEntryInitializeWithInfo(&scankey_cache.keys[i], 0, i + 1,
									   BTEqualStrategyNumber, InvalidOid,
									   pk->rd_indcollation[i], &equals,
									   (Datum) 0);
	}
	scankey_cache.index = RelationGetRelid(pk);
}

/*
 * The tables belong to the extension, so a missing one means that somebody took
 * it out by force.
 */
static void
MissingTable(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_TABLE),
			 errmsg("table \"%s\" of extension idem does not exist", name),
			 errhint("Drop and create the extension again; its keys are lost.")));
}

static void
NotOurs(Relation rel)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"%s\" is not the one that extension idem created",
					RelationGetRelationName(rel)),
			 errhint("Its columns, its primary key and its access method must not be changed.")));
}

/* Open a table of the extension by name */
Relation
IdemRelationOpen(Oid nsp, const char *name, LOCKMODE lockmode)
{
	Oid			relid = get_relname_relid(name, nsp);
	Relation	rel = OidIsValid(relid) ? try_table_open(relid, lockmode) : NULL;

	if (rel == NULL)
		MissingTable(name);
	if (!IdemRelationIsOurs(rel, name))
		NotOurs(rel);
	return rel;
}

/* Bytes on disk of all tables, with their indexes and TOAST */
int64
IdemTotalSize(Oid nsp)
{
	static const char *const tables[] = {"idem_key", "idem_reminder_1", "idem_reminder_2"};
	int64		size = 0;
	int			i;

	for (i = 0; i < lengthof(tables); i++)
	{
		Relation	rel = IdemRelationOpen(nsp, tables[i], AccessShareLock);

		size += DatumGetInt64(DirectFunctionCall1(pg_total_relation_size,
												  ObjectIdGetDatum(RelationGetRelid(rel))));
		table_close(rel, AccessShareLock);
	}
	return size;
}

/* Is the index on (client, key), as the primary key is? */
bool
IdemIndexIsOnKey(Relation index)
{
	Form_pg_index form = index->rd_index;

	return form->indnkeyatts == 2 &&
		form->indkey.values[0] == IDEM_COL_CLIENT + 1 &&
		form->indkey.values[1] == IDEM_COL_KEY + 1;
}

/* A relation of any name has come, gone, or another name or schema */
static void
ForgetTable(Datum arg, int cacheid, uint32 hashvalue)
{
	table_cache.valid = false;
}

/* The OID of idem_key in this schema */
static Oid
TableOid(Oid nsp)
{
	static bool registered = false;
	Oid			relid;

	if (table_cache.valid && table_cache.nsp == nsp)
		return table_cache.relid;
	if (!registered)
	{
		CacheRegisterSyscacheCallback(RELNAMENSP, ForgetTable, (Datum) 0);
		registered = true;
	}

	/* valid first: what changes while we look makes it invalid again */
	table_cache.nsp = InvalidOid;
	table_cache.valid = true;
	table_cache.checked = false;
	relid = get_relname_relid(IDEM_KEY_TABLE, nsp);
	if (!OidIsValid(relid))
		MissingTable(IDEM_KEY_TABLE);
	table_cache.nsp = nsp;
	table_cache.relid = relid;
	return relid;
}

/* Does this transaction have the lock that writing to the table takes? */
static bool
MayWrite(Oid relid)
{
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	return IdemLockHeldByMe(&tag, RowExclusiveLock);
}

/*
 * Have a lock on the table that keeps it as it is, and say whether it is the
 * one for writing: that of an earlier call, which makes another one a waste of
 * time.  A lock may have to be waited for, and the name may mean another table
 * after that (see RangeVarGetRelidExtended in namespace.c).
 */
static bool
LockTable(Oid nsp, Oid *relid)
{
	for (;;)
	{
		*relid = TableOid(nsp);
		if (MayWrite(*relid))
			return true;
		LockRelationOid(*relid, AccessShareLock);
		if (TableOid(nsp) == *relid)
			return false;
		UnlockRelationOid(*relid, AccessShareLock);
	}
}

/* Open idem_key, to look for this key; what is not searched for may be NULL */
void
IdemTableOpen(IdemTable *table, Oid nsp, text *client, text *key)
{
	Oid			relid;

	table->client = client;
	table->key = key;
	table->pk = NULL;
	table->indexes = NULL;
	table->estate = NULL;
	table->writing = LockTable(nsp, &relid);
	table->rel = table_open(relid, NoLock);
	if (!table_cache.checked && !IdemRelationIsOurs(table->rel, IDEM_KEY_TABLE))
		NotOurs(table->rel);
	table_cache.checked = true;
}

/*
 * Open the primary key as well.  It is locked whatever the lock on the table:
 * ALTER INDEX ... SET TABLESPACE locks the index alone.
 */
void
IdemTableOpenKey(IdemTable *table)
{
	Oid			pk;

	if (table->pk != NULL)
		return;
	pk = IdemPrimaryKeyIndex(table->rel);
	table->pk = OidIsValid(pk) ? index_open(pk, AccessShareLock) : NULL;
	if (table->pk == NULL || !IdemIndexIsOnKey(table->pk))
		NotOurs(table->rel);

	if (scankey_cache.index != pk)
		BuildScanKeys(table->pk);
	memcpy(table->scankeys, scankey_cache.keys, sizeof(table->scankeys));
	table->scankeys[0].sk_argument = PointerGetDatum(table->client);
	table->scankeys[1].sk_argument = PointerGetDatum(table->key);
}

/*
 * Is the primary key the only index?  So it is, but for somebody's own ones,
 * and for its successor while REINDEX CONCURRENTLY is making one.
 */
bool
IdemTableHasOneIndex(IdemTable *table)
{
	List	   *indexes = RelationGetIndexList(table->rel);
	bool		one = list_length(indexes) == 1;

	list_free(indexes);
	return one;
}

/*
 * Set up what the executor needs to insert into every index of the table.
 * Most updates insert into none.
 */
void
IdemTableOpenIndexes(IdemTable *table)
{
	if (table->indexes != NULL)
		return;
	table->estate = CreateExecutorState();
	table->indexes = makeNode(ResultRelInfo);
	InitResultRelInfo(table->indexes, table->rel, 0, NULL, 0);
	ExecOpenIndices(table->indexes, false);
}

/*
 * Close it.  A reader's lock is given back at once; a writer's stays, and with
 * it the one that it has read under, which the end of the transaction lets go
 * of with less work than we would have.
 */
void
IdemTableClose(IdemTable *table)
{
	if (table->indexes != NULL)
	{
		ExecCloseIndices(table->indexes);
		FreeExecutorState(table->estate);
	}
	if (table->pk != NULL)
		index_close(table->pk, AccessShareLock);
	table_close(table->rel, table->writing ? NoLock : AccessShareLock);
	table->rel = NULL;
}

/*
 * Something is to be written, as that command.  If the lock for it is not to
 * be had at once, close the table, so that nobody waits for us while we wait,
 * wait for it, and return false: what was found may be past.
 */
bool
IdemTableLockForWriting(IdemTable *table, const char *command)
{
	Oid			relid = RelationGetRelid(table->rel);

	PreventCommandIfReadOnly(command);
	if (!table->writing)
		table->writing = ConditionalLockRelationOid(relid, RowExclusiveLock);
	if (table->writing)
		return true;
	IdemTableClose(table);
	LockRelationOid(relid, RowExclusiveLock);
	return false;
}

/*
 * Copy a version out of a scan's slot and let go of its page.  Whoever called
 * us holds a snapshot, which keeps the version's place from being reused
 * until it has been changed or left alone.
 */
void
IdemRowRead(IdemTable *table, TupleTableSlot *slot, IdemRow *row)
{
	bool		isnull;
	Datum		xmin = slot_getsysattr(slot, MinTransactionIdAttributeNumber, &isnull);

	row->own = TransactionIdIsCurrentTransactionId(DatumGetTransactionId(xmin));
	row->tid = slot->tts_tid;
	row->tuple = ExecCopySlotHeapTuple(slot);
	heap_deform_tuple(row->tuple, RelationGetDescr(table->rel),
					  row->values, row->isnull);
	ExecClearTuple(slot);

	/* see IdemRowSlot */
	if (row->isnull[IDEM_COL_ATTEMPT])
		IdemRowSet(row, IDEM_COL_ATTEMPT, Int32GetDatum(1));
	if (row->isnull[IDEM_COL_CREATED_AT])
		IdemRowSet(row, IDEM_COL_CREATED_AT, row->values[IDEM_COL_BEGAN_AT]);
}

/* What is stored may be compressed or short; equal means equal bytes */
static bool
SameText(Datum stored, const text *wanted)
{
	const text *value = DatumGetTextPP(stored);

	return VARSIZE_ANY_EXHDR(value) == VARSIZE_ANY_EXHDR(wanted) &&
		memcmp(VARDATA_ANY(value), VARDATA_ANY(wanted),
			   VARSIZE_ANY_EXHDR(value)) == 0;
}

/* Is this the row of the key that the table was opened for? */
bool
IdemRowHasKey(IdemTable *table, const IdemRow *row)
{
	return SameText(row->values[IDEM_COL_CLIENT], table->client) &&
		SameText(row->values[IDEM_COL_KEY], table->key);
}

/* Set one column */
void
IdemRowSet(IdemRow *row, IdemColumn col, Datum value)
{
	row->values[col] = value;
	row->isnull[col] = false;
}

/* Set one column to NULL */
void
IdemRowSetNull(IdemRow *row, IdemColumn col)
{
	row->values[col] = (Datum) 0;
	row->isnull[col] = true;
}

/*
 * If that makes it shorter, have the tuple end with its last column that is not
 * null, as those of a table do that was given more columns later (heap_getattr
 * in htup_details.h): most rows of ours have no null before that, and so need no
 * null bitmap.  A column that was added with a default reads as that where it is
 * not stored.  What the toaster has to shorten it writes with all columns.
 */
static void
CutNulls(HeapTuple tuple, TupleDesc desc, const bool *isnull)
{
	HeapTupleHeader data = tuple->t_data;
	int			ncols = IDEM_NCOLS;
	bool		hasnulls;
	int			before = data->t_hoff;
	int			after;

	while (isnull[ncols - 1] && !TupleDescAttr(desc, ncols - 1)->atthasmissing)
		ncols--;
	hasnulls = memchr(isnull, 1, ncols) != NULL;
	after = MAXALIGN(SizeofHeapTupleHeader + (hasnulls ? BITMAPLEN(ncols) : 0));
	if (after >= before ||
		tuple->t_len - (before - after) > TOAST_TUPLE_THRESHOLD)
		return;

	memmove((char *) data + after, (char *) data + before, tuple->t_len - before);
	tuple->t_len -= before - after;
	data->t_hoff = after;
	HeapTupleHeaderSetNatts(data, ncols);
	if (!hasnulls)
		data->t_infomask &= ~HEAP_HASNULL;
}

/*
 * The row as a slot that the table access method takes.  It has the tuple in
 * it already: of a virtual slot the access method would form one, and for a
 * speculative insertion two.
 *
 * Most keys never see a second attempt.  Of a first one, its number and the
 * time of creation, which is when it began, are not stored.
 */
TupleTableSlot *
IdemRowSlot(IdemTable *table, const IdemRow *row)
{
	TupleDesc	desc = RelationGetDescr(table->rel);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(desc, &TTSOpsHeapTuple);
	bool		isnull[IDEM_NCOLS];
	HeapTuple	tuple;

	memcpy(isnull, row->isnull, sizeof(isnull));
	if (IdemRowAttempt(row) == 1)
		isnull[IDEM_COL_ATTEMPT] = isnull[IDEM_COL_CREATED_AT] = true;
	tuple = heap_form_tuple(desc, (Datum *) row->values, isnull);
	CutNulls(tuple, desc, isnull);
	tuple->t_tableOid = RelationGetRelid(table->rel);
	slot->tts_tableOid = tuple->t_tableOid;
	return ExecStoreHeapTuple(tuple, slot, true);
}
