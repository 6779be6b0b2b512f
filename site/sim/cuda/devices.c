// SPDX-License-Identifier: Apache-2.0
/* The devices of a process: the devices of the node or of the MPS server that CUDA_VISIBLE_DEVICES selects. */
#include "inside.h"

static int read_device(const char *node, unsigned gpu, int instance, struct device *d)
{
	char dir[PATH_MAX], part[PATH_MAX], name[24];
	long sms, mib;
	if (node_gpu(dir, node, gpu))
		return -1;
	snprintf(part, sizeof part, "%s", dir);
	snprintf(name, sizeof name, "mig/%d", instance);
	if (instance != NODE_WHOLE && node_join(part, dir, name))
		return -1;
	if (node_read(part, "uuid", d->uuid, sizeof d->uuid) || node_number(part, "sms", &sms) ||
	    node_number(part, "memory_mib", &mib) || node_read(dir, "name", d->name, sizeof d->name))
		return -1;
	d->gpu = (int)gpu;
	d->instance = instance;
	d->sms = (int)sms;
	d->mib = (int)mib;
	d->limit = 0;
	return 0;
}

/* Lists all GPUs in PCI order. For a GPU in MIG mode, its instances are in the list instead. The first instance
 * then has the GPU's place among the ordinals, and the GPU itself is not in the list. */
int devices_of_node(const char *node, struct devices *all)
{
	all->count = 0;
	for (unsigned gpu = 0; all->count < devices_max; gpu++) {
		char dir[PATH_MAX];
		long mig = 0;
		if (node_gpu(dir, node, gpu))
			return 0;
		node_number(dir, "mig_mode", &mig);
		if (!mig) {
			if (read_device(node, gpu, NODE_WHOLE, &all->list[all->count]))
				return -1;
			all->count++;
			continue;
		}
		for (int k = 0; all->count < devices_max && !read_device(node, gpu, k, &all->list[all->count]); k++)
			all->count++;
	}
	return 0;
}

/* Returns the device at an ordinal. Instances other than a GPU's first have no ordinal. */
static const struct device *at_ordinal(const struct devices *all, long ordinal)
{
	for (int i = 0; i < all->count; i++) {
		if (!process.mps && all->list[i].instance > 0)
			continue;
		if (ordinal-- == 0)
			return &all->list[i];
	}
	return NULL;
}

static const struct device *by_uuid(const struct devices *all, const char *begin)
{
	const struct device *found = NULL;
	if (strlen(begin) <= 4)
		return NULL;
	for (int i = 0; i < all->count; i++) {
		if (strncmp(all->list[i].uuid, begin, strlen(begin)))
			continue;
		if (found)
			return NULL;
		found = &all->list[i];
	}
	return found;
}

static const struct device *pick(const struct devices *all, const char *entry)
{
	char *end;
	long ordinal = strtol(entry, &end, 10);
	if (end != entry && !*end)
		return ordinal < 0 ? NULL : at_ordinal(all, ordinal);
	return by_uuid(all, entry);
}

static int has(const struct devices *seen, const struct device *d)
{
	for (int i = 0; i < seen->count; i++)
		if (!strcmp(seen->list[i].uuid, d->uuid))
			return 1;
	return 0;
}

static void complain(const struct devices *all, const char *entry)
{
	char *end;
	strtol(entry, &end, 10);
	if (end != entry && !*end) {
		mps_log("Invalid CUDA_VISIBLE_DEVICES.");
		mps_log("Client requested %s which is not a valid GPU ID in the MPS visible set of devices", entry);
		mps_log("Please set CUDA_VISIBLE_DEVICES with a GPU ID less than %d or consider using UUIDs.", all->count);
		return;
	}
	mps_log("Invalid set of visible devices.");
	mps_log("Device (uuid %s) is invisible to this MPS server.", entry);
	mps_log("Please check the CUDA_VISIBLE_DEVICES set in the MPS control environment.");
}

static void all_ordinals(const struct devices *all, struct devices *seen)
{
	const struct device *d;
	for (seen->count = 0; (d = at_ordinal(all, seen->count)); seen->count++)
		seen->list[seen->count] = *d;
}

/* Returns the devices that a list selects, in the order of the list; all if the list is NULL. The first entry that
 * names no device ends the list. An entry that names a device a second time makes the list empty. Returns 0, or
 * the error for a list that selects no device. */
int devices_visible(const struct devices *all, const char *list, struct devices *seen)
{
	char text[4096], *rest = text, *entry;
	if (!list) {
		all_ordinals(all, seen);
		return seen->count ? success : no_device;
	}
	seen->count = 0;
	snprintf(text, sizeof text, "%s", list);
	while ((entry = strsep(&rest, ","))) {
		while (*entry == ' ')
			entry++;
		const struct device *d = pick(all, entry);
		if (!d) {
			if (process.mps)
				complain(all, entry);
			break;
		}
		if (has(seen, d))
			return no_device;
		seen->list[seen->count++] = *d;
	}
	return seen->count ? success : no_device;
}

/* Reads "2G", "512M" or a number of bytes as MiB. Returns -1 for any other text. */
int devices_memory(const char *text, long *mib)
{
	char *end;
	double number = strtod(text, &end);
	if (end == text || number < 0)
		return -1;
	switch (*end) {
	case 'G': number *= 1024; end++; break;
	case 'M': end++; break;
	case 'K': number /= 1024; end++; break;
	default: number /= 1 << 20;
	}
	*mib = (long)number;
	return *end ? -1 : 0;
}

/* Applies CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, "0=2G,GPU-…=1G". If a list names a device that the process does not
 * see, the whole list has no effect, and there is no message (measured). A client can only lower the server's
 * limit. */
void devices_limit(struct devices *seen, const char *limits)
{
	char text[4096], *rest = text, *entry;
	long wanted[devices_max] = { 0 };
	snprintf(text, sizeof text, "%s", limits);
	while ((entry = strsep(&rest, ","))) {
		char *value = strchr(entry, '=');
		long mib;
		if (!value)
			return;
		*value++ = '\0';
		const struct device *d = pick(seen, entry);
		if (!d || devices_memory(value, &mib))
			return;
		wanted[d - seen->list] = mib;
	}
	for (int i = 0; i < seen->count; i++)
		if (wanted[i] && (!seen->list[i].limit || wanted[i] < seen->list[i].limit))
			seen->list[i].limit = (int)wanted[i];
}
