/*-------------------------------------------------------------------------
 *
 * idem.c
 *	  The library's entry point.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "launcher.h"
#include "miscadmin.h"
#include "reminder.h"
#include "settings.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

/*
 * The functions work in any backend; the background worker needs to be there
 * from the server's start.
 */
void
_PG_init(void)
{
	IdemDefineSettings();
	IdemReminderInit();
	if (process_shared_preload_libraries_in_progress)
		IdemLauncherInit();
}
