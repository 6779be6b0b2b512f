// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"time"

	"github.com/rs/zerolog"
	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/cmd/internal/logfile"
	"github.com/slurm-mps/slurm-mps/cmd/internal/record"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/clientenv"
	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/guard"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
)

// Usage is the program gpu-usage. It reports to a guard how much memory GPUs have left and how busy they are, because
// the guard has no NVML. With --record, it records what a job uses.
func Usage(p cli.Process) int {
	var devices []string
	var job uint32
	c := command("gpu-usage", "print what GPUs have left and how busy they are",
		"gpu-usage prints a line of JSON for each line of its stdin, until its stdin\n"+
			"ends. The guard of a job starts it with the first client. With --record, gpu-usage\n"+
			"writes the report of a job. The guard starts this recorder when the guard\n"+
			"itself starts, and writes the job's clients to the recorder's stdin.",
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

// usageTimeout bounds one call of the driver.
const usageTimeout = 10 * time.Second

func printUsage(p cli.Process, paths site.Paths, devices []string) error {
	config, _ := policyfile.ReadConfig(paths) // the same settings as the prolog's
	driver, err := gpu.OpenTimeout(config.NVMLLibrary, usageTimeout)
	if err != nil {
		return err
	}
	questions := make(chan bool, 1)
	go func() { // a call of the driver may hang when stdin ends
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			select {
			case questions <- true:
			default: // the line that is printed next answers this question, too
			}
		}
		os.Exit(cli.ExitOK)
	}()
	since := make([]uint64, len(devices))
	clock := wallClock{began: time.Now()}
	for range questions {
		line := make([]guard.Usage, len(devices))
		now := time.Now()
		stepped := clock.stepped(now.UnixNano(), now.Sub(clock.began))
		for i, device := range devices {
			if stepped {
				since[i] = uint64(now.UnixMicro())
			}
			line[i] = usageOf(driver, site.UUID(device), &since[i])
			if stepped {
				line[i].Samples = forget(now)
			}
		}
		text, err := json.Marshal(line)
		if err == nil {
			_, err = p.Out.Write(append(text, '\n'))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// wallClock notices when the wall clock is set. The driver's samples have its times.
type wallClock struct {
	began  time.Time
	offset int64 // what the wall clock was ahead of the monotonic one at the last call, in nanoseconds
}

// maxSlew is more than NTP turns the clock by between two questions.
const maxSlew = 50 * time.Millisecond

// stepped reports whether the wall clock was set since the last call. It takes nanoseconds since 1970, and the time
// since the beginning by the monotonic clock.
func (c *wallClock) stepped(wall int64, elapsed time.Duration) bool {
	before := c.offset
	c.offset = wall - int64(elapsed)
	return before != 0 && time.Duration(c.offset-before).Abs() > maxSlew
}

// forget makes the guard forget the samples from before the clock was set, because their times would be after a death
// that comes later. A sample that is not 0 does that.
func forget(now time.Time) []guard.Sample {
	return []guard.Sample{{Micros: uint64(now.UnixMicro()), Percent: 100}}
}

// recordUsage writes the report of a job until the guard ends.
func recordUsage(paths site.Paths, job uint32) error {
	beModest()
	config, _ := policyfile.ReadConfig(paths)
	if config.UsageInterval == 0 {
		return nil
	}
	out, closeLog := logfile.Open(paths.Log())
	defer closeLog()
	log := logfile.Of(out, "gpu-usage", job)
	err := recordJob(paths, config, job, log)
	if err != nil {
		log.Warn().Err(err).Msg("no report of this job is kept")
	}
	return err
}

func recordJob(paths site.Paths, config site.Config, job uint32, log zerolog.Logger) error {
	boot, err := site.BootID()
	if err != nil {
		return err
	}
	store := lease.OpenReadOnly(paths.Run(), boot)
	events := record.Events(os.Stdin)
	published, withdrawn := record.WatchTicket(store.TicketPath(job))
	// NVML is opened after the prolog, because the prolog must not wait for a driver that is busy with the recorder.
	early, ok := record.Wait(events, published)
	if !ok {
		return nil
	}
	o := record.Options{Interval: config.UsageInterval, Early: early, Log: log}
	if o.Lease, err = store.Read(job); err != nil {
		return err
	}
	if o.Ticket, err = store.ReadTicket(job); err != nil {
		return err
	}
	if o.Folder, err = site.OpenFolder(store.JobDir(job)); err != nil {
		return err
	}
	o.Read = func(pid int) clientenv.Environment {
		return clientenv.Read(context.Background(), []int{pid}, o.Lease.Job.UID)[pid]
	}
	if o.Samplers, err = samplers(config, o.Ticket.Devices); err != nil {
		return err
	}
	record.New(o).Run(events, withdrawn)
	return nil
}

// recordTimeout bounds one call of the driver for a report. If the last call takes longer, the report has no last
// sample.
const recordTimeout = 2 * time.Second

// samplers returns a sampler for each device. The sampler is nil if the device cannot be sampled.
func samplers(config site.Config, devices []lease.TicketDevice) ([]record.Sampler, error) {
	driver, err := gpu.OpenTimeout(config.NVMLLibrary, recordTimeout)
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

// modestNice lets the job's own processes run first. This process is a child of the guard, which has the highest
// priority.
const modestNice = 10

// beModest gives up what this process has from the guard: the priority, and the protection when memory runs out.
func beModest() {
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("0"), 0)
	proc.SetNice(os.Getpid(), modestNice)
}

// usageOf returns the usage of one GPU. Known is false if the usage cannot be read. With MIG, the driver reports no
// usage.
func usageOf(driver *gpu.NVML, uuid site.UUID, since *uint64) guard.Usage {
	u, err := driver.Usage(uuid, *since)
	if err != nil {
		return guard.Usage{Hung: errors.Is(err, gpu.ErrHung)}
	}
	usage := guard.Usage{Known: true, TotalMiB: u.TotalMiB, FreeMiB: u.FreeMiB, Clients: u.Clients}
	for _, s := range u.Activity {
		usage.Samples = append(usage.Samples, guard.Sample{Micros: s.Micros, Percent: s.Percent})
		*since = max(*since, s.Micros)
	}
	return usage
}
