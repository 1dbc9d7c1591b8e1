/*-------------------------------------------------------------------------
 *
 * privileges.c
 *	  idem_grant and idem_revoke: which functions belong to which role.
 *
 * The functions check nothing but EXECUTE (and idem.client), so what is
 * granted here is what a role can do.  The commands run as the caller, who
 * has to be able to grant.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "args.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

PG_FUNCTION_INFO_V1(idem_grant);
PG_FUNCTION_INFO_V1(idem_revoke);

/* What an application calls */
static const char *const application_functions[] = {
	"idem_reserve",
	"idem_complete",
	"idem_complete_bytes",
	"idem_complete_json",
	"idem_release",
	"idem_renew",
	"idem_checkpoint",
	"idem_claim_stale",
	"idem_call",
	"idem_once",
	"idem_once_batch",
	"idem_lookup",
	"idem_canonical_fingerprint",
	"idem_canonical_json",
	"idem_provider_key",
	"idem_parse_key",
	NULL
};

/* What an application's own tables and functions may be made of */
static const char *const application_types[] = {
	"idem_outcome",
	"idem_reservation",
	"idem_call_result",
	"idem_claim",
	"idem_key_state",
	NULL
};

/* What monitoring reads: the views, and what they need */
static const char *const monitor_functions[] = {
	"idem_explain",
	"idem_health",
	"idem_pinned_client",
	"idem_stat_rows",
	NULL
};

static const char *const monitor_views[] = {
	"idem_keys",
	"idem_stat",
	NULL
};

/* Append the names, qualified and separated by commas */
static void
AppendNames(StringInfo command, Oid nsp, const char *const *names)
{
	const char *schema = get_namespace_name(nsp);
	int			i;

	for (i = 0; names[i] != NULL; i++)
		appendStringInfo(command, "%s%s", i > 0 ? ", " : "",
						 quote_qualified_identifier(schema, names[i]));
}

/*
 * The caller must be able to grant what is granted or taken back.  To one who
 * has a privilege but may not pass it on GRANT and REVOKE say so in a warning,
 * and do nothing.
 */
static void
CheckMayGrant(Oid nsp, const char *const *functions)
{
	StringInfoData query;
	int			i;

	initStringInfo(&query);
	appendStringInfo(&query,
					 "SELECT p.proname FROM pg_catalog.pg_proc p"
					 " WHERE p.pronamespace OPERATOR(pg_catalog.=) '%u'::pg_catalog.oid"
					 " AND NOT pg_catalog.has_function_privilege(p.oid, 'EXECUTE WITH GRANT OPTION')"
					 " AND p.proname OPERATOR(pg_catalog.=) ANY ('{", nsp);
	for (i = 0; functions[i] != NULL; i++)
		appendStringInfo(&query, "%s%s", i > 0 ? "," : "", functions[i]);
	appendStringInfoString(&query, "}'::pg_catalog.name[]) ORDER BY p.proname USING OPERATOR(pg_catalog.<) LIMIT 1");

	if (SPI_execute(query.data, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not execute \"%s\"", query.data);
	if (SPI_processed > 0)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to grant or revoke function %s",
						SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1)),
				 errhint("The owner of the extension can do that.")));
}

/* Run "GRANT privilege ON kind names TO role", or the REVOKE of it */
static void
Change(Oid nsp, bool grant, const char *privilege, const char *kind,
	   const char *const *names, const char *role)
{
	StringInfoData command;

	initStringInfo(&command);
	appendStringInfo(&command, "%s %s ON %s ", grant ? "GRANT" : "REVOKE",
					 privilege, kind);
	if (names != NULL)
		AppendNames(&command, nsp, names);
	else
		appendStringInfoString(&command, quote_identifier(get_namespace_name(nsp)));
	appendStringInfo(&command, " %s %s", grant ? "TO" : "FROM", role);
	if (SPI_execute(command.data, false, 0) != SPI_OK_UTILITY)
		elog(ERROR, "could not execute \"%s\"", command.data);
}

/* The role in argument 0, quoted */
static const char *
RoleArg(FunctionCallInfo fcinfo)
{
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("role is null"),
				 errhint("Pass the name of a role.")));
	return quote_identifier(GetUserNameFromId(PG_GETARG_OID(0), false));
}

/* idem_grant(role regrole, monitor boolean) */
Datum
idem_grant(PG_FUNCTION_ARGS)
{
	Oid			nsp = IdemSchema(fcinfo);
	const char *role = RoleArg(fcinfo);
	bool		monitor = !PG_ARGISNULL(1) && PG_GETARG_BOOL(1);

	SPI_connect();
	CheckMayGrant(nsp, monitor ? monitor_functions : application_functions);
	Change(nsp, true, "USAGE", "SCHEMA", NULL, role);
	if (monitor)
	{
		Change(nsp, true, "EXECUTE", "FUNCTION", monitor_functions, role);
		Change(nsp, true, "SELECT", "TABLE", monitor_views, role);
	}
	else
	{
		Change(nsp, true, "EXECUTE", "FUNCTION", application_functions, role);
		Change(nsp, true, "USAGE", "TYPE", application_types, role);
	}
	SPI_finish();
	PG_RETURN_VOID();
}

/* idem_revoke(role regrole) */
Datum
idem_revoke(PG_FUNCTION_ARGS)
{
	Oid			nsp = IdemSchema(fcinfo);
	const char *role = RoleArg(fcinfo);

	SPI_connect();
	CheckMayGrant(nsp, application_functions);
	CheckMayGrant(nsp, monitor_functions);
	Change(nsp, false, "EXECUTE", "FUNCTION", application_functions, role);
	Change(nsp, false, "USAGE", "TYPE", application_types, role);
	Change(nsp, false, "EXECUTE", "FUNCTION", monitor_functions, role);
	Change(nsp, false, "SELECT", "TABLE", monitor_views, role);
	SPI_finish();
	PG_RETURN_VOID();
}
