// SPDX-License-Identifier: Apache-2.0
/*
 * cuda-client: a CUDA program that prints a device's share, runs kernels, and ends in different ways.
 *
 *   cuda-client info [-v]       one line with what CUDA returns for device 0; -v adds the UUIDs of all devices
 *   cuda-client count           prints the devices that CUDA shows
 *   cuda-client spin [options]  runs kernels until the time is up or a call fails
 *       -ms D       milliseconds a kernel runs; 0 holds a context and launches nothing, inf never ends  (1)
 *       -queue Q    kernels launched before each wait                                     (1)
 *       -once       launches the queue once, waits for it and then launches no more
 *       -replay     launches a kernel when one is done, so that Q are always in flight
 *       -blocks B   blocks in a kernel                                                    (1)
 *       -for S      seconds                                                               (5)
 *       -dev LIST   ordinals, "0" or "0,1": a context on each, kernels on the first       (0)
 *       -exit-idle  on SIGTERM waits for the work in flight and ends, as a careful program does
 *       -tell S     seconds between two lines with the number of kernels done; 0 for none  (0)
 *       -end HOW    ends while its kernels are in flight: exit:N and _exit:N call these functions with code N,
 *                   signal:N sends signal N to itself, alloc asks for more memory than there is and then
 *                   calls exit with code 1                                            (no such end)
 *       -grow M     allocates M MiB of device memory at a time, while its kernels are in flight, until there is no
 *                   more, and then calls exit with code 1                                (no such end)
 *       -grow-host M   the same with host memory, so the kernel ends a process in a full control group
 *       -after S    seconds from the first queue's launch to the end of -end or -grow   (0)
 *       -mib M      device memory that it allocates                                       (0)
 *       -host M     host memory that it allocates and writes to                           (0)
 *       -hold S     seconds that it stays after a failed call, like a program that cleans up  (0)
 *   cuda-client stay STAGE S    stays for S seconds at a stage: load (libcuda only), init (cuInit) or context
 *   cuda-client first           runs one kernel and prints when it was done, in seconds of the wall clock
 *   cuda-client fault           runs a kernel that writes to an illegal address
 *   cuda-client alloc MIB       allocates device memory
 *   cuda-client title ...       one of these, with a title over its environment, as by setproctitle (vLLM, Ray)
 *
 * Exit code: 0 if every call succeeded, 1 if one failed (its number and name are printed), 2 for wrong usage.
 */
#define _GNU_SOURCE
#include "driver.h"
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum { max_devices = 16, max_queued = 1000 };

static volatile sig_atomic_t asked_to_end;

static void on_term(int signal)
{
	(void)signal;
	asked_to_end = 1;
}

struct spin {
	double ms, seconds, tell, hold, after, mib, host, step;
	int queue, blocks, exit_idle, once, replay;
	enum { not, by_exit, by__exit, by_signal, by_alloc, by_growing, by_growing_host } end;
	int code; /* or the signal */
	int devices[max_devices], ndevices;
	CUcontext context; /* the first device's */
};

static int usage(const char *what)
{
	fprintf(stderr, "cuda-client: %s\nusage: cuda-client info [-v] | count | spin [-ms D] [-queue Q] [-blocks B] "
			"[-once | -replay] [-for S] [-dev LIST] [-exit-idle] "
			"[-end exit:N|_exit:N|signal:N|alloc | -grow M | -grow-host M] [-after S] "
			"[-tell S] [-mib M] [-host M] [-hold S] | stay load|init|context S | first | fault | alloc MIB\n", what);
	return 2;
}

static void print_uuids(int devices)
{
	for (int i = 0; i < devices; i++) {
		char uuid[48] = "?";
		CUdevice device;
		if (driver.device(&device, i) == 0)
			driver_uuid(uuid, device);
		printf(" uuid=%s", uuid);
	}
}

static int info(int verbose)
{
	double begin = driver_now();
	int devices = 0, sms = 0;
	size_t available = 0, total = 0;
	CUdevice device;
	CUcontext context;
	CUresult e = driver.init(0);
	if (!e)
		e = driver.device_count(&devices);
	if (!e && !devices)
		e = 100;
	if (!e)
		e = driver.device(&device, 0);
	if (!e)
		e = driver.retain(&context, device);
	if (!e)
		e = driver.set_current(context);
	double took = driver_now() - begin;
	if (!e)
		e = driver.device_attribute(&sms, ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
	if (!e)
		e = driver.mem_info(&available, &total);
	if (e)
		devices = 0;
	printf("err=%d(%s) sm=%d ndev=%d init=%.3f free=%zuMiB total=%zuMiB", e, driver_error(e), sms, devices, took,
	       available >> 20, total >> 20);
	if (verbose)
		print_uuids(devices);
	printf("\n");
	return e != 0;
}

static int count(void)
{
	int devices = 0;
	CUresult e = driver.init(0);
	if (!e)
		e = driver.device_count(&devices);
	if (e) {
		printf("count err=%d %s\n", e, driver_error(e));
		return 1;
	}
	printf("count=%d", devices);
	print_uuids(devices);
	printf("\n");
	return 0;
}

/* Makes contexts on all of the devices. The context of the first device stays current, and its kernels are loaded
 * last. */
static CUresult open_all(struct spin *s, CUfunction *spin, CUfunction *fault)
{
	CUresult e = driver.init(0);
	for (int i = s->ndevices - 1; i >= 0 && !e; i--)
		e = driver_open(s->devices[i], &s->context, spin, fault);
	return e;
}

static CUresult alloc_mib(double mib)
{
	CUdeviceptr memory;
	return driver.alloc(&memory, (size_t)(mib * (1 << 20)));
}

/* Allocates host memory and writes to it, so that the kernel charges it to the process's control group. */
static CUresult alloc_host(double mib)
{
	void *memory;
	size_t bytes = (size_t)(mib * (1 << 20));
	CUresult e = driver.host_alloc(&memory, bytes, 0);
	if (!e)
		memset(memory, 1, bytes);
	return e;
}

/* The same, with a sixth as much that is the process's alone. The kernel frees that part when the process is killed,
 * and holds the other part while the driver's files are held. */
static CUresult alloc_host_and_own(double mib)
{
	static void *volatile own; /* a compiler leaves out memory that is not used */
	size_t bytes = (size_t)(mib / 6 * (1 << 20));
	own = malloc(bytes);
	if (own)
		memset(own, 1, bytes);
	return alloc_host(mib);
}

/* Allocates until a call fails. */
static CUresult grow(CUresult (*allocate)(double), double mib)
{
	CUresult e;
	do
		e = allocate(mib);
	while (!e);
	return e;
}

/* Ends the process as the option -end asks. It runs in a second thread, because the first one waits for the
 * kernels. */
static void *end_process(void *argument)
{
	const struct spin *s = argument;
	const struct rlimit no_core = { 0, 0 };
	setrlimit(RLIMIT_CORE, &no_core);
	usleep((useconds_t)(s->after * 1e6));
	switch (s->end) {
	case by_exit:
		exit(s->code);
	case by__exit:
		_exit(s->code);
	case by_signal:
		kill(getpid(), s->code);
		break;
	default:
		driver.set_current(s->context);
		CUresult e = s->end == by_growing ? grow(alloc_mib, s->step)
			   : s->end == by_growing_host ? grow(alloc_host_and_own, s->step) : alloc_mib(1 << 26);
		printf("pid=%d alloc err=%d %s\n", getpid(), e, driver_error(e));
		exit(1);
	}
	return NULL;
}

/* Called after the first launch of a queue. The time until the end of the process starts here. */
static void in_flight(struct spin *s)
{
	static int begun;
	pthread_t thread;
	if (s->end && !begun && pthread_create(&thread, NULL, end_process, s) == 0)
		begun = 1;
}

/* Launches one kernel. A kernel that never ends runs for 30 years. */
static CUresult launch(const struct spin *s, CUfunction spin)
{
	return driver_spin(spin, (unsigned)s->blocks, isinf(s->ms) ? (uint64_t)1000000000 * 1000000000 : (uint64_t)(s->ms * 1e6), 0);
}

static CUresult run_queue(struct spin *s, CUfunction spin)
{
	CUresult e = 0;
	for (int i = 0; i < s->queue && !e && s->ms > 0; i++)
		e = launch(s, spin);
	in_flight(s);
	if (!e)
		e = driver.synchronize();
	if (s->ms <= 0)
		usleep(10000);
	return e;
}

/* Launches one more kernel when the kernel one queue length before it is done. */
static CUresult run_next(struct spin *s, CUfunction spin, long kernels)
{
	static CUevent done[max_queued];
	CUevent *event = &done[kernels % s->queue];
	CUresult e = *event ? driver.event_synchronize(*event) : driver.event_create(event, 0);
	if (!e)
		e = launch(s, spin);
	if (!e)
		e = driver.event_record(*event, NULL);
	if (kernels + 1 == s->queue)
		in_flight(s);
	return e;
}

/* Launches what the options ask for next, and counts the kernels. */
static CUresult run(struct spin *s, CUfunction spin, long *kernels)
{
	if (s->once && *kernels) {
		usleep(10000);
		return driver.synchronize();
	}
	CUresult e = s->replay ? run_next(s, spin, *kernels) : run_queue(s, spin);
	if (!e && s->ms > 0)
		*kernels += s->replay ? 1 : s->queue;
	return e;
}

static int spin(struct spin *s)
{
	CUfunction kernel, fault;
	long kernels = 0;
	CUdevice device;
	int sms = 0;
	CUresult e = open_all(s, &kernel, &fault);
	if (!e)
		e = driver.device(&device, s->devices[0]);
	if (!e)
		e = driver.device_attribute(&sms, ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
	if (!e && s->mib > 0)
		e = alloc_mib(s->mib);
	if (!e && s->host > 0)
		e = alloc_host(s->host);
	if (e) {
		printf("pid=%d init err=%d %s\n", getpid(), e, driver_error(e));
		return 1;
	}
	if (s->exit_idle)
		signal(SIGTERM, on_term);
	printf("pid=%d ready ms=%g queue=%d blocks=%d sm=%d\n", getpid(), s->ms, s->queue, s->blocks, sms);
	fflush(stdout);
	double told = driver_now(), end = told + s->seconds;
	while (driver_now() < end && !asked_to_end) {
		e = run(s, kernel, &kernels);
		if (e) {
			printf("pid=%d err=%d %s after %ld\n", getpid(), e, driver_error(e), kernels);
			fflush(stdout);
			usleep((useconds_t)(s->hold * 1e6));
			return 1;
		}
		if (s->tell > 0 && driver_now() >= told + s->tell) {
			told = driver_now();
			printf("pid=%d at work kernels=%ld\n", getpid(), kernels);
			fflush(stdout);
		}
	}
	printf("pid=%d done kernels=%ld\n", getpid(), kernels);
	return 0;
}

static int stay(const char *stage, double seconds)
{
	struct spin first = { .devices = { 0 }, .ndevices = 1 };
	CUfunction kernel, bad;
	CUresult e = 0;
	if (!strcmp(stage, "init"))
		e = driver.init(0);
	else if (!strcmp(stage, "context"))
		e = open_all(&first, &kernel, &bad);
	else if (strcmp(stage, "load"))
		return usage("stay needs load, init or context");
	printf("pid=%d stays at %s err=%d %s\n", getpid(), stage, e, driver_error(e));
	fflush(stdout);
	usleep((useconds_t)(seconds * 1e6));
	return e != 0;
}

static int first(void)
{
	struct spin one = { .devices = { 0 }, .ndevices = 1 };
	CUfunction kernel, bad;
	struct timespec t;
	CUresult e = open_all(&one, &kernel, &bad);
	if (!e)
		e = driver_spin(kernel, 1, 1000, 0);
	if (!e)
		e = driver.synchronize();
	clock_gettime(CLOCK_REALTIME, &t);
	printf("first kernel pid=%d err=%d at=%lld.%06ld\n", getpid(), e, (long long)t.tv_sec, t.tv_nsec / 1000);
	return e != 0;
}

static int fault(void)
{
	struct spin first = { .devices = { 0 }, .ndevices = 1 };
	CUfunction kernel, bad;
	uint64_t where = 16;
	void *arguments[] = { &where };
	CUresult e = open_all(&first, &kernel, &bad);
	if (!e)
		e = driver.launch(bad, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL);
	if (!e)
		e = driver.synchronize();
	printf("fault pid=%d err=%d %s\n", getpid(), e, driver_error(e));
	return e != 0;
}

static int allocate(double mib)
{
	struct spin first = { .devices = { 0 }, .ndevices = 1 };
	CUfunction kernel, bad;
	size_t available = 0, total = 0;
	CUresult e = open_all(&first, &kernel, &bad);
	if (!e)
		e = alloc_mib(mib);
	if (!e)
		e = driver.mem_info(&available, &total);
	printf("alloc pid=%d err=%d(%s) mib=%g free=%zuMiB\n", getpid(), e, driver_error(e), mib, available >> 20);
	return e != 0;
}

/* Reads "0,1,3" into ordinals. Returns 0 if the text is no such list. */
static int read_devices(struct spin *s, const char *list)
{
	s->ndevices = 0;
	while (s->ndevices < max_devices) {
		char *end;
		long ordinal = strtol(list, &end, 10);
		if (end == list || ordinal < 0)
			return 0;
		s->devices[s->ndevices++] = (int)ordinal;
		if (!*end)
			return 1;
		if (*end != ',')
			return 0;
		list = end + 1;
	}
	return 0;
}

static int read_number(const char *text, double *into)
{
	char *end;
	*into = strtod(text, &end);
	return end != text && !*end && *into >= 0;
}

/* Reads "_exit:3" and the like. Returns 0 if the text is no such end. */
static int read_end(struct spin *s, const char *text)
{
	char trailing;
	if (sscanf(text, "exit:%d%c", &s->code, &trailing) == 1)
		s->end = by_exit;
	else if (sscanf(text, "_exit:%d%c", &s->code, &trailing) == 1)
		s->end = by__exit;
	else if (sscanf(text, "signal:%d%c", &s->code, &trailing) == 1)
		s->end = by_signal;
	else if (!strcmp(text, "alloc"))
		s->end = by_alloc;
	return s->end;
}

static int spin_options(int argc, char **argv)
{
	struct spin s = { .ms = 1, .seconds = 5, .queue = 1, .blocks = 1, .devices = { 0 }, .ndevices = 1 };
	for (int i = 2; i < argc; i++) {
		double number;
		int *flag = !strcmp(argv[i], "-exit-idle") ? &s.exit_idle : !strcmp(argv[i], "-once") ? &s.once
			  : !strcmp(argv[i], "-replay") ? &s.replay : NULL;
		if (flag) {
			*flag = 1;
			continue;
		}
		if (i + 1 >= argc)
			return usage("an option lacks its value");
		if (!strcmp(argv[i], "-dev")) {
			if (!read_devices(&s, argv[++i]))
				return usage("-dev needs ordinals, as in 0,1");
			continue;
		}
		if (!strcmp(argv[i], "-end")) {
			if (!read_end(&s, argv[++i]))
				return usage("-end needs exit:N, _exit:N, signal:N or alloc");
			continue;
		}
		if (!read_number(argv[i + 1], &number))
			return usage("an option needs a number");
		if (!strcmp(argv[i], "-ms"))
			s.ms = number;
		else if (!strcmp(argv[i], "-queue") && number >= 1)
			s.queue = (int)number;
		else if (!strcmp(argv[i], "-blocks") && number >= 1)
			s.blocks = (int)number;
		else if (!strcmp(argv[i], "-for"))
			s.seconds = number;
		else if (!strcmp(argv[i], "-tell"))
			s.tell = number;
		else if (!strcmp(argv[i], "-after"))
			s.after = number;
		else if (!strcmp(argv[i], "-mib"))
			s.mib = number;
		else if (!strcmp(argv[i], "-host"))
			s.host = number;
		else if (!strcmp(argv[i], "-grow") && number > 0)
			s.end = by_growing, s.step = number;
		else if (!strcmp(argv[i], "-grow-host") && number > 0)
			s.end = by_growing_host, s.step = number;
		else if (!strcmp(argv[i], "-hold"))
			s.hold = number;
		else
			return usage("unknown option, or its value is out of range");
		i++;
	}
	if (s.replay && s.queue > max_queued)
		return usage("-replay needs a queue of at most 1000");
	return spin(&s);
}

/* The program keeps a copy of its environment, and the kernel shows the title. */
static void retitle(void)
{
	char *from = environ[0], *to = from;
	for (char **e = environ; *e; e++) {
		to = *e + strlen(*e);
		*e = strdup(*e);
	}
	memset(from, 0, to - from);
	strncpy(from, "VLLM::Worker_TP=0", to - from);
}

int main(int argc, char **argv)
{
	double number;
	if (argc > 2 && !strcmp(argv[1], "title")) {
		retitle();
		argv++;
		argc--;
	}
	if (argc < 2)
		return usage("no mode given");
	const char *missing = driver_load();
	if (missing) {
		fprintf(stderr, "cuda-client: cannot load the CUDA driver: %s\n", missing);
		return 1;
	}
	if (!strcmp(argv[1], "info"))
		return info(argc > 2 && !strcmp(argv[2], "-v"));
	if (!strcmp(argv[1], "count"))
		return count();
	if (!strcmp(argv[1], "spin"))
		return spin_options(argc, argv);
	if (!strcmp(argv[1], "stay") && argc == 4 && read_number(argv[3], &number))
		return stay(argv[2], number);
	if (!strcmp(argv[1], "first"))
		return first();
	if (!strcmp(argv[1], "fault"))
		return fault();
	if (!strcmp(argv[1], "alloc") && argc == 3 && read_number(argv[2], &number))
		return allocate(number);
	return usage("unknown mode");
}
