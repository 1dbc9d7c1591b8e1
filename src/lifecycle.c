/*-------------------------------------------------------------------------
 *
 * lifecycle.c
 *	  What is done with a key besides reserving and answering it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "args.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(idem_release);
PG_FUNCTION_INFO_V1(idem_renew);
PG_FUNCTION_INFO_V1(idem_checkpoint);
PG_FUNCTION_INFO_V1(idem_forget);

/* idem_release(client, key, token): give up without an answer */
Datum
idem_release(PG_FUNCTION_ARGS)
{
	IdemKeyRef	ref;

	IdemKeyArgs(fcinfo, &ref);
	IdemStoreRelease(&ref, IdemTokenArg(fcinfo, 2));
	PG_RETURN_VOID();
}

/*
 * idem_renew(client, key, token, lease) returns timestamptz
 *
 * The heartbeat of an owner whose work takes longer than its lease.  The key's
 * end is the lease's as well, so that no retention is known to check against.
 */
Datum
idem_renew(PG_FUNCTION_ARGS)
{
	IdemChange	change = {.command = "idem_renew()"};
	IdemKeyRef	ref;
	const pg_uuid_t *token;

	IdemKeyArgs(fcinfo, &ref);
	token = IdemTokenArg(fcinfo, 2);
	change.lease = IdemLeaseArg(fcinfo, 3, IDEM_MAX_SPAN);
	PG_RETURN_TIMESTAMPTZ(IdemStoreChange(&ref, token, &change));
}

/*
 * idem_checkpoint(client, key, token, recovery_point, data)
 *
 * Notes how far the work has come, in the transaction of the step it notes.
 */
Datum
idem_checkpoint(PG_FUNCTION_ARGS)
{
	IdemChange	change = {.command = "idem_checkpoint()"};
	IdemKeyRef	ref;
	const pg_uuid_t *token;

	IdemKeyArgs(fcinfo, &ref);
	token = IdemTokenArg(fcinfo, 2);
	if (PG_ARGISNULL(3))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("recovery_point is null"),
				 errhint("Pass the name of the step that was done.")));
	change.recovery_point = PG_GETARG_TEXT_PP(3);
	change.recovery_data = PG_ARGISNULL(4) ? NULL : PG_GETARG_JSONB_P(4);
	IdemCheckSize((int64) VARSIZE_ANY_EXHDR(change.recovery_point) +
				  (change.recovery_data == NULL ? 0 : IdemKeptBytes(change.recovery_data, "recovery data")),
				  "recovery data");
	(void) IdemStoreChange(&ref, token, &change);
	PG_RETURN_VOID();
}

/*
 * idem_forget(client, key) returns bigint
 *
 * The administrator's way out: a key, or all of a client's, whatever the
 * state and whoever owns it.
 */
Datum
idem_forget(PG_FUNCTION_ARGS)
{
	IdemKeyRef	ref;

	if (!PG_ARGISNULL(1))
		IdemKeyArgs(fcinfo, &ref);
	else
		IdemClientArg(fcinfo, &ref);
	PG_RETURN_INT64(IdemStoreForget(&ref));
}
