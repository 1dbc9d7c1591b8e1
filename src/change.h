/*-------------------------------------------------------------------------
 *
 * change.h
 *	  Changing one version of one row, or saying that it is too late.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CHANGE_H
#define IDEM_CHANGE_H

#include "access/tableam.h"
#include "nodes/lockoptions.h"
#include "table.h"

extern bool IdemRowInsert(IdemTable *table, IdemRow *row);
extern bool IdemRowUpdate(IdemTable *table, IdemRow *row);
extern void IdemRowPrunePage(IdemTable *table, const IdemRow *row);
extern bool IdemRowDelete(IdemTable *table, ItemPointer tid);
extern TM_Result IdemRowReplace(IdemTable *table, IdemRow *row,
								LockWaitPolicy policy,
								void (*rewrite) (IdemRow *row, void *arg),
								void *arg);

#endif							/* IDEM_CHANGE_H */
