// SPDX-License-Identifier: Apache-2.0

/*
 * slurm_mps.so: the option --mps[=OPTIONS] of srun, sbatch and salloc.
 *
 * The promise: options reach prolog and epilog as SPANK_MPS, as they were written; it is empty if no value was given. The
 * policy reads them, and a rank prints what is wrong. Only a text that cannot be passed on is refused here. A job that does not
 * use the option notices nothing, whatever plugstack.conf says: what is wrong there is told to those that use it, and to
 * slurmd's log.
 *
 * From Slurm 23.11 on, with auto_wrap=1, mpirun-wrap is put before every task of a job that asked for MPS in any way: the
 * prolog has left such a job a ticket.
 *
 * A plugin links nothing: what it calls is in the program that loads it. It is for one release of Slurm (22.05, 24.11),
 * that of its headers.
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
	PATH_MOST = 4096,
	OPTIONS_MOST = 512, /* bytes: as policy.ParseOptions */
	QUOTED_MOST = 80,
};

/* What plugstack.conf says; complaint is what is wrong with it. */
static struct {
	bool auto_wrap;
	char wrapper[PATH_MOST];
	char root[PATH_MOST]; /* what stands before /run/slurm-mps, as with the programs' --root */
	char complaint[1024];
} site = { .wrapper = "/usr/bin/mpirun-wrap" };

/* What the command line or the script says; the last --mps counts. */
static struct {
	bool given;
	char options[OPTIONS_MOST + 1];
} asked;

/* Writes the beginning of a text in quotes, with a question mark for each byte that is not printed. Returns quoted. */
static char *quote(const char *text, char quoted[QUOTED_MOST])
{
	enum { SHOWN = 64 };
	int length = snprintf(quoted, QUOTED_MOST, "\"%.*s\"%s", SHOWN, text, strlen(text) > SHOWN ? "\xe2\x80\xa6" : "");

	for (int i = 1; i < length && i <= SHOWN; i++)
		if (quoted[i] < ' ' || quoted[i] > '~')
			quoted[i] = '?';
	return quoted;
}

/* ---- plugstack.conf ---- */

__attribute__((format(printf, 2, 3))) static void complain(const char *argument, const char *format, ...)
{
	char quoted[QUOTED_MOST];
	va_list arguments;
	int length;

	length = snprintf(site.complaint, sizeof(site.complaint), "cannot use %s of slurm_mps in plugstack.conf: ",
			  quote(argument, quoted));
	va_start(arguments, format);
	vsnprintf(site.complaint + length, sizeof(site.complaint) - (size_t)length, format, arguments);
	va_end(arguments);
}

static void read_path(const char *argument, const char *value, char path[PATH_MOST])
{
	if (*value != '/' || strlen(value) >= PATH_MOST)
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

/* Says what keeps a text from being passed on, NULL for nothing. Its grammar is the policy's: a rank prints what is wrong. */
static const char *unfit(const char *options)
{
	if (strlen(options) > OPTIONS_MOST)
		return "it is longer than 512 bytes";
	for (; *options; options++)
		if ((unsigned char)*options < ' ' || *options == 0x7f)
			return "it has a byte that is not printed";
	return NULL;
}

/* In a job's step the option is heard of again; it was checked when the job was submitted. */
static int take_option(int val, const char *options, int remote)
{
	char quoted[QUOTED_MOST];

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
	.has_arg = 2, /* a value is optional */
	.cb = take_option,
};

/*
 * A job's environment holds the options that it was submitted with, "(null)" where one had no value, and Slurm takes them
 * for whatever is submitted from within. A job asks by itself, so ours is taken away before Slurm looks.
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
	if (!asked.given) /* as in every context but the submit host's */
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

/* Programs that start a launcher's ranks, or are the wrapper: no rank itself. */
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
 * Says whether the task is one of a step that a user started: not the batch script, nor a shell of salloc's or of
 * srun --pty, whose every program would ignore Ctrl-C, as the wrapper lets its program do.
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

/* Says whether the prolog left the job a ticket. */
static bool has_ticket(spank_t spank)
{
	char path[PATH_MOST + 64];
	uint32_t job;

	if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS)
		return false;
	snprintf(path, sizeof(path), "%s/run/slurm-mps/tickets/%u.json", site.root, job);
	return access(path, F_OK) == 0;
}

/* Runs as the user, in the task's own namespaces: what the task cannot see is not put before it. */
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
