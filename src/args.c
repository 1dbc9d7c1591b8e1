/*-------------------------------------------------------------------------
 *
 * args.c
 *	  What SQL functions have in common: arguments and composite results.
 *
 * Every check of an argument that more than one function has is here, once.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "args.h"
#include "common/int.h"
#include "compat.h"
#include "document.h"
#include "keys.h"
#include "pin.h"
#include "settings.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"

/*
 * What is known of a function that is called, for all statements that do: to
 * look it up anew in each is a good part of what a short one takes.  It is
 * forgotten with any change to pg_proc.
 */
typedef struct Callee
{
	Oid			function;
	Oid			nsp;			/* schema of the extension: that of the function */
	TypeCacheEntry *result;		/* its row type, once that is needed */
} Callee;

#define NCALLEES	8

static Callee callees[NCALLEES];

static void
ForgetCallees(Datum arg, int cacheid, uint32 hashvalue)
{
	memset(callees, 0, sizeof(callees));
}

/* Its place, by its OID; another function may have been there */
static Callee *
FindCallee(FunctionCallInfo fcinfo)
{
	static bool registered = false;
	Oid			function = fcinfo->flinfo->fn_oid;
	Callee	   *callee = &callees[function % NCALLEES];
	Oid			nsp;

	if (callee->function == function)
		return callee;
	if (!registered)
	{
		CacheRegisterSyscacheCallback(PROCOID, ForgetCallees, (Datum) 0);
		registered = true;
	}
	nsp = get_func_namespace(function);
	callee->function = function;
	callee->nsp = nsp;
	callee->result = NULL;
	return callee;
}

/* The schema of the extension */
Oid
IdemSchema(FunctionCallInfo fcinfo)
{
	return FindCallee(fcinfo)->nsp;
}

/* Argument 0 of nearly every function: the client, of no key in particular */
void
IdemClientArg(FunctionCallInfo fcinfo, IdemKeyRef *ref)
{
	ref->nsp = IdemSchema(fcinfo);
	ref->client = PG_ARGISNULL(0) ? NULL : PG_GETARG_TEXT_PP(0);
	ref->key = NULL;
	IdemCheckClient(ref->client);
	IdemCheckPin(ref->client);
}

/* Arguments 0 and 1: client and key */
void
IdemKeyArgs(FunctionCallInfo fcinfo, IdemKeyRef *ref)
{
	IdemClientArg(fcinfo, ref);
	ref->key = PG_ARGISNULL(1) ? NULL : PG_GETARG_TEXT_PP(1);
	IdemCheckKey(ref->key);
}

/* The token of a call by an owner */
const pg_uuid_t *
IdemTokenArg(FunctionCallInfo fcinfo, int n)
{
	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("token is null"),
				 errhint("Pass the token that idem_reserve returned with the outcome new; with any other outcome the key is not yours.")));
	return PG_GETARG_UUID_P(n);
}

/*
 * An interval in microseconds, a month being 30 days and a day 24 hours, as
 * everywhere where intervals are compared.  What is out of range, infinite
 * intervals too, becomes the limit on that side.
 */
static int64
IntervalMicroseconds(const Interval *span)
{
	int64		days = (int64) span->month * DAYS_PER_MONTH + span->day;
	int64		us;

	if (pg_mul_s64_overflow(days, USECS_PER_DAY, &us) ||
		pg_add_s64_overflow(us, span->time, &us))
		us = days < 0 ? -IDEM_MAX_SPAN : IDEM_MAX_SPAN;
	return Max(Min(us, IDEM_MAX_SPAN), -IDEM_MAX_SPAN);
}

static char *
SpanText(const Interval *span)
{
	return DatumGetCString(DirectFunctionCall1(interval_out,
											   IntervalPGetDatum(span)));
}

/* How long the key is kept: within (0, idem.retention] */
int64
IdemRetentionArg(FunctionCallInfo fcinfo, int n)
{
	int64		most = IdemRetentionSetting();
	int64		us;

	if (PG_ARGISNULL(n))
		return most;
	us = IntervalMicroseconds(PG_GETARG_INTERVAL_P(n));
	if (us <= 0 || us > most)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("retention %s is out of range", SpanText(PG_GETARG_INTERVAL_P(n))),
				 errhint("It must be positive and at most idem.retention, %g s.",
						 idem_retention)));
	return us;
}

/*
 * How long the key may stay unanswered: within (0, idem.max_lease], and no
 * longer than the key is kept.  The default is cut to that, a lease asked for
 * is refused.
 */
int64
IdemLeaseArg(FunctionCallInfo fcinfo, int n, int64 retention)
{
	int64		most = Min(IdemMaxLeaseSetting(), retention);
	int64		us;

	if (PG_ARGISNULL(n))
		return Min(IdemLeaseSetting(), most);
	us = IntervalMicroseconds(PG_GETARG_INTERVAL_P(n));
	if (us <= 0 || us > most)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("lease %s is out of range", SpanText(PG_GETARG_INTERVAL_P(n))),
				 errhint("It must be positive, at most idem.max_lease (%d ms), and no longer than the retention of the key.",
						 idem_max_lease)));
	return us;
}

/* How long a reservation waits for another request to end; 0: not at all */
int64
IdemWaitArg(FunctionCallInfo fcinfo, int n)
{
	int64		us;

	if (PG_ARGISNULL(n))
		return IdemWaitSetting();
	us = IntervalMicroseconds(PG_GETARG_INTERVAL_P(n));
	if (us < 0 || IdemIntervalIsInfinite(PG_GETARG_INTERVAL_P(n)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("wait %s is out of range", SpanText(PG_GETARG_INTERVAL_P(n))),
				 errhint("It must not be negative, and finite; 0 never waits.")));
	return us;
}

/* What is kept with a key is bounded; the key stays as it was */
void
IdemCheckSize(int64 bytes, const char *what)
{
	if (bytes > idem_max_response_size)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("%s of " INT64_FORMAT " bytes is too large", what, bytes),
				 errdetail("idem.max_response_size is %d bytes.", idem_max_response_size),
				 errhint("Keep a reference to it instead, or raise the setting.")));
}

/*
 * The bytes of a document that is to be kept, as jsonb or as the text that it
 * is in a dump, whichever are more.  That text must be readable again.
 */
int64
IdemKeptBytes(Jsonb *doc, const char *what)
{
	int			depth;
	int64		bytes = IdemDocumentBytes(doc, &depth);

	if (depth > IDEM_MAX_NESTING)
		ereport(ERROR,
				(errcode(ERRCODE_STATEMENT_TOO_COMPLEX),
				 errmsg("%s is nested %d levels deep", what, depth),
				 errhint("At most %d levels are kept; pass a text that holds the document instead.",
						 IDEM_MAX_NESTING)));
	return Max(bytes, (int64) VARSIZE_ANY_EXHDR(doc));
}

/*
 * Values are formed into a row by what the type says it has, so that a type with
 * another number of attributes would take in what lies beside them.
 */
static void
CheckResultType(TupleDesc desc, int ncols)
{
	if (desc->natts != ncols)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("type \"%s\" is not the one that extension idem created",
						format_type_be(desc->tdtypeid)),
				 errhint("Its attributes must not be changed.")));
}

/*
 * A row of the function's own result type.  Entries of the type cache stay where
 * they are, but lose their descriptor when the type changes (typcache.c).
 */
Datum
IdemResult(FunctionCallInfo fcinfo, int ncols, Datum *values, bool *isnull)
{
	Callee	   *callee = FindCallee(fcinfo);
	TypeCacheEntry *type = callee->result;

	if (type == NULL || type->tupDesc == NULL)
	{
		type = lookup_type_cache(get_func_rettype(fcinfo->flinfo->fn_oid),
								 TYPECACHE_TUPDESC);
		CheckResultType(type->tupDesc, ncols);
		callee->result = type;
	}
	return HeapTupleGetDatum(heap_form_tuple(type->tupDesc, values, isnull));
}

/* Where a function puts its rows that returns any number of them */
ReturnSetInfo *
IdemResultSet(FunctionCallInfo fcinfo, int ncols)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	CheckResultType(result->setDesc, ncols);
	return result;
}
