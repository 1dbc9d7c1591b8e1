/*-------------------------------------------------------------------------
 *
 * form.h
 *	  Is a text canonical?
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_FUZZ_FORM_H
#define IDEM_FUZZ_FORM_H

#include "c.h"

extern bool is_canonical(const char *text, size_t length);

#endif							/* IDEM_FUZZ_FORM_H */
