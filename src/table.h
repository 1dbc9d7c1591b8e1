/*-------------------------------------------------------------------------
 *
 * table.h
 *	  Where the tables are, their columns, and rows as C sees them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_TABLE_H
#define IDEM_TABLE_H

#include "access/htup.h"
#include "access/skey.h"
#include "datatype/timestamp.h"
#include "executor/tuptable.h"
#include "nodes/execnodes.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"
#include "utils/uuid.h"

/* Columns of idem_key, in the order of idem--1.0.sql */
typedef enum IdemColumn
{
	IDEM_COL_EXPIRES_AT,
	IDEM_COL_LEASE_UNTIL,
	IDEM_COL_BEGAN_AT,
	IDEM_COL_TOKEN,
	IDEM_COL_CLIENT,
	IDEM_COL_KEY,
	IDEM_COL_FINGERPRINT,
	IDEM_COL_COMPLETED_AT,
	IDEM_COL_STATUS_CODE,
	IDEM_COL_BODY,
	IDEM_COL_HEADERS,
	IDEM_COL_REQUEST,
	IDEM_COL_ATTEMPT,
	IDEM_COL_CREATED_AT,
	IDEM_COL_LOST_TOKENS,
	IDEM_COL_RECOVERY_POINT,
	IDEM_COL_RECOVERY_DATA,
	IDEM_NCOLS
} IdemColumn;

/*
 * An open idem_key table, and its primary-key index once that is needed.
 *
 * Opened with AccessShareLock, for reading; closing gives that back at once.
 * Whoever finds that something is to be written takes RowExclusiveLock on the
 * table as well, which stays until the transaction ends, as after any INSERT.
 * From then on opening the table again takes no lock.
 */
typedef struct IdemTable
{
	Relation	rel;
	bool		writing;		/* RowExclusiveLock is held */
	text	   *client;			/* whose key is looked for */
	text	   *key;
	Relation	pk;				/* NULL: not opened yet */
	ScanKeyData scankeys[2];	/* client = , key = */
	ResultRelInfo *indexes;		/* all of them, where the executor inserts */
	EState	   *estate;			/* evaluates their expressions */
} IdemTable;

/*
 * One version of a row: where it is, and its columns.  By-reference columns
 * point into `tuple`, a copy, or to what the caller put there.  The attempt and
 * the time of creation are there even where the table has them not stored.
 */
typedef struct IdemRow
{
	ItemPointerData tid;
	bool		own;			/* written by the current transaction */
	HeapTuple	tuple;
	Datum		values[IDEM_NCOLS];
	bool		isnull[IDEM_NCOLS];
} IdemRow;

#define IdemRowTime(row, col)	DatumGetTimestampTz((row)->values[col])
#define IdemRowExpiresAt(row)	IdemRowTime(row, IDEM_COL_EXPIRES_AT)
#define IdemRowLeaseUntil(row)	IdemRowTime(row, IDEM_COL_LEASE_UNTIL)
#define IdemRowBeganAt(row)		IdemRowTime(row, IDEM_COL_BEGAN_AT)
#define IdemRowToken(row)		DatumGetUUIDP((row)->values[IDEM_COL_TOKEN])
#define IdemRowAttempt(row)		DatumGetInt32((row)->values[IDEM_COL_ATTEMPT])
#define IdemRowCompleted(row)	(!(row)->isnull[IDEM_COL_COMPLETED_AT])

extern void IdemTableOpen(IdemTable *table, Oid nsp, text *client, text *key);
extern void IdemTableOpenKey(IdemTable *table);
extern bool IdemIndexIsOnKey(Relation index);
extern bool IdemTableHasOneIndex(IdemTable *table);
extern bool IdemTableLockForWriting(IdemTable *table, const char *command);
extern void IdemTableOpenIndexes(IdemTable *table);
extern void IdemTableClose(IdemTable *table);
extern bool IdemRelationIsOurs(Relation rel, const char *name);
extern Relation IdemRelationOpen(Oid nsp, const char *name, LOCKMODE lockmode);
extern int64 IdemTotalSize(Oid nsp);

extern void IdemRowRead(IdemTable *table, TupleTableSlot *slot, IdemRow *row);
extern bool IdemRowHasKey(IdemTable *table, const IdemRow *row);
extern void IdemRowSet(IdemRow *row, IdemColumn col, Datum value);
extern void IdemRowSetNull(IdemRow *row, IdemColumn col);
extern TupleTableSlot *IdemRowSlot(IdemTable *table, const IdemRow *row);

#endif							/* IDEM_TABLE_H */
