/*-------------------------------------------------------------------------
 *
 * digest.c
 *	  SHA-256, one computation at a time in a backend.
 *
 * OpenSSL's EVP is called directly.  The server's own pg_cryptohash looks the
 * algorithm up anew for every digest, which costs more than hashing a small
 * document, and its contexts belong to a resource owner, so that they cannot be
 * kept.  Here the algorithm and the context live as long as the backend.
 *
 * IdemDigestBegin resets the context whatever state it is in: an error thrown
 * in the middle of a computation needs no cleaning up.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <openssl/evp.h>

#include "digest.h"

static EVP_MD *sha256 = NULL;
static EVP_MD_CTX *context = NULL;

/*
 * OpenSSL refused a step.  It does so when memory is short, or when its
 * configuration offers no SHA-256.
 */
static void
digest_failed(const char *step)
{
	ereport(ERROR,
			(errcode(ERRCODE_EXTERNAL_ROUTINE_EXCEPTION),
			 errmsg("could not compute SHA-256: %s failed in OpenSSL", step),
			 errhint("Check that the server's OpenSSL configuration provides SHA-256, and that memory is not short.")));
}

/*
 * Starts a digest, dropping one that was not finished.
 */
void
IdemDigestBegin(void)
{
	if (sha256 == NULL)
		sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
	if (sha256 == NULL)
		digest_failed("EVP_MD_fetch");

	if (context == NULL)
		context = EVP_MD_CTX_new();
	if (context == NULL)
		digest_failed("EVP_MD_CTX_new");

	if (EVP_DigestInit_ex(context, sha256, NULL) != 1)
		digest_failed("EVP_DigestInit_ex");
}

/*
 * Adds bytes to the digest that IdemDigestBegin started.
 */
void
IdemDigestAdd(const void *data, size_t length)
{
	if (EVP_DigestUpdate(context, data, length) != 1)
		digest_failed("EVP_DigestUpdate");
}

/*
 * Ends the digest and hands it out.
 */
void
IdemDigestEnd(uint8 digest[IDEM_SHA256_BYTES])
{
	unsigned int length;

	if (EVP_DigestFinal_ex(context, digest, &length) != 1)
		digest_failed("EVP_DigestFinal_ex");
	Assert(length == IDEM_SHA256_BYTES);
}
