/*-------------------------------------------------------------------------
 *
 * keys.h
 *	  Arguments that name a key: what is accepted.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_KEYS_H
#define IDEM_KEYS_H

#include "c.h"

/* Both take a detoasted text, or NULL for SQL's NULL */
extern void IdemCheckClient(text *client);
extern void IdemCheckKey(text *key);

#endif							/* IDEM_KEYS_H */
