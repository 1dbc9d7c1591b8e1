/*-------------------------------------------------------------------------
 *
 * store.c
 *	  What can be done with a key: every decision and every change.
 *
 * Each operation is a loop around one attempt:
 *
 *	1. read the clock, probe the key without locking anything (probe.c),
 *	   give the relation locks back;
 *	2. judge what was found; an answer that needs no change is returned;
 *	3. a change is made by compare-and-swap on exactly the version that was
 *	   judged, an insertion by asking the unique index without waiting.  If
 *	   that fails, somebody else was there first: start over at 1.
 *
 * The clock is read before the probe, so that nothing is judged over that was
 * not over when it was read, and again when times are written, which may be
 * after a wait.  Completing reads it a third time after its update: an answer
 * must not be stored for a key that meanwhile became absent to everybody else.
 *
 * Locks, in the order in which they are taken: AccessShareLock on table and
 * index while probing, given back at once unless something is written;
 * RowExclusiveLock on the table, kept until the transaction ends, so that its
 * later calls lock the index only; the speculative insertion lock for the
 * moment of an insertion; the lock of the row version.  Where the table's second
 * lock (behind somebody's DDL), or a rival, has to be waited for, the table is
 * closed first, and the call starts over.  Only an owner's change waits for its
 * row with the table open, as any UPDATE does.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "change.h"
#include "compat.h"
#include "counters.h"
#include "miscadmin.h"
#include "reminder.h"
#include "storage/lmgr.h"
#include "store.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/* Tokens' worth of random bytes to draw at once */
#define TOKENS_PER_DRAW		32

/* Attempts of one key whose tokens are remembered */
#define MAX_LOST_TOKENS		64

/* How a reservation sees what there is of its key */
typedef enum Verdict
{
	VERDICT_ABSENT,				/* no row at all */
	VERDICT_RIVAL,				/* somebody's unfinished change decides */

	/* in the order of judging a row */
	VERDICT_EXPIRED,			/* as good as absent */
	VERDICT_MISMATCH,			/* another fingerprint, whatever the state */
	VERDICT_REPLAY,				/* completed */
	VERDICT_OWN,				/* in progress under the token passed in */
	VERDICT_LIVE,				/* in progress, the lease runs */
	VERDICT_STALE				/* in progress, the lease is over */
} Verdict;

/* How long a reservation has waited, and may wait */
typedef struct Patience
{
	TimestampTz since;
	TimestampTz deadline;
	bool		used;			/* it did wait */
} Patience;

/* The state of a row at this moment */
IdemState
IdemRowState(const IdemRow *row, TimestampTz now)
{
	if (IdemRowExpiresAt(row) <= now)
		return IDEM_ABSENT;
	if (IdemRowCompleted(row))
		return IDEM_COMPLETED;
	return IdemRowLeaseUntil(row) <= now ? IDEM_STALE : IDEM_IN_PROGRESS;
}

/* Open the table and look for the key in it */
static void
LookForKey(IdemTable *table, const IdemKeyRef *ref, IdemProbe *probe)
{
	IdemTableOpen(table, ref->nsp, ref->client, ref->key);
	IdemProbeKey(table, probe);
	IdemCheckVisible(table, probe);
}

/* ----------
 * Reserving
 * ----------
 */

static bool
SameBytes(const void *a, const void *b)
{
	return VARSIZE_ANY_EXHDR(a) == VARSIZE_ANY_EXHDR(b) &&
		memcmp(VARDATA_ANY(a), VARDATA_ANY(b), VARSIZE_ANY_EXHDR(a)) == 0;
}

/* A mark (idem_once) has no fingerprint and so differs from every request */
static bool
SameFingerprint(const IdemRow *row, bytea *fingerprint)
{
	return !row->isnull[IDEM_COL_FINGERPRINT] &&
		SameBytes(PG_DETOAST_DATUM_PACKED(row->values[IDEM_COL_FINGERPRINT]),
				  fingerprint);
}

static bool
SameToken(const IdemRow *row, const pg_uuid_t *token)
{
	return memcmp(IdemRowToken(row), token, UUID_LEN) == 0;
}

static Verdict
JudgeRow(const IdemRow *row, const IdemReserveArgs *args, TimestampTz now)
{
	IdemState	state = IdemRowState(row, now);

	if (state == IDEM_ABSENT)
		return VERDICT_EXPIRED;
	if (!SameFingerprint(row, args->fingerprint))
		return VERDICT_MISMATCH;
	if (state == IDEM_COMPLETED)
		return VERDICT_REPLAY;
	if (args->token != NULL && SameToken(row, args->token))
		return VERDICT_OWN;
	return state == IDEM_STALE ? VERDICT_STALE : VERDICT_LIVE;
}

/*
 * Judge what a probe found.  A row that would have to be changed, but that
 * somebody else is changing, is that rival's for now.
 */
static Verdict
Judge(const IdemProbe *probe, const IdemReserveArgs *args, TimestampTz now)
{
	Verdict		verdict;

	if (!probe->found)
		return TransactionIdIsValid(probe->inserter) ? VERDICT_RIVAL : VERDICT_ABSENT;

	verdict = JudgeRow(&probe->row, args, now);
	if (TransactionIdIsValid(probe->changer) &&
		(verdict == VERDICT_EXPIRED || verdict == VERDICT_OWN ||
		 verdict == VERDICT_STALE))
		return VERDICT_RIVAL;
	return verdict;
}

/*
 * A token nobody can guess or meet twice: a random (version 4) UUID.  Random
 * bytes are drawn for several at once, which costs hardly more than for one.
 */
static const pg_uuid_t *
DrawToken(void)
{
	static uint8 pool[TOKENS_PER_DRAW][UUID_LEN];
	static int	left = 0;
	pg_uuid_t  *token = palloc(sizeof(pg_uuid_t));

	if (left == 0)
	{
		if (!pg_strong_random(pool, sizeof(pool)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random values for a token")));
		left = TOKENS_PER_DRAW;
	}
	memcpy(token->data, pool[--left], UUID_LEN);
	token->data[6] = (token->data[6] & 0x0f) | 0x40;
	token->data[8] = (token->data[8] & 0x3f) | 0x80;
	return token;
}

/* The tokens of the row's earlier attempts, and room for one more */
static int
LostTokens(const IdemRow *row, Datum *tokens)
{
	ArrayType  *array;
	int			n;
	int			i;

	if (row->isnull[IDEM_COL_LOST_TOKENS])
		return 0;
	array = DatumGetArrayTypeP(row->values[IDEM_COL_LOST_TOKENS]);
	n = Min(ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)), MAX_LOST_TOKENS);
	for (i = 0; i < n; i++)
		tokens[i] = UUIDPGetDatum((pg_uuid_t *) (ARR_DATA_PTR(array) + i * UUID_LEN));
	return n;
}

/*
 * The token of the attempt that takes this row over: the one passed in, but
 * never one that an attempt on this key has lost already, or what is left of
 * that attempt could pass for this one.  The token of the attempt that loses
 * now is noted; when there is no room for it, no token passed in is taken any
 * more, since it cannot be told whether it was lost.
 */
static const pg_uuid_t *
TakeOver(IdemRow *row, const pg_uuid_t *wanted)
{
	Datum		tokens[MAX_LOST_TOKENS + 1];
	int			n = LostTokens(row, tokens);
	int			i;

	if (n == MAX_LOST_TOKENS)
		return DrawToken();
	tokens[n++] = UUIDPGetDatum(IdemRowToken(row));
	IdemRowSet(row, IDEM_COL_LOST_TOKENS,
			   PointerGetDatum(construct_array(tokens, n, UUIDOID, UUID_LEN,
											   false, TYPALIGN_CHAR)));
	for (i = 0; wanted != NULL && i < n; i++)
		if (memcmp(DatumGetUUIDP(tokens[i]), wanted, UUID_LEN) == 0)
			wanted = NULL;
	return wanted != NULL ? wanted : DrawToken();
}

/*
 * Let an attempt begin now: its token, its lease, and how long the key is
 * kept.  The lease never outlives the key.
 */
static void
BeginAttempt(IdemRow *row, const IdemReserveArgs *args, const pg_uuid_t *token,
			 int attempt, int64 retention, TimestampTz now)
{
	IdemRowSet(row, IDEM_COL_TOKEN, UUIDPGetDatum(token));
	IdemRowSet(row, IDEM_COL_ATTEMPT, Int32GetDatum(attempt));
	IdemRowSet(row, IDEM_COL_BEGAN_AT, TimestampTzGetDatum(now));
	IdemRowSet(row, IDEM_COL_EXPIRES_AT, TimestampTzGetDatum(now + retention));
	IdemRowSet(row, IDEM_COL_LEASE_UNTIL,
			   TimestampTzGetDatum(now + Min(args->lease, retention)));
	if (args->request != NULL)
		IdemRowSet(row, IDEM_COL_REQUEST, JsonbPGetDatum(args->request));
}

/* The row of a key's first attempt */
static void
FirstAttempt(IdemRow *row, const IdemReserveArgs *args, TimestampTz now)
{
	row->own = true;
	memset(row->values, 0, sizeof(row->values));
	memset(row->isnull, true, sizeof(row->isnull));
	IdemRowSet(row, IDEM_COL_CLIENT, PointerGetDatum(args->ref.client));
	IdemRowSet(row, IDEM_COL_KEY, PointerGetDatum(args->ref.key));
	IdemRowSet(row, IDEM_COL_FINGERPRINT, PointerGetDatum(args->fingerprint));
	IdemRowSet(row, IDEM_COL_CREATED_AT, TimestampTzGetDatum(now));
	BeginAttempt(row, args, args->token != NULL ? args->token : DrawToken(),
				 1, args->retention, now);
}

/*
 * When to retry: the rest of the lease in whole seconds, rounded up, so that
 * a client that waits for them does not come too early.  If the clock has been
 * set back since the attempt began, the rest is more than there ever was; then
 * it is the whole of it.
 */
static int64
RetryAfter(const IdemRow *row, TimestampTz now)
{
	int64		rest = IdemRowLeaseUntil(row) - Max(now, IdemRowBeganAt(row));

	return rest <= USECS_PER_SEC ? 1 : (rest + USECS_PER_SEC - 1) / USECS_PER_SEC;
}

/* Somebody else keeps us out for now; the seconds are when to come again */
static bool
AnswerInFlight(IdemReservation *reservation, int64 retry_after)
{
	reservation->outcome = IDEM_IN_FLIGHT;
	reservation->retry_after = retry_after;
	return true;
}

/* The row of the next attempt; the retention is what was granted to the first */
static void
NextAttempt(IdemRow *row, const IdemReserveArgs *args, TimestampTz now)
{
	BeginAttempt(row, args, TakeOver(row, args->token), IdemRowAttempt(row) + 1,
				 IdemRowExpiresAt(row) - IdemRowBeganAt(row), now);
}

/* There is no row: insert one, and let the unique index decide */
static TM_Result
ReserveAbsent(IdemTable *table, const IdemReserveArgs *args, IdemRow *row)
{
	FirstAttempt(row, args, GetCurrentTimestamp());
	if (!IdemRowInsert(table, row))
		return TM_Updated;
	IdemReminderTrack(args->ref.nsp, table->rel, row);
	return TM_Ok;
}

/* What a verdict makes of the row that it was given on */
typedef struct Rewrite
{
	Verdict		verdict;
	TimestampTz judged;
	const IdemReserveArgs *args;
} Rewrite;

static void
RewriteRow(IdemRow *row, void *arg)
{
	Rewrite    *rewrite = arg;
	TimestampTz now = Max(rewrite->judged, GetCurrentTimestamp());
	TimestampTz expires_at = IdemRowExpiresAt(row);

	/* it may have expired since it was judged */
	if (rewrite->verdict == VERDICT_EXPIRED || expires_at <= now)
		FirstAttempt(row, rewrite->args, now);
	else if (rewrite->verdict == VERDICT_STALE)
		NextAttempt(row, rewrite->args, now);
	else
		IdemRowSet(row, IDEM_COL_LEASE_UNTIL,
				   TimestampTzGetDatum(Min(now + rewrite->args->lease, expires_at)));
}

/*
 * The row becomes ours: an expired one is used again in place, a stale one is
 * taken over, our own gets its lease anew.  The latter has its reminder
 * already, unless it is this transaction that reserves it or the lease now
 * ends sooner.
 */
static TM_Result
ReserveRow(IdemTable *table, Rewrite *rewrite, const IdemRow *found, IdemRow *row)
{
	bool		own = found->own;
	TM_Result	result;

	*row = *found;
	result = IdemRowReplace(table, row, LockWaitSkip, RewriteRow, rewrite);
	if (result == TM_Ok &&
		(own || !SameToken(found, IdemRowToken(row)) ||
		 IdemRowLeaseUntil(row) < IdemRowLeaseUntil(found)))
		IdemReminderTrack(rewrite->args->ref.nsp, table->rel, row);
	return result;
}

/* Counted at its beginning, since a wait may end in an error */
static void
BeginToWait(Patience *patience)
{
	if (!patience->used)
		IdemCount(IDEM_COUNT_WAITS);
	patience->used = true;
}

/*
 * Another transaction has inserted the key, or is changing its row, and has
 * not ended: wait for it as long as we may, then look again.
 *
 * A row that is still speculative says nothing yet.  Its inserter decides
 * within microseconds, and answering in_flight now might leave all callers
 * with in_flight and nobody with the key.
 */
static bool
MeetRival(Patience *patience, const IdemProbe *probe, TimestampTz now,
		  IdemReservation *reservation)
{
	TransactionId rival = probe->found ? probe->changer : probe->inserter;

	if (!probe->found && probe->speculative != 0)
	{
		SpeculativeInsertionWait(probe->inserter, probe->speculative);
		return false;
	}
	if (now >= patience->deadline)
		return AnswerInFlight(reservation, 1);
	BeginToWait(patience);
	IdemWaitForTransaction(rival, patience->since, patience->deadline);
	return false;
}

/*
 * A committed lease runs: wait for its end as long as we may.  Where its
 * answer is being stored right now, we are woken by that very commit.  The
 * own transaction's row is never waited for: nobody else could end it.
 */
static bool
MeetLease(Patience *patience, const IdemProbe *probe, TimestampTz now,
		  IdemReservation *reservation)
{
	TimestampTz until = IdemRowLeaseUntil(&probe->row);

	if (now >= patience->deadline || probe->row.own)
		return AnswerInFlight(reservation, RetryAfter(&probe->row, now));
	BeginToWait(patience);
	if (TransactionIdIsValid(probe->changer))
		IdemWaitForTransaction(probe->changer, patience->since,
							   patience->deadline);
	else
		IdemPause(now - patience->since, Min(until, patience->deadline));
	return false;
}

/*
 * Somebody holds the version that we wanted to change: a change that began
 * just now, or a mere locker, whom no probe shows.
 */
static bool
MeetLocker(Patience *patience, TimestampTz now, IdemReservation *reservation)
{
	if (now >= patience->deadline)
		return AnswerInFlight(reservation, 1);
	BeginToWait(patience);
	IdemPause(now - patience->since, patience->deadline);
	return false;
}

/* Count what a reservation was told */
static void
CountReservation(const IdemReservation *reservation, Verdict verdict)
{
	switch (reservation->outcome)
	{
		case IDEM_NEW:
			if (verdict == VERDICT_OWN)
				IdemCount(IDEM_COUNT_REPEATED);
			else
				IdemCount(IdemRowAttempt(&reservation->row) == 1 ?
						  IDEM_COUNT_RESERVED : IDEM_COUNT_TAKEN_OVER);
			break;
		case IDEM_IN_FLIGHT:
			IdemCount(IDEM_COUNT_IN_FLIGHT);
			break;
		case IDEM_REPLAY:
			IdemCount(IDEM_COUNT_REPLAY);
			break;
		case IDEM_MISMATCH:
			IdemCount(IDEM_COUNT_MISMATCH);
			break;
	}
}

/* Does this verdict make the key the caller's? */
static bool
Entitles(Verdict verdict)
{
	return verdict == VERDICT_ABSENT || verdict == VERDICT_EXPIRED ||
		verdict == VERDICT_OWN || verdict == VERDICT_STALE;
}

/*
 * One attempt to reserve; false: things have moved, look again.  Whatever
 * waits does so after the table is closed.
 */
static bool
ReserveOnce(const IdemReserveArgs *args, Patience *patience,
			IdemProbe *probe, Verdict *verdict,
			IdemReservation *reservation)
{
	Rewrite		rewrite = {.judged = GetCurrentTimestamp(), .args = args};
	TM_Result	result = TM_Ok;
	IdemTable	table;

	LookForKey(&table, &args->ref, probe);
	*verdict = rewrite.verdict = Judge(probe, args, rewrite.judged);
	if (Entitles(*verdict))
	{
		if (!IdemTableLockForWriting(&table, "idem_reserve()"))
			return false;
		result = *verdict == VERDICT_ABSENT ?
			ReserveAbsent(&table, args, &reservation->row) :
			ReserveRow(&table, &rewrite, &probe->row, &reservation->row);
	}
	IdemTableClose(&table);

	switch (*verdict)
	{
		case VERDICT_ABSENT:
		case VERDICT_EXPIRED:
		case VERDICT_OWN:
		case VERDICT_STALE:
			reservation->outcome = IDEM_NEW;
			if (result == TM_WouldBlock)
				return MeetLocker(patience, rewrite.judged, reservation);
			return result == TM_Ok;
		case VERDICT_MISMATCH:
			reservation->outcome = IDEM_MISMATCH;
			return true;
		case VERDICT_REPLAY:
			reservation->outcome = IDEM_REPLAY;
			reservation->row = probe->row;
			return true;
		case VERDICT_RIVAL:
			return MeetRival(patience, probe, rewrite.judged, reservation);
		case VERDICT_LIVE:
			return MeetLease(patience, probe, rewrite.judged, reservation);
	}
	pg_unreachable();
}

/*
 * Reserve the key, or say why not.  Retries are without bound, since each
 * means that somebody else got something done.
 */
void
IdemStoreReserve(const IdemReserveArgs *args, IdemReservation *reservation)
{
	Patience	patience = {.since = GetCurrentTimestamp()};
	Verdict		verdict;
	IdemProbe	probe;

	patience.deadline = patience.since + args->wait;
	while (!ReserveOnce(args, &patience, &probe, &verdict, reservation))
	{
		IdemProbeFree(&probe);
		CHECK_FOR_INTERRUPTS();
	}
	CountReservation(reservation, verdict);
	if (patience.used)
		IdemCountBy(IDEM_COUNT_WAIT_TIME,
					Max(GetCurrentTimestamp() - patience.since, 0));
}

/* ----------
 * What the owner of a key may do
 * ----------
 */

static char *
KeyName(const IdemKeyRef *ref)
{
	return text_to_cstring(ref->key);
}

static void
NotReserved(const IdemKeyRef *ref)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_NOT_RESERVED),
			 errmsg("key \"%s\" is not reserved", KeyName(ref)),
			 errdetail("It was never reserved, it was released, or its retention has passed."),
			 errhint("Roll back and call idem_reserve again.")));
}

/* The row must be live and held under this token: else ID002 or ID001 */
static void
CheckOwner(const IdemKeyRef *ref, const IdemProbe *probe,
		   const pg_uuid_t *token, TimestampTz now)
{
	if (!probe->found || IdemRowState(&probe->row, now) == IDEM_ABSENT)
		NotReserved(ref);
	if (!SameToken(&probe->row, token))
	{
		IdemCount(IDEM_COUNT_LEASE_LOST);
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_LEASE_LOST),
				 errmsg("the lease on key \"%s\" was lost", KeyName(ref)),
				 errdetail("Another attempt holds the key or has completed it."),
				 errhint("Roll back; idem_reserve tells what became of the key.")));
	}
}

static void
AlreadyCompleted(const IdemKeyRef *ref)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_ALREADY_COMPLETED),
			 errmsg("key \"%s\" is completed already", KeyName(ref)),
			 errdetail("The answer stored first is kept until its retention has passed."),
			 errhint("Roll back; idem_reserve returns the stored answer.")));
}

/*
 * Is the column, which may be toasted, equal byte for byte to this value?
 * NULL equals NULL only.
 */
static bool
SameColumn(const IdemRow *row, IdemColumn col, const void *value)
{
	if (row->isnull[col] || value == NULL)
		return row->isnull[col] && value == NULL;
	return SameBytes(PG_DETOAST_DATUM_PACKED(row->values[col]), value);
}

static bool
SameAnswer(const IdemRow *row, const IdemAnswer *answer)
{
	return DatumGetInt32(row->values[IDEM_COL_STATUS_CODE]) == answer->status_code &&
		SameColumn(row, IDEM_COL_HEADERS, answer->headers) &&
		SameColumn(row, IDEM_COL_BODY, answer->body);
}

static void
SetOrNull(IdemRow *row, IdemColumn col, const void *value)
{
	if (value != NULL)
		IdemRowSet(row, col, PointerGetDatum(value));
	else
		IdemRowSetNull(row, col);
}

/*
 * Look for a key that the caller says is its own, and check that.
 *
 * Where the reservation was made by this transaction, as in the way of use
 * that needs one only, its row is known to be where it was written.
 */
static void
LookForOwnKey(IdemTable *table, const IdemKeyRef *ref, const pg_uuid_t *token,
			  IdemProbe *probe)
{
	TimestampTz now = GetCurrentTimestamp();
	ItemPointerData tid;

	IdemTableOpen(table, ref->nsp, ref->client, ref->key);
	if (!IdemReminderPlace(ref->nsp, table->rel, token, &tid) ||
		!IdemProbePlace(table, &tid, probe))
	{
		IdemProbeKey(table, probe);
		IdemCheckVisible(table, probe);
	}
	CheckOwner(ref, probe, token, now);
}

/*
 * A wait for an unfinished change may have taken us past the key's retention,
 * where it is absent to everybody else: then the error undoes ours.
 */
static void
CheckStillKept(const IdemKeyRef *ref, const IdemRow *row)
{
	if (IdemRowExpiresAt(row) <= GetCurrentTimestamp())
		NotReserved(ref);
}

/* One attempt to complete; false: things have moved, look again */
static bool
CompleteOnce(const IdemKeyRef *ref, const pg_uuid_t *token,
			 const IdemAnswer *answer, IdemProbe *probe)
{
	IdemRow    *row = &probe->row;
	ItemPointerData judged;
	IdemTable	table;
	bool		done = true;
	bool		stored = false;

	LookForOwnKey(&table, ref, token, probe);
	judged = row->tid;
	if (!IdemRowCompleted(row))
	{
		if (!IdemTableLockForWriting(&table, "idem_complete()"))
			return false;
		IdemRowSet(row, IDEM_COL_COMPLETED_AT,
				   TimestampTzGetDatum(GetCurrentTimestamp()));
		IdemRowSet(row, IDEM_COL_STATUS_CODE, Int32GetDatum(answer->status_code));
		SetOrNull(row, IDEM_COL_HEADERS, answer->headers);
		SetOrNull(row, IDEM_COL_BODY, answer->body);
		IdemRowSetNull(row, IDEM_COL_LOST_TOKENS);
		done = stored = IdemRowUpdate(&table, row);
		if (done)
		{
			IdemRowPrunePage(&table, row);
			IdemReminderDone(table.rel, &judged);
		}
	}
	else if (!SameAnswer(row, answer))
		AlreadyCompleted(ref);
	IdemTableClose(&table);
	if (done)
		CheckStillKept(ref, row);
	if (stored)
		IdemCount(IDEM_COUNT_COMPLETED);
	return done;
}

/*
 * Keep the answer.  A lease that is over is still the owner's while nobody
 * took the key over.  The same answer again is a success, since the reply to
 * the first call may have been lost.
 */
void
IdemStoreComplete(const IdemKeyRef *ref, const pg_uuid_t *token,
				  const IdemAnswer *answer)
{
	IdemProbe	probe;

	while (!CompleteOnce(ref, token, answer, &probe))
	{
		IdemProbeFree(&probe);
		CHECK_FOR_INTERRUPTS();
	}
	IdemProbeFree(&probe);
}

/* One attempt to release; false: things have moved, look again */
static bool
ReleaseOnce(const IdemKeyRef *ref, const pg_uuid_t *token, IdemProbe *probe)
{
	IdemTable	table;
	bool		deleted;

	LookForOwnKey(&table, ref, token, probe);
	if (IdemRowCompleted(&probe->row))
		AlreadyCompleted(ref);

	if (!IdemTableLockForWriting(&table, "idem_release()"))
		return false;
	deleted = IdemRowDelete(&table, &probe->row.tid);
	if (deleted)
		IdemReminderDone(table.rel, &probe->row.tid);
	IdemTableClose(&table);
	return deleted;
}

/* Give the key up without an answer: it is absent again */
void
IdemStoreRelease(const IdemKeyRef *ref, const pg_uuid_t *token)
{
	IdemProbe	probe;

	while (!ReleaseOnce(ref, token, &probe))
	{
		IdemProbeFree(&probe);
		CHECK_FOR_INTERRUPTS();
	}
	IdemCount(IDEM_COUNT_RELEASED);
	IdemProbeFree(&probe);
}

/* What the owner's change makes of the row, once nobody holds it */
static void
ChangeRow(IdemRow *row, void *arg)
{
	const IdemChange *change = arg;

	if (change->lease > 0)
		IdemRowSet(row, IDEM_COL_LEASE_UNTIL,
				   TimestampTzGetDatum(Min(GetCurrentTimestamp() + change->lease,
										   IdemRowExpiresAt(row))));
	if (change->recovery_point != NULL)
	{
		SetOrNull(row, IDEM_COL_RECOVERY_POINT, change->recovery_point);
		SetOrNull(row, IDEM_COL_RECOVERY_DATA, change->recovery_data);
	}
}

/*
 * One attempt to change a key in progress; false: things have moved, look
 * again.  A row that this transaction wrote has to be tracked in its new
 * place, and a lease that ends sooner needs a reminder that comes sooner.
 */
static bool
ChangeOnce(const IdemKeyRef *ref, const pg_uuid_t *token,
		   const IdemChange *change, IdemProbe *probe)
{
	IdemRow    *row = &probe->row;
	TimestampTz lease_until;
	IdemTable	table;
	bool		changed;

	LookForOwnKey(&table, ref, token, probe);
	if (IdemRowCompleted(row))
		AlreadyCompleted(ref);
	if (!IdemTableLockForWriting(&table, change->command))
		return false;

	lease_until = IdemRowLeaseUntil(row);
	changed = IdemRowReplace(&table, row, LockWaitBlock, ChangeRow,
							 unconstify(IdemChange *, change)) == TM_Ok;
	if (changed && (row->own || IdemRowLeaseUntil(row) < lease_until))
		IdemReminderTrack(ref->nsp, table.rel, row);
	IdemTableClose(&table);
	if (changed)
		CheckStillKept(ref, row);
	return changed;
}

/*
 * Renew the lease of a key in progress, or record how far its work has come.
 * Returns the end of the lease.
 */
TimestampTz
IdemStoreChange(const IdemKeyRef *ref, const pg_uuid_t *token,
				const IdemChange *change)
{
	IdemProbe	probe;
	TimestampTz lease_until;

	while (!ChangeOnce(ref, token, change, &probe))
	{
		IdemProbeFree(&probe);
		CHECK_FOR_INTERRUPTS();
	}
	IdemCount(change->recovery_point != NULL ? IDEM_COUNT_CHECKPOINTS :
			  IDEM_COUNT_RENEWED);
	lease_until = IdemRowLeaseUntil(&probe.row);
	IdemProbeFree(&probe);
	return lease_until;
}

/* ----------
 * Recovering
 * ----------
 */

/* The row of a claim: the next attempt, with the retention that was granted */
static void
ClaimRow(IdemRow *row, void *arg)
{
	Rewrite    *rewrite = arg;

	NextAttempt(row, rewrite->args, Max(rewrite->judged, GetCurrentTimestamp()));
}

/* One attempt to claim; TM_Updated: things have moved, look again */
static TM_Result
ClaimOnce(const IdemKeyRef *ref, const pg_uuid_t *token, Rewrite *rewrite,
		  IdemRow *row)
{
	TM_Result	result = TM_WouldBlock;
	IdemTable	table;
	IdemProbe	probe;

	rewrite->judged = GetCurrentTimestamp();
	LookForKey(&table, ref, &probe);
	if (probe.found && !TransactionIdIsValid(probe.changer) &&
		IdemRowState(&probe.row, rewrite->judged) == IDEM_STALE &&
		SameToken(&probe.row, token))
	{
		if (!IdemTableLockForWriting(&table, "idem_claim_stale()"))
			return TM_Updated;
		*row = probe.row;
		result = IdemRowReplace(&table, row, LockWaitSkip, ClaimRow, rewrite);
		if (result == TM_Ok)
			IdemReminderTrack(ref->nsp, table.rel, row);
	}
	IdemTableClose(&table);
	return result;
}

/*
 * Take over a key whose lease under `token` is over, for whoever recovers it;
 * pass over it when it is not stale any more or somebody else is at it.  The
 * retention is what was granted, the request and the recovery point stay.
 */
bool
IdemStoreClaim(const IdemKeyRef *ref, const pg_uuid_t *token, int64 lease,
			   IdemRow *row)
{
	IdemReserveArgs args = {.ref = *ref, .lease = lease};
	Rewrite		rewrite = {.verdict = VERDICT_STALE, .args = &args};
	TM_Result	result;

	while ((result = ClaimOnce(ref, token, &rewrite, row)) == TM_Updated)
		CHECK_FOR_INTERRUPTS();
	if (result == TM_Ok)
		IdemCount(IDEM_COUNT_CLAIMED);
	return result == TM_Ok;
}

/* ----------
 * Marking
 * ----------
 */

/* A mark in the making */
typedef struct Mark
{
	const IdemKeyRef *ref;
	int64		retention;
} Mark;

/*
 * The row of a mark: completed from the start, without a fingerprint, and so
 * a mismatch to every reservation.  Nobody can own it, so its token is nil.
 */
static void
MarkRow(IdemRow *row, void *arg)
{
	static const pg_uuid_t nil = {{0}};
	const Mark *mark = arg;
	TimestampTz now = GetCurrentTimestamp();
	IdemReserveArgs args = {.ref = *mark->ref, .token = &nil,
		.retention = mark->retention};

	FirstAttempt(row, &args, now);
	IdemRowSetNull(row, IDEM_COL_FINGERPRINT);
	IdemRowSet(row, IDEM_COL_COMPLETED_AT, TimestampTzGetDatum(now));
}

/* Put the mark where there is no row, or an expired one; false: look again */
static bool
WriteMark(IdemTable *table, const IdemKeyRef *ref, int64 retention,
		  IdemProbe *probe)
{
	Mark		mark = {.ref = ref, .retention = retention};
	IdemRow		row;

	if (probe->found)
		return IdemRowReplace(table, &probe->row, LockWaitBlock, MarkRow,
							  &mark) == TM_Ok;
	MarkRow(&row, &mark);
	return IdemRowInsert(table, &row);
}

/* The transaction that inserts the key has not ended: wait, as an INSERT does */
static void
WaitForInserter(const IdemProbe *probe)
{
	if (probe->speculative != 0)
		SpeculativeInsertionWait(probe->inserter, probe->speculative);
	else
		XactLockTableWait(probe->inserter, NULL, NULL, XLTW_None);
}

/* One attempt to mark; false: things have moved, look again */
static bool
MarkOnce(const IdemKeyRef *ref, int64 retention, IdemProbe *probe, bool *first)
{
	TimestampTz now = GetCurrentTimestamp();
	IdemTable	table;
	bool		rival;
	bool		written = false;

	LookForKey(&table, ref, probe);
	rival = !probe->found && TransactionIdIsValid(probe->inserter);
	*first = !probe->found || IdemRowState(&probe->row, now) == IDEM_ABSENT;
	if (!*first && !probe->row.isnull[IDEM_COL_FINGERPRINT])
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("key \"%s\" is reserved, not a mark", KeyName(ref)),
				 errhint("Marks share the names of keys: use another client or another prefix for them.")));
	if (*first)
		PreventCommandIfReadOnly("idem_once()");
	if (*first && !rival)
	{
		if (!IdemTableLockForWriting(&table, "idem_once()"))
			return false;
		written = WriteMark(&table, ref, retention, probe);
	}
	IdemTableClose(&table);

	if (rival)
		WaitForInserter(probe);
	return written || !*first;
}

/*
 * Mark the key as seen.  Returns whether this was the first time.  Waits for
 * a rival that has not ended: a message must not be taken for handled because
 * of a transaction that then rolls back.
 */
bool
IdemStoreMark(const IdemKeyRef *ref, int64 retention)
{
	IdemProbe	probe;
	bool		first;

	while (!MarkOnce(ref, retention, &probe, &first))
	{
		IdemProbeFree(&probe);
		CHECK_FOR_INTERRUPTS();
	}
	IdemProbeFree(&probe);
	IdemCount(first ? IDEM_COUNT_ONCE_FIRST : IDEM_COUNT_ONCE_SEEN);
	return first;
}

/* ----------
 * Forgetting
 * ----------
 */

/*
 * Remove what a snapshot taken now sees of the key, or of the client's keys.
 * Returns whether some of it had changed in the meantime.
 */
static bool
ForgetOnce(IdemTable *table, int nkeys, int64 *forgotten)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TupleTableSlot *slot = table_slot_create(table->rel, NULL);
	IndexScanDesc scan;
	bool		changed = false;

	IdemTableOpenKey(table);
	scan = IdemIndexBeginScan(table->rel, table->pk, snapshot, nkeys);
	index_rescan(scan, table->scankeys, nkeys, NULL, 0);
	while (index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		CHECK_FOR_INTERRUPTS();
		if (IdemRowDelete(table, &slot->tts_tid))
			(*forgotten)++;
		else
			changed = true;
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	return changed;
}

/*
 * Remove a key, or with key NULL all of the client's, whatever their state
 * and whoever owns them.  Waits for unfinished changes, as a DELETE does, and
 * follows what they leave.  Returns how many there were.
 */
int64
IdemStoreForget(const IdemKeyRef *ref)
{
	int64		forgotten = 0;
	IdemTable	table;

	do
		IdemTableOpen(&table, ref->nsp, ref->client, ref->key);
	while (!IdemTableLockForWriting(&table, "idem_forget()"));
	while (ForgetOnce(&table, ref->key == NULL ? 1 : 2, &forgotten))
		CHECK_FOR_INTERRUPTS();
	IdemTableClose(&table);
	IdemCountBy(IDEM_COUNT_FORGOTTEN, forgotten);
	return forgotten;
}

/* ----------
 * Reading
 * ----------
 */

/*
 * What a reservation with this fingerprint (NULL: that of the row) would be
 * told now, judged like one but changing nothing.
 */
void
IdemStoreForesee(const IdemKeyRef *ref, bytea *fingerprint,
				 IdemForecast *forecast)
{
	IdemReserveArgs args = {.ref = *ref, .fingerprint = fingerprint};
	TimestampTz now = GetCurrentTimestamp();
	IdemRow    *row = &forecast->probe.row;
	IdemTable	table;

	LookForKey(&table, ref, &forecast->probe);
	IdemTableClose(&table);
	if (fingerprint == NULL && forecast->probe.found &&
		!row->isnull[IDEM_COL_FINGERPRINT])
		args.fingerprint = DatumGetByteaPP(row->values[IDEM_COL_FINGERPRINT]);

	forecast->outcome = IDEM_NEW;
	forecast->attempt = 1;
	forecast->retry_after = 1;
	switch (Judge(&forecast->probe, &args, now))
	{
		case VERDICT_ABSENT:
		case VERDICT_EXPIRED:
		case VERDICT_OWN:
			break;
		case VERDICT_STALE:
			forecast->attempt = IdemRowAttempt(row) + 1;
			break;
		case VERDICT_RIVAL:
			forecast->outcome = IDEM_IN_FLIGHT;
			break;
		case VERDICT_LIVE:
			forecast->outcome = IDEM_IN_FLIGHT;
			forecast->retry_after = RetryAfter(row, now);
			break;
		case VERDICT_MISMATCH:
			forecast->outcome = IDEM_MISMATCH;
			break;
		case VERDICT_REPLAY:
			forecast->outcome = IDEM_REPLAY;
			break;
	}
}

/*
 * The row as a SELECT would see it now; reads only, and never waits.  False:
 * there is none.
 */
bool
IdemStoreRead(const IdemKeyRef *ref, IdemRow *row)
{
	IdemTable	table;
	Snapshot	snapshot = RegisterSnapshot(GetTransactionSnapshot());
	bool		found;

	IdemTableOpen(&table, ref->nsp, ref->client, ref->key);
	found = IdemReadKey(&table, snapshot, row);
	IdemTableClose(&table);
	UnregisterSnapshot(snapshot);
	return found;
}
