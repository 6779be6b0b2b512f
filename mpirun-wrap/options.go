// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/words"
)

// Options are a user's options for a rank. The zero value leaves everything to Slurm and the policy.
type Options struct {
	GPU       choice
	Share     policy.ShareRule   // zero: the ticket's
	ShareFlag bool               // Share is this rank's flag, not a variable that all ranks have
	GPUFlag   bool               // GPU is this rank's flag, not a variable
	Memory    *policy.MemoryRule // nil: the ticket's
	LocalRank int                // given together with LocalSize; LocalSize 0 means not given
	LocalSize int
	Slots     int           // take one of so many slots; 0: none, jobTasks: as many as the job has tasks on the node
	SlotsWait time.Duration // for a free slot
	Indices   bool          // CUDA_VISIBLE_DEVICES has numbers and no UUIDs
	Report    bool          // print the placement on stderr
	Verbose   bool          // with the reasons
	DryRun    bool          // print the placement and run nothing
	JSON      bool          // for Report and DryRun
	Off       bool          // run the program without MPS
	OwnDaemon bool          // start a daemon for these ranks, if the site has started none
}

// jobTasks as Options.Slots means one slot for each task of the job on this node.
const jobTasks = -1

// untilJobEnds is longer than any job.
const untilJobEnds = 10000 * time.Hour

// choice is a way to choose a rank's GPU.
type choice string

// The ways to choose. The zero value means auto.
const (
	autoGPU     choice = "auto"    // the GPUs that Slurm bound to the task, else cyclic
	blockGPU    choice = "block"   // consecutive ranks on one GPU
	cyclicGPU   choice = "cyclic"  // rank r on GPU r mod n
	allGPUs     choice = "all"     // as cyclic, but all GPUs are visible, for programs that choose by their local rank
	inheritGPUs choice = "inherit" // all GPUs that Slurm bound to the task, or all of the job's
)

// Setting is a row of the table of options: a flag and its variable.
type Setting struct {
	Flag  string
	Value string // the name of its value, "" for a switch
	Usage string
	set   func(*Options, string) error
	words []string // values from which a mistyped one is guessed
}

// prefix begins the names of all options' variables.
const prefix = "SLURM_MPS_"

// Variable is the name of the flag's variable.
func (s Setting) Variable() string {
	return prefix + strings.ToUpper(strings.ReplaceAll(s.Flag, "-", "_"))
}

// Settings is the table that ReadOptions follows.
var Settings = []Setting{
	{"gpu", "CHOICE", "auto, block, cyclic, all or inherit", (*Options).setGPU,
		[]string{"auto", "block", "cyclic", "all", "inherit"}},
	{"share", "SHARE", "none, even, overlap:F, PCT% or a list like 3:1", (*Options).setShare,
		[]string{"none", "even", "overlap"}},
	{"mem", "MEM", "none, even or a size like 8G: device memory that the rank can have", (*Options).setMemory, []string{"none", "even"}},
	{"ids", "KIND", "uuid or index: what CUDA_VISIBLE_DEVICES has, for programs that read numbers there",
		(*Options).setIDs, []string{"uuid", "index"}},
	{"local-rank", "N", "the rank's place on its node, if the launcher does not set it",
		func(o *Options, v string) error { return setNumber(&o.LocalRank, v) }, nil},
	{"local-size", "N", "how many ranks the node has, with --local-rank",
		func(o *Options, v string) error { return setNumber(&o.LocalSize, v) }, nil},
	{"slots", "", "take a free one of N slots, for processes without a launcher (--slots=N, or the job's tasks on the node; 0: none)",
		(*Options).setSlots, nil},
	{"slots-wait", "TIME", "wait so long for a free slot, like 10m; 0: do not wait. Without it: until the job ends",
		(*Options).setSlotsWait, nil},
	{"own", "", "start an MPS daemon for these ranks, if the site has none for the job: needs no admin",
		func(o *Options, v string) error { return setBool(&o.OwnDaemon, v) }, nil},
	{"report", "", "print this rank's GPU and share in a line on stderr", func(o *Options, v string) error { return setBool(&o.Report, v) }, nil},
	{"verbose", "", "(or -v) --report, with the reasons: the rule, the ceiling, and why this GPU", (*Options).setVerbose, nil},
	{"dry-run", "", "print this rank's GPU, share and environment and run nothing", func(o *Options, v string) error { return setBool(&o.DryRun, v) }, nil},
	{"json", "", "print both as JSON", func(o *Options, v string) error { return setBool(&o.JSON, v) }, nil},
}

// unknownVariables returns the names of the variables in env that look like an option's and are not.
func unknownVariables(env slurm.Env) (names []string) {
	known := variableNames()
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if strings.HasPrefix(name, prefix) && !slices.Contains(known, name) {
			names = append(names, name)
		}
	}
	return names
}

// variableNames returns the names of all options' variables.
func variableNames() (names []string) {
	for _, s := range Settings {
		names = append(names, s.Variable())
	}
	return names
}

// switchVariable is the variable that switches MPS off for a job if its value is "off".
const switchVariable = "SLURM_MPS"

// ReadOptions reads the options from an environment's variables. Set applies flags over them.
func ReadOptions(env slurm.Env) (Options, error) {
	o := Options{SlotsWait: untilJobEnds}
	switch value := env[switchVariable]; value {
	case "", "on":
	case "off":
		o.Off = true
	default:
		return o, fmt.Errorf("cannot read %s: it is %q: want on or off", switchVariable, value)
	}
	for _, s := range Settings {
		if value, given := env[s.Variable()]; given {
			if err := s.set(&o, value); err != nil {
				return o, s.invalid(s.Variable(), value, err)
			}
		}
	}
	return o, nil
}

// Set sets an option by its flag. A switch has the value "true".
func (o *Options) Set(flag, value string) error {
	for _, s := range Settings {
		if s.Flag != flag {
			continue
		}
		if err := s.set(o, value); err != nil {
			return s.invalid("--"+flag, value, err)
		}
		o.ShareFlag, o.GPUFlag = o.ShareFlag || flag == "share", o.GPUFlag || flag == "gpu"
	}
	return nil
}

// invalid names an option with its value, the values that are possible, and the word that was probably meant. The parsers of
// package policy name the value too.
func (s Setting) invalid(name, value string, err error) error {
	text := err.Error()
	text = text[max(strings.LastIndex(text, "want "), 0):]
	word, rest, found := strings.Cut(value, ":")
	like := words.Nearest(word, s.words)
	if like == "overlap" && !found {
		like, word = "overlap:2", ""
	}
	switch {
	case like != "" && like != word && found:
		text += ": did you mean " + like + ":" + rest + "?"
	case like != "" && like != word:
		text += ": did you mean " + like + "?"
	}
	return fmt.Errorf("cannot read %s: it is %s: %s", name, words.Quote(value, 100), text)
}

// check refuses options that exclude each other.
func (o Options) check() error {
	switch {
	case o.LocalSize > 0 && o.LocalRank >= o.LocalSize:
		return fmt.Errorf("cannot place rank %d of %d: --local-rank counts from 0 and is below --local-size", o.LocalRank, o.LocalSize)
	case o.LocalRank > 0 && o.LocalSize == 0:
		return fmt.Errorf("cannot place rank %d: --local-rank needs --local-size", o.LocalRank)
	case o.LocalSize > 0 && o.Slots != 0:
		return errors.New("cannot take a slot: --local-rank gives the process its place: leave out --slots or --local-rank")
	}
	return nil
}

func (o *Options) setIDs(value string) error {
	if o.Indices = value == "index"; value != "uuid" && value != "index" {
		return errors.New("want uuid or index")
	}
	return nil
}

// setShare reads a rule.
func (o *Options) setShare(value string) (err error) {
	o.Share, err = policy.ParseShare(value)
	if err != nil && strings.HasSuffix(err.Error(), " PCT% or a list like 3:1") { // the value has none of the forms
		err = errors.New("want none, even, overlap:F, PCT% or a list like 3:1")
		if value != "" && strings.Contains("0123456789", value[:1]) {
			err = fmt.Errorf("%w (in a file for srun --multi-prog write 60pct, because Slurm replaces the percent sign)", err)
		}
	}
	return err
}

func (o *Options) setGPU(value string) error {
	switch o.GPU = choice(value); o.GPU {
	case autoGPU, blockGPU, cyclicGPU, allGPUs, inheritGPUs:
		return nil
	}
	return errors.New("want auto, block, cyclic, all or inherit")
}

func (o *Options) setMemory(value string) error {
	rule, err := policy.ParseMemory(value)
	o.Memory = &rule
	return err
}

func (o *Options) setSlots(value string) error {
	if value == "true" {
		o.Slots = jobTasks
		return nil
	}
	return setNumber(&o.Slots, value)
}

func (o *Options) setSlotsWait(value string) (err error) {
	if o.SlotsWait, err = time.ParseDuration(value); err != nil || o.SlotsWait < 0 {
		return errors.New("want a time like 30s or 10m, or 0")
	}
	return nil
}

func (o *Options) setVerbose(value string) error {
	err := setBool(&o.Verbose, value)
	o.Report = o.Report || o.Verbose
	return err
}

func setNumber(field *int, value string) error {
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 || n > 1<<16 {
		return errors.New("want a whole number")
	}
	*field = n
	return nil
}

func setBool(field *bool, value string) error {
	switch value {
	case "true", "1", "yes":
		*field = true
	case "false", "0", "no", "":
		*field = false
	default:
		return errors.New("want true or false")
	}
	return nil
}
