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
#include "utils/builtins.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(idem_reserve);

/* Arguments of idem_reserve */
enum
{
	ARG_CLIENT, ARG_KEY, ARG_FP, ARG_LEASE, ARG_RETENTION, ARG_WAIT, ARG_TOKEN,
	ARG_REQUEST
};

/* Columns of idem_reservation */
typedef enum ResultColumn
{
	RESULT_OUTCOME,
	RESULT_TOKEN,
	RESULT_ATTEMPT,
	RESULT_STATUS_CODE,
	RESULT_HEADERS,
	RESULT_BODY,
	RESULT_RETRY_AFTER,
	RESULT_RECOVERY_POINT,
	RESULT_RECOVERY_DATA,
	RESULT_NCOLS
} ResultColumn;

/* A result in the making */
typedef struct Outcome
{
	Datum		values[RESULT_NCOLS];
	bool		isnull[RESULT_NCOLS];
} Outcome;

/*
 * Problem details (RFC 9457) for what is no answer of the application's.  The
 * titles are those of draft-ietf-httpapi-idempotency-key-header, section 2.7;
 * the codes are ours and stable.
 */
#define PROBLEM(title, status, code, detail) \
	"{\"type\":\"https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/\"," \
	"\"title\":\"" title "\",\"status\":" status ",\"code\":\"" code "\"," \
	"\"detail\":\"" detail "\"}"

static const char in_flight_problem[] =
PROBLEM("A request is outstanding for this Idempotency-Key", "409",
		"request_in_flight",
		"The first request with this key has not been answered yet. Retry later with the same key.");

static const char mismatch_problem[] =
PROBLEM("Idempotency-Key is already used", "422",
		"idempotency_key_reused",
		"This key was used for a request with other content. Use a new key for a new request.");

static void
SetResult(Outcome *result, ResultColumn col, Datum value)
{
	result->values[col] = value;
	result->isnull[col] = false;
}

/* Take a column of the row over, NULL or not */
static void
CopyColumn(Outcome *result, ResultColumn col, const IdemRow *row, IdemColumn from)
{
	result->values[col] = row->values[from];
	result->isnull[col] = row->isnull[from];
}

static JsonbValue *
PushString(JsonbParseState **state, JsonbIteratorToken kind, const char *string)
{
	JsonbValue	value;

	value.type = jbvString;
	value.val.string.val = unconstify(char *, string);
	value.val.string.len = strlen(string);
	return pushJsonbValue(state, kind, &value);
}

/* The headers of a problem: an object of strings */
static Datum
ProblemHeaders(int64 retry_after)
{
	JsonbParseState *state = NULL;
	JsonbValue *headers;
	char		seconds[MAXINT8LEN + 1];

	(void) pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	(void) PushString(&state, WJB_KEY, "content-type");
	(void) PushString(&state, WJB_VALUE, "application/problem+json");
	if (retry_after > 0)
	{
		pg_lltoa(retry_after, seconds);
		(void) PushString(&state, WJB_KEY, "retry-after");
		(void) PushString(&state, WJB_VALUE, seconds);
	}
	headers = pushJsonbValue(&state, WJB_END_OBJECT, NULL);
	return JsonbPGetDatum(JsonbValueToJsonb(headers));
}

static void
SetProblem(Outcome *result, int status, int64 retry_after, const char *body)
{
	SetResult(result, RESULT_STATUS_CODE, Int32GetDatum(status));
	SetResult(result, RESULT_HEADERS, ProblemHeaders(retry_after));
	SetResult(result, RESULT_BODY, PointerGetDatum(cstring_to_text(body)));
}

static void
SetInFlight(Outcome *result, int64 seconds)
{
	Interval   *retry_after = palloc0(sizeof(Interval));

	retry_after->time = seconds * USECS_PER_SEC;
	SetProblem(result, 409, seconds, in_flight_problem);
	SetResult(result, RESULT_RETRY_AFTER, IntervalPGetDatum(retry_after));
}

static void
SetNew(Outcome *result, const IdemRow *row)
{
	CopyColumn(result, RESULT_TOKEN, row, IDEM_COL_TOKEN);
	CopyColumn(result, RESULT_ATTEMPT, row, IDEM_COL_ATTEMPT);
	CopyColumn(result, RESULT_RECOVERY_POINT, row, IDEM_COL_RECOVERY_POINT);
	CopyColumn(result, RESULT_RECOVERY_DATA, row, IDEM_COL_RECOVERY_DATA);
}

static void
SetReplay(Outcome *result, const IdemRow *row)
{
	CopyColumn(result, RESULT_STATUS_CODE, row, IDEM_COL_STATUS_CODE);
	CopyColumn(result, RESULT_HEADERS, row, IDEM_COL_HEADERS);
	CopyColumn(result, RESULT_BODY, row, IDEM_COL_BODY);
}

/* The outcome, and what goes with it */
static Datum
ReservationResult(FunctionCallInfo fcinfo, const IdemReservation *reservation)
{
	const char *outcome = NULL;
	Outcome		result;

	memset(result.isnull, true, sizeof(result.isnull));
	switch (reservation->outcome)
	{
		case IDEM_NEW:
			outcome = "new";
			SetNew(&result, &reservation->row);
			break;
		case IDEM_IN_FLIGHT:
			outcome = "in_flight";
			SetInFlight(&result, reservation->retry_after);
			break;
		case IDEM_REPLAY:
			outcome = "replay";
			SetReplay(&result, &reservation->row);
			break;
		case IDEM_MISMATCH:
			outcome = "mismatch";
			SetProblem(&result, 422, 0, mismatch_problem);
			break;
	}
	SetResult(&result, RESULT_OUTCOME, PointerGetDatum(cstring_to_text(outcome)));
	return IdemResult(fcinfo, result.values, result.isnull);
}

/*
 * The fingerprint given, or else that of the request.  Without either, two
 * different requests could not be told apart.
 */
static bytea *
FingerprintArg(FunctionCallInfo fcinfo, Jsonb *request)
{
	bytea	   *fingerprint;

	if (PG_ARGISNULL(ARG_FP))
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

	fingerprint = PG_GETARG_BYTEA_PP(ARG_FP);
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
static Jsonb *
RequestArg(FunctionCallInfo fcinfo)
{
	Jsonb	   *request;

	if (PG_ARGISNULL(ARG_REQUEST))
		return NULL;
	request = PG_GETARG_JSONB_P(ARG_REQUEST);
	IdemCheckSize(VARSIZE_ANY_EXHDR(request), "request");
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
	args.request = RequestArg(fcinfo);
	args.fingerprint = FingerprintArg(fcinfo, args.request);
	args.retention = IdemRetentionArg(fcinfo, ARG_RETENTION);
	args.lease = IdemLeaseArg(fcinfo, ARG_LEASE, args.retention);
	args.wait = IdemWaitArg(fcinfo, ARG_WAIT);
	args.token = PG_ARGISNULL(ARG_TOKEN) ? NULL : PG_GETARG_UUID_P(ARG_TOKEN);

	IdemLauncherNotice();
	IdemStoreReserve(&args, &reservation);
	return ReservationResult(fcinfo, &reservation);
}
