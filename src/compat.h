/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  Differences between server versions, as redefinitions in terms of the
 *	  newest API.  The only file that looks at PG_VERSION_NUM.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_COMPAT_H
#define IDEM_COMPAT_H

#include "access/genam.h"
#include "access/tableam.h"
#include "catalog/pg_database.h"
#include "executor/executor.h"
#include "storage/lock.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM < 150000
#error "idem requires PostgreSQL 15 or later"
#endif

/* 16 moved the varlena macros (VARDATA_ANY and its kin) out of postgres.h */
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

/* 18 counts index searches for EXPLAIN in a structure of the caller's */
#if PG_VERSION_NUM < 180000
#define IdemIndexBeginScan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, nkeys, 0)
#else
#define IdemIndexBeginScan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, NULL, nkeys, 0)
#endif

/* 16 tells summarizing indexes (BRIN) apart in what an update has to do */
#if PG_VERSION_NUM < 160000
typedef bool TU_UpdateIndexes;
#define IDEM_UPDATES_INDEXES(u)				(u)
#define IDEM_ONLY_SUMMARIZING(u)			false
#define IdemInsertIndexTuples(rri, slot, estate, noDupErr, conflict, arbiters, only) \
	ExecInsertIndexTuples(rri, slot, estate, false, noDupErr, conflict, arbiters)
#else
#define IDEM_UPDATES_INDEXES(u)				((u) != TU_None)
#define IDEM_ONLY_SUMMARIZING(u)			((u) == TU_Summarizing)
#define IdemInsertIndexTuples(rri, slot, estate, noDupErr, conflict, arbiters, only) \
	ExecInsertIndexTuples(rri, slot, estate, false, noDupErr, conflict, arbiters, only)
#endif

/* 17 lets an extension name what it waits for */
#if PG_VERSION_NUM < 170000
#define WaitEventExtensionNew(name)			PG_WAIT_EXTENSION
#endif

/* 15.4 marks a database whose DROP did not get to its end */
#ifndef DATCONNLIMIT_INVALID_DB
#define DATCONNLIMIT_INVALID_DB				(-2)
#endif

/* 17 can ask for stronger locks in the same breath */
#if PG_VERSION_NUM < 170000
#define IdemLockHeldByMe(tag, mode)	LockHeldByMe(tag, mode)
#else
#define IdemLockHeldByMe(tag, mode)	LockHeldByMe(tag, mode, false)
#endif

/* 18 asks whether a deferrable primary key will do; it will not */
#if PG_VERSION_NUM < 180000
#define IdemPrimaryKeyIndex(rel)	RelationGetPrimaryKeyIndex(rel)
#else
#define IdemPrimaryKeyIndex(rel)	RelationGetPrimaryKeyIndex(rel, false)
#endif

/* 17 has infinite intervals */
#if PG_VERSION_NUM < 170000
#define IdemIntervalIsInfinite(span)	((void) (span), false)
#else
#define IdemIntervalIsInfinite(span)	INTERVAL_NOT_FINITE(span)
#endif

/*
 * Whether this transaction has made the table, or given it a new file, which
 * 16 calls a locator
 */
#if PG_VERSION_NUM < 160000
#define IdemFileIsNew(rel) \
	((rel)->rd_createSubid != InvalidSubTransactionId || \
	 (rel)->rd_newRelfilenodeSubid != InvalidSubTransactionId)
#else
#define IdemFileIsNew(rel) \
	((rel)->rd_createSubid != InvalidSubTransactionId || \
	 (rel)->rd_newRelfilelocatorSubid != InvalidSubTransactionId)
#endif

/* 16 has one privilege check for every kind of object */
#if PG_VERSION_NUM < 160000
#define IdemMayExecute(fn, role) \
	(pg_proc_aclcheck(fn, role, ACL_EXECUTE) == ACLCHECK_OK)
#else
#define IdemMayExecute(fn, role) \
	(object_aclcheck(ProcedureRelationId, fn, role, ACL_EXECUTE) == ACLCHECK_OK)
#endif

#endif							/* IDEM_COMPAT_H */
