// Package node is what the doors that run as root on a node share: it puts the rooms together.
package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/rs/zerolog"
	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/epilog"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/spf13/cobra"
)

// node is this node, put together for one job.
type node struct {
	paths   site.Paths
	facts   site.Facts
	journal *lease.Journal
	gpus    *lazyGPUs
	control mps.Control
	out     io.Writer // of log
	log     zerolog.Logger
	close   func()
}

// open puts a node together. The facts are the file's; where that cannot be read the error is in the second result, and
// the node has the defaults: an epilog goes on with them.
func open(paths site.Paths, program string, job uint32) (n node, factsErr, err error) {
	facts, factsErr := ReadFacts(paths.Facts())
	boot, err := site.BootID()
	if err != nil {
		return node{}, nil, err
	}
	journal, err := lease.Open(paths.Run(), boot)
	if err != nil {
		return node{}, nil, err
	}
	out, closeLog := openLog(paths.Log())
	// An NVML that hangs is given up early enough for all that does not need it.
	gpus := &lazyGPUs{library: facts.NVMLLibrary, patience: min(facts.PrologDeadline, facts.EpilogDeadline) / 2}
	return node{
		paths: paths, facts: facts, journal: journal, gpus: gpus,
		control: mps.Control{Path: facts.Control, LibraryPath: facts.LibraryPath},
		out:     out, log: logOf(out, program, job),
		close: closeLog,
	}, factsErr, nil
}

func logOf(out io.Writer, program string, job uint32) zerolog.Logger {
	return zerolog.New(out).With().Timestamp().Str("program", program).Uint32("job", job).Logger()
}

// closer is the undo of the house.
func (n node) closer() epilog.Closer {
	return epilog.Closer{
		Journal: n.journal, Daemons: n.control, GPUs: n.gpus, Log: n.log, Again: n.again,
		Logs: filepath.Join(filepath.Dir(n.paths.Log()), "jobs"),
	}
}

// again is how an admin runs the epilog of a job by hand.
func (n node) again(job lease.Job) string {
	self, err := os.Executable()
	if err != nil {
		self = "prolog"
	}
	command := fmt.Sprintf("SLURM_SCRIPT_CONTEXT=epilog_slurmd SLURM_JOB_ID=%d %s", job.ID, filepath.Join(filepath.Dir(self), "epilog"))
	if n.paths.Root != "" {
		command += " --root " + n.paths.Root
	}
	return command
}

// ReadFacts reads what the site says of itself; what it does not say, or has no file for, is the default.
func ReadFacts(path string) (site.Facts, error) {
	facts := site.DefaultFacts()
	content, err := site.ReadOwned(path)
	if errors.Is(err, fs.ErrNotExist) {
		return facts, nil
	}
	if err != nil {
		return facts, err
	}
	read, err := policyfile.ParseFacts(content, path, facts)
	if err != nil {
		return facts, err
	}
	return read, nil
}

// openLog appends to the log. A log that cannot be written is no reason to drain a node: it goes to nobody then.
func openLog(path string) (io.Writer, func()) {
	zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000Z07:00"
	zerolog.ErrorHandler = func(error) {} // it would say each lost line on stderr, which is for what the act says
	_ = os.MkdirAll(filepath.Dir(path), 0o755)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW, 0o640)
	if err != nil {
		return io.Discard, func() {}
	}
	return printable{file}, func() { file.Close() }
}

// printable escapes what a terminal would obey in lines of JSON. Their writer escapes what JSON must: C1 controls and
// marks that turn the direction of a line are not among that, and a user may have written them.
type printable struct{ to io.Writer }

func (p printable) Write(line []byte) (int, error) {
	var plain []byte
	for _, r := range string(line) {
		if r == '\n' || strconv.IsPrint(r) {
			plain = utf8.AppendRune(plain, r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			plain = fmt.Appendf(plain, `\u%04x`, unit)
		}
	}
	_, err := p.to.Write(plain)
	return len(line), err
}

// Gres reads what Slurm's files say of the job's node.
func (n node) Gres(job slurm.Job) (slurm.Gres, error) {
	path := n.facts.GresConf
	if path == "" {
		path = filepath.Join(filepath.Dir(job.Conf), "gres.conf")
	}
	gres, err := slurm.ReadGres(path, job.Node)
	if err != nil || job.Conf == "" {
		return gres, err
	}
	want, err := slurm.ReadNode(job.Conf, job.Node)
	if errors.Is(err, slurm.ErrNoNode) {
		return gres, nil
	}
	gres.Want = want
	return gres, err
}

// command is a door: a program without arguments, run by slurmd as root.
func command(name, short, long string, run func(site.Paths) error) *cobra.Command {
	var paths site.Paths
	c := &cobra.Command{
		Use: name, Short: short, Long: long, Version: cli.Version(), Args: cobra.NoArgs,
		SilenceErrors: true, SilenceUsage: true,
		PreRunE: func(*cobra.Command, []string) error { return checkRoot(paths.Root) },
		RunE:    func(*cobra.Command, []string) error { return run(paths) },
	}
	c.Flags().StringVar(&paths.Root, "root", "", "move /etc/slurm-mps, /run/slurm-mps and /var/log/slurm-mps below `DIR`")
	c.CompletionOptions.DisableDefaultCmd = true
	return c
}

func checkRoot(root string) error {
	if root != "" && !filepath.IsAbs(root) {
		return fmt.Errorf("cannot use --root %q: give an absolute path", root)
	}
	if os.Geteuid() != 0 {
		return errors.New("cannot act on this node: not root: slurmd runs this program, see docs/operator.md")
	}
	return nil
}

// execute runs a door to its exit code.
func execute(p cli.Process, c *cobra.Command) int {
	c.SetArgs(p.Args)
	c.SetOut(p.Out)
	c.SetErr(p.Err)
	if err := c.Execute(); err != nil {
		p.Complain(c.Name(), err)
		return cli.Drain
	}
	return cli.OK
}

// within runs act with a deadline that signals shorten. An act that hangs in the driver past the deadline and a margin
// is left behind: its record stands, and the next epilog finds it.
func within(deadline, margin time.Duration, act func(context.Context) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- act(ctx) }()
	select {
	case err := <-done:
		return err
	case <-time.After(deadline + margin):
		return fmt.Errorf("cannot finish within %v: a call of the driver or the file system hangs", deadline+margin)
	}
}
