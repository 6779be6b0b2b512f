/* Loaded into a program by LD_PRELOAD, makes its process one whose files belong to root in /proc: it is not dumpable. */
#include <sys/prctl.h>

__attribute__((constructor)) static void undumpable(void)
{
	prctl(PR_SET_DUMPABLE, 0);
}
