/*-------------------------------------------------------------------------
 *
 * pin.c
 *	  What a session may not choose for itself: its client, and the other
 *	  settings that take a superuser.
 *
 * With shared_preload_libraries the server refuses them from anybody else.
 * Where the library is loaded by the first call, the server has known them as
 * placeholders until then, which anybody may set: one given in the connection
 * string even outranks ALTER ROLE ... SET, since nothing was known yet that
 * would forbid it.  When the setting is then defined, the server drops the
 * value that the session had no right to set, and with it there is no trace
 * left of the one that it replaced.  So that one is read again, from where the
 * server reads it at login and at its start.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_db_role_setting.h"
#include "catalog/pg_type.h"
#include "counters.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pin.h"
#include "settings.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/rel.h"

/* What takes a superuser, and so may have been displaced */
static const char *const protected_settings[] = {
	"idem.client",
	"idem.max_lease",
	"idem.max_response_size",
	"idem.retention",
};

/*
 * Set a protected setting again.  SAVE, since SET is refused while a parallel
 * query runs; with these sources either leaves nothing to be rolled back.  A
 * value that is no good is passed over with a warning, as at login.
 */
static void
Restore(const char *name, const char *value, GucSource source)
{
	int			i;

	for (i = 0; i < (int) lengthof(protected_settings); i++)
	{
		if (strcmp(name, protected_settings[i]) == 0 &&
			set_config_option(name, value, PGC_SUSET, source, GUC_ACTION_SAVE,
							  true, WARNING, false) == 0 && i == 0)
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("could not restore the setting \"%s\"", name),
					 errhint("Preload the library with shared_preload_libraries or session_preload_libraries.")));
	}
}

/* Set again what this array of "name=value" says about idem.* */
static void
RestoreFromArray(ArrayType *array, GucSource source)
{
	Datum	   *entries;
	int			nentries;
	int			i;

	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT,
					  &entries, NULL, &nentries);
	for (i = 0; i < nentries; i++)
	{
		char	   *entry = TextDatumGetCString(entries[i]);
		char	   *value = strchr(entry, '=');

		if (value == NULL)
			continue;
		*value++ = '\0';
		Restore(entry, value, source);
	}
}

/* The settings that were stored for this database and role, if any */
static void
RestoreFrom(Relation rel, Oid database, Oid role, GucSource source)
{
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&keys[0], Anum_pg_db_role_setting_setdatabase,
				BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(database));
	ScanKeyInit(&keys[1], Anum_pg_db_role_setting_setrole,
				BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(role));
	scan = systable_beginscan(rel, DbRoleSettingDatidRolidIndexId, true, NULL,
							  2, keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		Datum		array = heap_getattr(tuple, Anum_pg_db_role_setting_setconfig,
										 RelationGetDescr(rel), &isnull);

		if (!isnull)
			RestoreFromArray(DatumGetArrayTypeP(array), source);
	}
	systable_endscan(scan);
}

/*
 * What the configuration files say.  Only a superuser may read them, which is
 * what the server is when it does; nothing of them is shown to anybody.
 */
static void
RestoreFromFiles(void)
{
	Oid			user;
	int			context;
	uint64		i;

	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID,
						   context | SECURITY_LOCAL_USERID_CHANGE);
	SPI_connect();
	if (SPI_execute("SELECT name, setting FROM pg_catalog.pg_file_settings"
					" WHERE pg_catalog.starts_with(name, 'idem.') AND error IS NULL"
					" ORDER BY seqno", true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read the configuration files");
	for (i = 0; i < SPI_processed; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];

		Restore(SPI_getvalue(row, SPI_tuptable->tupdesc, 1),
				SPI_getvalue(row, SPI_tuptable->tupdesc, 2), PGC_S_FILE);
	}
	SPI_finish();
	SetUserIdAndSecContext(user, context);
}

/*
 * Once in a session that loaded the library late.  What the session could
 * rightfully set since then has a higher rank and stays.  The order is that of
 * process_settings in postinit.c: what comes later gives way.
 */
void
IdemRestoreSettings(void)
{
	static bool done = false;
	Oid			login = GetAuthenticatedUserId();
	Relation	rel;

	if (done || idem_shared != NULL || !IsUnderPostmaster)
		return;
	rel = table_open(DbRoleSettingRelationId, AccessShareLock);
	RestoreFrom(rel, MyDatabaseId, login, PGC_S_DATABASE_USER);
	RestoreFrom(rel, InvalidOid, login, PGC_S_USER);
	RestoreFrom(rel, MyDatabaseId, InvalidOid, PGC_S_DATABASE);
	RestoreFrom(rel, InvalidOid, InvalidOid, PGC_S_GLOBAL);
	table_close(rel, AccessShareLock);
	RestoreFromFiles();
	done = true;
}

/* The client that the session is pinned to, or NULL */
const char *
IdemPinnedClient(void)
{
	IdemRestoreSettings();
	if (idem_client == NULL || idem_client[0] == '\0')
		return NULL;
	return idem_client;
}

/*
 * A role that is pinned to a client reaches no other one.  What it would have
 * found there is not looked at.
 */
void
IdemCheckPin(text *client)
{
	const char *pinned = IdemPinnedClient();

	if (pinned == NULL ||
		(strlen(pinned) == VARSIZE_ANY_EXHDR(client) &&
		 memcmp(pinned, VARDATA_ANY(client), VARSIZE_ANY_EXHDR(client)) == 0))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for client \"%s\"", text_to_cstring(client)),
			 errdetail("The setting idem.client pins this session to one client."),
			 errhint("Pass the client that the role was given with ALTER ROLE ... SET idem.client.")));
}
