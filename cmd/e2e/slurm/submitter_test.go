// SPDX-License-Identifier: Apache-2.0

package slurm_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// rawPlugin is a SPANK plugin of a user's. In place of srun's job, it submits one with the user's own bytes, which none
// of Slurm's commands would send: they drop or refuse names that are long, empty or have a '='.
const rawPlugin = `
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/spank.h>
SPANK_PLUGIN(raw, 1)
#if SLURM_VERSION_NUMBER < SLURM_VERSION_NUM(23, 11, 0)
#define GPU "gres:gpu:1"
#define ID(answer) (answer)->job_id
#elif SLURM_VERSION_NUMBER < SLURM_VERSION_NUM(26, 5, 0)
#define GPU "gres/gpu:1"
#define ID(answer) (answer)->job_id
#else
#define GPU "gres/gpu:1"
#define ID(answer) (answer)->step_id.job_id
#endif
/* Reads a file of texts that end with a NUL. */
static char **texts(const char *path, uint32_t *count)
{
	enum { MAX = 1 << 25 };
	char *text = malloc(MAX), **all = calloc(100000, sizeof(*all));
	FILE *file = fopen(path, "r");
	size_t length = fread(text, 1, MAX, file);
	for (*count = 0; length > 0; ++*count) {
		size_t n = strlen(text) + 1;
		all[*count] = strdup(text); /* Slurm's library frees none of them */
		text += n, length -= n;
	}
	fclose(file);
	return all;
}
int slurm_spank_init_post_opt(spank_t spank, int argc, char **argv)
{
	job_desc_msg_t job;
	submit_response_msg_t *answer = NULL;
	uint32_t count;
	if (spank_context() != S_CTX_LOCAL)
		return 0;
	slurm_init_job_desc_msg(&job);
	job.user_id = getuid(), job.group_id = getgid();
	job.min_nodes = job.max_nodes = job.num_tasks = 1;
	job.time_limit = 10;
	job.tres_per_node = GPU;
	job.environment = texts(argv[0], &job.env_size);
	job.spank_job_env = texts(argv[1], &job.spank_job_env_size);
	job.script = texts(argv[2], &count)[0];
	char **more = texts(argv[3], &count);
	job.std_out = job.std_err = more[0];
	job.work_dir = more[1], job.name = more[2], job.comment = more[3];
	if (*more[4])
		job.features = more[4];
	if (slurm_submit_batch_job(&job, &answer) == 0)
		printf("job %u\n", ID(answer));
	else
		printf("refused: %s\n", slurm_strerror(errno));
	fflush(stdout);
	_exit(0);
}
`

// rawJob is a job that its user submits without Slurm's commands.
type rawJob struct {
	script      string
	environment []string
	spank       []string // variables for the prolog and the epilog, as Slurm's protocol has them
	name        string
	comment     string
	features    string
}

// rawSubmit submits a job and returns its number, or why Slurm refused it. The job's output is that of Output.
func (c *cluster) rawSubmit(job rawJob) (id int, refused string) {
	c.T.Helper()
	dir, err := os.MkdirTemp(c.Top, "submitter")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	must.OK(c.T, err)
	home := must.Get(c.Home(c.User))(c.T)
	list := func(texts ...string) string { return strings.Join(append(texts, ""), "\x00") }
	conf := e2e.Read(c.T, filepath.Join(c.Dir(), "etc", "slurm.conf"))
	plugstack := "required %s/raw.so %[1]s/environment %[1]s/spank %[1]s/script %[1]s/more\n"
	for name, text := range map[string]string{
		"raw.c": rawPlugin, "script": list(job.script), "spank": list(job.spank...),
		"environment":    list(append(c.Env(), job.environment...)...),
		"more":           list(home+"/%j.0.out", home, job.name, job.comment, job.features),
		"slurm.conf":     conf + "\nPlugStackConfig=" + dir + "/plugstack.conf\n",
		"plugstack.conf": fmt.Sprintf(plugstack, dir),
	} {
		must.OK(c.T, node.WriteProgram(filepath.Join(dir, name), []byte(text)))
	}
	gcc := exec.Command("gcc", "-O2", "-fPIC", "-shared", "-I"+slurmHeaders(), "-o", dir+"/raw.so", dir+"/raw.c")
	out, err := gcc.CombinedOutput()
	must.Have(c.T, err == nil, "%v\n%s", err, out)
	srun := must.Get(c.Command(c.Ctx, c.User, "srun", "true"))(c.T)
	srun.Env = append(srun.Env, "SLURM_CONF="+dir+"/slurm.conf")
	out, err = srun.CombinedOutput()
	answer := string(out)
	if at := strings.LastIndex(answer, "job "); at >= 0 {
		if _, scanned := fmt.Sscanf(answer[at:], "job %d", &id); scanned == nil {
			return id, ""
		}
	}
	must.Have(c.T, err == nil && strings.Contains(answer, "refused: "), "%v\n%s", err, answer)
	return 0, answer
}
