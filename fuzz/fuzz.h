/*-------------------------------------------------------------------------
 *
 * fuzz.h
 *	  What the targets of the fuzzer share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_FUZZ_H
#define IDEM_FUZZ_H

#include "postgres.h"

#include "fmgr.h"

/* The part of an input that is still to be read. */
typedef struct Input
{
	const uint8 *at;
	const uint8 *end;
} Input;

/* Something that must hold; the input that breaks it is reported and kept. */
#define MUST(condition) \
	((condition) ? (void) 0 : fuzz_wrong(#condition, __FILE__, __LINE__))

extern void fuzz_wrong(const char *condition, const char *file, int line) pg_attribute_noreturn();
extern int	take_byte(Input *input);
extern char *take_line(Input *input);
extern void take_encoding(Input *input);
extern Datum call(PGFunction function, int nargs, const NullableDatum *args, int *sqlstate);
extern bool same_bytes(const void *a, size_t alen, const void *b, size_t blen);
extern Datum sha256_of(const void *data, size_t length);

/* The targets */
extern void fuzz_canonical(Input *input);
extern void fuzz_keys(Input *input);

#endif							/* IDEM_FUZZ_H */
