/*-------------------------------------------------------------------------
 *
 * reminder.h
 *	  Reminders of leases that are committed and not yet answered.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_REMINDER_H
#define IDEM_REMINDER_H

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"
#include "table.h"

/* A lease that is over and unanswered */
typedef struct IdemDue
{
	TimestampTz lease_until;
	pg_uuid_t	token;
	text	   *client;
	text	   *key;
} IdemDue;

/* A pass over all reminders under way: reminder.c's own */
typedef struct IdemReminderPass IdemReminderPass;

extern void IdemReminderInit(void);
extern void IdemReminderTrack(Oid nsp, Relation rel, const IdemRow *row);
extern bool IdemReminderPlace(Oid nsp, Relation rel, const pg_uuid_t *token,
							  ItemPointer tid);
extern void IdemReminderDone(Relation rel, ItemPointer tid);
extern IdemReminderPass *IdemReminderPassBegin(Oid nsp, bool by_hand,
											   MemoryContext parent);
extern bool IdemReminderPassStep(IdemReminderPass *pass, int64 changes,
								 int64 *found);
extern TimestampTz IdemReminderPassEnd(IdemReminderPass *pass);
extern bool IdemReminderQueueHasRoom(void);
extern void IdemReminderNotify(void);
extern List *IdemReminderDue(Oid nsp, text *client);

#endif							/* IDEM_REMINDER_H */
