/*-------------------------------------------------------------------------
 *
 * outcome.c
 *	  The answer that goes with an outcome: what is sent to the client as it
 *	  is, unless the work is still to be done.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "outcome.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

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

/* The outcome's name in SQL */
Datum
IdemOutcomeText(IdemOutcome outcome)
{
	switch (outcome)
	{
		case IDEM_NEW:
			return PointerGetDatum(cstring_to_text("new"));
		case IDEM_IN_FLIGHT:
			return PointerGetDatum(cstring_to_text("in_flight"));
		case IDEM_REPLAY:
			return PointerGetDatum(cstring_to_text("replay"));
		case IDEM_MISMATCH:
			return PointerGetDatum(cstring_to_text("mismatch"));
	}
	pg_unreachable();
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

/* Headers, an object of strings, that live as long as the session */
static Jsonb *
BuildHeaders(const char *content_type, int64 retry_after)
{
	JsonbParseState *state = NULL;
	JsonbValue *headers;
	Jsonb	   *built;
	Jsonb	   *kept;
	char		seconds[MAXINT8LEN + 1];

	(void) pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	(void) PushString(&state, WJB_KEY, "content-type");
	(void) PushString(&state, WJB_VALUE, content_type);
	if (retry_after > 0)
	{
		pg_lltoa(retry_after, seconds);
		(void) PushString(&state, WJB_KEY, "retry-after");
		(void) PushString(&state, WJB_VALUE, seconds);
	}
	headers = pushJsonbValue(&state, WJB_END_OBJECT, NULL);
	built = JsonbValueToJsonb(headers);
	kept = MemoryContextAlloc(TopMemoryContext, VARSIZE(built));
	memcpy(kept, built, VARSIZE(built));
	return kept;
}

/* The headers of a JSON answer that has no other ones */
Jsonb *
IdemJsonHeaders(void)
{
	static Jsonb *built = NULL;

	if (built == NULL)
		built = BuildHeaders("application/json", 0);
	return built;
}

/*
 * The headers of a problem, built once for as long as they stay the same.  Where
 * hundreds ask for one key, that is most of what their answer costs beyond
 * finding the row.
 */
static Datum
ProblemHeaders(int64 retry_after)
{
	static Jsonb *built = NULL;
	static int64 built_for = 0;

	if (built == NULL || built_for != retry_after)
	{
		Jsonb	   *headers = BuildHeaders("application/problem+json", retry_after);

		if (built != NULL)
			pfree(built);
		built = headers;
		built_for = retry_after;
	}
	return JsonbPGetDatum(built);
}

static void
SetProblem(Datum *values, bool *isnull, int status, int64 retry_after,
		   const char *body)
{
	values[IDEM_ANSWER_STATUS_CODE] = Int32GetDatum(status);
	values[IDEM_ANSWER_HEADERS] = ProblemHeaders(retry_after);
	values[IDEM_ANSWER_BODY] = PointerGetDatum(cstring_to_text(body));
	memset(isnull, false, IDEM_ANSWER_NCOLS * sizeof(bool));
}

static void
SetStored(Datum *values, bool *isnull, const IdemRow *row)
{
	static const IdemColumn columns[IDEM_ANSWER_NCOLS] = {
		IDEM_COL_STATUS_CODE, IDEM_COL_HEADERS, IDEM_COL_BODY
	};
	int			i;

	for (i = 0; i < IDEM_ANSWER_NCOLS; i++)
	{
		values[i] = row->values[columns[i]];
		isnull[i] = row->isnull[columns[i]];
	}
}

/*
 * Status code, headers and body for an outcome.  All NULL for `new`: there is
 * no answer yet.
 */
void
IdemOutcomeAnswer(const IdemReservation *reservation, Datum *values, bool *isnull)
{
	switch (reservation->outcome)
	{
		case IDEM_NEW:
			memset(isnull, true, IDEM_ANSWER_NCOLS * sizeof(bool));
			break;
		case IDEM_IN_FLIGHT:
			SetProblem(values, isnull, 409, reservation->retry_after,
					   in_flight_problem);
			break;
		case IDEM_REPLAY:
			SetStored(values, isnull, &reservation->row);
			break;
		case IDEM_MISMATCH:
			SetProblem(values, isnull, 422, 0, mismatch_problem);
			break;
	}
}

/* The same columns for an answer that has just been stored */
void
IdemAnswerColumns(const IdemAnswer *answer, Datum *values, bool *isnull)
{
	values[IDEM_ANSWER_STATUS_CODE] = Int32GetDatum(answer->status_code);
	isnull[IDEM_ANSWER_STATUS_CODE] = false;
	values[IDEM_ANSWER_HEADERS] = PointerGetDatum(answer->headers);
	isnull[IDEM_ANSWER_HEADERS] = answer->headers == NULL;
	values[IDEM_ANSWER_BODY] = PointerGetDatum(answer->body);
	isnull[IDEM_ANSWER_BODY] = answer->body == NULL;
}
