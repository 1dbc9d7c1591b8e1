/*
 * clock.c
 *	  A system clock that a test can set, for one server: to be preloaded
 *	  with LD_PRELOAD. The monotonic clock is left alone.
 *
 * CLOCK_FILE names a file of eight bytes, the seconds to add. It is mapped, so
 * that a change holds at once in every process. (libfaketime does not do here:
 * up to version 15 the postmaster starts its children while it is in select(),
 * which libfaketime has taken over, and they keep the true time for good.)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *ahead;
static int	(*real_clock_gettime) (clockid_t, struct timespec *);

__attribute__((constructor))
static void
open_clock(void)
{
	const char *file = getenv("CLOCK_FILE");
	int			fd = file ? open(file, O_RDONLY) : -1;
	void	   *map = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*ahead), PROT_READ, MAP_SHARED, fd, 0);

	if (map != MAP_FAILED)
		ahead = map;
	if (fd >= 0)
		close(fd);
	real_clock_gettime = (int (*) (clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
}

int
clock_gettime(clockid_t id, struct timespec *ts)
{
	int			rc;

	if (!real_clock_gettime)
		open_clock();
	rc = real_clock_gettime(id, ts);
	if (rc == 0 && ahead && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
		ts->tv_sec += *ahead;
	return rc;
}

int
gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
	struct timespec ts;

	(void) tz;
	clock_gettime(CLOCK_REALTIME, &ts);
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return 0;
}

time_t
time(time_t *t)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	if (t)
		*t = ts.tv_sec;
	return ts.tv_sec;
}
