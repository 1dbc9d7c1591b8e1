/*-------------------------------------------------------------------------
 *
 * explain.c
 *	  idem_explain: what a retry would get now, and why, in words.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "args.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "reserve.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(idem_explain);

/* Arguments of idem_explain */
enum
{
	ARG_CLIENT, ARG_KEY, ARG_FP, ARG_REQUEST
};

/* Differences shown, and bytes shown of a value */
#define MAX_DIFFERENCES		20
#define MAX_VALUE_BYTES		80

/* A comparison of two requests in the making */
typedef struct Comparison
{
	StringInfo	out;
	int			differences;
	const char *arrow;			/* between the two values, in the server's encoding */
} Comparison;

/* ----------
 * What differs
 * ----------
 */

/* A value, cut to a length that a line bears; NULL is one that is not there */
static char *
ValueText(JsonbValue *value)
{
	Jsonb	   *json;
	char	   *text;
	int			length;
	int			shown;

	if (value == NULL)
		return pstrdup("(absent)");
	json = JsonbValueToJsonb(value);
	text = JsonbToCString(NULL, &json->root, VARSIZE(json));
	length = strlen(text);
	shown = pg_mbcliplen(text, length, MAX_VALUE_BYTES);
	return shown == length ? text : psprintf("%.*s...", shown, text);
}

static void
ReportDifference(Comparison *comparison, const char *path, JsonbValue *kept,
				 JsonbValue *given)
{
	if (comparison->differences++ >= MAX_DIFFERENCES)
		return;
	appendStringInfo(comparison->out, "\n  %s: %s %s %s",
					 path[0] == '\0' ? "the whole" : path,
					 ValueText(kept), comparison->arrow, ValueText(given));
}

static bool
SameValue(JsonbValue *a, JsonbValue *b)
{
	return compareJsonbContainers(&JsonbValueToJsonb(a)->root,
								  &JsonbValueToJsonb(b)->root) == 0;
}

static bool
BothAre(JsonbValue *a, JsonbValue *b, uint32 kind)
{
	return a->type == jbvBinary && b->type == jbvBinary &&
		(a->val.binary.data->header & kind) != 0 &&
		(b->val.binary.data->header & kind) != 0;
}

static void Compare(Comparison *comparison, const char *path,
					JsonbValue *kept, JsonbValue *given);

/*
 * The members of one object: compared with the other's, or, if `missing`, only
 * those that the other does not have.
 */
static void
CompareMembers(Comparison *comparison, const char *path, JsonbContainer *object,
			   JsonbContainer *other, bool missing)
{
	JsonbIterator *iterator = JsonbIteratorInit(object);
	JsonbValue	key;
	JsonbValue	value;

	(void) JsonbIteratorNext(&iterator, &key, true);	/* the object begins */
	while (JsonbIteratorNext(&iterator, &key, true) == WJB_KEY)
	{
		JsonbValue *found = getKeyJsonValueFromContainer(other, key.val.string.val,
														 key.val.string.len, NULL);
		char	   *below = psprintf("%s%s%.*s", path, path[0] == '\0' ? "" : ".",
									 key.val.string.len, key.val.string.val);

		(void) JsonbIteratorNext(&iterator, &value, true);
		if (!missing)
			Compare(comparison, below, &value, found);
		else if (found == NULL)
			ReportDifference(comparison, below, NULL, &value);
	}
}

static void
CompareElements(Comparison *comparison, const char *path, JsonbContainer *kept,
				JsonbContainer *given)
{
	uint32		n = Max(JsonContainerSize(kept), JsonContainerSize(given));
	uint32		i;

	for (i = 0; i < n; i++)
	{
		JsonbValue *a = getIthJsonbValueFromContainer(kept, i);
		JsonbValue *b = getIthJsonbValueFromContainer(given, i);
		char	   *below = psprintf("%s[%u]", path, i);

		if (a == NULL)
			ReportDifference(comparison, below, NULL, b);
		else
			Compare(comparison, below, a, b);
	}
}

/* Find the smallest parts in which the two differ; given may be missing */
static void
Compare(Comparison *comparison, const char *path, JsonbValue *kept,
		JsonbValue *given)
{
	check_stack_depth();
	CHECK_FOR_INTERRUPTS();
	if (given == NULL)
		ReportDifference(comparison, path, kept, NULL);
	else if (BothAre(kept, given, JB_FOBJECT))
	{
		CompareMembers(comparison, path, kept->val.binary.data,
					   given->val.binary.data, false);
		CompareMembers(comparison, path, given->val.binary.data,
					   kept->val.binary.data, true);
	}
	else if (BothAre(kept, given, JB_FARRAY))
		CompareElements(comparison, path, kept->val.binary.data,
						given->val.binary.data);
	else if (!SameValue(kept, given))
		ReportDifference(comparison, path, kept, given);
}

/* Say in what the request kept with the key and this one differ */
static void
ExplainDifference(StringInfo out, Jsonb *kept, Jsonb *given)
{
	Comparison	comparison = {.out = out, .arrow = "->"};
	JsonbValue	a;
	JsonbValue	b;

	if (GetDatabaseEncoding() == PG_UTF8)
		comparison.arrow = "\342\206\222";	/* U+2192 */
	JsonbToJsonbValue(kept, &a);
	JsonbToJsonbValue(given, &b);
	appendStringInfoString(out, " The request kept with the key and this one differ:");
	Compare(&comparison, "", &a, &b);
	if (comparison.differences > MAX_DIFFERENCES)
		appendStringInfo(out, "\n  and in %d more",
						 comparison.differences - MAX_DIFFERENCES);
	if (comparison.differences == 0)
		appendStringInfoString(out, "\n  in nothing, but the fingerprint is another one; it was made of something else, or in another way.");
}

/* ----------
 * State and outcome
 * ----------
 */

/* From one point in time to another, in whole seconds, rounded up */
static char *
Span(TimestampTz from, TimestampTz to)
{
	TimestampTz seconds = from +
	(to - from + USECS_PER_SEC - 1) / USECS_PER_SEC * USECS_PER_SEC;

	return DatumGetCString(DirectFunctionCall1(interval_out,
											   DirectFunctionCall2(timestamp_mi,
																   TimestampTzGetDatum(seconds),
																   TimestampTzGetDatum(from))));
}

static const char *
PointInTime(TimestampTz at)
{
	return pstrdup(timestamptz_to_str(at));
}

static void
ExplainRow(StringInfo out, const IdemRow *row, TimestampTz now)
{
	TimestampTz lease_until = IdemRowLeaseUntil(row);

	switch (IdemRowState(row, now))
	{
		case IDEM_ABSENT:
			appendStringInfo(out, "The key is absent: it was kept until %s.",
							 PointInTime(IdemRowExpiresAt(row)));
			return;
		case IDEM_COMPLETED:
			if (row->isnull[IDEM_COL_FINGERPRINT])
				appendStringInfo(out, "The key is a mark of idem_once, set %s ago.",
								 Span(IdemRowTime(row, IDEM_COL_COMPLETED_AT), now));
			else
				appendStringInfo(out, "The key is completed: attempt %d was answered with status %d, %s ago.",
								 IdemRowAttempt(row),
								 DatumGetInt32(row->values[IDEM_COL_STATUS_CODE]),
								 Span(IdemRowTime(row, IDEM_COL_COMPLETED_AT), now));
			break;
		case IDEM_IN_PROGRESS:
			appendStringInfo(out, "The key is in progress: attempt %d began %s ago, its lease runs for another %s.",
							 IdemRowAttempt(row), Span(IdemRowBeganAt(row), now),
							 Span(now, lease_until));
			break;
		case IDEM_STALE:
			appendStringInfo(out, "The key is stale: attempt %d began %s ago, its lease has been over for %s; nobody can tell whether its work happened.",
							 IdemRowAttempt(row), Span(IdemRowBeganAt(row), now),
							 Span(lease_until, now));
			break;
	}
	if (!row->isnull[IDEM_COL_RECOVERY_POINT])
		appendStringInfo(out, " It has come to recovery point \"%s\".",
						 TextDatumGetCString(row->values[IDEM_COL_RECOVERY_POINT]));
	appendStringInfo(out, " It is kept for another %s, until %s.",
					 Span(now, IdemRowExpiresAt(row)),
					 PointInTime(IdemRowExpiresAt(row)));
}

/* What there is of the key, the unfinished included */
static void
ExplainState(StringInfo out, const IdemProbe *probe, TimestampTz now)
{
	if (probe->found)
		ExplainRow(out, &probe->row, now);
	else
		appendStringInfoString(out, "The key is absent.");
	if (TransactionIdIsValid(probe->changer))
		appendStringInfoString(out, " A transaction that has not ended is changing it.");
	else if (TransactionIdIsValid(probe->inserter))
		appendStringInfoString(out, " A transaction that has not ended has reserved it.");
}

/* What a retry gets */
static void
ExplainOutcome(StringInfo out, const IdemForecast *forecast, bool given)
{
	const IdemRow *row = &forecast->probe.row;

	appendStringInfo(out, "\nA retry with %s request gets ",
					 given ? "this" : "the same");
	switch (forecast->outcome)
	{
		case IDEM_NEW:
			appendStringInfo(out, "new, and does the work as attempt %d.",
							 forecast->attempt);
			break;
		case IDEM_IN_FLIGHT:
			appendStringInfo(out, "in_flight (409), to retry after " INT64_FORMAT " s.",
							 forecast->retry_after);
			break;
		case IDEM_REPLAY:
			appendStringInfo(out, "replay: the stored answer, status %d.",
							 DatumGetInt32(row->values[IDEM_COL_STATUS_CODE]));
			break;
		case IDEM_MISMATCH:
			appendStringInfoString(out, row->isnull[IDEM_COL_FINGERPRINT] ?
								   "mismatch (422): a mark is nobody's request." :
								   "mismatch (422): the key was first used for another request.");
			break;
	}
}

/* Why it is a mismatch, as far as that is known */
static void
ExplainMismatch(StringInfo out, const IdemRow *row, Jsonb *request)
{
	if (row->isnull[IDEM_COL_FINGERPRINT])
		return;
	if (row->isnull[IDEM_COL_REQUEST])
		appendStringInfoString(out, " That request was not kept with the key, so it cannot be said what differs.");
	else if (request == NULL)
		appendStringInfoString(out, " Pass the request to see what differs.");
	else
		ExplainDifference(out, DatumGetJsonbP(row->values[IDEM_COL_REQUEST]),
						  request);
}

/*
 * idem_explain(client, key, fp, request) returns text
 *
 * For a human who has to answer for what a client got.
 */
Datum
idem_explain(PG_FUNCTION_ARGS)
{
	TimestampTz now = GetCurrentTimestamp();
	Jsonb	   *request = PG_ARGISNULL(ARG_REQUEST) ? NULL : PG_GETARG_JSONB_P(ARG_REQUEST);
	bytea	   *fingerprint = NULL;
	bool		given;
	IdemForecast forecast;
	IdemKeyRef	ref;
	StringInfoData out;

	IdemKeyArgs(fcinfo, &ref);
	given = !PG_ARGISNULL(ARG_FP) || request != NULL;
	if (given)
		fingerprint = IdemFingerprintArg(fcinfo, ARG_FP, request);

	IdemStoreForesee(&ref, fingerprint, &forecast);
	initStringInfo(&out);
	ExplainState(&out, &forecast.probe, now);
	ExplainOutcome(&out, &forecast, given);
	if (forecast.outcome == IDEM_MISMATCH)
		ExplainMismatch(&out, &forecast.probe.row, request);
	PG_RETURN_TEXT_P(cstring_to_text_with_len(out.data, out.len));
}
