// SPDX-License-Identifier: Apache-2.0

// Command sitecheck tries a site's driver, in five minutes at most, and prints a line for site/doctor/known.json. `make
// site-check` puts it and the programs that it needs into one file, .build/site-check, which an admin or a user copies
// to a node with an idle GPU.
//
//	site-check [-minutes N] [-user NAME] [-exclusive | -mig]
//	site-check -simulate        a simulated GPU, from the folder that BUILT_FOLDER names
//	site-check -trials PATTERN  not the short form, but ends of clients of every kind beside neighbours, for -minutes: a
//	                            line of JSON for each PART/CELL/METHOD that matches, in -results
//
// Root opens and closes jobs with prolog and epilog, below a folder of its own; another user uses mpirun-wrap --own. No
// mode of a GPU changes, unless root gives -exclusive. With -mig, root tries the first MIG instance, which an admin has
// made: no MIG setting ever changes. It runs on no GPU that has a process. It never resets a GPU. All
// of its processes and files are gone when it ends, also if it is interrupted.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/lab/hold"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"golang.org/x/sys/unix"
)

// insideOf names the variable with the folder of a run. The process that has it is the one that a holder holds.
const insideOf = "SITE_CHECK_FOLDER"

// settings are the flags.
type settings struct {
	minutes                  float64
	user                     string
	exclusive, mig, simulate bool
	ends                     int // trials
	trials                   *regexp.Regexp
	results, other           string
	seed                     uint64
}

func main() {
	hold.Begin()
	var s settings
	flag.Float64Var(&s.minutes, "minutes", 5, "time of the run, at most 5, and with -trials more")
	flag.StringVar(&s.user, "user", "nobody", "`NAME` of the user of root's jobs")
	flag.BoolVar(&s.exclusive, "exclusive", false, "let jobs set GPU 0 to EXCLUSIVE_PROCESS and back, as shipped")
	flag.BoolVar(&s.mig, "mig", false, "try the first MIG instance, which must be there: no MIG setting changes")
	flag.BoolVar(&s.simulate, "simulate", false, "use a simulated GPU, of the folder in BUILT_FOLDER")
	flag.IntVar(&s.ends, "ends", 30, "ends of clients with the guard, and without; with -trials the most of each part and method")
	flag.Func("trials", "make the trials that match this `PATTERN`, as in ends/wrap/client/kill", func(text string) (err error) {
		s.trials, err = regexp.Compile(text)
		return err
	})
	flag.StringVar(&s.results, "results", "", "`FOLDER` for the lines of -trials: those that are there are not made again")
	flag.StringVar(&s.other, "other", "daemon", "`NAME` of the user of a second job on a shared GPU, for -trials")
	flag.Uint64Var(&s.seed, "seed", 1, "order of -trials")
	pack := flag.String("pack", "", "put this `FOLDER` of programs and the command into the file of the argument")
	build := flag.Bool("build", false, "build the programs and the simulation, and end")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	var err error
	switch folder := os.Getenv(insideOf); {
	case *build:
		_, err = testnode.Built()
	case *pack != "":
		err = packInto(flag.Arg(0), *pack)
	case flag.NArg() > 0 || s.minutes <= 0 || s.minutes > 5 && s.trials == nil || s.ends < 1:
		err = errors.New("cannot start: give -minutes up to 5, -ends from 1 on, and no argument")
	case (s.trials == nil) != (s.results == ""):
		err = errors.New("cannot start: -trials and -results go together")
	case s.exclusive && s.mig:
		err = errors.New("cannot start: MIG instances have no compute mode: give -exclusive or -mig")
	case folder != "":
		err = check(ctx, s, folder)
	default:
		err = outside(ctx, s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "site-check:", err)
		os.Exit(1)
	}
}

// outside runs this command again below a holder, with a folder, and removes the folder when all processes have ended.
func outside(ctx context.Context, s settings) (err error) {
	if s.exclusive && os.Geteuid() != 0 {
		return errors.New("cannot set a compute mode: run it as root, or without -exclusive")
	}
	if s.mig && os.Geteuid() != 0 {
		return errors.New("cannot try a MIG instance: mpirun-wrap --own, which a user's run tries, serves whole GPUs: " +
			"run it as root, or without -mig")
	}
	folder, err := os.MkdirTemp("/tmp", "site-check")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if err := os.Chmod(folder, 0o755); err != nil { // the user of the jobs runs programs in it
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(s.minutes*float64(time.Minute)))
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := hold.Command(ctx, self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideOf+"="+folder)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = errors.New("not all is well, or the run was cut off: see above")
	}
	return err
}

// margin is the part of a run's time in which what is open is closed.
const margin = 10 * time.Second

// check runs all parts and prints what they say.
func check(ctx context.Context, s settings, folder string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(s.minutes*float64(time.Minute))-margin)
	defer cancel()
	built := os.Getenv("BUILT_FOLDER")
	if built == "" {
		built = filepath.Join(folder, "pack")
		if err := unpack(built); err != nil {
			return err
		}
	}
	k, err := newKit(s, folder, built)
	if err != nil {
		return err
	}
	changes := map[bool]string{false: "no mode of a GPU", true: "the compute mode, and restores it"}[s.exclusive]
	fmt.Printf("%s, driver %s, as %s; it changes %s and takes %g minutes at most.\n",
		k.gpu.Name, k.driver, k.who.Username, changes, s.minutes)
	if s.mig {
		fmt.Printf("The instance is %s, with %d SMs. %s\n", k.gpu.UUID, k.gpu.SMs, migLacks)
	}
	if s.trials != nil {
		return k.tryAll(ctx)
	}
	var said []string
	bad := false
	for _, p := range k.parts() {
		began := time.Now()
		r, err := p.run(ctx)
		sign := map[bool]string{true: "ok  ", false: "BAD "}[r.good]
		switch {
		case !r.good && (ctx.Err() != nil || r.short):
			sign, r.text = "?   ", cmp.Or(r.text, "no time")
		case err != nil:
			sign, r.text = "BAD ", err.Error()
		}
		bad = bad || !strings.HasPrefix(sign, "ok")
		fmt.Printf("%s %s: %s (%.0f s)\n", sign, p.name, r.text, time.Since(began).Seconds())
		said = append(said, p.name+": "+r.text)
	}
	err = k.close()
	row := driver{Driver: k.driver, GPU: k.gpu.Name, Commit: strings.Fields(cli.Version())[1], Mode: k.mode(),
		Date: time.Now().UTC().Format(time.DateOnly),
		Ran:  "`make site-check`, by " + k.method + ": " + strings.Join(said, "; ")}
	line, err2 := json.Marshal(row)
	fmt.Printf("\nA line for the proven drivers, good or bad:\n%s\nTo send it, open an issue: %s\n", line, issues)
	if bad {
		err = errors.Join(err, errors.New("a part is bad or was not made: the line says so, and is welcome"))
	}
	return errors.Join(err, err2)
}

// driver is the line: a row of known.json.
type driver struct {
	Driver string `json:"driver"`
	GPU    string `json:"gpu"`    // its name as NVML reports it
	Commit string `json:"commit"` // of slurm-mps
	Date   string `json:"date"`
	Mode   string `json:"mode"` // the GPUs' compute mode
	Ran    string `json:"ran"`  // what was run
	Data   string `json:"data"` // the address of the issue
}

// migLacks is what an instance lacks (docs/limits.md).
const migLacks = "NVML does not tell what an instance computes. So after a death with work in flight, the guard " +
	"holds the files for 2 s if a newer client is there, else for the policy's hold, and it pauses no one: longer " +
	"work can kill neighbours. The work of these trials is shorter. " +
	"There is no EXCLUSIVE_PROCESS, and no utilisation in a report."

const issues = "https://github.com/slurm-mps/slurm-mps/issues/new?template=driver.yml"
