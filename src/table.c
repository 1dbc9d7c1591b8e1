/*-------------------------------------------------------------------------
 *
 * table.c
 *	  Where the tables are, their columns, and rows as C sees them.
 *
 * IdemTableOpen is the one place that turns "the table for this client" into
 * a relation.  It is given the schema, which callers take from the function
 * that was called, and the client, which does not matter while there is one
 * table for all of them.  No OID is kept: a dropped and re-created extension
 * is simply found again, and everything that is cached here is keyed by the
 * index it came from.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/nbtree.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "compat.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "table.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

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
 * Open a table of the extension by name.  The tables belong to the extension,
 * so a missing one means that somebody took it out by force.
 */
Relation
IdemRelationOpen(Oid nsp, const char *name, LOCKMODE lockmode)
{
	Oid			relid = get_relname_relid(name, nsp);
	Relation	rel;

	rel = OidIsValid(relid) ? try_table_open(relid, lockmode) : NULL;
	if (rel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("table \"%s\" of extension idem does not exist", name),
				 errhint("Drop and create the extension again; its keys are lost.")));
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

/*
 * Open idem_key and its primary key, to look for this key.  The scan keys
 * point to `client` and `key`; what is not searched for may be NULL.
 */
void
IdemTableOpen(IdemTable *table, Oid nsp, text *client, text *key)
{
	Oid			pk;

	table->indexes = NULL;
	table->estate = NULL;
	table->rel = IdemRelationOpen(nsp, "idem_key", AccessShareLock);
	pk = IdemPrimaryKeyIndex(table->rel);
	table->pk = OidIsValid(pk) ? index_open(pk, AccessShareLock) : NULL;
	if (RelationGetNumberOfAttributes(table->rel) != IDEM_NCOLS ||
		table->pk == NULL || !IdemIndexIsOnKey(table->pk))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" is not the one that extension idem created",
						RelationGetRelationName(table->rel)),
				 errhint("Its columns and its primary key must not be changed.")));

	if (scankey_cache.index != pk)
		BuildScanKeys(table->pk);
	memcpy(table->scankeys, scankey_cache.keys, sizeof(table->scankeys));
	table->scankeys[0].sk_argument = PointerGetDatum(client);
	table->scankeys[1].sk_argument = PointerGetDatum(key);
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

/* Close it; only a writer's lock on the table itself stays */
void
IdemTableClose(IdemTable *table)
{
	if (table->indexes != NULL)
	{
		ExecCloseIndices(table->indexes);
		FreeExecutorState(table->estate);
	}
	index_close(table->pk, AccessShareLock);
	table_close(table->rel, AccessShareLock);
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
	if (ConditionalLockRelationOid(relid, RowExclusiveLock))
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
}

/* Is this the row of the key that the table was opened for? */
bool
IdemRowHasKey(IdemTable *table, const IdemRow *row)
{
	static const IdemColumn columns[2] = {IDEM_COL_CLIENT, IDEM_COL_KEY};
	int			i;

	for (i = 0; i < 2; i++)
	{
		const void *stored = PG_DETOAST_DATUM_PACKED(row->values[columns[i]]);
		const void *wanted = DatumGetPointer(table->scankeys[i].sk_argument);

		if (VARSIZE_ANY_EXHDR(stored) != VARSIZE_ANY_EXHDR(wanted) ||
			memcmp(VARDATA_ANY(stored), VARDATA_ANY(wanted),
				   VARSIZE_ANY_EXHDR(stored)) != 0)
			return false;
	}
	return true;
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

/* The row as a slot that the table access method takes */
TupleTableSlot *
IdemRowSlot(IdemTable *table, const IdemRow *row)
{
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(table->rel),
													&TTSOpsVirtual);

	memcpy(slot->tts_values, row->values, sizeof(row->values));
	memcpy(slot->tts_isnull, row->isnull, sizeof(row->isnull));
	slot->tts_tableOid = RelationGetRelid(table->rel);
	return ExecStoreVirtualTuple(slot);
}
