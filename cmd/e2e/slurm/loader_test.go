// SPDX-License-Identifier: Apache-2.0

package slurm_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// marker makes a file in a folder when it is loaded. The file's owner is the user that loaded it, in the eyes of the
// node, and its name begins with the program's. la_version makes it a library for LD_AUDIT.
const marker = `
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
__attribute__((constructor)) static void loaded(void)
{
	char name[64] = "", path[512];
	int comm = open("/proc/self/comm", O_RDONLY);
	if (read(comm, name, sizeof(name) - 1) > 0)
		name[strcspn(name, "\n/")] = 0;
	close(comm);
	snprintf(path, sizeof(path), "%s/%s.XXXXXX", MARKS, name);
	close(mkstemp(path));
}
unsigned la_version(unsigned version) { return version; }
`

// loader is a cluster and a user who puts other libraries and programs before what root runs.
type loader struct {
	*cluster
	marks string // where the marker makes its files
	evil  string // the user's libraries and programs
}

func newLoader(t *testing.T, o lab.Options) loader {
	l := loader{cluster: newCluster(t, testnode.Default(""), o)}
	l.evil, l.marks = filepath.Join(l.Top, "evil"), filepath.Join(l.Top, "marks")
	for _, dir := range []string{l.evil, l.marks} {
		must.OK(t, os.Mkdir(dir, 0o777))
		must.OK(t, os.Chmod(dir, 0o777))
	}
	source, library := filepath.Join(l.Top, "marker.c"), l.library("libmarker.so")
	must.OK(t, os.WriteFile(source, []byte(marker), 0o644))
	gcc := exec.Command("gcc", "-O2", "-fPIC", "-shared", "-DMARKS=\""+l.marks+"\"", "-o", library, source)
	out, err := gcc.CombinedOutput()
	must.Have(t, err == nil, "%v\n%s", err, out)
	for _, name := range strings.Fields("libnvidia-ml.so.1 libcuda.so.1 libnss_files.so.2 libgcc_s.so.1 libdl.so.2 gconv-modules") {
		must.OK(t, os.Link(library, l.library(name)))
	}
	for _, hook := range []string{"prolog", "epilog"} { // a record of what the hook gets, before it runs
		path := filepath.Join(l.Top, hook)
		record := fmt.Sprintf("\ncat /proc/$$/environ >%s.environ\n/bin/readlink /proc/$$/ns/mnt >%[1]s.mnt\n", path)
		text := strings.Replace(e2e.Read(t, path), "\n", record, 1)
		must.OK(t, node.WriteProgram(path, []byte(text)))
	}
	return l
}

func (l loader) library(name string) string { return filepath.Join(l.evil, name) }

// environment is what the user sets: all that the loader, glibc, Go, the shell, NVML and NVIDIA's programs read.
func (l loader) environment() (all []string) {
	for _, name := range []string{"LD_PRELOAD", "LD_AUDIT", "BASH_ENV", "ENV"} {
		all = append(all, name+"="+l.library("libmarker.so"))
	}
	for name := range strings.FieldsSeq(`LD_LIBRARY_PATH LD_DEBUG_OUTPUT GCONV_PATH LOCPATH NLSPATH GETCONF_DIR TZDIR TMPDIR
		HOSTALIASES RESOLV_HOST_CONF MALLOC_TRACE __NVML_DBG_FILE CUDA_INJECTION64_PATH NVTX_INJECTION64_PATH CUDA_CACHE_PATH
		CUDA_MPS_LOG_DIRECTORY PYTHONPATH PERL5LIB`) {
		all = append(all, name+"="+l.evil)
	}
	return all
}

// script is a batch script. Its step has two clients: one in the job's namespaces, and one in a mount namespace of its own, in which
// each file that root's programs load or run is the marker.
func (l loader) script() string {
	n := l.First()
	files := []string{n.Sim.NVML(), n.Sim.Program("nvidia-cuda-mps-control"), "/etc/ld.so.cache"}
	for _, name := range []string{"prolog", "epilog", "guard", "gpu-usage", "mpirun-wrap"} {
		files = append(files, filepath.Join(n.Bin, name))
	}
	client := "env LD_LIBRARY_PATH=" + n.Sim.Libraries() + " " + l.Client() + " spin -ms 5 -for 600"
	inside := []string{
		"set -e", "mkdir " + l.library("etc"),
		"cp /etc/passwd /etc/group /etc/nsswitch.conf " + l.library("etc"),
		"echo " + l.library("libmarker.so") + " >" + l.library("etc/ld.so.preload"),
	}
	for _, file := range files {
		inside = append(inside, "mount --bind "+l.library("libmarker.so")+" "+file)
	}
	inside = append(inside, "mount --bind "+l.library("etc")+" /etc", "unset LD_PRELOAD LD_AUDIT", "exec "+client)
	within, step := filepath.Join(l.Top, "within"), filepath.Join(l.Top, "step")
	clients := []string{client + " &", "unshare -Urm bash " + within + " &", "wait"}
	for path, lines := range map[string][]string{within: inside, step: clients} {
		must.OK(l.T, node.WriteProgram(path, []byte("#!/bin/bash\n"+strings.Join(lines, "\n")+"\n")))
	}
	return "#!/bin/bash\nsrun " + step + "\n"
}

// marked returns who has loaded the marker: the names of the programs by their user.
func (l loader) marked() map[uint32][]string {
	l.T.Helper()
	entries := must.Get(os.ReadDir(l.marks))(l.T)
	by := map[uint32][]string{}
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			uid := info.Sys().(*syscall.Stat_t).Uid
			name, _, _ := strings.Cut(e.Name(), ".")
			by[uid] = append(by[uid], name)
		}
	}
	return by
}

// roots returns our programs that run as root, by pid.
func (l loader) roots() map[int]string {
	l.T.Helper()
	pids := must.Get(proc.PIDs())(l.T)
	found := map[int]string{}
	for _, pid := range pids {
		status, err1 := proc.ReadStatus(pid)
		stat, err2 := proc.ReadStat(pid)
		cmdline, err3 := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		_, child := found[stat.Parent] // a taker: a guard's line has the root, and its children come later
		if errors.Join(err1, err2, err3) != nil || status.UIDs[1] != 0 {
			continue
		}
		line := string(cmdline)
		if child || strings.HasPrefix(line, l.First().Bin) && strings.Contains(line, l.First().Root) {
			found[pid] = filepath.Base(strings.Split(line, "\x00")[0])
		}
	}
	return found
}

// harmless are the variables that hold a user's words, by Slurm's promise.
var harmless = regexp.MustCompile(`^(SPANK_|SLURM_JOB_COMMENT=|SLURM_JOB_NAME=)`)

// No program of root's loads or runs what a job's user has put into the environment or into a mount namespace, and none
// gets a variable of the user's but under Slurm's prefixes. None runs in a mount namespace of the job's.
//
// Contract: D1
func TestTheLoaderOfRoots(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		from string // the release of Slurm
		lab.Options
	}{
		"plain":    {"", lab.Options{PrologFlags: "Alloc,Contain"}},
		"RunInJob": {"24.05", lab.Options{PrologFlags: "RunInJob", ConstrainDevices: true}},
		"RunInJob with namespaces": {"25.11", lab.Options{PrologFlags: "RunInJob", ConstrainDevices: true,
			Extra: []string{"NamespaceType=namespace/linux"}, Namespace: `defaults:
  auto_base_path: true
  base_path: "%D/spool"
  dirs: "/dev/shm,/var/tmp"
  clone_ns_flags: "CLONE_NEWNS,CLONE_NEWPID,CLONE_NEWUSER"
`}},
	} {
		t.Run(name, func(t *testing.T) {
			needRelease(t, c.from)
			l := newLoader(t, c.Options)
			l.attacks()
		})
	}
}

func (l loader) attacks() {
	t, n := l.T, l.First()
	spank := l.environment() // without Slurm's prefix, and with it
	for _, variable := range l.environment() {
		spank = append(spank, "SPANK_"+variable, "x\n"+variable)
	}
	preload := "LD_PRELOAD=" + l.library("libmarker.so")
	id, refused := l.rawSubmit(rawJob{script: l.script(), environment: l.environment(), spank: spank, name: preload,
		comment: "x\n" + preload, features: "mps"})
	if refused != "" {
		t.Fatal(refused)
	}
	var running map[int]string
	ready := e2e.Comes(func() bool {
		running = l.roots()
		usage := 0
		for _, name := range running {
			if name == "gpu-usage" {
				usage++
			}
		}
		clients := 0
		for _, name := range l.marked()[l.User.UID] {
			if name == "cuda-client" {
				clients++
			}
		}
		return usage == 2 && clients >= 2
	})
	if !ready {
		t.Fatalf("the job does not run: %v, %v\n%s\n%s", running, l.marked(), l.Output(id), l.Log())
	}
	slurmd := must.Get(l.NodeProc(l.Nodes()[0]))(t)
	mnt := must.Get(os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", slurmd.PID)))(t)
	for pid, name := range running {
		environ, err1 := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		maps, err2 := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		in, err3 := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if err1 != nil || err2 != nil || err3 != nil {
			continue // a taker that has ended
		}
		must.Hold(t, len(environ) <= 0 && in == mnt && !strings.Contains(string(maps), l.evil),
			"%s of root's: mount namespace %s, slurmd's is %s, variables %q, files\n%s", name, in, mnt, environ, maps)
	}
	l.Does(l.User, "scancel", strconv.Itoa(id))
	l.Ended(id)
	l.Quiet()
	for _, hook := range []string{"prolog", "epilog"} {
		path := filepath.Join(l.Top, hook)
		if in := strings.TrimSpace(e2e.Read(t, path+".mnt")); in != mnt {
			t.Errorf("the %s runs in the mount namespace %s, slurmd's is %s", hook, in, mnt)
		}
		variables := strings.Split(strings.Trim(e2e.Read(t, path+".environ"), "\x00"), "\x00")
		must.Hold(t, slices.Contains(variables, "SPANK_LD_PRELOAD="+l.library("libmarker.so")),
			"the %s does not get what the user set for it: %q", hook, variables)
		for _, v := range variables {
			must.Hold(t, !strings.Contains(v, l.evil) || harmless.MatchString(v),
				"the %s gets a variable of the user's: %q", hook, v)
		}
	}
	if roots := l.marked()[0]; len(roots) > 0 {
		t.Errorf("root has loaded the user's library in %q", roots)
	}
	// The marker works: root's own program loads it if root's own environment has it.
	prolog := exec.Command(filepath.Join(n.Bin, "prolog"), "--version")
	prolog.Env = []string{"LD_PRELOAD=" + l.library("libmarker.so")}
	if out, err := prolog.CombinedOutput(); err != nil || !slices.Contains(l.marked()[0], "prolog") {
		t.Errorf("the marker does not work: %v: %s, %v", err, out, l.marked())
	}
}

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
