// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"golang.org/x/sys/unix"
)

// RankInfo is what a rank says to the others of its launch on the node.
type RankInfo struct {
	Rank    int    `json:"rank"`
	Devices []int  `json:"devices"` // indices into the ticket's devices
	Rule    string `json:"rule"`    // a share
}

// LaunchID names one launch on this node, so that two launches of a job do not meet. Behind a shell the parent is not the
// launcher any more, so a launcher's own name counts first.
func LaunchID(env slurm.Env, task slurm.Task, parent site.Process) string {
	switch {
	case task.Source == slurm.SourceStepd:
		return "step" + task.StepID
	case env["PMIX_NAMESPACE"] != "":
		return "pmix" + clean(env["PMIX_NAMESPACE"])
	case env["OMPI_MCA_ess_base_jobid"] != "":
		return "ompi" + clean(env["OMPI_MCA_ess_base_jobid"])
	}
	return fmt.Sprintf("pid%d.%d", parent.PID, parent.Start)
}

// clean makes a part of a file's name of what a launcher says.
func clean(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, name[:min(len(name), 100)])
}

// NeedsExchange reports whether a rank cannot know its share alone: a weight is one among others, and of several programs in
// one launch each may have flags of its own. Open MPI says how many programs there are; for others the user does.
func NeedsExchange(env slurm.Env, task slurm.Task, o Options) bool {
	programs, _ := strconv.Atoi(env["OMPI_NUM_APP_CTX"])
	return task.LocalSize > 1 && (o.Meet || programs > 1 || o.Own && o.Share.DependsOnOthers())
}

// ExchangeRankInfo tells the others of a launch a word and returns all of theirs, by rank. The folder is the user's own. The error
// says how many came before ctx ended.
func ExchangeRankInfo(ctx context.Context, folder, launch string, size int, own RankInfo) ([]RankInfo, error) {
	if err := writeRankInfo(folder, launch, own); err != nil {
		return nil, err
	}
	words := make([]RankInfo, 0, size)
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		for len(words) < size {
			word, err := readRankInfo(folder, launch, len(words))
			if errors.Is(err, fs.ErrNotExist) {
				break
			}
			if err != nil {
				return nil, err
			}
			words = append(words, word)
		}
		if len(words) == size {
			return words, nil
		}
		if !site.Sleep(ctx, pause) {
			return nil, fmt.Errorf("cannot agree on shares: rank %d of this launch did not come: start every rank of the node by mpirun-wrap, or leave out --share=weight and flags for some ranks only", len(words))
		}
	}
}

func rankInfoPath(folder, launch string, rank int) string {
	return filepath.Join(folder, fmt.Sprintf("%s.%d", launch, rank))
}

// writeRankInfo writes a word whole: the others read it as soon as it has its name. The file is a new one, whatever had its name:
// root may run a rank, and whoever owns the folder may have laid a link.
func writeRankInfo(folder, launch string, own RankInfo) error {
	content, err := json.Marshal(own)
	if err != nil {
		return fmt.Errorf("cannot leave word: %w", err)
	}
	path := rankInfoPath(folder, launch, own.Rank)
	_ = os.Remove(path + ".new")
	file, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("cannot leave word: %w", err)
	}
	_, err = file.Write(content)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("cannot leave word: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("cannot leave word: %w", err)
	}
	return nil
}

// maxRankInfo is far above the longest word, of a rank with all of a node's devices.
const maxRankInfo = 4096

func readRankInfo(folder, launch string, rank int) (RankInfo, error) {
	file, err := os.OpenFile(rankInfoPath(folder, launch, rank), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return RankInfo{}, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return RankInfo{}, fmt.Errorf("cannot read word of rank %d: %s is no file", rank, file.Name())
	}
	content, err := io.ReadAll(io.LimitReader(file, maxRankInfo))
	if err != nil {
		return RankInfo{}, fmt.Errorf("cannot read word of rank %d: %w", rank, err)
	}
	var word RankInfo
	if err := json.Unmarshal(content, &word); err != nil || word.Rank != rank {
		return RankInfo{}, fmt.Errorf("cannot read word of rank %d: %.100q", rank, content)
	}
	return word, nil
}

// rulesOnDevice are the rules of those that said they sit on a device, and a rank's place among them.
func rulesOnDevice(words []RankInfo, rank, device int) (beside []policy.ShareRule, index int, err error) {
	slices.SortFunc(words, func(a, b RankInfo) int { return a.Rank - b.Rank })
	for _, word := range words {
		if !slices.Contains(word.Devices, device) {
			continue
		}
		if word.Rank == rank {
			index = len(beside)
		}
		rule, err := policy.ParseShare(word.Rule)
		if err != nil {
			return nil, 0, err
		}
		beside = append(beside, rule)
	}
	return beside, index, nil
}
