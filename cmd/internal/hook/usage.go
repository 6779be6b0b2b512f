// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/guard"
)

// Usage is the program that tells a guard what GPUs have left and how busy they are. The guard itself has no NVML.
func Usage(p cli.Process) int {
	var devices []string
	c := command("gpu-usage", "print what GPUs have left and how busy they are",
		"gpu-usage prints a line of JSON ten times a second, until its stdin ends. The\n"+
			"guard of a job starts it while it holds files.",
		func(paths site.Paths) error { return printUsage(p, paths, devices) })
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
