/*-------------------------------------------------------------------------
 *
 * fuzz.c
 *	  libFuzzer inside a backend.
 *
 * A SQL function of a single-user backend hands the process over to libFuzzer,
 * which from then on calls one of the targets with one input after the other.
 * So what is called is the extension's own code with a real server around it:
 * its JSON and jsonpath parsers, its encoding conversions, its errors.  Only the
 * extension's sources are instrumented for coverage.
 *
 * Every chunk that is allocated while an input is worked on is a malloc of its
 * own, so that AddressSanitizer sees where it ends: a memory context takes a
 * block for each chunk that is larger than a fraction of the largest block, and
 * here the largest block is tiny.
 *
 *-------------------------------------------------------------------------
 */
#include "fuzz.h"

#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "compat.h"

PG_MODULE_MAGIC;

/* So small that (size - header) / 4 leaves nothing: see aset.c */
#define TINY_BLOCK	104

extern int	LLVMFuzzerRunDriver(int *argc, char ***argv,
								int (*callback) (const uint8_t *data, size_t size));

static MemoryContext input_context;
static void (*target) (Input *input);

/*
 * Reports a condition that does not hold, and ends: libFuzzer keeps the input.
 */
void
fuzz_wrong(const char *condition, const char *file, int line)
{
	fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, condition);
	abort();
}

/*
 * The next byte of the input; 0 at its end.
 */
int
take_byte(Input *input)
{
	return input->at < input->end ? *input->at++ : 0;
}

/*
 * The input up to the next NUL, as a string.  NULL at its end.
 */
char *
take_line(Input *input)
{
	const uint8 *start = input->at;

	if (start == input->end)
		return NULL;
	while (input->at < input->end && *input->at != 0)
		input->at++;
	if (input->at < input->end)
		return pnstrdup((const char *) start, input->at++ - start);
	return pnstrdup((const char *) start, input->at - start);
}

/*
 * Takes a byte for the encoding of the database, UTF-8 most of the time.
 */
void
take_encoding(Input *input)
{
	static const int encodings[] = {PG_UTF8, PG_UTF8, PG_UTF8, PG_UTF8, PG_UTF8,
	PG_LATIN1, PG_EUC_JP, PG_SQL_ASCII};

	SetDatabaseEncoding(encodings[take_byte(input) % lengthof(encodings)]);
}

/*
 * Calls an SQL function; in the case of an error the result is 0, and its
 * SQLSTATE is handed out.  No other error may be thrown.
 */
Datum
call(PGFunction function, int nargs, const NullableDatum *args, int *sqlstate)
{
	LOCAL_FCINFO(fcinfo, 4);
	MemoryContext context = CurrentMemoryContext;
	volatile Datum result = (Datum) 0;
	volatile int state = 0;

	InitFunctionCallInfoData(*fcinfo, NULL, nargs, InvalidOid, NULL, NULL);
	memcpy(fcinfo->args, args, nargs * sizeof(NullableDatum));
	PG_TRY();
	{
		result = function(fcinfo);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		state = geterrcode();
		FlushErrorState();
	}
	PG_END_TRY();

	*sqlstate = state;
	return result;
}

/*
 * Are two pieces of memory the same?
 */
bool
same_bytes(const void *a, size_t alen, const void *b, size_t blen)
{
	return alen == blen && memcmp(a, b, alen) == 0;
}

/*
 * SHA-256 by the server's own function.
 */
Datum
sha256_of(const void *data, size_t length)
{
	return DirectFunctionCall1(sha256_bytea,
							   PointerGetDatum(cstring_to_text_with_len(data, length)));
}

/*
 * One input.  An error that a target does not expect is a finding.
 */
static int
test_one_input(const uint8_t *data, size_t size)
{
	MemoryContext outer = MemoryContextSwitchTo(input_context);
	Input		input = {data, data + size};

	PG_TRY();
	{
		target(&input);
	}
	PG_CATCH();
	{
		EmitErrorReport();
		fuzz_wrong("no error is thrown", __FILE__, __LINE__);
	}
	PG_END_TRY();

	SetDatabaseEncoding(PG_UTF8);
	MemoryContextSwitchTo(outer);
	MemoryContextReset(input_context);
	return 0;
}

/*
 * idem_fuzz(target text, arguments text[])
 *		Runs libFuzzer, as the program and with the options that the arguments
 *		say.
 */
PG_FUNCTION_INFO_V1(idem_fuzz);
Datum
idem_fuzz(PG_FUNCTION_ARGS)
{
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	Datum	   *arguments;
	int			argc;
	char	  **argv;

	deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), TEXTOID, -1, false, TYPALIGN_INT,
					  &arguments, NULL, &argc);
	argv = palloc0((argc + 1) * sizeof(char *));
	for (int i = 0; i < argc; i++)
		argv[i] = TextDatumGetCString(arguments[i]);

	if (strcmp(name, "canonical") == 0)
		target = fuzz_canonical;
	else if (strcmp(name, "keys") == 0)
		target = fuzz_keys;
	else
		elog(ERROR, "no such target: %s", name);

	input_context = AllocSetContextCreate(TopMemoryContext, "input", 0, TINY_BLOCK, TINY_BLOCK);
	PG_RETURN_INT32(LLVMFuzzerRunDriver(&argc, &argv, test_one_input));
}
