/*-------------------------------------------------------------------------
 *
 * counters.c
 *	  What idem keeps in shared memory.
 *
 * Locking.  IdemShared.lock, a lightweight lock, protects every field that is
 * not an atomic: exclusive to change one, shared to read one.  It is a leaf:
 * nobody acquires anything while holding it, and nobody holds it across a
 * wait or an error.  Setting the launcher's latch happens under it, so that
 * the latch cannot have been handed to another process meanwhile.
 *
 *	launcher, launcher_latch	written by the launcher, when it starts and
 *								when it leaves
 *	visit						written by the launcher until visit.worker is
 *								set; then result, sqlstate and worker belong
 *								to that worker, hurry to the launcher
 *	notices						added by any backend, emptied by the launcher
 *	no_slot						written by the launcher
 *	notice_round				atomic, raised by the launcher, read by every
 *								backend without a lock; a stale reading costs
 *								one notice too many or one call's delay
 *	tallies[].database, .reset, .pass
 *								under the lock.  A process looks for its
 *								database's tally once; it stays where it is,
 *								since a tally is freed only when its database
 *								is gone, and with it everybody who counts
 *	tallies[].stripes			atomics, added to without a lock; a reader
 *								adds up what is there at the time
 *
 * Nothing here decides anything about a key: all of it may be lost.  The
 * counters outlive a clean restart in a file, which is removed when it is
 * read, so that after a crash they begin again and do not go back in time.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xact.h"
#include "counters.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "settings.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#define IDEM_SHARED_NAME	"idem"

/* Where the counters are while the server is down, and what the file begins with */
#define IDEM_STAT_FILE		PGSTAT_STAT_PERMANENT_DIRECTORY "/idem.stat"
#define IDEM_STAT_MAGIC		0x1DE30001

typedef struct StatFileHeader
{
	uint32		magic;			/* changes with the layout */
	uint32		size;			/* of one IdemTotals */
	uint32		n;				/* how many follow */
} StatFileHeader;

IdemShared *idem_shared = NULL;

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

/* This process's database's, once it has been looked for; NULL: no room */
static IdemTally *my_tally = NULL;

/* IdemShared.tallies_freed when there was no room; 0: has not been looked for */
static uint32 looked_at = 0;

/* Microseconds on a clock that nobody sets */
int64
IdemMonotonicTime(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}

/* ----------
 * The room
 * ----------
 */

static Size
SharedSize(void)
{
	return add_size(offsetof(IdemShared, tallies),
					mul_size(idem_max_databases, sizeof(IdemTally)));
}

/* Ask for the room, while the server still can give it */
static void
RequestShared(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();

	RequestAddinShmemSpace(SharedSize());
	RequestNamedLWLockTranche(IDEM_SHARED_NAME, 1);
}

static void
InitTally(IdemTally *tally)
{
	int			i;
	int			j;

	tally->database = InvalidOid;
	for (i = 0; i < IDEM_STRIPES; i++)
		for (j = 0; j < IDEM_NCOUNTERS; j++)
			pg_atomic_init_u64(&tally->stripes[i].counts[j], 0);
}

/* Add up one database's counters */
static void
AddUp(IdemTally *tally, IdemTotals *totals)
{
	int			i;
	int			j;

	memset(totals, 0, sizeof(IdemTotals));
	totals->database = tally->database;
	totals->reset = tally->reset;
	totals->pass = tally->pass;
	for (i = 0; i < IDEM_STRIPES; i++)
		for (j = 0; j < IDEM_NCOUNTERS; j++)
			totals->counts[j] += pg_atomic_read_u64(&tally->stripes[i].counts[j]);
}

/* Those of all databases that have a tally; the caller sees to the lock */
static int
CollectTallies(IdemTotals *totals, int max)
{
	int			n = 0;
	int			i;

	for (i = 0; i < idem_shared->ntallies && n < max; i++)
	{
		if (OidIsValid(idem_shared->tallies[i].database))
			AddUp(&idem_shared->tallies[i], &totals[n++]);
	}
	return n;
}

/* ----------
 * The file
 * ----------
 */

/*
 * Take up what the file has, as far as there is room, and remove it, also when
 * it cannot be read: it must not come back after a crash.
 */
static void
LoadTallies(void)
{
	FILE	   *file = AllocateFile(IDEM_STAT_FILE, PG_BINARY_R);
	StatFileHeader header;
	IdemTotals	totals;
	int			i;
	int			j;

	if (file == NULL)
	{
		if (errno != ENOENT)
			ereport(LOG,
					(errcode_for_file_access(),
					 errmsg("could not open file \"%s\": %m", IDEM_STAT_FILE)));
		unlink(IDEM_STAT_FILE);
		return;
	}
	if (fread(&header, sizeof(header), 1, file) == 1 &&
		header.magic == IDEM_STAT_MAGIC && header.size == sizeof(IdemTotals))
	{
		for (i = 0; i < header.n && i < idem_shared->ntallies &&
			 fread(&totals, sizeof(totals), 1, file) == 1; i++)
		{
			IdemTally  *tally = &idem_shared->tallies[i];

			tally->database = totals.database;
			tally->reset = totals.reset;
			tally->pass = totals.pass;
			for (j = 0; j < IDEM_NCOUNTERS; j++)
				pg_atomic_write_u64(&tally->stripes[0].counts[j], totals.counts[j]);
		}
	}
	else
		ereport(LOG,
				(errmsg("ignoring file \"%s\": not one of this version of idem",
						IDEM_STAT_FILE)));
	FreeFile(file);
	unlink(IDEM_STAT_FILE);
}

/* Write all tallies; false, with errno, when it failed */
static bool
WriteTallies(FILE *file)
{
	StatFileHeader header = {.magic = IDEM_STAT_MAGIC, .size = sizeof(IdemTotals)};
	IdemTotals *totals = malloc(mul_size(idem_shared->ntallies, sizeof(IdemTotals)));
	bool		written;

	if (totals == NULL)
		return false;
	header.n = CollectTallies(totals, idem_shared->ntallies);
	written = fwrite(&header, sizeof(header), 1, file) == 1 &&
		fwrite(totals, sizeof(IdemTotals), header.n, file) == header.n;
	free(totals);
	return written;
}

/*
 * The server shuts down: keep the counters, unless that is because of a crash.
 * All others have left, so there is nobody to lock out; and one who was killed
 * by an immediate shutdown may have left holding the lock, for which the
 * postmaster, of all processes, could not wait.
 */
static void
SaveTallies(int code, Datum arg)
{
	FILE	   *file;
	bool		written;

	if (code != 0 || idem_shared == NULL)
		return;
	file = AllocateFile(IDEM_STAT_FILE ".tmp", PG_BINARY_W);
	written = file != NULL && WriteTallies(file);
	if (file != NULL && FreeFile(file) != 0)
		written = false;
	if (written)
		(void) durable_rename(IDEM_STAT_FILE ".tmp", IDEM_STAT_FILE, LOG);
	else
	{
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", IDEM_STAT_FILE ".tmp")));
		unlink(IDEM_STAT_FILE ".tmp");
	}
}

/*
 * Attach to the room, and set it up when this is the first process to come.
 * Runs again after a crash, when the memory is new.
 */
static void
AttachShared(void)
{
	bool		found;
	int			i;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	idem_shared = ShmemInitStruct(IDEM_SHARED_NAME, SharedSize(), &found);
	if (!found)
	{
		memset(idem_shared, 0, SharedSize());
		idem_shared->lock = &GetNamedLWLockTranche(IDEM_SHARED_NAME)->lock;
		pg_atomic_init_u32(&idem_shared->notice_round, 1);
		pg_atomic_init_u32(&idem_shared->tallies_freed, 1);
		idem_shared->ntallies = idem_max_databases;
		for (i = 0; i < idem_shared->ntallies; i++)
			InitTally(&idem_shared->tallies[i]);
		LoadTallies();
	}
	LWLockRelease(AddinShmemInitLock);

	if (!IsUnderPostmaster)
		on_shmem_exit(SaveTallies, (Datum) 0);
}

/* Arrange for the shared memory; only while libraries are preloaded */
void
IdemSharedInit(void)
{
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = RequestShared;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = AttachShared;
}

/* ----------
 * Counting
 * ----------
 */

/* The tally of a database, or a free one (InvalidOid); NULL: there is none */
static IdemTally *
FindTally(Oid database)
{
	int			i;

	for (i = 0; i < idem_shared->ntallies; i++)
	{
		if (idem_shared->tallies[i].database == database)
			return &idem_shared->tallies[i];
	}
	return NULL;
}

static void
ZeroTally(IdemTally *tally)
{
	int			i;
	int			j;

	for (i = 0; i < IDEM_STRIPES; i++)
		for (j = 0; j < IDEM_NCOUNTERS; j++)
			pg_atomic_write_u64(&tally->stripes[i].counts[j], 0);
}

/*
 * Free the tallies of databases that do not exist any more.  The catalog is
 * asked after the tally was seen and without the lock being held, so that a
 * database created meanwhile is not taken for a dropped one.
 */
void
IdemFreeTallies(void)
{
	int			i;

	for (i = 0; i < idem_shared->ntallies; i++)
	{
		IdemTally  *tally = &idem_shared->tallies[i];
		Oid			database;

		LWLockAcquire(idem_shared->lock, LW_SHARED);
		database = tally->database;
		LWLockRelease(idem_shared->lock);
		if (!OidIsValid(database) ||
			SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(database)))
			continue;

		LWLockAcquire(idem_shared->lock, LW_EXCLUSIVE);
		if (tally->database == database)
		{
			ZeroTally(tally);
			tally->database = InvalidOid;
			pg_atomic_fetch_add_u32(&idem_shared->tallies_freed, 1);
		}
		LWLockRelease(idem_shared->lock);
	}
}

/* This database's tally, or a free one made its own; NULL: no room */
static IdemTally *
TakeTally(void)
{
	IdemTally  *tally;

	LWLockAcquire(idem_shared->lock, LW_EXCLUSIVE);
	tally = FindTally(MyDatabaseId);
	if (tally == NULL && (tally = FindTally(InvalidOid)) != NULL)
	{
		tally->database = MyDatabaseId;
		tally->reset = GetCurrentTimestamp();
		memset(&tally->pass, 0, sizeof(IdemPass));
	}
	LWLockRelease(idem_shared->lock);
	return tally;
}

/* Find this process's tally; where there is no room, make some if possible */
static void
LookForTally(void)
{
	looked_at = pg_atomic_read_u32(&idem_shared->tallies_freed);
	if (!OidIsValid(MyDatabaseId))
		return;
	my_tally = TakeTally();
	if (my_tally == NULL && IsTransactionState())
	{
		IdemFreeTallies();
		my_tally = TakeTally();
	}
}

/*
 * Is this database counted?  False when idem.max_databases others are, or
 * without preloading.
 */
bool
IdemTallyHere(void)
{
	if (idem_shared == NULL)
		return false;
	if (my_tally == NULL &&
		looked_at != pg_atomic_read_u32(&idem_shared->tallies_freed))
		LookForTally();
	return my_tally != NULL;
}

/* Count, when preloaded; see IdemCountBy */
void
IdemCountShared(IdemCounter counter, uint64 n)
{
	if (my_tally != NULL || IdemTallyHere())
		pg_atomic_fetch_add_u64(&my_tally->stripes[MyProcPid % IDEM_STRIPES].counts[counter],
								n);
}

/* A pass of the sweep over this database's tables has ended */
void
IdemReportPass(const IdemPass *pass)
{
	if (!IdemTallyHere())
		return;
	IdemCount(IDEM_COUNT_PASSES);
	LWLockAcquire(idem_shared->lock, LW_EXCLUSIVE);
	my_tally->pass = *pass;
	LWLockRelease(idem_shared->lock);
}

/* All databases' counters, at most so many; returns how many there are */
int
IdemReadTallies(IdemTotals *totals, int max)
{
	int			n;

	LWLockAcquire(idem_shared->lock, LW_SHARED);
	n = CollectTallies(totals, max);
	LWLockRelease(idem_shared->lock);
	return n;
}

/* Begin this database's counters again; what the last pass found stays true */
void
IdemResetTally(void)
{
	if (!IdemTallyHere())
		return;
	LWLockAcquire(idem_shared->lock, LW_EXCLUSIVE);
	ZeroTally(my_tally);
	my_tally->reset = GetCurrentTimestamp();
	LWLockRelease(idem_shared->lock);
}
