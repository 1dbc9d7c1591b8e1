/*-------------------------------------------------------------------------
 *
 * launcher.h
 *	  The background process that knows which database is to be visited next.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_LAUNCHER_H
#define IDEM_LAUNCHER_H

/* Seconds until the postmaster starts the launcher again after it ended */
#define IDEM_LAUNCHER_RESTART	2

extern void IdemLauncherInit(void);
extern void IdemLauncherNotice(void);
extern PGDLLEXPORT void IdemLauncherMain(Datum main_arg);

#endif							/* IDEM_LAUNCHER_H */
