/*-------------------------------------------------------------------------
 *
 * complete.h
 *	  Making up an answer, for those who complete a key.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_COMPLETE_H
#define IDEM_COMPLETE_H

#include "fmgr.h"
#include "store.h"

extern int	IdemStatusArg(FunctionCallInfo fcinfo, int n);
extern void IdemJsonAnswer(IdemAnswer *answer, Jsonb *body, Jsonb *headers);
extern void IdemKeepAnswer(const IdemKeyRef *ref, const pg_uuid_t *token,
						   const IdemAnswer *answer);

#endif							/* IDEM_COMPLETE_H */
