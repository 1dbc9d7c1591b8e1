/*-------------------------------------------------------------------------
 *
 * recover.c
 *	  idem_claim_stale: stale keys for a process that brings them to an end.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "args.h"
#include "keys.h"
#include "miscadmin.h"
#include "pin.h"
#include "reminder.h"
#include "utils/builtins.h"

PG_FUNCTION_INFO_V1(idem_claim_stale);

/* Columns of idem_claim, and where they come from */
#define CLAIM_NCOLS		7

static const IdemColumn claim_columns[CLAIM_NCOLS] = {
	IDEM_COL_CLIENT,
	IDEM_COL_KEY,
	IDEM_COL_TOKEN,
	IDEM_COL_ATTEMPT,
	IDEM_COL_REQUEST,
	IDEM_COL_RECOVERY_POINT,
	IDEM_COL_RECOVERY_DATA
};

/* Whose keys: the client asked for, or else the one the session is pinned to */
static text *
ClientArg(FunctionCallInfo fcinfo, int n)
{
	const char *pinned = IdemPinnedClient();
	text	   *client;

	if (PG_ARGISNULL(n))
		return pinned == NULL ? NULL : cstring_to_text(pinned);
	client = PG_GETARG_TEXT_PP(n);
	IdemCheckClient(client);
	IdemCheckPin(client);
	return client;
}

static int
MaxKeysArg(FunctionCallInfo fcinfo, int n)
{
	if (PG_ARGISNULL(n) || PG_GETARG_INT32(n) < 1)
		ereport(ERROR,
				(errcode(PG_ARGISNULL(n) ? ERRCODE_NULL_VALUE_NOT_ALLOWED :
						 ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_keys must be positive"),
				 errhint("Pass the number of keys that one round of recovery can handle.")));
	return PG_GETARG_INT32(n);
}

/* Add a key that was claimed to the result */
static void
PutClaim(ReturnSetInfo *result, const IdemRow *row)
{
	Datum		values[CLAIM_NCOLS];
	bool		isnull[CLAIM_NCOLS];
	int			i;

	for (i = 0; i < CLAIM_NCOLS; i++)
	{
		values[i] = row->values[claim_columns[i]];
		isnull[i] = row->isnull[claim_columns[i]];
	}
	tuplestore_putvalues(result->setResult, result->setDesc, values, isnull);
}

/*
 * idem_claim_stale(max_keys, lease, client) returns setof idem_claim
 *
 * Takes over keys whose lease is over, the oldest first, each for one caller:
 * what another session is at is passed over.
 */
Datum
idem_claim_stale(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result;
	Oid			nsp = IdemSchema(fcinfo);
	int			max_keys = MaxKeysArg(fcinfo, 0);
	text	   *client = ClientArg(fcinfo, 2);
	int64		lease = IdemLeaseArg(fcinfo, 1, IDEM_MAX_SPAN);
	ListCell   *cell;

	PreventCommandIfReadOnly("idem_claim_stale()");
	result = IdemResultSet(fcinfo, CLAIM_NCOLS);
	foreach(cell, IdemReminderDue(nsp, client))
	{
		IdemDue    *due = lfirst(cell);
		IdemKeyRef	ref = {.nsp = nsp, .client = due->client, .key = due->key};
		IdemRow		row;

		CHECK_FOR_INTERRUPTS();
		if (max_keys == 0)
			break;
		if (!IdemStoreClaim(&ref, &due->token, lease, &row))
			continue;
		PutClaim(result, &row);
		max_keys--;
	}
	return (Datum) 0;
}
