/*-------------------------------------------------------------------------
 *
 * stats.c
 *	  SQL functions over the counters: what the view idem_stat is made of.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "args.h"
#include "counters.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(idem_stat_rows);
PG_FUNCTION_INFO_V1(idem_stat_reset);

/* Columns of idem_stat_rows: the database, the counters, and these */
typedef enum StatColumn
{
	STAT_DATABASE = 0,
	STAT_COUNTS = 1,
	STAT_LAST_PASS = STAT_COUNTS + IDEM_NCOUNTERS,
	STAT_LAST_PASS_DURATION,
	STAT_OLDEST_EXPIRED,
	STAT_OLDEST_STALE,
	STAT_KEYS,
	STAT_ROW_BYTES,
	STAT_BYTES,
	STAT_RESET,
	STAT_NCOLS
} StatColumn;

static void
CheckPreloaded(void)
{
	if (idem_shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("there are no counters: idem is not preloaded"),
				 errhint("Add idem to \"%s\" and restart the server.",
						 "shared_preload_libraries")));
}

static Datum
IntervalOf(int64 microseconds)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = microseconds;
	return IntervalPGetDatum(interval);
}

/* Set a column to a point in time; 0 stands for none */
static void
SetTime(Datum *values, bool *isnull, int col, TimestampTz when)
{
	values[col] = TimestampTzGetDatum(when);
	isnull[col] = when == 0;
}

static void
SetPass(Datum *values, bool *isnull, const IdemPass *pass)
{
	bool		none = pass->ended == 0;

	SetTime(values, isnull, STAT_LAST_PASS, pass->ended);
	SetTime(values, isnull, STAT_OLDEST_EXPIRED, pass->oldest_expired);
	SetTime(values, isnull, STAT_OLDEST_STALE, pass->oldest_stale);
	values[STAT_LAST_PASS_DURATION] = IntervalOf(pass->duration);
	values[STAT_KEYS] = Int64GetDatum(pass->keys);
	values[STAT_ROW_BYTES] = Int64GetDatum(pass->row_bytes);
	values[STAT_BYTES] = Int64GetDatum(pass->bytes);
	isnull[STAT_LAST_PASS_DURATION] = isnull[STAT_KEYS] =
		isnull[STAT_ROW_BYTES] = isnull[STAT_BYTES] = none;
}

/* Add one database to the result */
static void
PutTotals(ReturnSetInfo *result, const IdemTotals *totals)
{
	Datum		values[STAT_NCOLS];
	bool		isnull[STAT_NCOLS] = {false};
	int			i;

	values[STAT_DATABASE] = ObjectIdGetDatum(totals->database);
	for (i = 0; i < IDEM_NCOUNTERS; i++)
		values[STAT_COUNTS + i] = i == IDEM_COUNT_WAIT_TIME ?
			IntervalOf(totals->counts[i]) : Int64GetDatum(totals->counts[i]);
	SetPass(values, isnull, &totals->pass);
	SetTime(values, isnull, STAT_RESET, totals->reset);
	tuplestore_putvalues(result->setResult, result->setDesc, values, isnull);
}

/*
 * idem_stat_rows() returns setof record
 *
 * The counters of every database, and what the last pass of the sweep found
 * there.  This database is among them as long as there is room, even when
 * nothing has been counted in it yet.
 */
Datum
idem_stat_rows(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result;
	IdemTotals *totals;
	int			n;
	int			i;

	CheckPreloaded();
	result = IdemResultSet(fcinfo, STAT_NCOLS);

	(void) IdemTallyHere();
	totals = palloc(idem_shared->ntallies * sizeof(IdemTotals));
	n = IdemReadTallies(totals, idem_shared->ntallies);
	for (i = 0; i < n; i++)
		PutTotals(result, &totals[i]);
	return (Datum) 0;
}

/*
 * idem_stat_reset()
 *
 * Begins the counters of this database again.
 */
Datum
idem_stat_reset(PG_FUNCTION_ARGS)
{
	CheckPreloaded();
	IdemResetTally();
	PG_RETURN_VOID();
}
