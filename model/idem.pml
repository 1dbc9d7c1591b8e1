/*-------------------------------------------------------------------------
 *
 * idem.pml
 *	  How callers share one key: the protocol of src/ as a model for spin.
 *
 * One key, a few transactions, a clock. Every step of a process here is
 * something that the C code does to shared memory at one instant: it reads the
 * clock, copies an index page, looks at one row version, locks or replaces a
 * version, commits. Between two steps anything may happen, a crash included.
 * What lies between two such instants in C touches nothing shared, and is one
 * step with its neighbour here; so is the clock that is read to write a time,
 * with the writing (SPARE_CLOCK_... shows that an older time does no harm).
 *
 * Inline macros are named like the C functions that they stand for:
 *
 *	here						there
 *	IdemProbeKey				src/probe.c: DirtyScan, then IdemReadKey
 *	Judge						src/store.c: Judge, JudgeRow
 *	ReserveAbsent				src/store.c; src/change.c: IdemRowInsert
 *	ReserveRow, RewriteRow,
 *	TakeOver					src/store.c; src/change.c: IdemRowReplace
 *	MeetRival, MeetLease,
 *	MeetLocker					src/store.c
 *	Reserve						src/store.c: IdemStoreReserve, ReserveOnce
 *	LookForOwnKey, CheckOwner,
 *	CheckStillKept				src/store.c
 *	CompleteOnce, ReleaseOnce,
 *	ChangeOnce					src/store.c; src/change.c: IdemRowUpdate,
 *								IdemRowDelete, IdemRowReplace
 *	Sweeper						src/sweep.c: FindExpired, RemoveExpired
 *	Commit, Rollback			the server's, of the caller's transaction
 *
 * What the server is trusted to do is said where it is done; the rest of
 * PostgreSQL is these facts:
 *
 *	- There is at most one committed version of the row (`row`), and at most one
 *	  transaction that has locked, replaced or removed it or inserted one where
 *	  there was none (`changer`, `change`, `next`).
 *	- A unique index tells one of several inserters "unique", since check and
 *	  insertion happen under one page lock. The entry of one who was told
 *	  otherwise stays until that one withdraws it (`spec`, `lost`).
 *	- Commit and rollback happen at one instant.
 *	- An index entry leads to a version and, by HOT, to its successors. A
 *	  successor outside of the HOT chain has an entry of its own, which a copy
 *	  of the index page made before does not have. That is how a scan can miss
 *	  a row that is always there.
 *
 * Entries and versions have no numbers here. A copy of an index page is a set
 * of names (ENTRY_ROW, ENTRY_NEXT, of each inserter), which are renamed when
 * what they lead to is committed, and taken out when it is dead. Whether the
 * version that a process has found is still the newest is one bit, `same`.
 *
 * Not in the model: a token that is brought for a key that is absent (it is
 * taken, and whoever brings it once more shares that attempt), higher isolation
 * levels, savepoints, a second reservation by the same transaction, table locks,
 * idem_once, idem_claim_stale (a takeover like that of Reserve), idem_forget,
 * that a key is two strings, that 64 lost tokens are noted and no more, and the
 * second unique index that there is while REINDEX CONCURRENTLY is at work (then
 * it may be that none of several inserters is told "unique", and all look again).
 *
 * Bounds, given by -D:
 *	CALLERS		of idem_reserve, 1 to 3
 *	OWNERS		0 to 2 transactions of one who reserved before
 *	SWEEPERS	0 or 1
 *	TICKS		of the clock; a lease is LEASE of them, retention RETENTION
 *	PATIENT		callers may come with wait > 0
 *	OTHERS		callers may come with another fingerprint
 *	TOKENS		callers may bring the former owner's token; else no token can come
 *				back, and rows do not note which were lost
 *	ZOMBIE		one caller brings it, the others do not, and the owner answers
 *	IDLE		whoever is through may leave its transaction open for ever
 *	NO_CRASH	nobody crashes or rolls back of its own accord
 *	HOT			updates may be HOT or not; else none is, which shows a scan more
 *
 * PROGRESS adds what the properties of progress need. The broken variants are
 * -DBREAK_..., those that do without something -DSPARE_...; README.md has them.
 *
 * Time stands still when the clock has made its last tick; a wait ends then.
 *
 *-------------------------------------------------------------------------
 */

#ifndef CALLERS
#define CALLERS		2
#endif
#ifndef OWNERS
#define OWNERS		1
#endif
#ifndef SWEEPERS
#define SWEEPERS	1
#endif
#ifndef TICKS
#define TICKS		3
#endif

#define LEASE		1
#define RETENTION	2
#define PATIENCE	1

/* Processes are numbered from 1: callers, owners, the sweeper */
#define NOBODY		0
#define NPROC		(CALLERS + OWNERS + SWEEPERS)
#define BIT(p)		(1 << (p))

/* Who reserves anew draws a token nobody else has; this one is older */
#define FORMER		7

#define MIN(a, b)	((a) < (b) -> (a) : (b))

/* ----------
 * The key
 * ----------
 */

typedef Row
{
	bit there;
	bit fp;						/* fingerprint */
	unsigned token : 3;
	unsigned answer : 3;		/* 0: in progress; else what was answered */
	unsigned lease : 3;			/* lease_until */
	unsigned expires : 3		/* expires_at */
#ifdef TOKENS
	byte lost					/* lost_tokens */
#endif
}

#ifdef TOKENS
#define SetLost(r, tokens)	r.lost = (tokens)
#else
#define SetLost(r, tokens)	skip
#endif

#define CopyRow(to, from) \
	to.there = from.there; to.fp = from.fp; to.token = from.token; \
	to.answer = from.answer; to.lease = from.lease; to.expires = from.expires; \
	SetLost(to, from.lost)

#define ClearRow(r) \
	r.there = 0; r.fp = 0; r.token = 0; r.answer = 0; r.lease = 0; r.expires = 0; \
	SetLost(r, 0)

/* How far an unfinished transaction has come with the row */
#define NOTHING		0
#define LOCKED		1			/* row lock only, which no probe shows */
#define KEPT		2			/* the same, by one who is not entitled (never) */
#define INSERTED	3			/* next, where there was no row */
#define UPDATED		4			/* next instead of row */
#define DELETED		5

byte now;						/* the clock */
Row row;						/* the committed version */
Row next;						/* its unfinished successor */
bit hot;						/* is that in the HOT chain of row? */
unsigned changer : 3;			/* whose it is */
unsigned change : 3;

byte spec;						/* who has a speculative row in the index */
byte lost;						/* and who of them was told "not unique" */

/* What a probe holds on to */
#define ENTRY_ROW		1
#define ENTRY_NEXT		128
#define ENTRY_SPEC(p)	BIT(p)

byte seen[NPROC + 1];			/* copied index entries not looked at yet */
byte same;						/* whose found version is still the newest */
byte rival[NPROC + 1];			/* whose transaction was met, until it ends */
byte forspec;					/* who means only the rival's insertion */

/* ----------
 * What the properties speak of; nothing is decided by these
 * ----------
 */

byte reserving;					/* who is in Reserve */
byte calling;					/* who is in a call of any kind */
byte answered;					/* who was told new before another's answer was committed */
byte accepted;					/* whose answer is accepted, but not committed */
byte kept;						/* until when the last answer is kept */
byte gone;						/* tokens that were taken over */
bit anew;						/* next is the first attempt at its key */
#ifdef PROGRESS
byte running;					/* who has not ended */
bit news;						/* somebody was told new */
#endif
bit fp_of[NPROC + 1];
byte token_of[NPROC + 1];

/*
 * What has been true of the key during somebody's call. An outcome must be
 * the truth at some instant between the call's beginning and its end.
 */
byte truth[NPROC + 1];

/* ... for a reservation */
#define HELD		1			/* by a live lease, or an unfinished transaction */
#define ANSWERED	2			/* under this fingerprint */
#define OTHER		4			/* there is a row with another fingerprint */
/* ... for a call by an owner */
#define ABSENT		1
#define LOST		2			/* there is a row under another token */
#define COMPLETED	4

#define LeaseRuns \
	(row.there && !row.answer && row.lease > now && row.expires > now)
#define ChangedByOther(p) \
	(changer != NOBODY && changer != p && change != KEPT)
#define InsertedByOther(p) \
	((spec & ~lost & ~BIT(p)) != 0)
#define AbsentTo(p) \
	(changer == p -> next.expires <= now : (!row.there || row.expires <= now))

byte z;							/* a loop's, 0 between two steps */

/* The story, told when a counterexample is replayed */
#define Tell(text)	printf(#text, now, me)
#define Say(what)	Tell(at %d: process %d what\n)

/* Note what is true now, for every call that is going on */
inline LookAround()
{
	z = 1;
	do
	:: z <= NPROC ->
		if
		:: (calling & BIT(z)) && (reserving & BIT(z)) ->
			truth[z] = truth[z] |
				((LeaseRuns || ChangedByOther(z) || InsertedByOther(z)) -> HELD : 0) |
				((row.there && row.answer && row.fp == fp_of[z]) -> ANSWERED : 0) |
				((row.there && row.fp != fp_of[z]) -> OTHER : 0)
		:: (calling & BIT(z)) && !(reserving & BIT(z)) ->
			truth[z] = truth[z] | (AbsentTo(z) -> ABSENT : 0) |
				((row.there && row.token != token_of[z]) -> LOST : 0) |
				((row.there && row.answer) -> COMPLETED : 0)
		:: else
		fi;
		z++
	:: else -> break
	od;
	z = 0
}

/* A call ends, and all that it knew is forgotten */
inline EndCall(what)
{
	assert((what) == 0 || (truth[me] & (what)));
	calling = calling & ~BIT(me);
	reserving = reserving & ~BIT(me);
	truth[me] = 0;
	seen[me] = 0;
	same = same & ~BIT(me);
	rival[me] = NOBODY;
	forspec = forspec & ~BIT(me);
	found = 0;
	other = 0;
	entries = 0;
	ClearRow(f);
	judged = 0;
	clock = 0;
	verdict = 0;
	result = 0;
	deadline = 0
}

/* ----------
 * Transactions
 * ----------
 */

/* Whoever waits for this process need not any more */
inline WakeWaiters(only_for_insertion)
{
	z = 1;
	do
	:: z <= NPROC ->
		if
		:: rival[z] == me && (!only_for_insertion || (forspec & BIT(z))) ->
			rival[z] = NOBODY
		:: else
		fi;
		z++
	:: else -> break
	od;
	z = 0
}

/* The speculative row of this process is decided: withdrawn (0), or not */
inline Decide(entry)
{
	spec = spec & ~BIT(me);
	lost = lost & ~BIT(me);
	z = 1;
	do
	:: z <= NPROC ->
		seen[z] = (seen[z] & ~ENTRY_SPEC(me)) |
			((seen[z] & ENTRY_SPEC(me)) -> entry : 0);
		z++
	:: else -> break
	od;
	WakeWaiters(true)
}

/* Index entries lead to something else now, or to nothing */
inline EndChange(committed)
{
	z = 1;
	do
	:: z <= NPROC ->
		if
		:: committed && (change == INSERTED || (change == UPDATED && !hot)) ->
			seen[z] = (seen[z] & ~(ENTRY_ROW | ENTRY_NEXT)) |
				((seen[z] & ENTRY_NEXT) -> ENTRY_ROW : 0)
		:: committed && change == DELETED ->
			seen[z] = seen[z] & ~ENTRY_ROW
		:: !committed ->
			seen[z] = seen[z] & ~ENTRY_NEXT
		:: else
		fi;
		z++
	:: else -> break
	od;
	z = 0;
	if
	:: committed && (change == UPDATED || change == DELETED) -> same = 0
	:: else
	fi;
	ClearRow(next);
	hot = 0;
	anew = 0;
	changer = NOBODY;
	change = NOTHING
}

inline Commit()
{
	Say(commits);
	if
	:: accepted & BIT(me) ->
		/* nobody else's answer was committed since this one was told new */
		assert(!(answered & BIT(me)));
		/* and none is there that is to be kept longer than until now */
		assert(kept <= now);
		kept = next.expires;
		answered = 255;
		accepted = accepted & ~BIT(me)
	:: else
	fi;
	if
	:: changer == me ->
		if
		:: change == INSERTED || change == UPDATED ->
			gone = gone |
				((row.there && row.token != next.token) -> BIT(row.token) : 0);
			/* of one that is brought nothing is known after the key was absent */
			gone = (anew -> gone & ~BIT(FORMER) : gone);
			CopyRow(row, next)
		:: change == DELETED ->
			gone = gone | BIT(row.token);
			ClearRow(row)
		:: else
		fi;
		EndChange(true)
	:: else
	fi;
	WakeWaiters(false);
	LookAround()
}

inline Rollback()
{
	Say(rolls back);
	accepted = accepted & ~BIT(me);
	if
	:: changer == me -> EndChange(false)
	:: else
	fi;
	if
	:: spec & BIT(me) -> Decide(0)
	:: else
	fi;
	WakeWaiters(false);
	LookAround();
	EndCall(0)
}

/* A crash matters where something is left behind; the transaction's end is one */
#ifdef NO_CRASH
#define CRASH	false
#else
#define CRASH	true
#endif

/* ----------
 * Looking
 * ----------
 */

/* Each attempt of each call begins so */
inline ReadClock()
{
	Say(reads the clock);
	judged = now;
	found = 0;
	other = 0;
	ClearRow(f);
	verdict = 0;
	result = 0;
	same = same & ~BIT(me);
	rival[me] = NOBODY;
	forspec = forspec & ~BIT(me);
	calling = calling | BIT(me);
	LookAround()
}

inline MeetInserter(q, speculative)
{
	if
	:: !found ->
		Say(meets an insertion);
		other = 1;
		rival[me] = q;
		forspec = (forspec & ~BIT(me)) | (speculative -> BIT(me) : 0)
	:: else
	fi
}

inline FindRow()
{
	if
	:: row.answer -> Say(finds the row answered)
	:: else -> Say(finds the row in progress)
	fi;
	found = 1;
	CopyRow(f, row);
	same = same | BIT(me);
	forspec = forspec & ~BIT(me)
}

/* Entries but no row: look again with a snapshot taken now */
inline SecondLook()
{
#ifndef BREAK_NO_SECOND_LOOK
	if
	:: entries && !found && row.there ->
		FindRow();
		other = 0;
		rival[me] = NOBODY
	:: else
	fi;
#endif
	entries = 0
}

/*
 * IdemProbeKey, and `then`, what is made of it: local to the process, and so
 * one step with the last look.
 *
 * The scan copies the index page, then visits what the entries lead to, in any
 * order. An entry that leads to nothing when its turn comes is not in the set.
 * Afterwards `other` says that somebody's unfinished change was met: of the
 * row, if it was found, else an insertion.
 */
#define IdemProbeKey(then) \
	d_step { \
		assert(changer != me); \
		Say(copies the index page); \
		seen[me] = spec | (row.there -> ENTRY_ROW : 0) | \
			((change == INSERTED || (change == UPDATED && !hot)) -> ENTRY_NEXT : 0); \
		entries = (seen[me] != 0) \
	}; \
	do \
	:: d_step { \
			seen[me] & ENTRY_ROW; \
			seen[me] = seen[me] & ~ENTRY_ROW; \
			FindRow(); \
			other = (change == UPDATED || change == DELETED); \
			rival[me] = (other -> changer : NOBODY) \
		} \
	:: d_step { \
			seen[me] & ENTRY_NEXT; \
			seen[me] = seen[me] & ~ENTRY_NEXT; \
			MeetInserter(changer, false) \
		} \
	:: MeetSpeculative(1) \
	:: MeetSpeculative(2) \
	:: MeetSpeculative(3) \
	:: SCANNED(then); \
		break \
	od

#define MeetSpeculative(q) \
	d_step { \
		(CALLERS >= q) && (seen[me] & ENTRY_SPEC(q)); \
		seen[me] = seen[me] & ~ENTRY_SPEC(q); \
		MeetInserter(q, true) \
	}

/* The clock has been read before the scan; to read it here is a step more */
#ifdef BREAK_CLOCK_AFTER_PROBE
#define SCANNED(then) \
	d_step { seen[me] == 0; SecondLook() }; \
	d_step { Say(reads the clock again); judged = now; then }
#else
#define SCANNED(then) \
	d_step { seen[me] == 0; SecondLook(); then }
#endif

/* ----------
 * Reserving
 * ----------
 */

/* Verdicts */
#define V_ABSENT	1
#define V_RIVAL		2
#define V_EXPIRED	3
#define V_MISMATCH	4
#define V_REPLAY	5
#define V_OWN		6
#define V_LIVE		7
#define V_STALE		8

/* Outcomes */
#define NEW			1
#define IN_FLIGHT	2
#define REPLAY		3
#define MISMATCH	4

/* How locking went */
#define OK				1
#define GONE			2
#define WOULD_BLOCK		3
#define NOT_ENTITLED	4

#define Entitles(v) \
	(v == V_ABSENT || v == V_EXPIRED || v == V_OWN || v == V_STALE)

inline JudgeRow()
{
	verdict =
		(f.expires <= judged -> V_EXPIRED :
		(f.fp != fp_of[me] -> V_MISMATCH :
		(f.answer -> V_REPLAY :
		(f.token == token_of[me] -> V_OWN :
		(f.lease <= judged -> V_STALE : V_LIVE)))))
}

/* Whose row somebody else is changing is that one's for now */
inline Judge()
{
	if
	:: !found -> verdict = (other -> V_RIVAL : V_ABSENT)
	:: else ->
		JudgeRow();
#if defined(BREAK_EXPIRED_IS_ABSENT)
		verdict = ((other && verdict == V_EXPIRED) -> V_ABSENT : verdict);
#elif !defined(SPARE_CHANGER)
		verdict = ((other && Entitles(verdict)) -> V_RIVAL : verdict);
#endif
		skip
	fi
}

/* The caller is told */
inline Told(what)
{
	outcome = what;
	if
	:: outcome == NEW ->
#ifdef PROGRESS
		news = 1;
#endif
		Say(is told new);
		answered = answered & ~BIT(me);
		EndCall(0)
	:: outcome == IN_FLIGHT ->
		Say(is told in_flight);
		EndCall(HELD)
	:: outcome == REPLAY ->
		Say(is told replay);
		assert(f.answer && f.fp == fp_of[me] && f.expires > judged);
		EndCall(ANSWERED)
	:: outcome == MISMATCH ->
		Say(is told mismatch);
		EndCall(OTHER)
	fi
}

/* A speculative row's inserter may yet withdraw it */
#ifdef BREAK_SPECULATIVE_IS_RIVAL
#define SaysNothingYet	false
#else
#define SaysNothingYet	(forspec & BIT(me))
#endif

/* Answers that need no change and no wait */
inline AnswerAtOnce()
{
	if
	:: verdict == V_MISMATCH -> Told(MISMATCH)
	:: verdict == V_REPLAY -> Told(REPLAY)
	:: verdict == V_LIVE && judged >= deadline -> Told(IN_FLIGHT)
	:: verdict == V_RIVAL && judged >= deadline && !SaysNothingYet -> Told(IN_FLIGHT)
	:: else
	fi
}

/* With no deadline to compare with, the time read is not needed any more */
inline ForgetJudged()
{
#ifndef SPARE_CLOCK_INSERT
#ifndef SPARE_CLOCK_REWRITE
	judged = (deadline == 0 -> 0 : judged);
#endif
#endif
	skip
}

/* Through the lock manager, until the rival, or its insertion, has ended */
inline MeetRival()
{
	if
	:: SaysNothingYet -> rival[me] == NOBODY
	:: else -> rival[me] == NOBODY || now >= deadline
	fi
}

/*
 * A committed lease. Pauses after which nothing is different are left out.
 */
inline MeetLease()
{
	if
	:: other -> rival[me] == NOBODY || now >= deadline
	:: else -> !(same & BIT(me)) || now >= MIN(f.lease, deadline)
	fi
}

/* Nobody knows who that is: pauses, until it is gone or shows */
inline MeetLocker()
{
	change != LOCKED || now >= deadline
}

inline BeginAttempt()
{
	next.token = token_of[me];
	next.expires = clock + RETENTION;
	next.lease = clock + MIN(LEASE, RETENTION)
}

/* One that nobody has yet */
inline DrawToken()
{
	token_of[me] = me
}

inline FirstAttempt()
{
	next.there = 1;
	next.fp = fp_of[me];
	next.answer = 0;
	SetLost(next, 0);
	DrawToken();
	anew = 1;
	BeginAttempt()
}

/* The token that was brought, but none that an earlier attempt has lost: drawn */
inline TakeOver()
{
#ifdef TOKENS
	next.lost = f.lost | BIT(f.token);
#ifndef BREAK_TOKEN_COMES_BACK
	if
	:: next.lost & BIT(token_of[me]) -> DrawToken()
	:: else
	fi;
#endif
#endif
	skip
}

/* Let the unique index decide */
inline ReserveAbsent()
{
	d_step {						/* into the index, checking */
		outcome == 0 && verdict == V_ABSENT;
#ifdef SPARE_CLOCK_INSERT
		clock = judged;
#else
		clock = now;
#endif
		Say(inserts speculatively);
		lost = lost | ((row.there || change == INSERTED || spec) -> BIT(me) : 0);
		spec = spec | BIT(me);
		LookAround()
	};
	if
	:: CRASH -> goto crashed
	:: d_step {						/* decided, and the lock for that let go */
			true;
			if
			:: lost & BIT(me) ->
				Say(is not unique and withdraws);
				Decide(0);
				LookAround()
			:: else ->
				assert(!row.there && changer == NOBODY);
				changer = me;
				change = INSERTED;
				FirstAttempt();
				Decide(ENTRY_NEXT);
				LookAround();
				Told(NEW)
			fi
		}
	fi
}

/* A version is about to be replaced or removed */
inline CheckChange()
{
	assert(row.there);
	/* a stored answer is never overwritten while it is kept */
	assert(!row.answer || row.expires <= now)
}

/* It may have expired since it was judged */
#ifdef SPARE_CLOCK_REWRITE
#define IsOverByNow		false
#else
#define IsOverByNow		(f.expires <= clock)
#endif

inline RewriteRow()
{
	CopyRow(next, f);
	if
	:: verdict == V_EXPIRED || IsOverByNow -> FirstAttempt()
	:: else ->
		if
		:: verdict == V_STALE -> TakeOver(); BeginAttempt()
		:: else -> next.lease = MIN(clock + LEASE, f.expires)
		fi
	fi
}

/* Which version is locked */
#if defined(BREAK_NO_CAS) || defined(BREAK_LOCK_KEPT)
#define IsStillThere	row.there
#else
#define IsStillThere	(same & BIT(me))
#endif

/* IdemRowReplace: lock the version that was judged, without waiting; rewrite */
inline ReserveRow()
{
	d_step {
		outcome == 0 && Entitles(verdict) && verdict != V_ABSENT;
		if
		:: !IsStillThere -> result = GONE
		:: IsStillThere && changer != NOBODY ->
			result = WOULD_BLOCK;
			if
			:: judged >= deadline -> Told(IN_FLIGHT)
			:: else
			fi
		:: else ->
			Say(locks the row);
			changer = me;
			change = LOCKED;
			result = OK
		fi;
		LookAround()
	};
#ifdef BREAK_LOCK_KEPT
	if
	:: result == OK ->
		d_step {
			CopyRow(f, row);
			judged = now;
			JudgeRow();
			if
			:: !Entitles(verdict) ->
				Say(is not entitled keeps the lock);
				change = KEPT;
				result = NOT_ENTITLED;
				AnswerAtOnce()
			:: else
			fi
		}
	:: else
	fi;
#endif
	if
	:: result == OK && CRASH -> goto crashed
	:: d_step {
			result == OK;
#ifdef SPARE_CLOCK_REWRITE
			clock = judged;
#else
			clock = now;
#endif
			CheckChange();
			/* no new beside a live lease, or for another's request */
			assert(row.expires <= now || row.lease <= now || row.token == token_of[me]);
			assert(row.expires <= now || row.fp == fp_of[me]);
			change = UPDATED;
			hot = will_be_hot;
			RewriteRow();
			LookAround();
			Told(NEW)
		}
	:: result == WOULD_BLOCK && outcome == 0 -> MeetLocker()
	:: result == GONE || outcome != 0
	fi
}

inline Reserve()
{
	d_step {
		reserving = reserving | BIT(me);
		deadline = (patient -> MIN(now + PATIENCE, TICKS) : 0);
		ReadClock()
	};
	do
	:: true ->
		IdemProbeKey(Judge(); AnswerAtOnce(); ForgetJudged());
		if
		:: ReserveAbsent()
		:: ReserveRow()
		:: outcome == 0 && verdict == V_RIVAL -> MeetRival()
		:: outcome == 0 && verdict == V_LIVE -> MeetLease()
		:: outcome != 0 -> break
		fi;
		if
		:: d_step { outcome == 0; ReadClock() }
		:: outcome != 0 -> break
		fi
	od
}

/* ----------
 * What the owner of a key may do
 * ----------
 */

/* Errors; who gets one rolls back */
#define ID001		1
#define ID002		2
#define ID003		3

inline CheckOwner()
{
	if
	:: !found || f.expires <= judged -> error = ID002
#ifndef BREAK_NO_TOKEN
	:: found && f.expires > judged && f.token != token_of[me] -> error = ID001
#endif
	:: else
	fi
}

/* An error, too, is the truth */
inline EndOwnerCall()
{
	if
	:: error == ID001 -> Say(has lost the lease); EndCall(LOST)
	:: error == ID002 -> Say(finds nothing reserved); EndCall(ABSENT)
	:: error == ID003 -> Say(finds it completed already); EndCall(COMPLETED)
	:: else -> Say(succeeds); EndCall(0)
	fi;
	result = OK
}

/* Nothing is accepted that was written after the key's end */
inline CheckStillKept()
{
#ifndef BREAK_NO_CLOCK_AFTER_UPDATE
	error = (f.expires <= now -> ID002 : 0);
#endif
	assert(error || !late);
	late = 0
}

/* The same answer again is a success */
inline CheckInProgress(completing)
{
	if
	:: error -> EndOwnerCall()
	:: !error && f.answer && completing && f.answer == my_answer ->
		CheckStillKept();
		EndOwnerCall()
	:: !error && f.answer && !(completing && f.answer == my_answer) ->
		error = ID003;
		EndOwnerCall()
	:: else
	fi;
	judged = 0
}

/*
 * The key of this token, or an error. Where this transaction wrote the row it
 * finds it there. An answer that is there already may be the end of the call.
 */
inline LookForOwnKey(completing)
{
	d_step { ReadClock() };
	if
	:: d_step {
			changer == me;
			found = 1;
			CopyRow(f, next);
			same = same | BIT(me);
			CheckOwner();
			CheckInProgress(completing)
		}
	:: changer != me ->
		IdemProbeKey(CheckOwner(); CheckInProgress(completing))
	fi
}

/* A row version that is found locked or changed is waited for */
#ifdef BREAK_NO_CAS
#define RowIsFree	(changer == NOBODY || changer == me)
#define IsTooLate	(changer != me && !row.there)
#else
#define RowIsFree	(changer == NOBODY || changer == me || !(same & BIT(me)))
#define IsTooLate	(!(same & BIT(me)))
#endif

/* Replace the version by f, or remove it */
inline OwnerChanges(what)
{
	if
	:: what == DELETED -> Say(removes the row)
	:: else -> Say(updates the row)
	fi;
	if
	:: changer == me && change != LOCKED
	:: else ->
		CheckChange();
		/* a token that was taken over is never accepted */
		assert(row.token == token_of[me] && !(gone & BIT(token_of[me])));
		changer = me;
		change = what;
		hot = (what == UPDATED -> will_be_hot : 0)
	fi;
	if
	:: what == UPDATED -> CopyRow(next, f); late = (f.expires <= now)
	:: else
	fi
}

inline CompleteOnce(wanted)
{
	d_step {
		wanted && result == 0 && RowIsFree;
		if
		:: !IsTooLate ->
			f.answer = my_answer;
			SetLost(f, 0);
			OwnerChanges(UPDATED);
			accepted = accepted | BIT(me);
			verdict = OK
		:: else
		fi;
		LookAround()
	};
	if
	:: d_step { verdict == OK; CheckStillKept(); EndOwnerCall() }
	:: verdict == 0
	fi
}

inline ReleaseOnce(wanted)
{
	d_step {
		wanted && result == 0 && RowIsFree;
		if
		:: !IsTooLate -> OwnerChanges(DELETED); LookAround(); EndOwnerCall()
		:: else
		fi
	}
}

/* Renewing locks first, so that the lease is counted from after the wait */
inline ChangeOnce(wanted)
{
	d_step {
		wanted && result == 0 && RowIsFree;
		if
		:: !IsTooLate ->
			Say(locks the row to renew it);
			changer = me;
			change = LOCKED;
			verdict = OK
		:: else
		fi;
		LookAround()
	};
	if
	:: verdict == 0
	:: verdict == OK && CRASH -> goto crashed
	:: d_step {
			verdict == OK;
			f.lease = MIN(now + LEASE, f.expires);
			OwnerChanges(UPDATED);
			LookAround()
		};
		d_step { CheckStillKept(); EndOwnerCall() }
	fi
}

/* ----------
 * Processes
 * ----------
 */

#define Locals \
	Row f;						/* the version that was found */ \
	bit found; \
	bit other;					/* somebody else's unfinished change was met */ \
	bit entries;				/* there were index entries */ \
	bit late;					/* changed when it was over */ \
	unsigned judged : 3; \
	unsigned clock : 3; \
	unsigned deadline : 3; \
	unsigned verdict : 4; \
	unsigned outcome : 3; \
	unsigned result : 3; \
	unsigned error : 2

inline End()
{
#ifdef PROGRESS
	running = running & ~BIT(me);
#endif
	skip
}

#ifdef IDLE
#define IDLES	true				/* for ever */
#else
#define IDLES	false
#endif

#define EndTransaction() \
	if \
	:: d_step { !error; Commit(); End() } \
	:: IDLES && !error -> false \
	:: CRASH || error -> \
crashed: \
		true -> d_step { Rollback(); End() } \
	fi

#if CALLERS > 0
/* One request; if it is new it is answered: here, in a later transaction, or never */
proctype Caller(byte me; bit patient; bit will_be_hot)
{
	Locals;
	byte my_answer = me;

	Reserve();
	if
	:: outcome == NEW ->
		if
		:: d_step { true; Commit() }	/* the work is done outside */
		:: true							/* or in this transaction */
		fi;
		result = 0;
		if
		:: true ->
			do
			:: result == 0 ->
				LookForOwnKey(true);
				if
				:: CompleteOnce(true)
				:: result != 0
				fi
			:: result != 0 -> break
			od
		:: true							/* never answered */
		fi
	:: else
	fi;
	EndTransaction()
}

#endif

#if OWNERS > 0
/* One who reserved before, or its heartbeat, or a second try to answer */
#define COMPLETE	0
#define RELEASE		1
#define RENEW		2

proctype Owner(byte me; byte my_answer; bit will_be_hot)
{
	Locals;
	unsigned call : 2;

#ifdef ZOMBIE
	call = COMPLETE;
#else
	if :: call = COMPLETE :: call = RELEASE :: call = RENEW fi;
#endif
	do
	:: result == 0 ->
		LookForOwnKey((call == COMPLETE));
		if
		:: CompleteOnce((call == COMPLETE))
		:: ReleaseOnce((call == RELEASE))
		:: ChangeOnce((call == RENEW))
		:: result != 0
		fi
	:: result != 0 -> break
	od;
	EndTransaction()
}

#endif

#if SWEEPERS > 0
/* One row of one step; waits for nobody */
proctype Sweeper(byte me)
{
	Locals;

	d_step {							/* FindExpired, by clock and snapshot */
		if
		:: row.there && row.expires <= now -> found = 1; same = same | BIT(me)
		:: else
		fi
	};
	if
	:: found ->
		d_step {						/* RemoveExpired */
			if
			:: IsStillThere && changer == NOBODY ->
				Say(sweeps the row);
				CheckChange();
				assert(row.expires <= now);
				changer = me;
				change = DELETED
			:: else
			fi;
			same = same & ~BIT(me);
			LookAround()
		}
	:: else
	fi;
	EndTransaction()
}

#endif

proctype Clock()
{
	do
	:: d_step {
			now < TICKS;
			now++;
			kept = (kept <= now -> 0 : kept);
			LookAround()
		}
	:: now == TICKS -> break
	od
}

inline Start(p)
{
#ifdef PROGRESS
	running = running | BIT(p);
#endif
#ifdef HOT
	if :: will_be_hot = 0 :: will_be_hot = 1 fi;
#endif
	if
	:: p <= CALLERS ->
		token_of[p] = p;
#if defined(ZOMBIE)
		token_of[p] = (p == CALLERS -> FORMER : p);
#elif defined(TOKENS)
		if :: true :: token_of[p] = FORMER fi;
#endif
#ifdef OTHERS
		if :: fp_of[p] = 0 :: fp_of[p] = 1 fi;
#endif
#ifdef PATIENT
		if :: patient = 0 :: patient = 1 fi;
#endif
#if CALLERS > 0
		run Caller(p, patient, will_be_hot);
#endif
		skip
	:: p > CALLERS && p <= CALLERS + OWNERS ->
		token_of[p] = FORMER;
#if OWNERS > 0
		if
		:: run Owner(p, p, will_be_hot)
#if OWNERS > 1
		:: run Owner(p, FORMER, will_be_hot)	/* the same answer from each */
#endif
		fi;
#endif
		skip
	:: else ->
#if SWEEPERS > 0
		run Sweeper(p);
#endif
		skip
	fi
}

init
{
	byte p = 1;
	bit patient;
	bit will_be_hot;

	atomic {
		if
#if OWNERS > 0
		:: row.there = 1;				/* somebody has reserved it just now */
			row.token = FORMER;
			row.lease = LEASE;
			row.expires = RETENTION
#else
		:: true							/* the key is absent */
#endif
		fi;
		do
		:: p <= NPROC -> Start(p); p++
		:: else -> break
		od;
		run Clock();
		p = 0;
		patient = 0;
		will_be_hot = 0
	};
#if defined(PROGRESS) && defined(NO_CRASH) && OWNERS == 0 && !defined(IDLE)
	atomic { running == 0; assert(news) }		/* somebody got it */
#endif
}

#ifdef PROGRESS
/* ----------
 * Progress, every process being given its turn
 * ----------
 */

/* Nobody waits for ever */
ltl all_end { <> [] (running == 0) }

/* A reservation ends even if others leave their transactions open for ever */
ltl reservations_end { <> [] (reserving == 0) }
#endif
