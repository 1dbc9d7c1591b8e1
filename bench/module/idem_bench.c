/*-------------------------------------------------------------------------
 *
 * idem_bench.c
 *	  What idem is measured against inside the server: the same work through
 *	  SPI, and functions that do nothing.
 *
 * The yardstick is as fast as SPI can be made to be.  Plans are saved, and
 * generic from the first call on; the first look is read-only, so that it uses
 * the caller's snapshot; nothing is parsed, planned or looked up after the
 * first call; arguments are not checked; there are no savepoints, no reminders
 * and no waiting.  It works on the table hand_key of bench/schema.sql, which
 * stores what idem_key does, with the same primary key, and no other index.
 *
 * Two orders are there, since neither is best at everything: read first
 * (bench_spi_reserve) is the faster one for retries, insert first
 * (bench_spi_upsert) for new keys.  idem is compared with the better one.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"
#include "utils/uuid.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(bench_empty_reserve);
PG_FUNCTION_INFO_V1(bench_empty_complete);
PG_FUNCTION_INFO_V1(bench_spi_reserve);
PG_FUNCTION_INFO_V1(bench_spi_upsert);
PG_FUNCTION_INFO_V1(bench_spi_complete);
PG_FUNCTION_INFO_V1(bench_spi_insert);

/* Columns of bench_reservation */
enum
{
	RESULT_OUTCOME, RESULT_TOKEN, RESULT_ATTEMPT, RESULT_STATUS_CODE,
	RESULT_HEADERS, RESULT_BODY, RESULT_NCOLS
};

/* What select_sql returns */
enum
{
	ROW_EXPIRES_AT = 1, ROW_LEASE_UNTIL, ROW_COMPLETED_AT, ROW_FINGERPRINT,
	ROW_STATUS_CODE, ROW_HEADERS, ROW_BODY
};

typedef struct Answer
{
	Datum		values[RESULT_NCOLS];
	bool		isnull[RESULT_NCOLS];
} Answer;

static const char *const select_sql =
"SELECT expires_at, lease_until, completed_at, fingerprint, status_code, headers, body"
" FROM hand_key WHERE client = $1 AND key = $2";

/* A stale or expired row is taken over in the same statement */
static const char *const upsert_sql =
"INSERT INTO hand_key AS h (expires_at, lease_until, began_at, token, client, key, fingerprint)"
" VALUES (clock_timestamp() + '24 h', clock_timestamp() + '30 s', clock_timestamp(), gen_random_uuid(), $1, $2, $3)"
" ON CONFLICT (client, key) DO UPDATE SET expires_at = excluded.expires_at, lease_until = excluded.lease_until,"
"  began_at = excluded.began_at, token = excluded.token, fingerprint = excluded.fingerprint,"
"  attempt = CASE WHEN h.expires_at > clock_timestamp() THEN coalesce(h.attempt, 1) + 1 END,"
"  created_at = CASE WHEN h.expires_at > clock_timestamp() THEN coalesce(h.created_at, h.began_at) END,"
"  status_code = NULL, completed_at = NULL, headers = NULL, body = NULL"
" WHERE h.expires_at <= clock_timestamp()"
"    OR h.completed_at IS NULL AND h.lease_until <= clock_timestamp() AND h.fingerprint = excluded.fingerprint"
" RETURNING token, coalesce(attempt, 1)";

static const char *const complete_sql =
"UPDATE hand_key SET status_code = $4, body = $5, headers = $6, completed_at = clock_timestamp()"
" WHERE client = $1 AND key = $2 AND token = $3 AND completed_at IS NULL AND expires_at > clock_timestamp()";

static const char *const insert_sql =
"INSERT INTO small (lease_until, token, announced, client, key) VALUES ($1, $2, false, $3, $4)";

/* Prepare once, for good */
static SPIPlanPtr
SavedPlan(SPIPlanPtr *plan, const char *sql, int nargs, const Oid *types)
{
	if (*plan == NULL)
	{
		*plan = SPI_prepare_cursor(sql, nargs, (Oid *) types,
								   CURSOR_OPT_GENERIC_PLAN);
		if (*plan == NULL || SPI_keepplan(*plan) != 0)
			elog(ERROR, "could not prepare: %s", sql);
	}
	return *plan;
}

static int64
Execute(SPIPlanPtr plan, Datum *values, const char *nulls, bool read_only,
		int expected)
{
	if (SPI_execute_plan(plan, values, nulls, read_only, 1) != expected)
		elog(ERROR, "statement failed");
	return SPI_processed;
}

static Datum
Column(int n, bool *isnull)
{
	return SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, n, isnull);
}

static bool
SetOutcome(Answer *result, const char *outcome)
{
	result->values[RESULT_OUTCOME] = CStringGetTextDatum(outcome);
	result->isnull[RESULT_OUTCOME] = false;
	return true;
}

static bool
SameBytes(bytea *a, bytea *b)
{
	return VARSIZE_ANY_EXHDR(a) == VARSIZE_ANY_EXHDR(b) &&
		memcmp(VARDATA_ANY(a), VARDATA_ANY(b), VARSIZE_ANY_EXHDR(a)) == 0;
}

/* Judge the row that was found; false: it may be reserved */
static bool
Judge(bytea *fingerprint, Answer *result)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		isnull;

	if (DatumGetTimestampTz(Column(ROW_EXPIRES_AT, &isnull)) <= now)
		return false;
	if (!SameBytes(DatumGetByteaPP(Column(ROW_FINGERPRINT, &isnull)), fingerprint))
		return SetOutcome(result, "mismatch");

	(void) Column(ROW_COMPLETED_AT, &isnull);
	if (isnull)
		return DatumGetTimestampTz(Column(ROW_LEASE_UNTIL, &isnull)) > now &&
			SetOutcome(result, "in_flight");
	result->values[RESULT_STATUS_CODE] = Column(ROW_STATUS_CODE, &result->isnull[RESULT_STATUS_CODE]);
	result->values[RESULT_HEADERS] = Column(ROW_HEADERS, &result->isnull[RESULT_HEADERS]);
	result->values[RESULT_BODY] = Column(ROW_BODY, &result->isnull[RESULT_BODY]);
	return SetOutcome(result, "replay");
}

static bool
Look(FunctionCallInfo fcinfo, bool read_only, Answer *result)
{
	static SPIPlanPtr plan = NULL;
	static const Oid types[] = {TEXTOID, TEXTOID};
	Datum		values[] = {PG_GETARG_DATUM(0), PG_GETARG_DATUM(1)};

	return Execute(SavedPlan(&plan, select_sql, 2, types), values, NULL,
				   read_only, SPI_OK_SELECT) > 0 &&
		Judge(PG_GETARG_BYTEA_PP(2), result);
}

static bool
Insert(FunctionCallInfo fcinfo, Answer *result)
{
	static SPIPlanPtr plan = NULL;
	static const Oid types[] = {TEXTOID, TEXTOID, BYTEAOID};
	Datum		values[] = {PG_GETARG_DATUM(0), PG_GETARG_DATUM(1), PG_GETARG_DATUM(2)};

	if (Execute(SavedPlan(&plan, upsert_sql, 3, types), values, NULL, false,
				SPI_OK_INSERT_RETURNING) == 0)
		return false;
	result->values[RESULT_TOKEN] = Column(1, &result->isnull[RESULT_TOKEN]);
	result->values[RESULT_ATTEMPT] = Column(2, &result->isnull[RESULT_ATTEMPT]);
	return SetOutcome(result, "new");
}

/* The result's row type, looked up once */
static TupleDesc
ResultDesc(FunctionCallInfo fcinfo)
{
	static TupleDesc desc = NULL;

	if (desc == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
		TupleDesc	found;

		if (get_call_result_type(fcinfo, NULL, &found) != TYPEFUNC_COMPOSITE)
			elog(ERROR, "result is not composite");
		desc = BlessTupleDesc(CreateTupleDescCopy(found));
		MemoryContextSwitchTo(old);
	}
	return desc;
}

static Datum
Reserve(FunctionCallInfo fcinfo, bool read_first)
{
	MemoryContext callers = CurrentMemoryContext;
	HeapTuple	tuple;
	Answer		result;

	memset(result.isnull, true, sizeof(result.isnull));
	SPI_connect();
	if (!(read_first && Look(fcinfo, true, &result)))
		while (!Insert(fcinfo, &result) && !Look(fcinfo, false, &result))
			CHECK_FOR_INTERRUPTS();
	MemoryContextSwitchTo(callers);
	tuple = heap_form_tuple(ResultDesc(fcinfo), result.values, result.isnull);
	SPI_finish();
	return HeapTupleGetDatum(tuple);
}

/* bench_spi_reserve(client, key, fp): look, then insert if need be */
Datum
bench_spi_reserve(PG_FUNCTION_ARGS)
{
	return Reserve(fcinfo, true);
}

/* bench_spi_upsert(client, key, fp): insert, then look if need be */
Datum
bench_spi_upsert(PG_FUNCTION_ARGS)
{
	return Reserve(fcinfo, false);
}

/* bench_spi_complete(client, key, token, status_code, body text, headers) */
Datum
bench_spi_complete(PG_FUNCTION_ARGS)
{
	static SPIPlanPtr plan = NULL;
	static const Oid types[] = {TEXTOID, TEXTOID, UUIDOID, INT4OID, BYTEAOID, JSONBOID};
	Datum		values[6];
	char		nulls[6];
	int			i;

	for (i = 0; i < 6; i++)
	{
		values[i] = PG_GETARG_DATUM(i);
		nulls[i] = PG_ARGISNULL(i) ? 'n' : ' ';
	}
	SPI_connect();
	if (Execute(SavedPlan(&plan, complete_sql, 6, types), values, nulls, false,
				SPI_OK_UPDATE) != 1)
		elog(ERROR, "key is not reserved under this token");
	SPI_finish();
	PG_RETURN_VOID();
}

/* bench_spi_insert(lease_until, token, client, key): one small row, no index */
Datum
bench_spi_insert(PG_FUNCTION_ARGS)
{
	static SPIPlanPtr plan = NULL;
	static const Oid types[] = {TIMESTAMPTZOID, UUIDOID, TEXTOID, TEXTOID};
	Datum		values[] = {PG_GETARG_DATUM(0), PG_GETARG_DATUM(1), PG_GETARG_DATUM(2), PG_GETARG_DATUM(3)};

	SPI_connect();
	Execute(SavedPlan(&plan, insert_sql, 4, types), values, NULL, false,
			SPI_OK_INSERT);
	SPI_finish();
	PG_RETURN_VOID();
}

/* bench_empty_reserve(client, key, fp): the same result, without the work */
Datum
bench_empty_reserve(PG_FUNCTION_ARGS)
{
	static pg_uuid_t token;
	Answer		result;

	memset(result.isnull, true, sizeof(result.isnull));
	SetOutcome(&result, "new");
	result.values[RESULT_TOKEN] = UUIDPGetDatum(&token);
	result.values[RESULT_ATTEMPT] = Int32GetDatum(1);
	result.isnull[RESULT_TOKEN] = result.isnull[RESULT_ATTEMPT] = false;
	return HeapTupleGetDatum(heap_form_tuple(ResultDesc(fcinfo), result.values, result.isnull));
}

/* bench_empty_complete(client, key, token, status_code, body text, headers) */
Datum
bench_empty_complete(PG_FUNCTION_ARGS)
{
	PG_RETURN_VOID();
}
