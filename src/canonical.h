/*-------------------------------------------------------------------------
 *
 * canonical.h
 *	  The canonical text of a jsonb document, and its fingerprint.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CANONICAL_H
#define IDEM_CANONICAL_H

#include "utils/jsonb.h"

#include "idem.h"

/* SHA-256 of the canonical text of a whole document, which is detoasted */
extern void IdemFingerprint(Jsonb *doc, uint8 digest[IDEM_FINGERPRINT_BYTES]);

#endif							/* IDEM_CANONICAL_H */
