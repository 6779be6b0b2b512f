// SPDX-License-Identifier: Apache-2.0

//go:build ignore
// Without the line above the Go tool refuses a C file in a folder with Go tests. sim.Build compiles this file.

/*
 * A simulated libnvidia-ml.so.1, NVIDIA's management library. It answers from the folder that ../node/README.md
 * describes.
 *
 * A program that uses the functions below gets the C ABI of NVIDIA's nvml.h (CUDA 13). Each answer has the content of
 * the node's files at the time of the call. The library keeps only the count of initialisations between calls. So
 * when one process sets something, every other process reads it. Answers for an H200 equal those recorded on one
 * (testdata/).
 */
#define _GNU_SOURCE
/* The driver's files that a process keeps open: some for each simulated node that it asks. */
#define NODE_KEEPS_DEVICES 512
#include "../node/node.h"

#include <pthread.h>
#include <strings.h>

#define API __attribute__((visibility("default")))

/* ---- The part of nvml.h that is needed here. Names, numbers and layouts are NVIDIA's. ---- */

typedef enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_DRIVER_NOT_LOADED = 9,
	NVML_ERROR_GPU_IS_LOST = 15,
	NVML_ERROR_MEMORY = 20,
	NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
	NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

typedef struct device *nvmlDevice_t;

typedef struct {
	char busIdLegacy[16];
	unsigned domain, bus, device;
	unsigned pciDeviceId, pciSubSystemId;
	char busId[32];
} nvmlPciInfo_t;

typedef struct {
	unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
	unsigned version;
	unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
	unsigned pid;
	unsigned long long usedGpuMemory;
	unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

typedef struct {
	unsigned pid;
	unsigned long long timeStamp;
	unsigned smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;

enum { GPM_METRIC_GRAPHICS_UTIL = 1, GPM_METRIC_SM_UTIL = 2, GPM_METRIC_DRAM_BW_UTIL = 10, GPM_METRIC_MAX = 477, GPM_VERSION = 1 };

typedef struct gpm_sample *nvmlGpmSample_t;

typedef struct {
	unsigned metricId;
	nvmlReturn_t nvmlReturn;
	double value;
	struct {
		char *shortName, *longName, *unit;
	} metricInfo;
} nvmlGpmMetric_t;

typedef struct {
	unsigned version, numMetrics;
	nvmlGpmSample_t sample1, sample2;
	nvmlGpmMetric_t metrics[GPM_METRIC_MAX];
} nvmlGpmMetricsGet_t;

typedef struct {
	unsigned version, isSupportedDevice;
} nvmlGpmSupport_t;

typedef struct {
	unsigned multiprocessorCount;
	unsigned sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
	unsigned gpuInstanceSliceCount, computeInstanceSliceCount;
	unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

/* ---- The node ---- */

enum { MAX_GPUS = 64, MAX_INSTANCES = 7, WHOLE = NODE_WHOLE };
enum { INIT_MS = 8, SHUTDOWN_MS = 2 }; /* measured on an H200, like all answers in testdata */

/* A handle holds the GPU and the number of its instance, or WHOLE. It holds no other data, so it cannot be out of
 * date. */
struct device {
	unsigned gpu;
	int instance;
};

static struct device devices[MAX_GPUS][1 + MAX_INSTANCES];
static char node[PATH_MAX]; /* empty if there is no node */
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static int initialised; /* count of initialisations, protected by guard */

__attribute__((constructor)) static void find_node(void)
{
	if (node_here(node))
		node[0] = '\0';
	for (unsigned gpu = 0; gpu < MAX_GPUS; gpu++)
		for (int slot = 0; slot <= MAX_INSTANCES; slot++)
			devices[gpu][slot] = (struct device){ gpu, slot - 1 };
}

static int is_initialised(void)
{
	pthread_mutex_lock(&guard);
	int yes = initialised > 0;
	pthread_mutex_unlock(&guard);
	return yes;
}

static nvmlDevice_t handle(unsigned gpu, int instance) { return &devices[gpu][instance + 1]; }

static int is_handle(nvmlDevice_t device)
{
	return device >= &devices[0][0] && device <= &devices[MAX_GPUS - 1][MAX_INSTANCES];
}

/* enter is the first call of every function of the library. It applies the delay and the failure that a test has
 * set. */
static nvmlReturn_t enter(const char *function)
{
	if (!is_initialised())
		return NVML_ERROR_UNINITIALIZED;
	node_delay(node, function, 0);
	return (nvmlReturn_t)node_failure(node, function);
}

/* enter_device is enter for a function on a device. It writes the folder of the GPU to gpu. */
static nvmlReturn_t enter_device(const char *function, nvmlDevice_t device, const void *out, char gpu[PATH_MAX])
{
	nvmlReturn_t ret = enter(function);
	if (ret)
		return ret;
	if (!is_handle(device) || !out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (node_gpu(gpu, node, device->gpu))
		return NVML_ERROR_GPU_IS_LOST;
	return (nvmlReturn_t)node_failure(gpu, function);
}

/* attribute_of writes the name of a device's own attribute: "sms", or "mig/3/sms" for an instance. */
static void attribute_of(char name[64], nvmlDevice_t device, const char *attribute)
{
	if (device->instance == WHOLE)
		snprintf(name, 64, "%s", attribute);
	else
		snprintf(name, 64, "mig/%d/%s", device->instance, attribute);
}

static nvmlReturn_t read_number(const char *gpu, nvmlDevice_t device, const char *attribute, long *number)
{
	char name[64];
	attribute_of(name, device, attribute);
	return node_number(gpu, name, number) ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}

/* give_text copies a text to the caller. Like the real NVML, it refuses a buffer that is too short. */
static nvmlReturn_t give_text(const char *text, char *out, unsigned length)
{
	if (strlen(text) >= length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(out, text);
	return NVML_SUCCESS;
}

static nvmlReturn_t give_device_text(const char *gpu, nvmlDevice_t device, const char *attribute, char *out, unsigned length)
{
	char name[64], text[128];
	attribute_of(name, device, attribute);
	if (node_read(gpu, name, text, sizeof text))
		return NVML_ERROR_UNKNOWN;
	return give_text(text, out, length);
}

static int in_mig_mode(const char *gpu)
{
	long mode;
	return node_number(gpu, "mig_mode", &mode) == 0 && mode == 1;
}

static unsigned count_gpus(void)
{
	char gpu[PATH_MAX];
	unsigned count = 0;
	while (count < MAX_GPUS && node_gpu(gpu, node, count) == 0)
		count++;
	return count;
}

static int has_instance(const char *gpu, int instance)
{
	char name[64], text[128];
	snprintf(name, sizeof name, "mig/%d/uuid", instance);
	return in_mig_mode(gpu) && node_read(gpu, name, text, sizeof text) == 0;
}

/* ---- The library itself ---- */

static nvmlReturn_t initialise(const char *function)
{
	const char *log = getenv("__NVML_DBG_FILE"); /* NVIDIA's library, too, writes the file that this variable names */
	FILE *file = log ? fopen(log, "a") : NULL;
	if (file) {
		fprintf(file, "%s\n", function);
		fclose(file);
	}
	node_delay(node, function, INIT_MS);
	if (!node[0] || access(node, F_OK))
		return NVML_ERROR_DRIVER_NOT_LOADED;
	nvmlReturn_t failure = (nvmlReturn_t)node_failure(node, function);
	if (failure)
		return failure;
	pthread_mutex_lock(&guard);
	initialised++;
	pthread_mutex_unlock(&guard);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlInit_v2(void) { return initialise(__func__); }

API nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
	/* The flags decide about attaching to GPUs and about a node without GPUs. Both have no effect here. */
	(void)flags;
	return initialise(__func__);
}

API nvmlReturn_t nvmlShutdown(void)
{
	if (!is_initialised())
		return NVML_ERROR_UNINITIALIZED;
	node_delay(node, __func__, SHUTDOWN_MS);
	nvmlReturn_t failure = (nvmlReturn_t)node_failure(node, __func__);
	if (failure)
		return failure;
	pthread_mutex_lock(&guard);
	initialised--;
	pthread_mutex_unlock(&guard);
	return NVML_SUCCESS;
}

API const char *nvmlErrorString(nvmlReturn_t result)
{
	static const char *const texts[] = {
		"Success",
		"Uninitialized",
		"Invalid Argument",
		"Not Supported",
		"Insufficient Permissions",
		"Already Initialized",
		"Not Found",
		"Insufficient Size",
		"Insufficient External Power",
		"Driver Not Loaded",
		"Timeout",
		"Interrupt Request Issue",
		"NVML Shared Library Not Found",
		"Function Not Found",
		"Corrupted infoROM",
		"GPU is lost",
		"GPU requires reset",
		"GPU access blocked by the operating system",
		"Driver/library version mismatch",
		"In use by another client",
		"Insufficient Memory",
		"No data",
		"vGPU ECC not supported",
		"Insufficient Resources",
		"Invalid Frequency",
		"Argument version mismatch",
		"Requested functionality has been deprecated",
		"System is not in ready state",
		"No supported GPUs were found",
		"Resource not in correct state to perform requested operation",
		"Reset type is not supported for given device",
	};
	if ((unsigned)result < sizeof texts / sizeof *texts)
		return texts[result];
	return "Unknown Error";
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
	char text[80];
	nvmlReturn_t ret = enter(__func__);
	if (ret)
		return ret;
	if (!version)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (node_read(node, "driver_version", text, sizeof text))
		return NVML_ERROR_UNKNOWN;
	return give_text(text, version, length);
}

/* CUDA 13 came with driver 580. NVML's own version is CUDA's major number followed by the driver's version. */
API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
	char text[84] = "13.";
	nvmlReturn_t ret = enter(__func__);
	if (ret)
		return ret;
	if (!version)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (node_read(node, "driver_version", text + 3, sizeof text - 3))
		return NVML_ERROR_UNKNOWN;
	return give_text(text, version, length);
}

static nvmlReturn_t cuda_driver_version(const char *function, int *version)
{
	nvmlReturn_t ret = enter(function);
	if (ret)
		return ret;
	if (!version)
		return NVML_ERROR_INVALID_ARGUMENT;
	*version = 13000;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return cuda_driver_version(__func__, version); }

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) { return cuda_driver_version(__func__, version); }

/* ---- Finding a device ---- */

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
	nvmlReturn_t ret = enter(__func__);
	if (ret)
		return ret;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = count_gpus();
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
	char gpu[PATH_MAX];
	nvmlReturn_t ret = enter(__func__);
	if (ret)
		return ret;
	if (!device || index >= MAX_GPUS || node_gpu(gpu, node, index))
		return NVML_ERROR_INVALID_ARGUMENT;
	*device = handle(index, WHOLE);
	return (nvmlReturn_t)node_failure(gpu, __func__);
}

/* has_uuid searches a UUID among a GPU and its instances. */
static int has_uuid(const char *gpu, unsigned index, const char *uuid, nvmlDevice_t *device)
{
	for (int instance = WHOLE; instance < MAX_INSTANCES; instance++) {
		char own[128];
		nvmlDevice_t candidate = handle(index, instance);
		if (instance != WHOLE && !has_instance(gpu, instance))
			continue;
		if (give_device_text(gpu, candidate, "uuid", own, sizeof own) || strcasecmp(own, uuid))
			continue;
		*device = candidate;
		return 1;
	}
	return 0;
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	char gpu[PATH_MAX];
	nvmlReturn_t ret = enter(__func__);
	if (ret)
		return ret;
	if (!uuid || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned index = 0; index < count_gpus(); index++)
		if (node_gpu(gpu, node, index) == 0 && has_uuid(gpu, index, uuid, device))
			return (nvmlReturn_t)node_failure(gpu, __func__);
	return NVML_ERROR_NOT_FOUND;
}

/* parse_bus_id reads the forms that nvml.h allows: domain:bus:device.function, domain:bus:device,
 * bus:device.function. */
static int parse_bus_id(const char *text, nvmlPciInfo_t *pci)
{
	unsigned function;
	if (sscanf(text, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device) == 3)
		return 1;
	pci->domain = 0;
	return sscanf(text, "%x:%x.%x", &pci->bus, &pci->device, &function) == 3;
}

static nvmlReturn_t read_pci(const char *gpu, nvmlPciInfo_t *pci)
{
	char text[64];
	memset(pci, 0, sizeof *pci);
	if (node_read(gpu, "bus_id", text, sizeof text) || !parse_bus_id(text, pci))
		return NVML_ERROR_UNKNOWN;
	snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0xff);
	snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
	char gpu[PATH_MAX];
	nvmlPciInfo_t wanted, own;
	nvmlReturn_t ret = enter(__func__);
	if (ret)
		return ret;
	if (!bus_id || !device || !parse_bus_id(bus_id, &wanted))
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned index = 0; index < count_gpus(); index++) {
		if (node_gpu(gpu, node, index) || read_pci(gpu, &own))
			continue;
		if (own.domain != wanted.domain || own.bus != wanted.bus || own.device != wanted.device)
			continue;
		*device = handle(index, WHOLE);
		return (nvmlReturn_t)node_failure(gpu, __func__);
	}
	return NVML_ERROR_NOT_FOUND;
}

/* ---- Facts of a device ---- */

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
	char gpu[PATH_MAX];
	nvmlReturn_t ret = enter_device(__func__, device, uuid, gpu);
	return ret ? ret : give_device_text(gpu, device, "uuid", uuid, length);
}

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
	char gpu[PATH_MAX];
	nvmlReturn_t ret = enter_device(__func__, device, name, gpu);
	return ret ? ret : give_device_text(gpu, device, "name", name, length);
}

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
	char gpu[PATH_MAX];
	nvmlReturn_t ret = enter_device(__func__, device, index, gpu);
	if (ret)
		return ret;
	*index = device->instance == WHOLE ? device->gpu : (unsigned)device->instance;
	return NVML_SUCCESS;
}

/* give_unsigned is the body of a function that reads one number of the whole GPU. */
static nvmlReturn_t give_unsigned(const char *function, nvmlDevice_t device, const char *attribute, unsigned *out)
{
	char gpu[PATH_MAX];
	long number;
	nvmlReturn_t ret = enter_device(function, device, out, gpu);
	if (ret)
		return ret;
	if (device->instance != WHOLE)
		return NVML_ERROR_NOT_SUPPORTED;
	ret = read_number(gpu, device, attribute, &number);
	if (!ret)
		*out = (unsigned)number;
	return ret;
}

API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor)
{
	return give_unsigned(__func__, device, "minor", minor);
}

API nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned *architecture)
{
	return give_unsigned(__func__, device, "architecture", architecture);
}

API nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned *mode)
{
	return give_unsigned(__func__, device, "persistence", mode);
}

/* nvml.h: "On MIG-enabled GPUs, querying the device's core count is currently not supported". */
API nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned *cores)
{
	char gpu[PATH_MAX];
	if (is_initialised() && is_handle(device) && node_gpu(gpu, node, device->gpu) == 0 && in_mig_mode(gpu))
		return NVML_ERROR_NOT_SUPPORTED;
	return give_unsigned(__func__, device, "cores", cores);
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	char gpu[PATH_MAX];
	nvmlReturn_t ret = enter_device(__func__, device, pci, gpu);
	return ret ? ret : read_pci(gpu, pci);
}

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	char gpu[PATH_MAX];
	long high, low;
	nvmlReturn_t ret = enter_device(__func__, device, minor ? major : NULL, gpu);
	if (ret)
		return ret;
	if (node_number(gpu, "cc_major", &high) || node_number(gpu, "cc_minor", &low))
		return NVML_ERROR_UNKNOWN;
	*major = (int)high;
	*minor = (int)low;
	return NVML_SUCCESS;
}

/* nvml.h: on platforms where the GPU's own memory is a NUMA node, this is that node. The nearest node is the
 * memory affinity. */
API nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned *numa)
{
	char gpu[PATH_MAX];
	nvmlReturn_t ret = enter_device(__func__, device, numa, gpu);
	return ret ? ret : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned size, unsigned long *nodes, unsigned scope)
{
	char gpu[PATH_MAX];
	const unsigned bits = 8 * sizeof *nodes;
	long numa;
	nvmlReturn_t ret = enter_device(__func__, device, nodes, gpu);
	if (ret)
		return ret;
	if (size == 0 || scope > 1)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (node_number(gpu, "numa", &numa))
		return NVML_ERROR_UNKNOWN;
	if (numa < 0 || (unsigned long)numa >= (unsigned long)size * bits)
		return NVML_ERROR_NOT_SUPPORTED;
	memset(nodes, 0, size * sizeof *nodes);
	nodes[numa / bits] = 1UL << (numa % bits);
	return NVML_SUCCESS;
}

/* ---- The compute mode ---- */

API nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *mode)
{
	char gpu[PATH_MAX];
	long number;
	nvmlReturn_t ret = enter_device(__func__, device, mode, gpu);
	if (ret)
		return ret;
	if (node_number(gpu, "compute_mode", &number))
		return NVML_ERROR_UNKNOWN;
	*mode = (unsigned)number;
	return NVML_SUCCESS;
}

static nvmlReturn_t write_mode(const char *gpu, unsigned mode)
{
	char text[16];
	snprintf(text, sizeof text, "%u", mode);
	int lock = node_lock(gpu);
	if (lock < 0)
		return NVML_ERROR_UNKNOWN;
	int err = node_write(gpu, "compute_mode", text);
	close(lock);
	return err ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}

/* The mode of a GPU in MIG mode cannot be set, and the mode of an instance cannot be set (NVIDIA's MPS guide). */
API nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned mode)
{
	char gpu[PATH_MAX];
	nvmlReturn_t ret = enter_device(__func__, device, device, gpu);
	if (ret)
		return ret;
	if (mode > NODE_EXCLUSIVE_PROCESS)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (geteuid() != 0)
		return NVML_ERROR_NO_PERMISSION;
	if (in_mig_mode(gpu))
		return NVML_ERROR_NOT_SUPPORTED;
	if (node_failure(gpu, "nvmlDeviceSetComputeMode.ignored"))
		return NVML_SUCCESS; /* the call succeeds and changes nothing */
	return write_mode(gpu, mode);
}

/* ---- Processes and memory ---- */

/* select_contexts keeps the contexts of this device that belong to clients of an MPS server (clients is 1), that do not
 * (0), or all (-1). */
static int select_contexts(const char *gpu, nvmlDevice_t device, int clients, struct node_context *held)
{
	int count = node_contexts(gpu, held, NODE_CONTEXTS_MAX, 0), kept = 0;
	for (int i = 0; i < count && i < NODE_CONTEXTS_MAX; i++) {
		int is_client = strcmp(held[i].type, "M+C") == 0;
		int here = device->instance == WHOLE || held[i].instance == device->instance;
		if (here && (clients < 0 || is_client == clients))
			held[kept++] = held[i];
	}
	return count < 0 ? count : kept;
}

static nvmlProcessInfo_t process_of(const char *gpu, unsigned index, const struct node_context *context)
{
	nvmlProcessInfo_t process = { (unsigned)context->pid, (unsigned long long)context->memory_mib << 20, 0xffffffff, 0xffffffff };
	long gi, ci;
	if (context->instance >= 0 && context->instance < MAX_INSTANCES) {
		nvmlDevice_t device = handle(index, context->instance);
		if (!read_number(gpu, device, "gi", &gi) && !read_number(gpu, device, "ci", &ci)) {
			process.gpuInstanceId = (unsigned)gi;
			process.computeInstanceId = (unsigned)ci;
		}
	}
	return process;
}

static nvmlReturn_t give_processes(const char *function, nvmlDevice_t device, int clients, unsigned *count, nvmlProcessInfo_t *processes)
{
	static __thread struct node_context held[NODE_CONTEXTS_MAX];
	char gpu[PATH_MAX];
	nvmlReturn_t ret = enter_device(function, device, count, gpu);
	if (ret)
		return ret;
	int found = select_contexts(gpu, device, clients, held);
	if (found < 0)
		return NVML_ERROR_UNKNOWN;
	unsigned capacity = *count;
	*count = (unsigned)found;
	if (capacity < (unsigned)found)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	if (found > 0 && !processes)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (int i = 0; i < found; i++)
		processes[i] = process_of(gpu, device->gpu, &held[i]);
	return NVML_SUCCESS;
}

/* The processes that compute are the MPS servers and their clients (measured on an H100, driver 580.159.04).
 * nvidia-smi prints C for a server and M+C for a client. */
API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *processes)
{
	return give_processes(__func__, device, -1, count, processes);
}

API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *processes)
{
	return give_processes(__func__, device, 1, count, processes);
}

/* read_memory returns bytes. It leaves out the memory that the driver uses itself, because no test depends on it. */
static nvmlReturn_t read_memory(const char *gpu, nvmlDevice_t device, unsigned long long *total, unsigned long long *used)
{
	static __thread struct node_context held[NODE_CONTEXTS_MAX];
	long mib;
	if (read_number(gpu, device, "memory_mib", &mib))
		return NVML_ERROR_UNKNOWN;
	*total = (unsigned long long)mib << 20;
	*used = 0;
	for (int clients = 0; clients <= 1; clients++) {
		int count = select_contexts(gpu, device, clients, held);
		for (int i = 0; i < count; i++)
			*used += (unsigned long long)held[i].memory_mib << 20;
	}
	if (*used > *total)
		*used = *total;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	char gpu[PATH_MAX];
	nvmlReturn_t ret = enter_device(__func__, device, memory, gpu);
	if (!ret)
		ret = read_memory(gpu, device, &memory->total, &memory->used);
	if (!ret)
		memory->free = memory->total - memory->used;
	return ret;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	char gpu[PATH_MAX];
	nvmlReturn_t ret = enter_device(__func__, device, memory, gpu);
	if (ret)
		return ret;
	if (memory->version != (sizeof *memory | 2u << 24))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	ret = read_memory(gpu, device, &memory->total, &memory->used);
	if (ret)
		return ret;
	memory->reserved = 0;
	memory->free = memory->total - memory->used;
	return NVML_SUCCESS;
}

/* ---- The driver's samples: one of the GPU each fifth of a second, from the servers' files ---- */

enum { SAMPLES_MAX = 120, SAMPLED_MAX = 64, SAMPLE_MICROS = 200000, SETTLED_MICROS = 20000 };

/* line is a line of a server's file. */
struct line {
	unsigned long long at;
	unsigned percent, pid;
};

static __thread struct line lines[SAMPLED_MAX * SAMPLES_MAX]; /* of a GPU, in the order of the samples */

static int by_time(const void *a, const void *b)
{
	const struct line *one = a, *other = b;
	if (one->at / SAMPLE_MICROS == other->at / SAMPLE_MICROS) /* the same sample */
		return one->pid < other->pid ? -1 : one->pid > other->pid;
	return one->at < other->at ? -1 : 1;
}

/* read_lines reads the files of a GPU's servers and returns the number of lines. */
static unsigned read_lines(const char *gpu, const struct node_context *held, int processes)
{
	unsigned found = 0;
	for (int i = 0; i < processes; i++) {
		char path[PATH_MAX], name[40];
		snprintf(name, sizeof name, "samples/%d", held[i].pid);
		FILE *file = strcmp(held[i].type, "S") || node_join(path, gpu, name) ? NULL : fopen(path, "re");
		struct line next = { .pid = (unsigned)held[i].pid };
		while (file && found < SAMPLED_MAX * SAMPLES_MAX && fscanf(file, "%llu %u", &next.at, &next.percent) == 2)
			lines[found++] = next;
		if (file)
			fclose(file);
	}
	qsort(lines, found, sizeof *lines, by_time);
	return found;
}

/* same_sample returns how many of the lines are of the first one's sample. */
static unsigned same_sample(const struct line *first, unsigned count)
{
	unsigned n = 1;
	while (n < count && first[n].at / SAMPLE_MICROS == first->at / SAMPLE_MICROS)
		n++;
	return n;
}

/* the_one returns the line of the server to which the driver books a sample. Of several that computed, it is any one. */
static const struct line *the_one(const struct line *first, unsigned count)
{
	unsigned busy = 0;
	unsigned long long mixed = first->at / SAMPLE_MICROS * 0x9e3779b97f4a7c15ull;
	for (unsigned i = 0; i < count; i++)
		busy += first[i].percent > 0;
	unsigned choice = busy ? (unsigned)(mixed >> 33) % busy : 0;
	for (unsigned i = 0; i < count; i++)
		if (first[i].percent > 0 && choice-- == 0)
			return &first[i];
	return NULL;
}

/* book adds a line to the mean of its process. */
static unsigned book(const struct line *line, nvmlProcessUtilizationSample_t *all, unsigned counts[], unsigned found)
{
	unsigned i = 0;
	while (i < found && all[i].pid != line->pid)
		i++;
	if (i == found && found == SAMPLED_MAX)
		return found;
	if (i == found) {
		all[i] = (nvmlProcessUtilizationSample_t){ .pid = line->pid };
		counts[i] = 0;
	}
	all[i].timeStamp = line->at;
	all[i].smUtil = (all[i].smUtil * counts[i] + line->percent + counts[i]) / (counts[i] + 1);
	counts[i]++;
	return i == found ? found + 1 : found;
}

/* The work of clients counts as the work of their server, and each sample of the driver is of one server, also if
 * several compute (measured). A process without work has no sample. A process without MPS has none in this simulation. */
API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned *count,
						 unsigned long long since)
{
	static __thread struct node_context held[NODE_CONTEXTS_MAX];
	nvmlProcessUtilizationSample_t all[SAMPLED_MAX];
	unsigned counts[SAMPLED_MAX], found = 0;
	char gpu[PATH_MAX];
	struct timespec now;
	nvmlReturn_t ret = enter_device(__func__, device, count, gpu);
	if (ret)
		return ret;
	if (device->instance != WHOLE || in_mig_mode(gpu))
		return NVML_ERROR_NOT_SUPPORTED;
	int processes = select_contexts(gpu, device, 0, held);
	if (processes < 0)
		return NVML_ERROR_UNKNOWN;
	clock_gettime(CLOCK_REALTIME, &now);
	unsigned long long settled = (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
	if (processes > 1) /* another server may not have written yet */
		settled -= SETTLED_MICROS;
	unsigned read = read_lines(gpu, held, processes);
	for (unsigned i = 0, n; i < read; i += n) {
		n = same_sample(&lines[i], read - i);
		const struct line *one = the_one(&lines[i], n);
		if (one && one->at > since && one->at / SAMPLE_MICROS * SAMPLE_MICROS <= settled)
			found = book(one, all, counts, found);
	}
	unsigned capacity = *count;
	*count = found;
	if (!found)
		return NVML_ERROR_NOT_FOUND;
	if (!samples || found > capacity)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(samples, all, found * sizeof *all);
	return NVML_SUCCESS;
}

typedef union {
	double d;
	unsigned ui;
	unsigned long long ull;
} nvmlValue_t;

typedef struct {
	unsigned long long timeStamp;
	nvmlValue_t sampleValue;
} nvmlSample_t;

enum { GPU_UTILIZATION_SAMPLES = 1, VALUE_TYPE_UNSIGNED_INT = 1 };

/* Gives the samples of a GPU that are later than since. A sample is the sum of what the servers worked. */
static unsigned all_samples(unsigned read, unsigned long long since, nvmlSample_t *samples)
{
	unsigned found = 0;
	for (unsigned i = 0, n; i < read && found < SAMPLES_MAX; i += n) {
		nvmlSample_t next = { 0 };
		n = same_sample(&lines[i], read - i);
		for (unsigned k = i; k < i + n; k++) {
			next.timeStamp = lines[k].at > next.timeStamp ? lines[k].at : next.timeStamp;
			next.sampleValue.ui = next.sampleValue.ui + lines[k].percent > 100 ? 100 : next.sampleValue.ui + lines[k].percent;
		}
		if (next.timeStamp > since)
			samples[found++] = next;
	}
	return found;
}

/* The samples of a whole GPU, in the order of time. The real driver has samples of a GPU without a server, too. */
API nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, unsigned type, unsigned long long since, unsigned *value_type, unsigned *count,
				      nvmlSample_t *samples)
{
	static __thread struct node_context held[NODE_CONTEXTS_MAX];
	nvmlSample_t all[SAMPLES_MAX];
	char gpu[PATH_MAX];
	nvmlReturn_t ret = enter_device(__func__, device, count, gpu);
	if (ret)
		return ret;
	if (type != GPU_UTILIZATION_SAMPLES || device->instance != WHOLE || in_mig_mode(gpu))
		return NVML_ERROR_NOT_SUPPORTED;
	int processes = select_contexts(gpu, device, 0, held);
	if (processes < 0)
		return NVML_ERROR_UNKNOWN;
	unsigned found = all_samples(read_lines(gpu, held, processes), since, all);
	*value_type = VALUE_TYPE_UNSIGNED_INT;
	if (!found)
		return NVML_ERROR_NOT_FOUND;
	if (samples)
		memcpy(samples, all, (found < *count ? found : *count) * sizeof *all);
	*count = found;
	return NVML_SUCCESS;
}

/* nvml.h: "for Volta or newer fully supported devices", in mJ since the driver was loaded. A simulated GPU uses 100 W all
 * the time, unless the file energy_mj has a count. */
API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *energy)
{
	char gpu[PATH_MAX], text[40];
	long major;
	struct timespec now;
	nvmlReturn_t ret = enter_device(__func__, device, energy, gpu);
	if (ret)
		return ret;
	if (device->instance != WHOLE || node_number(gpu, "cc_major", &major) || major < 7)
		return NVML_ERROR_NOT_SUPPORTED;
	clock_gettime(CLOCK_MONOTONIC, &now);
	*energy = ((unsigned long long)now.tv_sec * 1000 + (unsigned long long)now.tv_nsec / 1000000) * 100;
	if (node_read(gpu, "energy_mj", text, sizeof text) == 0)
		*energy = strtoull(text, NULL, 10);
	return NVML_SUCCESS;
}

/* ---- GPM: the GPU's own counters. A metric is the difference between two samples. ---- */

/* gpm_sample holds the time at which the counters were read. The counters themselves are in the folder of the GPU. */
struct gpm_sample {
	unsigned gpu;
	unsigned long long at; /* microseconds since 1970, 0 before the first nvmlGpmSampleGet */
};

/* nvml.h: "for Hopper or newer fully supported devices". The answer of a whole GPU in MIG mode is not documented. */
static int has_gpm(const char *gpu)
{
	long major;
	return node_number(gpu, "cc_major", &major) == 0 && major >= 9 && !in_mig_mode(gpu);
}

API nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
	char gpu[PATH_MAX];
	nvmlReturn_t ret = enter_device(__func__, device, support, gpu);
	if (ret)
		return ret;
	if (support->version != GPM_VERSION)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	support->isSupportedDevice = (unsigned)has_gpm(gpu);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
	nvmlReturn_t ret = enter(__func__);
	if (ret)
		return ret;
	if (!sample)
		return NVML_ERROR_INVALID_ARGUMENT;
	*sample = calloc(1, sizeof **sample);
	return *sample ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

API nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
	if (!sample)
		return NVML_ERROR_INVALID_ARGUMENT;
	free(sample);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
	char gpu[PATH_MAX];
	struct timespec now;
	nvmlReturn_t ret = enter_device(__func__, device, sample, gpu);
	if (ret)
		return ret;
	if (!has_gpm(gpu))
		return NVML_ERROR_NOT_SUPPORTED;
	clock_gettime(CLOCK_REALTIME, &now);
	*sample = (struct gpm_sample){ device->gpu, (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000 };
	return NVML_SUCCESS;
}

/* busy_between is the mean of all servers' samples between two times, in percent. */
static double busy_between(const char *gpu, unsigned long long from, unsigned long long to)
{
	static __thread struct node_context held[NODE_CONTEXTS_MAX];
	unsigned long long at;
	double percent, sum = 0, lines = 0;
	int count = node_contexts(gpu, held, NODE_CONTEXTS_MAX, 0);
	for (int i = 0; i < count && i < NODE_CONTEXTS_MAX; i++) {
		char path[PATH_MAX], name[40];
		snprintf(name, sizeof name, "samples/%d", held[i].pid);
		FILE *file = strcmp(held[i].type, "S") || node_join(path, gpu, name) ? NULL : fopen(path, "re");
		if (!file)
			continue;
		while (fscanf(file, "%llu %lf", &at, &percent) == 2) {
			if (at <= from || at > to)
				continue;
			sum += percent;
			lines++;
		}
		fclose(file);
	}
	return lines > 0 ? sum / lines : 0;
}

/* gpm_value is the percentage in the file gpm/METRIC. Without this file it is computed from the servers' samples. */
static nvmlReturn_t gpm_value(const char *gpu, unsigned metric, unsigned long long from, unsigned long long to, double *value)
{
	char name[40], text[40];
	snprintf(name, sizeof name, "gpm/%u", metric);
	if (node_read(gpu, name, text, sizeof text) == 0) {
		*value = strtod(text, NULL);
		return *value < 0 ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
	}
	*value = 0;
	switch (metric) {
	case GPM_METRIC_GRAPHICS_UTIL:
	case GPM_METRIC_SM_UTIL:
		*value = busy_between(gpu, from, to);
		return NVML_SUCCESS;
	case GPM_METRIC_DRAM_BW_UTIL:
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *metrics)
{
	char gpu[PATH_MAX];
	nvmlReturn_t ret = enter(__func__);
	if (ret)
		return ret;
	if (!metrics)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (metrics->version != GPM_VERSION)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	const struct gpm_sample *first = metrics->sample1, *second = metrics->sample2;
	if (!first || !second || !first->at || !second->at || first->gpu != second->gpu || metrics->numMetrics > GPM_METRIC_MAX)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (node_gpu(gpu, node, first->gpu))
		return NVML_ERROR_GPU_IS_LOST;
	for (unsigned i = 0; i < metrics->numMetrics; i++) {
		nvmlGpmMetric_t *metric = &metrics->metrics[i];
		metric->nvmlReturn = gpm_value(gpu, metric->metricId, first->at, second->at, &metric->value);
	}
	return NVML_SUCCESS;
}

/* ---- MIG ---- */

/* MIG came with Ampere's data-centre GPUs (capability 8.0). The H200 answers 0, and a V100 answers Not Supported. */
API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
	char gpu[PATH_MAX];
	long major, minor;
	nvmlReturn_t ret = enter_device(__func__, device, pending ? current : NULL, gpu);
	if (ret)
		return ret;
	if (node_number(gpu, "cc_major", &major) || node_number(gpu, "cc_minor", &minor))
		return NVML_ERROR_UNKNOWN;
	if (device->instance != WHOLE || major < 8 || (major == 8 && minor != 0))
		return NVML_ERROR_NOT_SUPPORTED;
	*current = *pending = (unsigned)in_mig_mode(gpu);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
	char gpu[PATH_MAX];
	nvmlReturn_t ret = enter_device(__func__, device, count, gpu);
	if (ret)
		return ret;
	*count = in_mig_mode(gpu) ? MAX_INSTANCES : 0;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *instance)
{
	char gpu[PATH_MAX];
	nvmlReturn_t ret = enter_device(__func__, device, instance, gpu);
	if (ret)
		return ret;
	if (device->instance != WHOLE)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (index >= MAX_INSTANCES || !has_instance(gpu, (int)index))
		return NVML_ERROR_NOT_FOUND;
	*instance = handle(device->gpu, (int)index);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t instance, nvmlDevice_t *device)
{
	char gpu[PATH_MAX];
	nvmlReturn_t ret = enter_device(__func__, instance, device, gpu);
	if (ret)
		return ret;
	if (instance->instance == WHOLE)
		return NVML_ERROR_INVALID_ARGUMENT;
	*device = handle(instance->gpu, WHOLE);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_instance)
{
	char gpu[PATH_MAX];
	nvmlReturn_t ret = enter_device(__func__, device, is_instance, gpu);
	if (ret)
		return ret;
	*is_instance = device->instance != WHOLE;
	return NVML_SUCCESS;
}

/* give_instance_number is the body of a function that only an instance has. */
static nvmlReturn_t give_instance_number(const char *function, nvmlDevice_t device, const char *attribute, unsigned *out)
{
	char gpu[PATH_MAX];
	long number;
	nvmlReturn_t ret = enter_device(function, device, out, gpu);
	if (ret)
		return ret;
	if (device->instance == WHOLE)
		return NVML_ERROR_INVALID_ARGUMENT;
	ret = read_number(gpu, device, attribute, &number);
	if (!ret)
		*out = (unsigned)number;
	return ret;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id)
{
	return give_instance_number(__func__, device, "gi", id);
}

API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id)
{
	return give_instance_number(__func__, device, "ci", id);
}

API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
	char gpu[PATH_MAX];
	long sms, mib, slices;
	nvmlReturn_t ret = enter_device(__func__, device, attributes, gpu);
	if (ret)
		return ret;
	if (device->instance == WHOLE)
		return NVML_ERROR_NOT_SUPPORTED;
	if (read_number(gpu, device, "sms", &sms) || read_number(gpu, device, "memory_mib", &mib) ||
	    read_number(gpu, device, "slices", &slices))
		return NVML_ERROR_UNKNOWN;
	memset(attributes, 0, sizeof *attributes);
	attributes->multiprocessorCount = (unsigned)sms;
	attributes->memorySizeMB = (unsigned long long)mib;
	attributes->gpuInstanceSliceCount = attributes->computeInstanceSliceCount = (unsigned)slices;
	return NVML_SUCCESS;
}
