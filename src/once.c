/*-------------------------------------------------------------------------
 *
 * once.c
 *	  idem_once and idem_once_batch: messages are handled the first time only.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "args.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "keys.h"
#include "launcher.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

PG_FUNCTION_INFO_V1(idem_once);
PG_FUNCTION_INFO_V1(idem_once_batch);

/* A key of a batch, and where it stood in it */
typedef struct BatchKey
{
	text	   *key;
	int			position;
} BatchKey;

/* idem_once(client, key, retention) returns boolean */
Datum
idem_once(PG_FUNCTION_ARGS)
{
	IdemKeyRef	ref;
	int64		retention;

	IdemKeyArgs(fcinfo, &ref);
	retention = IdemRetentionArg(fcinfo, 2);
	IdemLauncherNotice();
	PG_RETURN_BOOL(IdemStoreMark(&ref, retention));
}

static int
CompareText(const text *a, const text *b)
{
	int			la = VARSIZE_ANY_EXHDR(a);
	int			lb = VARSIZE_ANY_EXHDR(b);
	int			order = memcmp(VARDATA_ANY(a), VARDATA_ANY(b), Min(la, lb));

	return order != 0 ? order : la - lb;
}

static int
CompareBatchKeys(const void *a, const void *b)
{
	const BatchKey *left = a;
	const BatchKey *right = b;
	int			order = CompareText(left->key, right->key);

	return order != 0 ? order : left->position - right->position;
}

/* The keys of the batch, checked, in the array's order */
static BatchKey *
BatchKeysArg(FunctionCallInfo fcinfo, int n, int *nkeys)
{
	Datum	   *values;
	bool	   *isnull;
	BatchKey   *keys;
	int			i;

	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("keys is null"),
				 errhint("Pass an array of keys; it may be empty.")));
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(n), TEXTOID, -1, false,
					  TYPALIGN_INT, &values, &isnull, nkeys);
	keys = palloc(sizeof(BatchKey) * Max(*nkeys, 1));
	for (i = 0; i < *nkeys; i++)
	{
		keys[i].key = isnull[i] ? NULL : DatumGetTextPP(values[i]);
		keys[i].position = i;
		IdemCheckKey(keys[i].key);
	}
	return keys;
}

/*
 * Mark the keys in sorted order, so that two batches never wait for each
 * other in a circle.  Sets first[position] for those not seen before.
 */
static void
MarkBatch(IdemKeyRef *ref, BatchKey *keys, int nkeys, int64 retention,
		  bool *first)
{
	MemoryContext each = AllocSetContextCreate(CurrentMemoryContext,
											   "idem batch",
											   ALLOCSET_DEFAULT_SIZES);
	MemoryContext before = MemoryContextSwitchTo(each);
	int			i;

	qsort(keys, nkeys, sizeof(BatchKey), CompareBatchKeys);
	for (i = 0; i < nkeys; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (i > 0 && CompareText(keys[i - 1].key, keys[i].key) == 0)
			continue;
		ref->key = keys[i].key;
		first[keys[i].position] = IdemStoreMark(ref, retention);
		MemoryContextReset(each);
	}
	MemoryContextSwitchTo(before);
	MemoryContextDelete(each);
}

/*
 * idem_once_batch(client, keys, retention) returns setof text
 *
 * The keys not seen before, each once, in the order in which they were given.
 */
Datum
idem_once_batch(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	IdemKeyRef	ref;
	BatchKey   *keys;
	text	  **input;
	bool	   *first;
	bool		isnull = false;
	int64		retention;
	int			nkeys;
	int			i;

	IdemClientArg(fcinfo, &ref);
	keys = BatchKeysArg(fcinfo, 1, &nkeys);
	retention = IdemRetentionArg(fcinfo, 2);
	IdemLauncherNotice();
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);

	input = palloc(sizeof(text *) * Max(nkeys, 1));
	first = palloc0(sizeof(bool) * Max(nkeys, 1));
	for (i = 0; i < nkeys; i++)
		input[i] = keys[i].key;
	MarkBatch(&ref, keys, nkeys, retention, first);
	for (i = 0; i < nkeys; i++)
	{
		Datum		value = PointerGetDatum(input[i]);

		if (first[i])
			tuplestore_putvalues(result->setResult, result->setDesc, &value, &isnull);
	}
	return (Datum) 0;
}
