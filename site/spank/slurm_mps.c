// SPDX-License-Identifier: Apache-2.0

/*
 * slurm_mps.so: the option --mps[=OPTIONS] of srun, sbatch and salloc.
 *
 * The promise: the prolog and the epilog get the options unchanged, in the variable SPANK_MPS. The variable is empty if
 * --mps has no value. The policy parses the options, and a rank prints errors in them. This plugin refuses only a text
 * that it cannot pass on.
 *
 * A job without the option is not affected by errors in plugstack.conf. The plugin reports these errors to the users of
 * the option and in slurmd's log.
 *
 * With auto_wrap=1, Slurm 23.11 and later run mpirun-wrap before every task of a job that requested MPS in any way. The
 * prolog has written a ticket for such a job.
 *
 * The plugin links no library, because the program that loads it has all functions that it calls. It works only with the
 * release of Slurm (22.05, 24.11) whose headers it was built with.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(slurm_mps, 1)

#define CAN_WRAP (SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 11, 0))

enum {
	MAX_PATH = 4096,
	MAX_OPTIONS = 512, /* bytes, as in policy.ParseOptions */
	MAX_QUOTED = 80,
};

/* The arguments in plugstack.conf. complaint is the error in them, or "". */
static struct {
	bool auto_wrap;
	char wrapper[MAX_PATH];
	char root[MAX_PATH]; /* the folder before /run/slurm-mps, as in the programs' flag --root */
	char complaint[1024];
} site = { .wrapper = "/usr/bin/mpirun-wrap" };

/* The option of the command line or the script. If it comes several times, the last --mps counts. */
static struct {
	bool given;
	char options[MAX_OPTIONS + 1];
} asked;

/* Writes the start of a text in quotes, with a question mark for each byte that is not printable. Returns quoted. */
static char *quote(const char *text, char quoted[MAX_QUOTED])
{
	enum { SHOWN = 64 };
	int length = snprintf(quoted, MAX_QUOTED, "\"%.*s\"%s", SHOWN, text, strlen(text) > SHOWN ? "\xe2\x80\xa6" : "");

	for (int i = 1; i < length && i <= SHOWN; i++)
		if (quoted[i] < ' ' || quoted[i] > '~')
			quoted[i] = '?';
	return quoted;
}

/* ---- plugstack.conf ---- */

__attribute__((format(printf, 2, 3))) static void complain(const char *argument, const char *format, ...)
{
	char quoted[MAX_QUOTED];
	va_list arguments;
	int length;

	length = snprintf(site.complaint, sizeof(site.complaint), "cannot use %s of slurm_mps in plugstack.conf: ",
			  quote(argument, quoted));
	va_start(arguments, format);
	vsnprintf(site.complaint + length, sizeof(site.complaint) - (size_t)length, format, arguments);
	va_end(arguments);
}

static void read_path(const char *argument, const char *value, char path[MAX_PATH])
{
	if (*value != '/' || strlen(value) >= MAX_PATH)
		complain(argument, "want an absolute path");
	else
		strcpy(path, value);
}

static void read_auto_wrap(const char *argument, const char *value)
{
	bool on = strcmp(value, "1") == 0;

	if (!on && strcmp(value, "0") != 0)
		complain(argument, "want auto_wrap=1 or auto_wrap=0");
	else if (on && !CAN_WRAP)
		complain(argument, "this Slurm cannot put a program before tasks: Slurm 23.11 and later can");
	else
		site.auto_wrap = on;
}

static void read_argument(const char *argument)
{
	if (strncmp(argument, "auto_wrap=", 10) == 0)
		read_auto_wrap(argument, argument + 10);
	else if (strncmp(argument, "wrapper=", 8) == 0)
		read_path(argument, argument + 8, site.wrapper);
	else if (strncmp(argument, "root=", 5) == 0)
		read_path(argument, argument + 5, site.root);
	else
		complain(argument, "want auto_wrap=1, wrapper=/PATH or root=/PATH");
}

/* ---- the submit host ---- */

/*
 * Returns why a text cannot be passed on, or NULL. It does not check the grammar, because the policy does. A rank prints
 * errors in the grammar.
 */
static const char *unfit(const char *options)
{
	if (strlen(options) > MAX_OPTIONS)
		return "it is longer than 512 bytes";
	for (; *options; options++)
		if ((unsigned char)*options < ' ' || *options == 0x7f)
			return "it has a byte that is not printed";
	return NULL;
}

/* Slurm calls this function again in a job's step. The option was checked when the job was submitted. */
static int take_option(int val, const char *options, int remote)
{
	char quoted[MAX_QUOTED];

	(void)val;
	if (remote)
		return 0;
	if (!options)
		options = "";
	if (unfit(options)) {
		slurm_error("cannot use --mps=%s: %s: want NAME=VALUE, separated by commas", quote(options, quoted), unfit(options));
		return -1;
	}
	asked.given = true;
	strcpy(asked.options, options);
	return 0;
}

static struct spank_option option = {
	.name = "mps",
	.arginfo = "OPTIONS",
	.usage = "run the job under NVIDIA MPS; OPTIONS are NAME=VALUE, separated by commas, like share=even,mem=8G",
	.has_arg = 2, /* the value is optional */
	.cb = take_option,
};

/*
 * A job's environment holds the options that the job was submitted with, or "(null)" for an option without a value.
 * Slurm uses these options also for a job that is submitted from within the job. But each job must request MPS itself,
 * so this function removes our option before Slurm reads it.
 */
static void forget_the_job_around(void)
{
	unsetenv("SLURM_SPANK__SLURM_SPANK_OPTION_slurm_mps_mps");
}

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
	spank_context_t context = spank_context();

	for (int i = 0; i < argc; i++)
		read_argument(argv[i]);
	if (context == S_CTX_SLURMD && *site.complaint)
		slurm_error("%s", site.complaint);
	if (context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR)
		forget_the_job_around();
	if ((context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR || context == S_CTX_REMOTE) &&
	    spank_option_register(spank, &option) != ESPANK_SUCCESS)
		slurm_error("cannot register the option --mps of slurm_mps: does another plugin have it?");
	return 0;
}

int slurm_spank_init_post_opt(spank_t spank, int argc, char **argv)
{
	(void)argc;
	(void)argv;
	if (!asked.given) /* always so, except on the submit host */
		return 0;
	if (*site.complaint)
		slurm_error("%s", site.complaint);
	if (spank_job_control_setenv(spank, "MPS", asked.options, 1) != ESPANK_SUCCESS) {
		slurm_error("cannot pass --mps on to the job's prolog: ask for MPS by --constraint, or tell the site's admins");
		return -1;
	}
	return 0;
}

/* ---- the node ---- */

#if CAN_WRAP

/* Returns whether a program is the wrapper or starts a launcher's ranks. Such a program is not a rank. */
static bool is_no_rank(const char *program)
{
	static const char *const names[] = { "mpirun-wrap", "orted", "prted", "hydra_pmi_proxy", "hydra_bstrap_proxy", "pmi_proxy" };
	const char *slash = strrchr(program, '/'), *name = slash ? slash + 1 : program;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(name, names[i]) == 0)
			return true;
	return false;
}

/*
 * Returns whether the task is a rank of a step that a user started. It returns false for the batch script, and for a
 * shell of salloc or of srun --pty: a shell is no rank, and TaskProlog gives what runs in it the job's GPUs.
 */
static bool is_rank(spank_t spank)
{
	uint32_t step;
	int argc;
	char **argv;

	if (spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS || step >= SLURM_MAX_NORMAL_STEP_ID)
		return false;
	if (spank_get_item(spank, S_JOB_ARGV, &argc, &argv) != ESPANK_SUCCESS || argc == 0 || is_no_rank(argv[0]))
		return false;
	return !isatty(STDIN_FILENO);
}

/* Returns whether the prolog wrote a ticket for the job. */
static bool has_ticket(spank_t spank)
{
	char path[MAX_PATH + 64];
	uint32_t job;

	if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS)
		return false;
	snprintf(path, sizeof(path), "%s/run/slurm-mps/tickets/%u.json", site.root, job);
	return access(path, F_OK) == 0;
}

/*
 * Runs as the user, in the task's own namespaces. If the task cannot see the wrapper, this function does not put the
 * wrapper before the task.
 */
int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
	const char *wrapper[] = { site.wrapper };

	(void)argc;
	(void)argv;
	if (!site.auto_wrap || !is_rank(spank) || !has_ticket(spank))
		return 0;
	if (access(site.wrapper, X_OK) != 0)
		slurm_error("cannot put %s before this task, which runs as it is: %s", site.wrapper, strerror(errno));
	else if (spank_prepend_task_argv(spank, 1, wrapper) != ESPANK_SUCCESS)
		slurm_error("cannot put %s before this task, which runs as it is", site.wrapper);
	return 0;
}

#endif
