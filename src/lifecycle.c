/*-------------------------------------------------------------------------
 *
 * lifecycle.c
 *	  What an owner does with a key besides answering.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "args.h"

PG_FUNCTION_INFO_V1(idem_release);

/* idem_release(client, key, token): give up without an answer */
Datum
idem_release(PG_FUNCTION_ARGS)
{
	IdemKeyRef	ref;

	IdemKeyArgs(fcinfo, &ref);
	IdemStoreRelease(&ref, IdemTokenArg(fcinfo, 2));
	PG_RETURN_VOID();
}
