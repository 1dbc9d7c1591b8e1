/*-------------------------------------------------------------------------
 *
 * outcome.h
 *	  The answer that goes with an outcome.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_OUTCOME_H
#define IDEM_OUTCOME_H

#include "store.h"

/* Columns that results with an outcome have in common, in this order */
typedef enum IdemAnswerColumn
{
	IDEM_ANSWER_STATUS_CODE,
	IDEM_ANSWER_HEADERS,
	IDEM_ANSWER_BODY,
	IDEM_ANSWER_NCOLS
} IdemAnswerColumn;

extern Datum IdemOutcomeText(IdemOutcome outcome);
extern void IdemOutcomeAnswer(const IdemReservation *reservation,
							  Datum *values, bool *isnull);

extern Jsonb *IdemJsonHeaders(void);
extern void IdemAnswerColumns(const IdemAnswer *answer, Datum *values,
							  bool *isnull);

#endif							/* IDEM_OUTCOME_H */
