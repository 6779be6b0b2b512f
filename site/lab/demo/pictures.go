// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	imagedraw "image/draw"
	"image/png"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab/demo/cast"
)

// scene is a command of the recorded session. {job} in the line is the number of the last job in the listing above.
type scene struct {
	about, line string
	code        int
	want        string // a part of the output: without it, the session is not what about tells
}

var story = []scene{
	{"Four ranks share a GPU, a quarter for each. (Slurm is real, the GPUs are simulated.)",
		"srun --gres=gpu:1 --constraint=mps -n4 mpirun-wrap --report --share=even ./app", 0, "rank 3: 32 SMs of GPU-"},
	{"A batch job, and the node while the job runs", "sbatch long.sh && sleep 3 && mpsctl status", 0, "1 job"},
	{"Without slurm-mps, a killed rank can take its neighbours along. Here it does.",
		"salloc --quiet --gres=gpu:1 -n4 ./bare-mps srun ./killed", 137, "rank 2: died of CUDA error 700"},
	{"With slurm-mps, the neighbours live.",
		"srun --gres=gpu:1 --constraint=mps -n4 mpirun-wrap ./killed", 137, "rank 2: finished"},
	{"My jobs on this node", "mpsctl report", 0, "bad ends"},
	{"What the last one used, and how its ranks ended", "mpsctl report {job}", 0, "its 3 neighbours lived on"},
}

// The size of the recorded terminal, the time to read an output, and the longest time without a new line.
const (
	castColumns, castRows = 92, 26
	reading               = 2500 * time.Millisecond
	longestGap            = time.Second
)

// drawPictures writes the pictures of the README to a folder: a session, and a page of mpsctl report.
func drawPictures(ctx context.Context, m *machine, folder string) error {
	svg, err := m.session(ctx)
	if err != nil {
		return fmt.Errorf("cannot record a session: %w\nThe end of our log:\n%s", err, m.logTail())
	}
	if err := os.WriteFile(filepath.Join(folder, "play.svg"), svg, 0o644); err != nil {
		return err
	}
	page, err := m.reportPage(ctx)
	if err != nil {
		return fmt.Errorf("cannot make a page of mpsctl report: %w", err)
	}
	return errors.Join(m.photograph(ctx, page, filepath.Join(folder, "report.png")),
		m.photograph(ctx, page, filepath.Join(folder, "report-dark.png"), "--blink-settings=preferredColorScheme=0"))
}

// session runs the story on a terminal, and returns its picture.
func (m *machine) session(ctx context.Context) ([]byte, error) {
	s := cast.Session{Title: "A session of make play: " + story[0].about, Columns: castColumns, Rows: castRows}
	job := ""
	for i, c := range story {
		if i > 0 {
			s.Events = append(s.Events, cast.Event{At: s.End})
		}
		line := strings.ReplaceAll(c.line, "{job}", job)
		s.Events = append(s.Events, cast.Event{At: s.End, Text: "\x1b[2m# " + c.about + "\x1b[0m"},
			cast.Event{At: s.End, Prompt: userName + "$ ", Text: line})
		s.End += cast.Typing(line)
		printed, err := m.record(ctx, &s, c, line)
		if err == nil {
			err = m.waitIdle(ctx)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", line, err)
		}
		if found := listedJob.FindString(printed); found != "" {
			job = found
		}
		s.End += reading
	}
	s.End += reading
	return cast.Draw(s)
}

var listedJob = regexp.MustCompile(`(?m)^[0-9]+`)

// record runs a command on a terminal of its own, and appends its lines to the session.
func (m *machine) record(ctx context.Context, s *cast.Session, c scene, line string) (printed string, err error) {
	cmd, err := m.cluster.Command(ctx, m.user, "script", "-qec", fmt.Sprintf("stty cols %d rows %d; %s", s.Columns, s.Rows, line), os.DevNull)
	if err != nil {
		return "", err
	}
	cmd.Env = append(cmd.Env, append(m.env(), "TERM=xterm")...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	before := time.Now()
	if err := cmd.Start(); err != nil {
		return "", err
	}
	colour := "" // of a text that goes on in the next line
	for lines := bufio.NewScanner(out); lines.Scan(); before = time.Now() {
		s.End += min(time.Since(before), longestGap)
		text := strings.TrimRight(lines.Text(), "\r")
		printed += text + "\n"
		text, colour = cast.Painted(colour + text)
		s.Events = append(s.Events, cast.Event{At: s.End, Text: text})
	}
	_ = cmd.Wait() // ProcessState has the code
	if got := cmd.ProcessState.ExitCode(); got != c.code || !strings.Contains(printed, c.want) {
		return "", fmt.Errorf("it ends with code %d, not %d, or does not print %q: %s", got, c.code, c.want, printed)
	}
	return printed, nil
}

// reportPage runs a job of four ranks, of which one is killed, and returns its page of mpsctl report.
func (m *machine) reportPage(ctx context.Context) (file string, err error) {
	const line = "sbatch --parsable --wait --gres=gpu:1 --constraint=mps -n4 --job-name=four-ranks " +
		"--wrap 'srun mpirun-wrap --share=even ./killed 20; sleep 12'"
	result, err := m.shell(ctx, m.user, line)
	job := listedJob.FindString(result.Stdout)
	if err == nil && job == "" {
		err = fmt.Errorf("cannot read the job's number from sbatch's %q", result.Stdout)
	}
	if err == nil {
		err = m.waitIdle(ctx)
	}
	if err != nil {
		return "", err
	}
	result, err = m.shell(ctx, m.user, "mpsctl report "+job+" --html page.html")
	if err == nil && result.Exit != 0 {
		err = errors.New(result.Stdout)
	}
	home, err2 := m.cluster.Home(m.user)
	return filepath.Join(home, "page.html"), errors.Join(err, err2)
}

// photograph writes a PNG of a page on a desktop, with chromium.
func (m *machine) photograph(ctx context.Context, page, picture string, more ...string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	shot := filepath.Join(m.dir, "shot.png")
	args := append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--hide-scrollbars", "--user-data-dir=" + filepath.Join(m.dir, "chromium"),
		"--window-size=1040,1000", "--screenshot=" + shot}, more...)
	if out, err := exec.CommandContext(ctx, "chromium", append(args, "file://"+page)...).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot photograph %s (apt-get install chromium, if it is missing): %w: %s", page, err, out)
	}
	return shrink(shot, picture)
}

// shrink writes a PNG again with its 256 most frequent colours, which need a third of the bytes.
func shrink(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	full, err := png.Decode(bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", from, err)
	}
	frequency := map[color.Color]int{}
	for y := range full.Bounds().Dy() {
		for x := range full.Bounds().Dx() {
			frequency[full.At(x, y)]++
		}
	}
	colours := slices.SortedFunc(maps.Keys(frequency), func(a, b color.Color) int { return frequency[b] - frequency[a] })
	small := image.NewPaletted(full.Bounds(), colours[:min(256, len(colours))])
	imagedraw.Draw(small, small.Bounds(), full, image.Point{}, imagedraw.Src)
	var b bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, small); err != nil {
		return err
	}
	return os.WriteFile(to, b.Bytes(), 0o644)
}
