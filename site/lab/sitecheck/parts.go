// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/lab/watch"
	"golang.org/x/sys/unix"
)

// result is what a part says.
type result struct {
	good  bool
	short bool // the run's time did not suffice, which is no fault of the driver
	text  string
}

type part struct {
	name string
	run  func(context.Context) (result, error)
}

func (k *kit) parts() []part {
	return []part{
		{"shares", k.shares},
		{"clients", k.crowd},
		{"the guard's cost", k.cost},
		{"ends with the guard", func(ctx context.Context) (result, error) { return k.endings(ctx, k.method) }},
		{"ends without", func(ctx context.Context) (result, error) { return k.endings(ctx, bare) }},
		{"conformance", k.conformance}, // it takes 45 s on an H200, and 110 s on a busy machine without a GPU
	}
}

var verdict = regexp.MustCompile(`(?m)^--- (PASS|FAIL|SKIP): (\S+)`)

// unfinished is the test that runs when the suite's time is over.
var unfinished = regexp.MustCompile(`running tests:\n\s*(Test\w+)`)

// conformance runs the suite of site/sim/conformance, which knows the simulated driver as a real one here.
func (k *kit) conformance(ctx context.Context) (result, error) {
	end, _ := ctx.Deadline()
	limit := time.Until(end).Truncate(time.Second)
	if limit < time.Second {
		return result{short: true, text: "no time for it"}, ctx.Err()
	}
	suite := filepath.Join(k.built, "conformance.test")
	cmd := exec.CommandContext(ctx, suite, "-test.v", "-test.timeout", limit.String())
	cmd.Env = append(os.Environ(), "CONFORMANCE_TARGET=real", "MPS_CONTROL="+k.control, "CONFORMANCE_CLIENT="+k.client,
		"CONFORMANCE_GPUS="+k.suiteGPUs(), "CONFORMANCE_LIB="+k.libraries, "TMPDIR="+k.folder,
		fmt.Sprintf("CONFORMANCE_UID=%d", k.uid))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	count := map[string][]string{}
	for _, m := range verdict.FindAllStringSubmatch(string(out), -1) {
		count[m[1]] = append(count[m[1]], m[2])
	}
	passed, failed := len(count["PASS"]), count["FAIL"]
	text := fmt.Sprintf("%d of %d tests passed, %d skipped", passed, passed+len(failed), len(count["SKIP"]))
	if len(failed) > 0 {
		text += ", failed: " + strings.Join(failed, ", ")
	}
	late := unfinished.FindStringSubmatch(string(out))
	if late != nil {
		text += fmt.Sprintf(", %s had no time to end", late[1])
	}
	var exit *exec.ExitError
	if passed+len(failed) == 0 || err != nil && !errors.As(err, &exit) {
		return result{}, fmt.Errorf("cannot run the suite: %w: %.300s", err, out)
	}
	return result{good: err == nil, short: late != nil && len(failed) == 0, text: text}, nil
}

// suiteGPUs are the devices of the suite: "" for all that CUDA shows, and the instance alone.
func (k *kit) suiteGPUs() string {
	if k.mig {
		return string(k.gpu.UUID)
	}
	return ""
}

// in runs a trial in a lane, and closes the lane.
func (k *kit) in(ctx context.Context, method string, try func(*lane) error) error {
	l, err := k.open(ctx, method)
	if err == nil {
		err = try(l)
	}
	return errors.Join(err, l.shut())
}

// shares compares the SMs that the wrapper names with those that CUDA shows.
func (k *kit) shares(ctx context.Context) (r result, err error) {
	asked, given := 0, 0
	err = k.in(ctx, k.method, func(l *lane) error {
		for _, percent := range []int{10, 25, 33, 50, 75, 100} {
			c, err := l.start([]string{"--verbose", fmt.Sprintf("--share=%d%%", percent)}, "info")
			if err != nil {
				return err
			}
			watch.Until(ctx, 40*time.Second, c.over)
			said, _ := c.heard(`(\d+) of \d+ SMs`)
			shown, _ := c.heard(`err=0\S* sm=(\d+)`)
			if said == nil || shown == nil {
				return fmt.Errorf("a client with a share of %d %% fails: %s", percent, strings.TrimSpace(c.Text()))
			}
			asked++
			if said[1] == shown[1] {
				given++
			} else {
				r.text += fmt.Sprintf("%d %%: %s SMs asked, %s given; ", percent, said[1], shown[1])
			}
		}
		return nil
	})
	r.good, r.text = err == nil && given == asked, r.text+fmt.Sprintf("%d of %d as asked", given, asked)
	return r, err
}

// crowd counts the clients that a plain daemon serves at once, and compares it with what the driver's version says.
func (k *kit) crowd(ctx context.Context) (r result, err error) {
	want, ready := policy.ClientsOf(k.driver), 0
	err = k.in(ctx, bare, func(l *lane) error {
		var all []*client
		for range want + 1 {
			c, err := l.start(nil, "spin", "-ms", "0", "-for", "120")
			if err != nil {
				return err
			}
			all = append(all, c)
		}
		starting := func(c *client) bool { _, n := c.heard("ready|err="); return n == 0 && !c.over() }
		if !watch.Until(ctx, 60*time.Second, func() bool { return !slices.ContainsFunc(all, starting) }) {
			return errors.New("a client neither starts nor fails")
		}
		for _, c := range all {
			if _, n := c.heard(" ready "); n > 0 && !c.over() {
				ready++
			}
		}
		return nil
	})
	r.good, r.text = err == nil && ready == want, fmt.Sprintf("%d of %d served, want %d", ready, want+1, want)
	if k.mig { // how much fewer is not in NVIDIA's guide, so what is found counts
		r.good = err == nil && ready > 0
		r.text = fmt.Sprintf("%d of %d served; a whole GPU serves %d, and an instance fewer, in proportion to its size",
			ready, want+1, want)
	}
	return r, err
}

// endings kills clients with 0.8 s of kernels in flight, each beside two neighbours in the same lane. A neighbour that
// died is started again in a new lane. On a plain daemon, harm is how the driver is, and no fault.
func (k *kit) endings(ctx context.Context, method string) (r result, err error) {
	made, without := 0, 0
	var l *lane
	shut := func() {
		if l != nil {
			err = errors.Join(err, l.shut())
		}
		l = nil
	}
	for made < k.ends && ctx.Err() == nil && err == nil {
		if l == nil {
			if l, err = k.open(ctx, method); err != nil {
				break
			}
		}
		t, tried := l.endBeside(ctx, []victim{inFlight})
		if err = tried; ctx.Err() != nil || err != nil {
			break
		}
		if made++; t.Good {
			without++
		} else {
			shut()
		}
	}
	shut()
	r.text = fmt.Sprintf("%d of %d without harm", without, made)
	r.good = err == nil && made == k.ends && (without == made || method == bare)
	if r.short = made < k.ends; r.short {
		r.text += fmt.Sprintf(" (%d more: no time)", k.ends-made)
	}
	return r, err
}

// inFlight has 0.8 s of kernels in flight when it kills itself.
var inFlight = victim{wrapped, "kill-self", kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.name == "two-kernels" })]}

// cost compares the rate of short kernels of one client with and without slurm-mps, in turns.
func (k *kit) cost(ctx context.Context) (r result, err error) {
	rates := map[string][]float64{}
	for turn := range 3 {
		order := []string{bare, k.method}
		if turn%2 == 1 {
			slices.Reverse(order)
		}
		for _, method := range order {
			err := k.in(ctx, method, func(l *lane) error {
				c, err := l.start(nil, "spin", "-ms", "0.02", "-queue", "50", "-for", "2")
				if err != nil {
					return err
				}
				watch.Until(ctx, 40*time.Second, c.over)
				done, n := c.heard(`done kernels=(\d+)`)
				if n == 0 {
					return fmt.Errorf("a client fails: %s", strings.TrimSpace(c.Text()))
				}
				kernels, err := strconv.ParseFloat(done[1], 64)
				rates[method] = append(rates[method], kernels/2)
				return err
			})
			if err != nil {
				return r, err
			}
		}
	}
	for _, all := range rates {
		slices.Sort(all)
	}
	with, without := rates[k.method][1], rates[bare][1]
	return result{good: true, text: fmt.Sprintf("%.0f kernels a second with %s, %.0f with %s (medians of 3): %+.1f %%",
		with, k.method, without, bare, 100*(with/without-1))}, nil
}

// packInto writes this executable and, behind it, a zip archive of a folder into a file. The loader reads the beginning
// of such a file, and zip its end.
func packInto(path, folder string) (err error) {
	if path == "" {
		return errors.New("cannot pack: give the file as the argument")
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer self.Close()
	var packed bytes.Buffer
	archive := zip.NewWriter(&packed)
	if err := errors.Join(archive.AddFS(os.DirFS(folder)), archive.Close()); err != nil {
		return fmt.Errorf("cannot pack %s: %w", folder, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return errors.Join(writeAll(path, self, os.O_TRUNC), writeAll(path, &packed, os.O_APPEND))
}

// unpack writes the programs behind this executable into a folder.
func unpack(folder string) error {
	archive, err := zip.OpenReader("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("cannot find the programs: this is no output of make site-check: %w", err)
	}
	defer archive.Close()
	for _, f := range archive.File {
		if f.FileInfo().IsDir() {
			continue
		}
		path := filepath.Join(folder, filepath.Clean("/"+f.Name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		from, err := f.Open()
		if err != nil {
			return err
		}
		err = errors.Join(writeAll(path, from, os.O_TRUNC), from.Close())
		if err != nil {
			return fmt.Errorf("cannot unpack %s: %w", f.Name, err)
		}
	}
	return nil
}

// writeAll writes a stream into an executable file.
func writeAll(path string, from io.Reader, flags int) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|flags, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, from)
	return errors.Join(err, file.Close())
}
