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

// rankInfo is a rank's report to the other ranks of its launch on the node.
type rankInfo struct {
	Rank    int    `json:"rank"`
	Devices []int  `json:"devices"` // indices into the ticket's devices
	Rule    string `json:"rule"`    // the share's rule
}

// launchID names one launch on this node, so that two launches of a job do not exchange information. A launcher's own
// name for the launch comes first, because behind a shell the parent is not the launcher.
func launchID(env slurm.Env, task slurm.Task, parent site.Process) string {
	switch {
	case task.Source == slurm.SourceStepd:
		return "step" + task.StepID
	case env["PMIX_NAMESPACE"] != "":
		return "pmix" + clean(env["PMIX_NAMESPACE"])
	case env["OMPI_MCA_ess_base_jobid"] != "":
		return "ompi" + clean(env["OMPI_MCA_ess_base_jobid"])
	case parent == site.Process{}: // the first process of a container
		return "step" + task.StepID
	}
	return fmt.Sprintf("pid%d.%d", parent.PID, parent.Start)
}

// clean makes a launcher's name usable in a file name.
func clean(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, name[:min(len(name), 100)])
}

// needsExchange reports whether a rank cannot compute its share alone. A weight depends on the other ranks' weights,
// and each of several programs in one launch may have its own flags. Open MPI reports the number of programs; for
// other launchers the user does.
func needsExchange(env slurm.Env, task slurm.Task, o Options) bool {
	programs, _ := strconv.Atoi(env["OMPI_NUM_APP_CTX"])
	return task.LocalSize > 1 && o.Slots == 0 && (o.Exchange || programs > 1 || o.ShareFlag && o.Share.DependsOnOthers())
}

// exchangeFunc gives a rank's information to the other ranks of its launch, and returns that of all ranks. The folder is the
// user's own.
type exchangeFunc func(folder string, info rankInfo) ([]rankInfo, error)

// exchangeTimeout is how long a rank waits for the other ranks of its launch. A launcher starts all ranks of a node
// within a second, and a busy node may need longer.
const exchangeTimeout = 15 * time.Second

// exchanger returns the function by which this rank exchanges its information.
func (r *run) exchanger() (exchangeFunc, error) {
	launch, err := r.launchID()
	if err != nil {
		return nil, err
	}
	return func(folder string, info rankInfo) ([]rankInfo, error) {
		ctx, cancel := context.WithTimeout(context.Background(), exchangeTimeout)
		defer cancel()
		return exchangeRankInfo(ctx, folder, launch, r.task.LocalSize, info)
	}, nil
}

// exchangeRankInfo writes this rank's information and returns that of all ranks of the launch, by rank. The folder is
// the user's own. The error has the number of ranks that came before ctx ended.
func exchangeRankInfo(ctx context.Context, folder, launch string, size int, info rankInfo) ([]rankInfo, error) {
	if err := writeRankInfo(folder, launch, info); err != nil {
		return nil, err
	}
	infos := make([]rankInfo, 0, size)
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		for len(infos) < size {
			info, err := readRankInfo(folder, launch, len(infos))
			if errors.Is(err, fs.ErrNotExist) {
				break
			}
			if err != nil {
				return nil, err
			}
			infos = append(infos, info)
		}
		if len(infos) == size {
			return infos, nil
		}
		if !site.Sleep(ctx, pause) {
			return nil, fmt.Errorf("cannot agree on shares: rank %d of this launch did not come: start every rank of the node "+
				"by mpirun-wrap, or leave out --share=weight and flags for some ranks only", len(infos))
		}
	}
}

func rankInfoPath(folder, launch string, rank int) string {
	return filepath.Join(folder, fmt.Sprintf("%s.%d", launch, rank))
}

// writeRankInfo writes a complete file and then renames it, because other ranks read it at once. It makes a new file,
// because root may run a rank, and the folder's owner may have put a link there.
func writeRankInfo(folder, launch string, info rankInfo) error {
	content, err := json.Marshal(info)
	if err == nil {
		err = fits(len(content))
	}
	path := rankInfoPath(folder, launch, info.Rank)
	if err == nil {
		_ = os.Remove(path + ".new")
		err = writeNew(path+".new", content)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("cannot write rank info: %w", err)
	}
	return nil
}

func writeNew(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Close())
}

// maxRankInfo is far above the longest information, that of a rank with all of a node's devices.
const maxRankInfo = 4096

func readRankInfo(folder, launch string, rank int) (info rankInfo, err error) {
	file, _, err := openRegular(rankInfoPath(folder, launch, rank), os.O_RDONLY)
	if err != nil {
		return info, fmt.Errorf("cannot read info of rank %d: %w", rank, err)
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxRankInfo))
	if err != nil {
		return info, fmt.Errorf("cannot read info of rank %d: %w", rank, err)
	}
	if err := json.Unmarshal(content, &info); err != nil || info.Rank != rank {
		return info, fmt.Errorf("cannot read info of rank %d: %.100q", rank, content)
	}
	return info, nil
}

// openRegular opens a file in a folder of the user's. It follows no link and waits for no pipe.
func openRegular(path string, flags int) (file *os.File, st unix.Stat_t, err error) {
	if file, err = os.OpenFile(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600); err != nil {
		return nil, st, err
	}
	if err = unix.Fstat(int(file.Fd()), &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		file.Close()
		return nil, st, err
	}
	return file, st, nil
}

// rulesOnDevice returns the rules of the ranks on a device, and a rank's index among them.
func rulesOnDevice(infos []rankInfo, rank, device int) (rules []policy.ShareRule, index int, err error) {
	slices.SortFunc(infos, func(a, b rankInfo) int { return a.Rank - b.Rank })
	for _, info := range infos {
		if !slices.Contains(info.Devices, device) {
			continue
		}
		if info.Rank == rank {
			index = len(rules)
		}
		rule, err := policy.ParseShare(info.Rule)
		if err != nil {
			return nil, 0, err
		}
		rules = append(rules, rule)
	}
	return rules, index, nil
}
