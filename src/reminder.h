/*-------------------------------------------------------------------------
 *
 * reminder.h
 *	  Reminders of leases that are committed and not yet answered.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_REMINDER_H
#define IDEM_REMINDER_H

#include "storage/itemptr.h"
#include "utils/uuid.h"

extern void IdemReminderInit(void);
extern void IdemReminderTrack(Oid nsp, ItemPointer tid, const pg_uuid_t *token);
extern void IdemReminderDone(const pg_uuid_t *token);
extern int64 IdemReminderPass(Oid nsp, bool may_truncate);

#endif							/* IDEM_REMINDER_H */
