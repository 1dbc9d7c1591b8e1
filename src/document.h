/*-------------------------------------------------------------------------
 *
 * document.h
 *	  How much room a JSON document takes.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_DOCUMENT_H
#define IDEM_DOCUMENT_H

#include "utils/jsonb.h"

extern int64 IdemDocumentBytes(Jsonb *doc, int *depth);

#endif							/* IDEM_DOCUMENT_H */
