/*-------------------------------------------------------------------------
 *
 * inspect.c
 *	  Looking at a key without touching it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "args.h"
#include "pin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(idem_lookup);
PG_FUNCTION_INFO_V1(idem_pinned_client);

/* Columns of idem_key_state, and where they come from */
#define LOOKUP_NCOLS	8

static const IdemColumn lookup_columns[LOOKUP_NCOLS] = {
	0,							/* the state has no column */
	IDEM_COL_ATTEMPT,
	IDEM_COL_LEASE_UNTIL,
	IDEM_COL_EXPIRES_AT,
	IDEM_COL_CREATED_AT,
	IDEM_COL_COMPLETED_AT,
	IDEM_COL_STATUS_CODE,
	IDEM_COL_RECOVERY_POINT
};

static const char *
StateName(IdemState state)
{
	switch (state)
	{
		case IDEM_ABSENT:
			return "absent";
		case IDEM_IN_PROGRESS:
			return "in_progress";
		case IDEM_STALE:
			return "stale";
		case IDEM_COMPLETED:
			return "completed";
	}
	pg_unreachable();
}

/*
 * idem_lookup(client, key) returns idem_key_state
 *
 * Reads only, as a SELECT would; always one row.
 */
Datum
idem_lookup(PG_FUNCTION_ARGS)
{
	Datum		values[LOOKUP_NCOLS] = {0};
	bool		isnull[LOOKUP_NCOLS];
	IdemState	state = IDEM_ABSENT;
	TimestampTz now = GetCurrentTimestamp();
	IdemKeyRef	ref;
	IdemRow		row;
	int			i;

	IdemKeyArgs(fcinfo, &ref);
	if (IdemStoreRead(&ref, &row))
		state = IdemRowState(&row, now);

	values[0] = PointerGetDatum(cstring_to_text(StateName(state)));
	isnull[0] = false;
	for (i = 1; i < LOOKUP_NCOLS; i++)
	{
		isnull[i] = state == IDEM_ABSENT || row.isnull[lookup_columns[i]];
		if (!isnull[i])
			values[i] = row.values[lookup_columns[i]];
	}
	return IdemResult(fcinfo, LOOKUP_NCOLS, values, isnull);
}

/*
 * idem_pinned_client() returns text
 *
 * The client that the session is pinned to, or NULL.  For the views: unlike
 * current_setting() it is never asked before this library has taken the
 * setting over, and so never answers for a placeholder that anybody could set.
 */
Datum
idem_pinned_client(PG_FUNCTION_ARGS)
{
	const char *pinned = IdemPinnedClient();

	if (pinned == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(pinned));
}
