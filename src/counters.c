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
 *	notice_round				atomic, raised by the launcher, read by every
 *								backend without a lock; a stale reading costs
 *								one notice too many or one call's delay
 *
 * Nothing here decides anything about a key: all of it may be lost, and is
 * with every restart.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "counters.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"

#define IDEM_SHARED_NAME	"idem"

IdemShared *idem_shared = NULL;

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

/* Ask for the room, while the server still can give it */
static void
RequestShared(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();

	RequestAddinShmemSpace(MAXALIGN(sizeof(IdemShared)));
	RequestNamedLWLockTranche(IDEM_SHARED_NAME, 1);
}

/*
 * Attach to the room, and set it up when this is the first process to come.
 * Runs again after a crash, when the memory is new.
 */
static void
AttachShared(void)
{
	bool		found;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	idem_shared = ShmemInitStruct(IDEM_SHARED_NAME, sizeof(IdemShared), &found);
	if (!found)
	{
		memset(idem_shared, 0, sizeof(IdemShared));
		idem_shared->lock = &GetNamedLWLockTranche(IDEM_SHARED_NAME)->lock;
		pg_atomic_init_u32(&idem_shared->notice_round, 1);
	}
	LWLockRelease(AddinShmemInitLock);
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
