// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/rs/zerolog"
	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/cmd/internal/logfile"
	"github.com/slurm-mps/slurm-mps/cmd/internal/record"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/guard"
	"github.com/slurm-mps/slurm-mps/site/inspect"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"golang.org/x/sys/unix"
)

// Usage is the program that tells a guard what GPUs have left and how busy they are, and that records what a job uses. The
// guard itself has no NVML.
func Usage(p cli.Process) int {
	var devices []string
	var job uint32
	c := command("gpu-usage", "print what GPUs have left and how busy they are",
		"gpu-usage prints a line of JSON ten times a second, until its stdin ends. The\n"+
			"guard of a job starts it while it holds files. With --record, gpu-usage\n"+
			"writes the report of a job: the guard starts it with itself, and tells it\n"+
			"of clients on stdin.",
		func(paths site.Paths) error {
			if job > 0 {
				return recordUsage(paths, job)
			}
			return printUsage(p, paths, devices)
		})
	c.Flags().Uint32Var(&job, "record", 0, "keep the report of this `JOB`, which has a lease")
	c.Flags().StringSliceVar(&devices, "gpu", nil, "the GPUs, by `UUID`")
	return execute(p, c)
}

// usageEvery is twice as often as the driver takes its samples (measured on an H200: every 200 ms). One question
// takes 2 ms.
const usageEvery = 100 * time.Millisecond

// usageTimeout bounds one call of the driver.
const usageTimeout = 10 * time.Second

func printUsage(p cli.Process, paths site.Paths, devices []string) error {
	facts, _ := policyfile.ReadConfig(paths) // as the prolog has them
	driver, err := gpu.OpenTimeout(facts.NVMLLibrary, usageTimeout)
	if err != nil {
		return err
	}
	go func() { // the guard has ended
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(cli.ExitOK)
	}()
	since := make([]uint64, len(devices))
	for {
		line := make([]guard.Usage, len(devices))
		for i, device := range devices {
			line[i] = usageOf(driver, site.UUID(device), &since[i])
		}
		text, err := json.Marshal(line)
		if err == nil {
			_, err = p.Out.Write(append(text, '\n'))
		}
		if err != nil {
			return err
		}
		time.Sleep(usageEvery)
	}
}

// recordUsage keeps the report of a job until the guard ends.
func recordUsage(paths site.Paths, job uint32) error {
	beModest()
	facts, _ := policyfile.ReadConfig(paths)
	if facts.UsageInterval == 0 {
		return nil
	}
	out, closeLog := logfile.Open(paths.Log())
	defer closeLog()
	log := logfile.Of(out, "gpu-usage", job)
	err := recordJob(paths, facts, job, log)
	if err != nil {
		log.Warn().Err(err).Msg("no report of this job is kept")
	}
	return err
}

func recordJob(paths site.Paths, facts site.Config, job uint32, log zerolog.Logger) error {
	boot, err := site.BootID()
	if err != nil {
		return err
	}
	store := lease.OpenReadOnly(paths.Run(), boot)
	events := record.Events(os.Stdin)
	there, withdrawn := record.Ticket(store.TicketPath(job))
	early, ok := record.Wait(events, there) // the prolog is not to wait for a driver that answers the recorder
	if !ok {
		return nil
	}
	o := record.Options{Interval: facts.UsageInterval, Early: early, Log: log}
	if o.Lease, err = store.Read(job); err != nil {
		return err
	}
	if o.Ticket, err = store.ReadTicket(job); err != nil {
		return err
	}
	if o.Folder, err = site.OpenFolder(store.JobDir(job)); err != nil {
		return err
	}
	o.Read = func(pid int) inspect.Environment {
		return inspect.EnvironmentsOf(context.Background(), []int{pid}, o.Lease.Job.UID)[pid]
	}
	if o.Samplers, err = samplers(facts, o.Ticket.Devices); err != nil {
		return err
	}
	record.New(o).Run(events, withdrawn)
	return nil
}

// recordTimeout bounds one call of the driver for a report. The report's last sample is lost if it takes longer.
const recordTimeout = 2 * time.Second

// samplers are nil for a device that cannot be sampled.
func samplers(facts site.Config, devices []lease.TicketDevice) ([]record.Sampler, error) {
	driver, err := gpu.OpenTimeout(facts.NVMLLibrary, recordTimeout)
	if err != nil {
		return nil, err
	}
	all := make([]record.Sampler, len(devices))
	for i, d := range devices {
		if s, err := driver.NewSampler(d.UUID); err == nil {
			all[i] = s
		}
	}
	return all, nil
}

// modestNice lets the job's own processes go first. The guard, whose child this process is, has the highest priority.
const modestNice = 10

// beModest gives up what the guard has: its priority, and its safety when the memory runs out.
func beModest() {
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("0"), 0)
	threads, _ := os.ReadDir("/proc/self/task")
	for _, thread := range threads {
		if id, err := strconv.Atoi(thread.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, id, modestNice)
		}
	}
}

// usageOf is one GPU's usage, with Known unset when it cannot be read: MIG has none.
func usageOf(driver *gpu.NVML, uuid site.UUID, since *uint64) guard.Usage {
	u, err := driver.Usage(uuid, *since)
	if err != nil {
		return guard.Usage{Hung: errors.Is(err, gpu.ErrHung)}
	}
	usage := guard.Usage{Known: true, TotalMiB: u.TotalMiB, FreeMiB: u.FreeMiB}
	for _, mib := range u.Clients {
		usage.LargestMiB = max(usage.LargestMiB, mib)
	}
	for _, b := range u.Busy {
		usage.Samples = append(usage.Samples, guard.Sample{Micros: b.Micros, Percent: b.Percent})
		*since = max(*since, b.Micros)
	}
	return usage
}
