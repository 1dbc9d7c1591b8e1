/*
 * What cppcheck has to know of PostgreSQL. The server's own headers are more
 * than it can read.
 */
#define PG_VERSION_NUM				150000
#define PG_MODULE_MAGIC				extern int magic
#define PG_FUNCTION_INFO_V1(name)	extern int pg_finfo_##name
#define PGDLLEXPORT
#define PG_FUNCTION_ARGS			FunctionCallInfo fcinfo
#define FLEXIBLE_ARRAY_MEMBER
#define lengthof(array)				(sizeof(array) / sizeof((array)[0]))
#define Max(x, y)					((x) > (y) ? (x) : (y))
#define Min(x, y)					((x) < (y) ? (x) : (y))
#define pg_attribute_noreturn()		__attribute__((noreturn))

#define DEBUG1	14
#define LOG		15
#define WARNING	19
#define ERROR	21
#define FATAL	22

/* Errors do not return. */
extern void report(int level) ;
extern void give_up(void) __attribute__((noreturn));
#define ereport(level, ...)	do { if ((level) >= ERROR) give_up(); else report(level); } while (0)
#define elog(level, ...)	do { if ((level) >= ERROR) give_up(); else report(level); } while (0)

#define PG_TRY()			if (report(0), 1) {
#define PG_CATCH()			} else {
#define PG_FINALLY()		} {
#define PG_END_TRY()		}
#define PG_RE_THROW()		give_up()
