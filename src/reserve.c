/*-------------------------------------------------------------------------
 *
 * reserve.c
 *	  idem_reserve: who does the work, and what everybody else is told.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "args.h"
#include "canonical.h"
#include "launcher.h"
#include "outcome.h"
#include "reserve.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(idem_reserve);

/* Arguments of idem_reserve */
enum
{
	ARG_CLIENT, ARG_KEY, ARG_FP, ARG_LEASE, ARG_RETENTION, ARG_WAIT, ARG_TOKEN,
	ARG_REQUEST
};

/* Columns of idem_reservation; the answer's are in the order of outcome.h */
enum
{
	RESULT_OUTCOME,
	RESULT_TOKEN,
	RESULT_ATTEMPT,
	RESULT_ANSWER,
	RESULT_RETRY_AFTER = RESULT_ANSWER + IDEM_ANSWER_NCOLS,
	RESULT_RECOVERY_POINT,
	RESULT_RECOVERY_DATA,
	RESULT_NCOLS
};

/* The outcome, and what goes with it */
static Datum
ReservationResult(FunctionCallInfo fcinfo, const IdemReservation *reservation)
{
	Datum		values[RESULT_NCOLS];
	bool		isnull[RESULT_NCOLS];
	const IdemRow *row = &reservation->row;
	Interval	retry_after = {0};

	memset(isnull, true, sizeof(isnull));
	values[RESULT_OUTCOME] = IdemOutcomeText(reservation->outcome);
	isnull[RESULT_OUTCOME] = false;
	IdemOutcomeAnswer(reservation, &values[RESULT_ANSWER], &isnull[RESULT_ANSWER]);

	if (reservation->outcome == IDEM_IN_FLIGHT)
	{
		retry_after.time = reservation->retry_after * USECS_PER_SEC;
		values[RESULT_RETRY_AFTER] = IntervalPGetDatum(&retry_after);
		isnull[RESULT_RETRY_AFTER] = false;
	}
	if (reservation->outcome == IDEM_NEW)
	{
		values[RESULT_TOKEN] = row->values[IDEM_COL_TOKEN];
		values[RESULT_ATTEMPT] = row->values[IDEM_COL_ATTEMPT];
		isnull[RESULT_TOKEN] = isnull[RESULT_ATTEMPT] = false;
		values[RESULT_RECOVERY_POINT] = row->values[IDEM_COL_RECOVERY_POINT];
		isnull[RESULT_RECOVERY_POINT] = row->isnull[IDEM_COL_RECOVERY_POINT];
		values[RESULT_RECOVERY_DATA] = row->values[IDEM_COL_RECOVERY_DATA];
		isnull[RESULT_RECOVERY_DATA] = row->isnull[IDEM_COL_RECOVERY_DATA];
	}
	return IdemResult(fcinfo, RESULT_NCOLS, values, isnull);
}

/*
 * The fingerprint given, or else that of the request.  Without either, two
 * different requests could not be told apart.
 */
bytea *
IdemFingerprintArg(FunctionCallInfo fcinfo, int n, Jsonb *request)
{
	bytea	   *fingerprint;

	if (PG_ARGISNULL(n))
	{
		if (request == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("fp and request are both null"),
					 errhint("Pass idem_canonical_fingerprint(request) as fp, or the request itself.")));
		fingerprint = palloc(VARHDRSZ + IDEM_FINGERPRINT_BYTES);
		SET_VARSIZE(fingerprint, VARHDRSZ + IDEM_FINGERPRINT_BYTES);
		IdemFingerprint(request, (uint8 *) VARDATA(fingerprint));
		return fingerprint;
	}

	fingerprint = PG_GETARG_BYTEA_PP(n);
	if (VARSIZE_ANY_EXHDR(fingerprint) < 1 ||
		VARSIZE_ANY_EXHDR(fingerprint) > IDEM_MAX_FINGERPRINT_BYTES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("fp has %d bytes", (int) VARSIZE_ANY_EXHDR(fingerprint)),
				 errhint("Pass a hash of the request, of 1 to %d bytes.",
						 IDEM_MAX_FINGERPRINT_BYTES)));
	return fingerprint;
}

/* The request to keep with the key, if any */
Jsonb *
IdemRequestArg(FunctionCallInfo fcinfo, int n)
{
	Jsonb	   *request;

	if (PG_ARGISNULL(n))
		return NULL;
	request = PG_GETARG_JSONB_P(n);
	IdemCheckSize(IdemKeptBytes(request, "request"), "request");
	return request;
}

/*
 * idem_reserve(client, key, fp, lease, retention, wait, token, request)
 * returns idem_reservation
 */
Datum
idem_reserve(PG_FUNCTION_ARGS)
{
	IdemReserveArgs args;
	IdemReservation reservation;

	IdemKeyArgs(fcinfo, &args.ref);
	args.request = IdemRequestArg(fcinfo, ARG_REQUEST);
	args.fingerprint = IdemFingerprintArg(fcinfo, ARG_FP, args.request);
	args.retention = IdemRetentionArg(fcinfo, ARG_RETENTION);
	args.lease = IdemLeaseArg(fcinfo, ARG_LEASE, args.retention);
	args.wait = IdemWaitArg(fcinfo, ARG_WAIT);
	args.token = PG_ARGISNULL(ARG_TOKEN) ? NULL : PG_GETARG_UUID_P(ARG_TOKEN);

	IdemLauncherNotice();
	IdemStoreReserve(&args, &reservation);
	return ReservationResult(fcinfo, &reservation);
}
