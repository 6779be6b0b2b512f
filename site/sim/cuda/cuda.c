// SPDX-License-Identifier: Apache-2.0
/*
 * libcuda.so.1 of a simulated node. It has the part of the driver API that the programs in this folder need. It
 * reproduces what MPS was measured to do to a process. There is no GPU. The kernel `spin` takes its time, the kernel
 * `fault` fails, and every other kernel takes no time. Device memory is memory of the process.
 */
#include "inside.h"
#include "share.h"
#include <sys/mman.h>
#include <sys/socket.h>

#define API __attribute__((visibility("default")))

typedef struct CUctx_st *CUcontext;
typedef unsigned long long CUdeviceptr;
struct CUmod_st { char *image; };
struct CUfunc_st { enum { other, spin, fault } kind; };

/* The time that was measured until the first context exists: 85 ms with a server, 316 ms without. */
enum { init_mps_ms = 72, context_mps_ms = 12, init_alone_ms = 200, context_alone_ms = 115 };
/* MiB: a context without MPS; the server's own; memory that no process holds; a GPU's memory as NVML counts it, and
 * as CUDA counts it. */
enum { alone_mib = 518, server_mib = 66, overhead_mib = 8, nvml_mib = 143771, cuda_mib = 143155 };

struct process process = { .mutex = PTHREAD_MUTEX_INITIALIZER, .server.socket = -1, .percentage = 100 };

static __thread struct CUctx_st *current;

__attribute__((constructor)) static void begin(void)
{
	pthread_condattr_t attributes;
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&process.changed, &attributes);
	pthread_condattr_destroy(&attributes);
	if (node_here(process.node))
		process.node[0] = '\0';
}

static void rest(int ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000L };
	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

static int open_device(const char *name)
{
	char path[PATH_MAX], dev[PATH_MAX];
	if (node_join(dev, process.node, "dev") || node_join(path, dev, name))
		return -1;
	return open(path, O_RDONLY | O_CLOEXEC);
}

/* Keeps a file of SIM/node/dev open, as the driver's files in /dev are kept open. So /proc/PID/fd shows it. A lock
 * that belongs to the open file tells the server and the node if any process still has it open. */
static void keep_file(int file, long byte)
{
	if (file < 0)
		return;
	node_locks(file, byte);
	if (process.files_open < files_max)
		process.files[process.files_open++] = file;
}

int own_device(const char *path)
{
	struct stat wanted, own;
	for (int i = 0; i < process.files_open && !stat(path, &wanted); i++)
		if (!fstat(process.files[i], &own) && own.st_dev == wanted.st_dev && own.st_ino == wanted.st_ino)
			return process.files[i];
	return -1;
}

/* These are the files that cuInit was measured to open when the server has accepted the process or when there is
 * no server. Only the number of times differs. The memory driver's file is opened twice. The work that the process
 * leaves on the GPU does harm when the last descriptor of either file is closed, in whichever process it is. */
static void open_files(void)
{
	for (int i = 0; i < 2; i++)
		keep_file(open_device("nvidia-uvm"), 2L * process.pid + i);
	for (int i = 0; i < process.devices.count; i++) {
		char gpu[PATH_MAX], name[24];
		long minor;
		if (node_gpu(gpu, process.node, (unsigned)process.devices.list[i].gpu) || node_number(gpu, "minor", &minor))
			continue;
		snprintf(name, sizeof name, "nvidia%ld", minor);
		keep_file(open_device(name), process.pid);
	}
}

/* Finds the devices: through the server if one is reached, otherwise on the node. */
static int find_devices(void)
{
	struct devices all;
	const char *limits = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
	int mps = mps_connect(&all);
	if (mps < 0)
		return -mps;
	process.mps = mps;
	if (!mps && devices_of_node(process.node, &all))
		return no_device;
	int error = devices_visible(&all, getenv("CUDA_VISIBLE_DEVICES"), &process.devices);
	if (!error && mps && limits)
		devices_limit(&process.devices, limits);
	if (error && mps) {
		mps_leave(&process.server);
		process.server.socket = -1;
	}
	return error;
}

API int cuInit(unsigned flags)
{
	(void)flags;
	static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
	pthread_mutex_lock(&once);
	int control = process.initialized ? -1 : open_device("nvidiactl");
	process.pid = process.initialized ? process.pid : getpid();
	int error = process.initialized ? success : find_devices();
	keep_file(control, process.pid);
	if (!error && !process.initialized) {
		open_files();
		rest(process.mps ? init_mps_ms : init_alone_ms);
		process.initialized = 1;
	}
	pthread_mutex_unlock(&once);
	return error;
}

/* Returns the error that a call gives before it does anything: 3 before cuInit, or the sticky error. */
static int ready(void)
{
	if (!process.initialized)
		return not_initialized;
	return __atomic_load_n(&process.sticky, __ATOMIC_ACQUIRE);
}

static struct device *device_of(int ordinal)
{
	return ordinal < 0 || ordinal >= process.devices.count ? NULL : &process.devices.list[ordinal];
}

API int cuDriverGetVersion(int *version)
{
	*version = 13000;
	return success;
}

API int cuDeviceGetCount(int *count)
{
	int error = ready();
	*count = error ? 0 : process.devices.count;
	return error;
}

API int cuDeviceGet(int *device, int ordinal)
{
	int error = ready();
	if (error)
		return error;
	*device = ordinal;
	return device_of(ordinal) ? success : invalid_device;
}

API int cuDeviceGetName(char *name, int size, int device)
{
	const struct device *d = device_of(device);
	if (!d || size < 1)
		return d ? invalid_value : invalid_device;
	snprintf(name, (size_t)size, "%s", d->name);
	return success;
}

API int cuDeviceGetUuid_v2(unsigned char uuid[16], int device)
{
	const struct device *d = device_of(device);
	if (!d)
		return invalid_device;
	const char *digit = d->uuid + 4; /* after GPU- or MIG- */
	for (int i = 0; i < 16; i++, digit += 2) {
		unsigned value;
		digit += *digit == '-';
		if (sscanf(digit, "%2x", &value) != 1)
			return invalid_device;
		uuid[i] = (unsigned char)value;
	}
	return success;
}

API int cuDeviceGetUuid(unsigned char uuid[16], int device) { return cuDeviceGetUuid_v2(uuid, device); }

/* Reads a number that is an attribute of the GPU's folder. */
static int from_folder(const struct device *d, const char *name, int *value)
{
	char gpu[PATH_MAX];
	long number;
	if (node_gpu(gpu, process.node, (unsigned)d->gpu) || node_number(gpu, name, &number))
		return invalid_device;
	*value = (int)number;
	return success;
}

/* Returns part 0 to 2 of the bus id "00000000:3B:00.0": domain, bus, slot. */
static int bus_part(const struct device *d, int part, int *value)
{
	char gpu[PATH_MAX], text[64];
	unsigned parts[3];
	if (node_gpu(gpu, process.node, (unsigned)d->gpu) || node_read(gpu, "bus_id", text, sizeof text) ||
	    sscanf(text, "%x:%x:%x", &parts[0], &parts[1], &parts[2]) != 3)
		return invalid_device;
	*value = (int)parts[part];
	return success;
}

API int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	int error = ready();
	const struct device *d = device_of(device);
	if (error || !d)
		return error ? error : invalid_device;
	switch (attribute) {
	case 1: *value = 1024; return success;   /* threads in a block */
	case 10: *value = 32; return success;    /* threads in a warp */
	case 16: *value = d->sms; return success;
	case 20: return from_folder(d, "compute_mode", value);
	case 33: return bus_part(d, 1, value);
	case 34: return bus_part(d, 2, value);
	case 50: return bus_part(d, 0, value);
	case 75: return from_folder(d, "cc_major", value);
	case 76: return from_folder(d, "cc_minor", value);
	}
	return invalid_value;
}

static size_t total_mib(const struct device *d) { return (size_t)((long long)d->mib * cuda_mib / nvml_mib); }

API int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
	const struct device *d = device_of(device);
	if (!d)
		return invalid_device;
	*bytes = total_mib(d) << 20;
	return success;
}

static long context_mib(const struct device *d)
{
	return process.mps ? share_context_mib(d->sms) - server_mib - overhead_mib : alone_mib;
}

/* Returns the free MiB of a device: what no process holds, of living ones and of dead ones whose files are held. */
static long device_free_mib(const char *gpu, const struct device *d)
{
	static __thread struct node_context held[NODE_CONTEXTS_MAX];
	long available = (long)total_mib(d) - overhead_mib;
	int count = node_contexts(gpu, held, NODE_CONTEXTS_MAX, 0);
	for (int i = 0; i < count && i < NODE_CONTEXTS_MAX; i++)
		available -= held[i].instance == d->instance ? held[i].memory_mib : 0;
	return available;
}

/* Returns what the process holds on a device. The caller has the mutex. */
static struct node_context held_on(const struct device *d, int *contexts)
{
	struct node_context held = { .pid = getpid(), .instance = d->instance };
	snprintf(held.type, sizeof held.type, "%s", process.mps ? "M+C" : "C");
	for (struct CUctx_st *c = process.contexts; c; c = c->next) {
		if (c->device->gpu != d->gpu || c->device->instance != d->instance)
			continue;
		++*contexts;
		held.memory_mib += context_mib(d) + (long)(c->allocated >> 20);
	}
	return held;
}

/* Tells the node what the process holds on a device. added is the MiB by which this is more than before. If the
 * device has less, the node is told nothing. The caller has the mutex. Returns 0 or the error. */
static int hold(const struct device *d, long added)
{
	char gpu[PATH_MAX];
	int contexts = 0;
	struct node_context held = held_on(d, &contexts);
	if (node_gpu(gpu, process.node, (unsigned)d->gpu))
		return unavailable;
	if (!contexts)
		return node_drop_context(gpu, held.pid) ? unavailable : success;
	int lock = node_lock(gpu);
	if (lock < 0)
		return unavailable;
	int error = success;
	if (added > 0 && added > device_free_mib(gpu, d))
		error = out_of_memory;
	else if (node_start(held.pid, &held.start) || node_add_locked(gpu, &held))
		error = unavailable;
	close(lock);
	return error;
}

static void unlink_context(struct CUctx_st *context)
{
	for (struct CUctx_st **at = &process.contexts; *at; at = &(*at)->next)
		if (*at == context) {
			*at = context->next;
			return;
		}
}

/* Makes the work page and its file for the server. */
static struct work *new_work(int *file)
{
	*file = memfd_create("work", MFD_CLOEXEC);
	if (*file < 0 || ftruncate(*file, sizeof(struct work)))
		return NULL;
	void *page = mmap(NULL, sizeof(struct work), PROT_READ | PROT_WRITE, MAP_SHARED, *file, 0);
	return page == MAP_FAILED ? NULL : page;
}

/* Notes a context without MPS in the node's list, because the process itself gets no message. */
static void note_without_mps(void)
{
	char path[PATH_MAX], line[32];
	int file = node_join(path, process.node, "without_mps") ? -1 : open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
	if (file < 0)
		return;
	if (write(file, line, (size_t)snprintf(line, sizeof line, "%d\n", getpid())) < 0)
		perror(path);
	close(file);
}

/* Makes a context. The caller has the mutex. */
static int make_context(struct CUctx_st **made, struct device *d)
{
	int file, error = success;
	struct CUctx_st *context = calloc(1, sizeof *context);
	if (!context)
		return out_of_memory;
	context->device = d;
	context->server.socket = -1;
	context->work = new_work(&file);
	rest(process.mps ? context_mps_ms : context_alone_ms);
	if (!context->work)
		error = out_of_memory;
	else if (process.mps)
		error = mps_open(context, file);
	close(file);
	if (!error) {
		context->next = process.contexts;
		process.contexts = context;
		error = hold(d, context_mib(d));
	}
	if (error) {
		unlink_context(context);
		if (context->server.socket >= 0) {
			context->ended = 1;
			mps_drop(&context->server); /* its listener may still use the context */
			return error;
		}
		free(context);
		return error;
	}
	if (!process.mps)
		note_without_mps();
	*made = context;
	return success;
}

static void drop_context(struct CUctx_st *context)
{
	unlink_context(context);
	hold(context->device, 0);
	context->ended = 1;
	if (context->server.socket >= 0)
		mps_drop(&context->server); /* its listener may still use the context, so the context is not freed */
}

API int cuDevicePrimaryCtxRetain(struct CUctx_st **context, int device)
{
	static struct CUctx_st *primary[devices_max];
	struct device *d = device_of(device);
	int error = ready();
	if (error || !d)
		return error ? error : invalid_device;
	pthread_mutex_lock(&process.mutex);
	if (!primary[device] || primary[device]->ended)
		error = make_context(&primary[device], d);
	if (!error) {
		primary[device]->references++;
		*context = primary[device];
	}
	pthread_mutex_unlock(&process.mutex);
	return error;
}

API int cuDevicePrimaryCtxRelease_v2(int device)
{
	struct device *d = device_of(device);
	if (!d)
		return invalid_device;
	pthread_mutex_lock(&process.mutex);
	struct CUctx_st *c = process.contexts;
	while (c && !(c->device == d && c->references))
		c = c->next;
	if (c && !--c->references)
		drop_context(c);
	pthread_mutex_unlock(&process.mutex);
	return c ? success : invalid_context;
}

API int cuCtxCreate_v2(struct CUctx_st **context, unsigned flags, int device)
{
	(void)flags;
	struct device *d = device_of(device);
	int error = ready();
	if (error || !d)
		return error ? error : invalid_device;
	pthread_mutex_lock(&process.mutex);
	error = make_context(context, d);
	pthread_mutex_unlock(&process.mutex);
	if (!error)
		current = *context;
	return error;
}

API int cuCtxCreate_v4(struct CUctx_st **context, void *parameters, unsigned flags, int device)
{
	return parameters ? invalid_value : cuCtxCreate_v2(context, flags, device);
}

API int cuCtxDestroy_v2(struct CUctx_st *context)
{
	if (!context || context->ended)
		return invalid_context;
	pthread_mutex_lock(&process.mutex);
	drop_context(context);
	pthread_mutex_unlock(&process.mutex);
	if (current == context)
		current = NULL;
	return success;
}

API int cuCtxSetCurrent(struct CUctx_st *context)
{
	current = context;
	return ready();
}

/* Returns the error that a call on the current context gives before it does anything. */
static int usable(void)
{
	int error = ready();
	return !error && (!current || current->ended) ? invalid_context : error;
}

/* Waits until the GPU's work has reached the time t, or until a fault. The caller has the mutex. */
static void wait_until(const struct CUctx_st *c, uint64_t t)
{
	while (!process.sticky && (process.stalled || c->faulting || work_now() < t)) {
		struct timespec at = { (time_t)(t / 1000000000u), (long)(t % 1000000000u) };
		if (process.stalled || c->faulting)
			pthread_cond_wait(&process.changed, &process.mutex);
		else
			pthread_cond_timedwait(&process.changed, &process.mutex, &at);
	}
}

API int cuCtxSynchronize(void)
{
	int error = usable();
	if (error)
		return error;
	pthread_mutex_lock(&process.mutex);
	wait_until(current, work_end(current->work));
	error = process.sticky;
	pthread_mutex_unlock(&process.mutex);
	return error;
}

API int cuStreamCreate(void **stream, unsigned flags)
{
	(void)flags;
	*stream = NULL; /* all streams are the default stream */
	return usable();
}

API int cuStreamSynchronize(void *stream)
{
	(void)stream;
	return cuCtxSynchronize();
}

API int cuStreamDestroy_v2(void *stream)
{
	(void)stream;
	return usable();
}

/* An event is the time at which all work that was queued before it is done. */
struct CUevent_st { uint64_t at; };

API int cuEventCreate(struct CUevent_st **event, unsigned flags)
{
	(void)flags;
	int error = usable();
	if (error)
		return error;
	*event = calloc(1, sizeof **event);
	return *event ? success : out_of_memory;
}

API int cuEventDestroy_v2(struct CUevent_st *event)
{
	free(event);
	return usable();
}

API int cuEventRecord(struct CUevent_st *event, void *stream)
{
	(void)stream;
	int error = usable();
	if (error)
		return error;
	pthread_mutex_lock(&process.mutex);
	event->at = work_end(current->work);
	pthread_mutex_unlock(&process.mutex);
	return success;
}

API int cuEventSynchronize(struct CUevent_st *event)
{
	int error = usable();
	if (error)
		return error;
	pthread_mutex_lock(&process.mutex);
	wait_until(current, event->at);
	error = process.sticky;
	pthread_mutex_unlock(&process.mutex);
	return error;
}

/* Returns the free MiB of the current context's device, but not more than the rest of the process's own limit. */
static long free_mib(void)
{
	char gpu[PATH_MAX];
	const struct device *d = current->device;
	int contexts = 0;
	long available = node_gpu(gpu, process.node, (unsigned)d->gpu) ? 0 : device_free_mib(gpu, d);
	pthread_mutex_lock(&process.mutex);
	long own = held_on(d, &contexts).memory_mib;
	pthread_mutex_unlock(&process.mutex);
	/* Measured: with a limit of 2 GiB, a client has 1534 MiB left if its context is 516 MiB by nvidia-smi. */
	if (d->limit && d->limit - (own - 2) < available)
		available = d->limit - (own - 2);
	return available > 0 ? available : 0;
}

API int cuMemGetInfo_v2(size_t *available, size_t *total)
{
	int error = usable();
	if (error)
		return error;
	size_t mib = total_mib(current->device);
	*total = mib << 20;
	*available = (size_t)free_mib() << 20;
	return success;
}

/* Device memory is anonymous memory of the process. It takes memory only where it is touched. Its size is in the
 * page before it. */
enum { page_bytes = 4096 };

API int cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
	size_t available, total;
	int error = cuMemGetInfo_v2(&available, &total);
	if (error)
		return error;
	if (!bytes)
		return invalid_value;
	if (bytes > available)
		return out_of_memory;
	char *page = mmap(NULL, bytes + page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (page == MAP_FAILED)
		return out_of_memory;
	*(size_t *)page = bytes;
	*pointer = (CUdeviceptr)(uintptr_t)(page + page_bytes);
	pthread_mutex_lock(&process.mutex);
	current->allocated += bytes;
	error = hold(current->device, (long)(bytes >> 20));
	if (error)
		current->allocated -= bytes;
	pthread_mutex_unlock(&process.mutex);
	if (error)
		munmap(page, bytes + page_bytes);
	return error;
}

API int cuMemFree_v2(CUdeviceptr pointer)
{
	int error = usable();
	if (error || !pointer)
		return error;
	char *page = (char *)(uintptr_t)pointer - page_bytes;
	size_t bytes = *(size_t *)page;
	munmap(page, bytes + page_bytes);
	pthread_mutex_lock(&process.mutex);
	current->allocated -= bytes < current->allocated ? bytes : current->allocated;
	error = hold(current->device, 0);
	pthread_mutex_unlock(&process.mutex);
	return error;
}

/* Host memory is a memfd. The server gets its descriptor and keeps it while any process has the client's files of
 * nvidia-uvm open. The real driver keeps the memory of the whole process so long (mmget). */
API int cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
	(void)flags;
	int error = usable();
	if (error || !bytes)
		return error ? error : invalid_value;
	int file = memfd_create("host", MFD_CLOEXEC);
	if (file < 0 || ftruncate(file, (off_t)bytes)) {
		close(file);
		return out_of_memory;
	}
	void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	error = page == MAP_FAILED ? out_of_memory : process.mps ? mps_host(file) : success;
	close(file);
	*pointer = page;
	return error;
}

API int cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
	int error = cuCtxSynchronize();
	if (!error)
		memcpy((void *)(uintptr_t)to, from, bytes);
	return error;
}

API int cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
	int error = cuCtxSynchronize();
	if (!error)
		memcpy(to, (void *)(uintptr_t)from, bytes);
	return error;
}

/* Modules are PTX. Only the text of the PTX is read. */
API int cuModuleLoadData(struct CUmod_st **module, const void *image)
{
	int error = usable();
	if (error)
		return error;
	if (strncmp(image, ".version", 8))
		return invalid_ptx;
	*module = malloc(sizeof **module);
	if (!*module || !((*module)->image = strdup(image)))
		return out_of_memory;
	return success;
}

API int cuModuleGetFunction(struct CUfunc_st **function, struct CUmod_st *module, const char *name)
{
	static struct CUfunc_st others = { other }, spins = { spin }, faults = { fault };
	char entry[256];
	snprintf(entry, sizeof entry, ".entry %s(", name);
	if (!strstr(module->image, entry))
		return not_found;
	*function = !strcmp(name, "spin") ? &spins : !strcmp(name, "fault") ? &faults : &others;
	return success;
}

/* Queues a kernel. If a full queue is in flight, it waits for a free place. */
static int launch_spin(struct CUctx_st *c, uint64_t ns, CUdeviceptr out)
{
	enum { queue = 1000 };
	pthread_mutex_lock(&process.mutex);
	if (c->work->launched >= queue)
		wait_until(c, c->work->launch[(c->work->launched - queue) % work_slots].end);
	int error = process.sticky;
	if (!error)
		work_launch(c->work, ns);
	pthread_mutex_unlock(&process.mutex);
	if (!error && out)
		memcpy((void *)(uintptr_t)out, &ns, sizeof ns); /* no one reads it before the kernel's end */
	return error;
}

/* Simulates an illegal access. The server tells all processes on the GPU, including this one. */
static int launch_fault(struct CUctx_st *c)
{
	if (c->server.socket < 0) {
		mps_fail(illegal_address);
		return success;
	}
	pthread_mutex_lock(&process.mutex);
	c->faulting = 1;
	pthread_mutex_unlock(&process.mutex);
	return send(c->server.socket, "fault", 5, MSG_NOSIGNAL) < 0 ? mps_rpc_failure : success;
}

API int cuLaunchKernel(struct CUfunc_st *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
		       unsigned bz, unsigned shared, void *stream, void **arguments, void **extra)
{
	(void)shared;
	(void)stream;
	(void)extra;
	int error = usable();
	if (error)
		return error;
	if (!gx || !gy || !gz || !bx || !by || !bz || (unsigned long long)bx * by * bz > 1024)
		return invalid_value;
	switch (function->kind) {
	case spin: return launch_spin(current, *(uint64_t *)arguments[0], *(CUdeviceptr *)arguments[1]);
	case fault: return launch_fault(current);
	default: return success;
	}
}

static const struct {
	int number;
	const char *name, *text;
} errors[] = {
	{ success, "CUDA_SUCCESS", "no error" },
	{ invalid_value, "CUDA_ERROR_INVALID_VALUE", "invalid argument" },
	{ out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" },
	{ not_initialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error" },
	{ unavailable, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable" },
	{ no_device, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected" },
	{ invalid_device, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal" },
	{ invalid_context, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context" },
	{ invalid_ptx, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed" },
	{ not_found, "CUDA_ERROR_NOT_FOUND", "named symbol not found" },
	{ illegal_address, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered" },
	{ 719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure" },
	{ mps_connection_failed, "CUDA_ERROR_MPS_CONNECTION_FAILED", "MPS client failed to connect to the MPS control daemon or the MPS server" },
	{ mps_rpc_failure, "CUDA_ERROR_MPS_RPC_FAILURE", "the remote procedural call between the MPS server and the MPS client failed" },
	{ 807, "CUDA_ERROR_MPS_SERVER_NOT_READY", "MPS server is not ready to accept new MPS client requests" },
	{ 808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "the hardware resources required to create MPS client have been exhausted" },
	{ 809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", "the hardware resources required to device connections have been exhausted" },
	{ mps_terminated, "CUDA_ERROR_MPS_CLIENT_TERMINATED", "the MPS client has been terminated by the server" },
};

API int cuGetErrorName(int error, const char **name)
{
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		if (errors[i].number == error) {
			*name = errors[i].name;
			return success;
		}
	*name = NULL;
	return invalid_value;
}

API int cuGetErrorString(int error, const char **text)
{
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		if (errors[i].number == error) {
			*text = errors[i].text;
			return success;
		}
	*text = NULL;
	return invalid_value;
}
