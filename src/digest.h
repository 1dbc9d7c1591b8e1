/*-------------------------------------------------------------------------
 *
 * digest.h
 *	  SHA-256, one computation at a time in a backend.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_DIGEST_H
#define IDEM_DIGEST_H

#include "c.h"

#define IDEM_SHA256_BYTES	32

extern void IdemDigestBegin(void);
extern void IdemDigestAdd(const void *data, size_t length);
extern void IdemDigestEnd(uint8 digest[IDEM_SHA256_BYTES]);

#endif							/* IDEM_DIGEST_H */
