// SPDX-License-Identifier: Apache-2.0

//go:build ignore
// Without the line above the Go tool refuses a C file in a folder with Go tests. sim.Build compiles this file.

/*
 * A simulated nvidia-smi: the two of its uses that programs read.
 *
 *   nvidia-smi -L
 *   nvidia-smi --query-gpu=FIELDS --format=csv[,noheader][,nounits] [-lms MILLISECONDS | -l SECONDS]
 *
 * It asks the libnvidia-ml.so.1 in ../lib, so the faults, delays and samples of the simulated NVML are its own, too.
 * With -lms it prints until a signal or a closed pipe ends it. ../node/README.md lists the fields.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { no_driver = 9, wrong_usage = 2, fields_max = 32, samples_max = 120, text_max = 96, not_found = 6 };

typedef struct device *nvmlDevice_t;
typedef struct { char legacy[16]; unsigned numbers[5]; char bus_id[32]; } nvmlPciInfo_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned long long time; union { unsigned ui; unsigned long long ull; } value; } nvmlSample_t;

static struct {
	int (*init)(void), (*count)(unsigned *), (*driver)(char *, unsigned);
	int (*handle)(unsigned, nvmlDevice_t *), (*uuid)(nvmlDevice_t, char *, unsigned), (*name)(nvmlDevice_t, char *, unsigned);
	int (*pci)(nvmlDevice_t, nvmlPciInfo_t *), (*memory)(nvmlDevice_t, nvmlMemory_t *), (*mode)(nvmlDevice_t, unsigned *);
	int (*mig)(nvmlDevice_t, unsigned *, unsigned *), (*instance)(nvmlDevice_t, unsigned, nvmlDevice_t *);
	int (*samples)(nvmlDevice_t, unsigned, unsigned long long, unsigned *, unsigned *, nvmlSample_t *);
} nvml;

static int load(void)
{
	char path[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
	if (length < 0)
		return -1;
	path[length] = '\0';
	*strrchr(path, '/') = '\0';
	strcpy(strrchr(path, '/'), "/lib/libnvidia-ml.so.1"); /* bin/nvidia-smi becomes lib/libnvidia-ml.so.1 */
	void *library = dlopen(path, RTLD_NOW);
	if (!library)
		return -1;
	const struct { void *to; const char *name; } calls[] = {
		{ &nvml.init, "nvmlInit_v2" }, { &nvml.count, "nvmlDeviceGetCount_v2" },
		{ &nvml.driver, "nvmlSystemGetDriverVersion" }, { &nvml.handle, "nvmlDeviceGetHandleByIndex_v2" },
		{ &nvml.uuid, "nvmlDeviceGetUUID" }, { &nvml.name, "nvmlDeviceGetName" },
		{ &nvml.pci, "nvmlDeviceGetPciInfo_v3" }, { &nvml.memory, "nvmlDeviceGetMemoryInfo" },
		{ &nvml.mode, "nvmlDeviceGetComputeMode" }, { &nvml.mig, "nvmlDeviceGetMigMode" },
		{ &nvml.instance, "nvmlDeviceGetMigDeviceHandleByIndex" }, { &nvml.samples, "nvmlDeviceGetSamples" },
	};
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		void *call = dlsym(library, calls[i].name);
		if (!call)
			return -1;
		memcpy(calls[i].to, &call, sizeof call);
	}
	return nvml.init();
}

/* The functions that write a field of a GPU. They return what NVML returns. */

static int uuid(nvmlDevice_t gpu, char *text) { return nvml.uuid(gpu, text, text_max); }
static int name(nvmlDevice_t gpu, char *text) { return nvml.name(gpu, text, text_max); }
static int driver_version(nvmlDevice_t gpu, char *text) { return (void)gpu, nvml.driver(text, text_max); }

static int bus_id(nvmlDevice_t gpu, char *text)
{
	nvmlPciInfo_t pci;
	int ret = nvml.pci(gpu, &pci);
	if (!ret)
		strcpy(text, pci.bus_id);
	return ret;
}

static int mib(nvmlDevice_t gpu, char *text, size_t member)
{
	nvmlMemory_t memory;
	int ret = nvml.memory(gpu, &memory);
	if (!ret)
		sprintf(text, "%llu", *(unsigned long long *)((char *)&memory + member) >> 20);
	return ret;
}

static int total(nvmlDevice_t gpu, char *text) { return mib(gpu, text, offsetof(nvmlMemory_t, total)); }
static int available(nvmlDevice_t gpu, char *text) { return mib(gpu, text, offsetof(nvmlMemory_t, free)); }
static int used(nvmlDevice_t gpu, char *text) { return mib(gpu, text, offsetof(nvmlMemory_t, used)); }

/* The last sample of the whole GPU; 0 before the first one. */
static int utilization(nvmlDevice_t gpu, char *text)
{
	static nvmlSample_t all[samples_max];
	unsigned type, count = samples_max;
	int ret = nvml.samples(gpu, 1, 0, &type, &count, all);
	if (ret && ret != not_found)
		return ret;
	sprintf(text, "%u", ret ? 0 : all[count - 1].value.ui);
	return 0;
}

static int compute_mode(nvmlDevice_t gpu, char *text)
{
	static const char *const modes[] = { "Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process" };
	unsigned mode;
	int ret = nvml.mode(gpu, &mode);
	if (!ret)
		strcpy(text, mode < 4 ? modes[mode] : "[Unknown Error]");
	return ret;
}

static int mig_mode(nvmlDevice_t gpu, char *text)
{
	unsigned current, pending;
	int ret = nvml.mig(gpu, &current, &pending);
	if (!ret)
		strcpy(text, current ? "Enabled" : "Disabled");
	return ret;
}

static const struct field {
	const char *name, *alias, *unit;
	int (*write)(nvmlDevice_t, char *);
} known[] = {
	{ "index", NULL, NULL, NULL },
	{ "uuid", "gpu_uuid", NULL, uuid },
	{ "name", "gpu_name", NULL, name },
	{ "pci.bus_id", "gpu_bus_id", NULL, bus_id },
	{ "driver_version", NULL, NULL, driver_version },
	{ "compute_mode", NULL, NULL, compute_mode },
	{ "mig.mode.current", NULL, NULL, mig_mode },
	{ "memory.total", NULL, "MiB", total },
	{ "memory.free", NULL, "MiB", available },
	{ "memory.used", NULL, "MiB", used },
	{ "utilization.gpu", NULL, "%", utilization },
};

struct query {
	const struct field *fields[fields_max];
	int count, header, units;
	long every_ms; /* 0: print once */
};

static int fail(const char *message, const char *what, int code)
{
	printf(message, what);
	return code;
}

static int read_fields(struct query *q, char *list)
{
	char *one;
	while ((one = strsep(&list, ","))) {
		const struct field *found = NULL;
		one += strspn(one, " ");
		for (size_t i = 0; i < sizeof known / sizeof *known; i++)
			if (!strcmp(one, known[i].name) || (known[i].alias && !strcmp(one, known[i].alias)))
				found = &known[i];
		if (!found || q->count == fields_max)
			return fail("Field \"%s\" is not a valid field to query.\n\n", one, wrong_usage);
		q->fields[q->count++] = found;
	}
	return 0;
}

static int read_format(struct query *q, char *list)
{
	char *one;
	int csv = 0;
	while ((one = strsep(&list, ","))) {
		if (!strcmp(one, "noheader"))
			q->header = 0;
		else if (!strcmp(one, "nounits"))
			q->units = 0;
		else if (!strcmp(one, "csv"))
			csv = 1;
		else
			return fail("Invalid combination of input arguments: format %s\n", one, wrong_usage);
	}
	return csv ? 0 : fail("%s option is missing its required value csv\n", "--format", wrong_usage);
}

static void print_header(const struct query *q)
{
	for (int i = 0; i < q->count; i++) {
		printf("%s%s", i ? ", " : "", q->fields[i]->name);
		if (q->fields[i]->unit)
			printf(" [%s]", q->fields[i]->unit);
	}
	printf("\n");
}

static void print_gpu(const struct query *q, unsigned index)
{
	nvmlDevice_t gpu;
	int lost = nvml.handle(index, &gpu);
	for (int i = 0; i < q->count; i++) {
		const struct field *field = q->fields[i];
		char text[text_max] = "";
		int ret = lost;
		if (!field->write)
			sprintf(text, "%u", index);
		else if (!ret)
			ret = field->write(gpu, text);
		printf("%s%s", i ? ", " : "", !ret ? text : ret == 3 ? "[N/A]" : ret == 15 ? "[GPU is lost]" : "[Unknown Error]");
		if (!ret && q->units && field->unit)
			printf(" %s", field->unit);
	}
	printf("\n");
}

static int run_query(const struct query *q)
{
	unsigned count;
	if (q->header)
		print_header(q);
	do {
		if (nvml.count(&count))
			return fail("Unable to determine the device handle: %s\n", "Unknown Error", no_driver);
		for (unsigned i = 0; i < count; i++)
			print_gpu(q, i);
		if (fflush(stdout))
			return 1;
		usleep((useconds_t)(q->every_ms * 1000));
	} while (q->every_ms);
	return 0;
}

static int list(void)
{
	unsigned count = 0;
	nvmlDevice_t gpu, instance;
	char text[text_max];
	nvml.count(&count);
	for (unsigned i = 0; i < count; i++) {
		if (nvml.handle(i, &gpu) || name(gpu, text))
			continue;
		printf("GPU %u: %s", i, text);
		printf(" (UUID: %s)\n", uuid(gpu, text) ? "?" : text);
		for (unsigned k = 0; !nvml.instance(gpu, k, &instance) && !name(instance, text); k++) {
			printf("  MIG %-12s Device %2u: ", strrchr(text, ' ') + 1, k);
			printf("(UUID: %s)\n", uuid(instance, text) ? "?" : text);
		}
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct query q = { .header = 1, .units = 1 };
	int lists = 0, code = 0, formatted = 0;
	for (int i = 1; i < argc && !code; i++) {
		char *end = NULL;
		if (!strcmp(argv[i], "-L") || !strcmp(argv[i], "--list-gpus"))
			lists = 1;
		else if (!strncmp(argv[i], "--query-gpu=", 12))
			code = read_fields(&q, argv[i] + 12);
		else if (!strncmp(argv[i], "--format=", 9))
			code = read_format(&q, argv[i] + 9), formatted = 1;
		else if ((!strcmp(argv[i], "-lms") || !strcmp(argv[i], "-l")) && i + 1 < argc) {
			long factor = argv[i][2] ? 1 : 1000;
			q.every_ms = strtol(argv[++i], &end, 10) * factor;
			if (*end || q.every_ms <= 0)
				code = fail("Invalid value of -l or -lms: %s\n", argv[i], wrong_usage);
		} else
			code = fail("Invalid combination of input arguments: %s\n", argv[i], wrong_usage);
	}
	if (!code && !lists && (!q.count || !formatted))
		code = fail("The simulated nvidia-smi understands -L and --query-gpu=… with %s\n", "--format=csv", wrong_usage);
	if (code)
		return code;
	if (load())
		return fail("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. %s\n\n",
			    "Make sure that the latest NVIDIA driver is installed and running.", no_driver);
	return lists ? list() : run_query(&q);
}
