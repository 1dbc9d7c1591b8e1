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
 * index while probing, given back at once; RowExclusiveLock on the table,
 * kept until the transaction ends, and on its indexes for the moment of the
 * change; the speculative insertion lock for the moment of an insertion; the
 * lock of the row version.  idem_reserve waits for none of these but as long
 * as its argument `wait` says, and then holds no lock of the failed attempt
 * that could be in anybody's way.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "compat.h"
#include "miscadmin.h"
#include "reminder.h"
#include "storage/lmgr.h"
#include "store.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/* How a reservation sees the row of its key, in the order of judging */
typedef enum Verdict
{
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

/* ----------
 * Changing rows
 * ----------
 */

/*
 * Insert the row unless the unique index has an entry for its key that may
 * count.  Nobody is waited for: check and insertion happen under one lock of
 * the index page, so that of several callers exactly one is told "unique".
 * The others withdraw their row before anybody could wait for it.
 */
static bool
InsertRow(IdemTable *table, IdemRow *row)
{
	TransactionId xid = GetCurrentTransactionId();
	TupleTableSlot *slot = IdemRowSlot(table, row);
	List	   *arbiters = list_make1_oid(RelationGetRelid(table->pk));
	bool		conflict = false;
	uint32		token = SpeculativeInsertionLockAcquire(xid);

	table_tuple_insert_speculative(table->rel, slot, GetCurrentCommandId(true),
								   0, NULL, token);
	(void) IdemInsertIndexTuples(table->writer, slot, table->estate, true,
								 &conflict, arbiters, false);
	table_tuple_complete_speculative(table->rel, slot, token, !conflict);
	SpeculativeInsertionLockRelease(xid);
	CommandCounterIncrement();

	row->tid = slot->tts_tid;
	ExecDropSingleTupleTableSlot(slot);
	return !conflict;
}

/*
 * Replace the version at row->tid, which was judged, by the row as it is now.
 * Like any UPDATE this waits for an unfinished change by somebody else.
 * Returns false when that version is no longer the newest one.
 */
static bool
UpdateRow(IdemTable *table, IdemRow *row)
{
	TupleTableSlot *slot = IdemRowSlot(table, row);
	TM_FailureData failure;
	LockTupleMode lockmode;
	TU_UpdateIndexes indexes;
	TM_Result	result;

	result = table_tuple_update(table->rel, &row->tid, slot,
								GetCurrentCommandId(true), InvalidSnapshot,
								InvalidSnapshot, true, &failure, &lockmode,
								&indexes);
	if (result == TM_Ok)
	{
		if (IDEM_UPDATES_INDEXES(indexes))
			(void) IdemInsertIndexTuples(table->writer, slot, table->estate,
										 false, NULL, NIL,
										 IDEM_ONLY_SUMMARIZING(indexes));
		CommandCounterIncrement();
		row->tid = slot->tts_tid;
	}
	ExecDropSingleTupleTableSlot(slot);
	return result == TM_Ok;
}

/*
 * Lock the version at row->tid without waiting.  TM_Ok: it is still the
 * newest, and stays so until we have changed it.
 */
static TM_Result
LockRow(IdemTable *table, IdemRow *row)
{
	TupleTableSlot *slot = table_slot_create(table->rel, NULL);
	TM_FailureData failure;
	TM_Result	result;

	result = table_tuple_lock(table->rel, &row->tid, SnapshotAny, slot,
							  GetCurrentCommandId(true),
							  LockTupleNoKeyExclusive, LockWaitSkip, 0,
							  &failure);
	ExecDropSingleTupleTableSlot(slot);
	return result;
}

/* Probe the key, holding locks on the table no longer than that */
static void
LookForKey(const IdemKeyRef *ref, IdemProbe *probe)
{
	IdemTable	table;

	IdemTableOpen(&table, ref->nsp, ref->client, ref->key, AccessShareLock);
	IdemProbeKey(&table, probe);
	IdemCheckVisible(&table, probe);
	IdemTableClose(&table);
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
		SameBytes(DatumGetPointer(row->values[IDEM_COL_FINGERPRINT]), fingerprint);
}

static bool
SameToken(const IdemRow *row, const pg_uuid_t *token)
{
	return memcmp(IdemRowToken(row), token, UUID_LEN) == 0;
}

static Verdict
Judge(const IdemRow *row, const IdemReserveArgs *args, TimestampTz now)
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

/* A token nobody can guess or meet twice: a random (version 4) UUID */
static const pg_uuid_t *
DrawToken(void)
{
	pg_uuid_t  *token = palloc(sizeof(pg_uuid_t));

	if (!pg_strong_random(token, UUID_LEN))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random values for a token")));
	token->data[6] = (token->data[6] & 0x0f) | 0x40;
	token->data[8] = (token->data[8] & 0x3f) | 0x80;
	return token;
}

/*
 * Let an attempt begin now: its token, its lease, and how long the key is
 * kept.  The lease never outlives the key.
 */
static void
BeginAttempt(IdemRow *row, const IdemReserveArgs *args, int attempt,
			 int64 retention, TimestampTz now)
{
	const pg_uuid_t *token = args->token != NULL ? args->token : DrawToken();

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
	BeginAttempt(row, args, 1, args->retention, now);
}

/*
 * Somebody else's row keeps us out for now.  The seconds are rounded up, so
 * that a client that waits for them does not come too early.
 */
static bool
AnswerInFlight(IdemReservation *reservation, TimestampTz until, TimestampTz now)
{
	int64		rest = until - now;

	reservation->outcome = IDEM_IN_FLIGHT;
	reservation->retry_after = rest <= USECS_PER_SEC ? 1 :
		(rest + USECS_PER_SEC - 1) / USECS_PER_SEC;
	return true;
}

/* There is no row: insert one, and let the unique index decide */
static bool
ReserveAbsent(const IdemReserveArgs *args, IdemReservation *reservation)
{
	IdemRow    *row = &reservation->row;
	IdemTable	table;
	bool		inserted;

	PreventCommandIfReadOnly("idem_reserve()");
	IdemTableOpen(&table, args->ref.nsp, args->ref.client, args->ref.key,
				  RowExclusiveLock);
	FirstAttempt(row, args, GetCurrentTimestamp());
	inserted = InsertRow(&table, row);
	IdemTableClose(&table);
	if (!inserted)
		return false;

	IdemReminderTrack(args->ref.nsp, &row->tid, IdemRowToken(row));
	reservation->outcome = IDEM_NEW;
	return true;
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
MeetRival(const Patience *patience, const IdemProbe *probe, TimestampTz now,
		  IdemReservation *reservation)
{
	TransactionId rival = probe->found ? probe->changer : probe->inserter;

	if (!probe->found && probe->speculative != 0)
	{
		SpeculativeInsertionWait(probe->inserter, probe->speculative);
		return false;
	}
	if (now >= patience->deadline)
		return AnswerInFlight(reservation, now, now);
	(void) IdemWaitForTransaction(rival, patience->deadline);
	return false;
}

/*
 * A committed lease runs: wait for its end as long as we may.  Where its
 * answer is being stored right now, we are woken by that very commit.  The
 * own transaction's row is never waited for: nobody else could end it.
 */
static bool
MeetLease(const Patience *patience, const IdemProbe *probe, TimestampTz now,
		  IdemReservation *reservation)
{
	TimestampTz until = IdemRowLeaseUntil(&probe->row);

	if (now >= patience->deadline || probe->row.own)
		return AnswerInFlight(reservation, until, now);
	if (TransactionIdIsValid(probe->changer))
		(void) IdemWaitForTransaction(probe->changer, patience->deadline);
	else
		IdemPause(now - patience->since, Min(until, patience->deadline));
	return false;
}

/* Write into the judged row what the verdict makes of it */
static void
RewriteRow(Verdict verdict, const IdemReserveArgs *args, IdemRow *row,
		   TimestampTz now)
{
	TimestampTz expires_at = IdemRowExpiresAt(row);

	/* it may have expired since it was judged */
	if (verdict == VERDICT_EXPIRED || expires_at <= now)
		FirstAttempt(row, args, now);
	else if (verdict == VERDICT_STALE)
		BeginAttempt(row, args, IdemRowAttempt(row) + 1,
					 expires_at - IdemRowBeganAt(row), now);
	else
		IdemRowSet(row, IDEM_COL_LEASE_UNTIL,
				   TimestampTzGetDatum(Min(now + args->lease, expires_at)));
}

/*
 * The row becomes ours: an expired one is used again in place, a stale one is
 * taken over, our own gets its lease anew.
 *
 * The version is locked first, without waiting, since an update would wait
 * for whoever holds it.  It cannot happen that we lock it and are not
 * entitled: what was judged is the version that was locked.
 */
static bool
ReserveRow(Verdict verdict, const IdemReserveArgs *args,
		   const Patience *patience, IdemProbe *probe, TimestampTz judged,
		   IdemReservation *reservation)
{
	IdemRow    *row = &reservation->row;
	IdemTable	table;
	TM_Result	result;

	PreventCommandIfReadOnly("idem_reserve()");
	*row = probe->row;
	IdemTableOpen(&table, args->ref.nsp, args->ref.client, args->ref.key,
				  RowExclusiveLock);
	result = LockRow(&table, row);
	if (result == TM_Ok)
	{
		RewriteRow(verdict, args, row, Max(judged, GetCurrentTimestamp()));
		if (!UpdateRow(&table, row))
			elog(ERROR, "row version of a key was changed under its lock");
	}
	IdemTableClose(&table);

	if (result == TM_WouldBlock)
	{
		/* a change that began just now, or a mere locker */
		if (judged >= patience->deadline)
			return AnswerInFlight(reservation, judged, judged);
		IdemPause(judged - patience->since, patience->deadline);
	}
	if (result != TM_Ok)
		return false;

	if (verdict != VERDICT_OWN || row->own ||
		IdemRowLeaseUntil(row) < IdemRowLeaseUntil(&probe->row))
		IdemReminderTrack(args->ref.nsp, &row->tid, IdemRowToken(row));
	reservation->outcome = IDEM_NEW;
	return true;
}

/* One attempt to reserve; false: things have moved, look again */
static bool
ReserveOnce(const IdemReserveArgs *args, const Patience *patience,
			IdemProbe *probe, IdemReservation *reservation)
{
	TimestampTz now = GetCurrentTimestamp();
	Verdict		verdict;

	LookForKey(&args->ref, probe);
	if (!probe->found)
	{
		if (TransactionIdIsValid(probe->inserter))
			return MeetRival(patience, probe, now, reservation);
		return ReserveAbsent(args, reservation);
	}

	verdict = Judge(&probe->row, args, now);
	switch (verdict)
	{
		case VERDICT_MISMATCH:
			reservation->outcome = IDEM_MISMATCH;
			return true;
		case VERDICT_REPLAY:
			reservation->outcome = IDEM_REPLAY;
			reservation->row = probe->row;
			return true;
		case VERDICT_LIVE:
			return MeetLease(patience, probe, now, reservation);
		case VERDICT_EXPIRED:
		case VERDICT_OWN:
		case VERDICT_STALE:
			if (TransactionIdIsValid(probe->changer))
				return MeetRival(patience, probe, now, reservation);
			return ReserveRow(verdict, args, patience, probe, now, reservation);
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
	Patience	patience;
	IdemProbe	probe;

	patience.since = GetCurrentTimestamp();
	patience.deadline = patience.since + args->wait;
	while (!ReserveOnce(args, &patience, &probe, reservation))
	{
		IdemProbeFree(&probe);
		CHECK_FOR_INTERRUPTS();
	}
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
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_LEASE_LOST),
				 errmsg("the lease on key \"%s\" was lost", KeyName(ref)),
				 errdetail("Another attempt holds the key or has completed it."),
				 errhint("Roll back; idem_reserve tells what became of the key.")));
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
 * Store the owner's change.  Returns false when the version that was judged
 * is not the newest any more.
 *
 * The wait for an unfinished change may have taken us past the key's
 * retention, where it is absent to everybody else; the error undoes the
 * update.
 */
static bool
StoreOwned(const IdemKeyRef *ref, IdemRow *row, const char *command)
{
	IdemTable	table;
	bool		updated;

	PreventCommandIfReadOnly(command);
	IdemTableOpen(&table, ref->nsp, ref->client, ref->key, RowExclusiveLock);
	updated = UpdateRow(&table, row);
	IdemTableClose(&table);
	if (updated && IdemRowExpiresAt(row) <= GetCurrentTimestamp())
		NotReserved(ref);
	return updated;
}

/* One attempt to complete; false: things have moved, look again */
static bool
CompleteOnce(const IdemKeyRef *ref, const pg_uuid_t *token,
			 const IdemAnswer *answer, IdemProbe *probe)
{
	TimestampTz now = GetCurrentTimestamp();
	IdemRow    *row = &probe->row;

	LookForKey(ref, probe);
	CheckOwner(ref, probe, token, now);
	if (IdemRowCompleted(row))
	{
		if (!SameAnswer(row, answer))
			AlreadyCompleted(ref);
		return true;
	}

	IdemRowSet(row, IDEM_COL_COMPLETED_AT, TimestampTzGetDatum(now));
	IdemRowSet(row, IDEM_COL_STATUS_CODE, Int32GetDatum(answer->status_code));
	SetOrNull(row, IDEM_COL_HEADERS, answer->headers);
	SetOrNull(row, IDEM_COL_BODY, answer->body);
	if (!StoreOwned(ref, row, "idem_complete()"))
		return false;
	IdemReminderDone(token);
	return true;
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
	TimestampTz now = GetCurrentTimestamp();
	IdemRow    *row = &probe->row;
	TimestampTz lease_until;

	LookForKey(ref, probe);
	CheckOwner(ref, probe, token, now);
	if (IdemRowCompleted(row))
		AlreadyCompleted(ref);

	lease_until = IdemRowLeaseUntil(row);
	if (change->lease > 0)
		IdemRowSet(row, IDEM_COL_LEASE_UNTIL,
				   TimestampTzGetDatum(Min(now + change->lease, IdemRowExpiresAt(row))));
	if (change->recovery_point != NULL)
	{
		SetOrNull(row, IDEM_COL_RECOVERY_POINT, change->recovery_point);
		SetOrNull(row, IDEM_COL_RECOVERY_DATA, change->recovery_data);
	}
	if (!StoreOwned(ref, row, change->command))
		return false;
	if (row->own || IdemRowLeaseUntil(row) < lease_until)
		IdemReminderTrack(ref->nsp, &row->tid, token);
	return true;
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

	while (!ChangeOnce(ref, token, change, &probe))
	{
		IdemProbeFree(&probe);
		CHECK_FOR_INTERRUPTS();
	}
	return IdemRowLeaseUntil(&probe.row);
}

/* One attempt to release; false: things have moved, look again */
static bool
ReleaseOnce(const IdemKeyRef *ref, const pg_uuid_t *token, IdemProbe *probe)
{
	TimestampTz now = GetCurrentTimestamp();
	IdemTable	table;
	TM_FailureData failure;
	TM_Result	result;

	LookForKey(ref, probe);
	CheckOwner(ref, probe, token, now);
	if (IdemRowCompleted(&probe->row))
		AlreadyCompleted(ref);

	PreventCommandIfReadOnly("idem_release()");
	IdemTableOpen(&table, ref->nsp, ref->client, ref->key, RowExclusiveLock);
	result = table_tuple_delete(table.rel, &probe->row.tid,
								GetCurrentCommandId(true), InvalidSnapshot,
								InvalidSnapshot, true, &failure, false);
	IdemTableClose(&table);
	if (result == TM_Ok)
	{
		CommandCounterIncrement();
		IdemReminderDone(token);
	}
	return result == TM_Ok;
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
}

/* ----------
 * Recovering
 * ----------
 */

/*
 * Take over a key whose lease under `token` is over, for whoever recovers it;
 * skip it when it is not stale any more or somebody else is at it.  The
 * retention is what was granted, the request and the recovery point stay.
 */
bool
IdemStoreClaim(const IdemKeyRef *ref, const pg_uuid_t *token, int64 lease,
			   IdemRow *row)
{
	TimestampTz now = GetCurrentTimestamp();
	IdemReserveArgs args = {.ref = *ref, .lease = lease};
	IdemTable	table;
	IdemProbe	probe;
	bool		claimed;

	LookForKey(ref, &probe);
	if (!probe.found || TransactionIdIsValid(probe.changer) ||
		IdemRowState(&probe.row, now) != IDEM_STALE ||
		!SameToken(&probe.row, token))
		return false;

	*row = probe.row;
	IdemTableOpen(&table, ref->nsp, ref->client, ref->key, RowExclusiveLock);
	claimed = LockRow(&table, row) == TM_Ok;
	if (claimed)
	{
		now = Max(now, GetCurrentTimestamp());
		BeginAttempt(row, &args, IdemRowAttempt(row) + 1,
					 IdemRowExpiresAt(row) - IdemRowBeganAt(row), now);
		if (!UpdateRow(&table, row))
			elog(ERROR, "row version of a key was changed under its lock");
	}
	IdemTableClose(&table);
	if (claimed)
		IdemReminderTrack(ref->nsp, &row->tid, IdemRowToken(row));
	return claimed;
}

/* ----------
 * Marking
 * ----------
 */

/*
 * The row of a mark: completed from the start, without a fingerprint, and so
 * a mismatch to every reservation.  Nobody can own it, so its token is nil.
 */
static void
MarkRow(IdemRow *row, const IdemKeyRef *ref, int64 retention, TimestampTz now)
{
	static const pg_uuid_t nil = {{0}};
	IdemReserveArgs args = {.ref = *ref, .token = &nil, .retention = retention};

	FirstAttempt(row, &args, now);
	IdemRowSetNull(row, IDEM_COL_FINGERPRINT);
	IdemRowSet(row, IDEM_COL_COMPLETED_AT, TimestampTzGetDatum(now));
}

/* Put the mark where there is no row, or an expired one; false: look again */
static bool
WriteMark(const IdemKeyRef *ref, int64 retention, IdemProbe *probe)
{
	IdemRow		row;
	IdemTable	table;
	bool		written;

	PreventCommandIfReadOnly("idem_once()");
	MarkRow(&row, ref, retention, GetCurrentTimestamp());
	row.tid = probe->row.tid;
	IdemTableOpen(&table, ref->nsp, ref->client, ref->key, RowExclusiveLock);
	written = probe->found ? UpdateRow(&table, &row) : InsertRow(&table, &row);
	IdemTableClose(&table);
	return written;
}

/* One attempt to mark; false: things have moved, look again */
static bool
MarkOnce(const IdemKeyRef *ref, int64 retention, IdemProbe *probe, bool *first)
{
	TimestampTz now = GetCurrentTimestamp();

	LookForKey(ref, probe);
	if (!probe->found && TransactionIdIsValid(probe->inserter))
	{
		if (probe->speculative != 0)
			SpeculativeInsertionWait(probe->inserter, probe->speculative);
		else
			XactLockTableWait(probe->inserter, NULL, NULL, XLTW_None);
		return false;
	}
	if (probe->found && IdemRowState(&probe->row, now) != IDEM_ABSENT)
	{
		if (!probe->row.isnull[IDEM_COL_FINGERPRINT])
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("key \"%s\" is reserved, not a mark", KeyName(ref)),
					 errhint("Marks share the names of keys: use another client or another prefix for them.")));
		*first = false;
		return true;
	}
	*first = true;
	return WriteMark(ref, retention, probe);
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
	return first;
}

/* ----------
 * Forgetting
 * ----------
 */

/* The version of this key that can be seen now is removed, whoever owns it */
static bool
ForgetVersion(IdemTable *table, ItemPointer tid)
{
	TM_FailureData failure;

	return table_tuple_delete(table->rel, tid, GetCurrentCommandId(true),
							  InvalidSnapshot, InvalidSnapshot, true, &failure,
							  false) == TM_Ok;
}

/*
 * Remove a key, or with key NULL all of the client's, whatever their state.
 * Waits for unfinished changes, as a DELETE does, and follows what they left.
 * Returns how many there were.
 */
int64
IdemStoreForget(const IdemKeyRef *ref)
{
	int			nkeys = ref->key == NULL ? 1 : 2;
	int64		forgotten = 0;
	bool		again = true;
	IdemTable	table;

	IdemTableOpen(&table, ref->nsp, ref->client, ref->key, RowExclusiveLock);
	while (again)
	{
		Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
		TupleTableSlot *slot = table_slot_create(table.rel, NULL);
		IndexScanDesc scan = IdemIndexBeginScan(table.rel, table.pk, snapshot, nkeys);

		again = false;
		index_rescan(scan, table.scankeys, nkeys, NULL, 0);
		while (index_getnext_slot(scan, ForwardScanDirection, slot))
		{
			CHECK_FOR_INTERRUPTS();
			if (ForgetVersion(&table, &slot->tts_tid))
				forgotten++;
			else
				again = true;
		}
		index_endscan(scan);
		ExecDropSingleTupleTableSlot(slot);
		UnregisterSnapshot(snapshot);
		CommandCounterIncrement();
	}
	IdemTableClose(&table);
	return forgotten;
}

/* ----------
 * Reading
 * ----------
 */

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

	IdemTableOpen(&table, ref->nsp, ref->client, ref->key, AccessShareLock);
	found = IdemReadKey(&table, snapshot, row);
	IdemTableClose(&table);
	UnregisterSnapshot(snapshot);
	return found;
}
