// Package mps starts, asks and ends NVIDIA's MPS control daemon. It is the only importer of os/exec.
//
// The promise: nothing here waits without a deadline, runs as root below a folder that the user owns, or ends a process
// that was not proved to be the daemon's. What the control program says is judged by its words: its exit code is 0 for
// most errors (measured).
package mps

import (
	"fmt"
	"os/user"
	"path/filepath"
	"strconv"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
)

// Control is the control program of a site.
type Control struct {
	Path        string // of nvidia-cuda-mps-control
	LibraryPath string // LD_LIBRARY_PATH for it; "" for none
}

// sunPath is the size of sockaddr_un's path with its final NUL. A longer path makes the control program exit with 1 and
// not a word (measured).
const sunPath = 108

// CheckPath refuses a pipe folder whose sockets' names would be too long.
func CheckPath(pipeDir string) error {
	longest := filepath.Join(pipeDir, "control_privileged")
	if len(longest) >= sunPath {
		return fmt.Errorf("cannot use pipe folder %s: %s has %d bytes, and a socket's path has at most %d: use a shorter root", pipeDir, longest, len(longest), sunPath-1)
	}
	return nil
}

// environment is all that the control program gets: nothing is inherited.
func (c Control) environment(d lease.Daemon) []string {
	env := []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin",
		"CUDA_MPS_PIPE_DIRECTORY=" + d.PipeDir,
		"CUDA_MPS_LOG_DIRECTORY=" + d.LogDir,
		"CUDA_VISIBLE_DEVICES=" + joined(d.Devices),
	}
	if c.LibraryPath != "" {
		env = append(env, "LD_LIBRARY_PATH="+c.LibraryPath)
	}
	return env
}

func joined(devices []site.UUID) string {
	list := ""
	for i, uuid := range devices {
		if i > 0 {
			list += ","
		}
		list += string(uuid)
	}
	return list
}

// groups returns the supplementary groups of a job's user. A user whom the node does not know has none but the job's
// own: files that a foreign group would open are no daemon's business.
func groups(job lease.Job) ([]uint32, error) {
	u, err := user.LookupId(strconv.FormatUint(uint64(job.UID), 10))
	if _, unknown := err.(user.UnknownUserIdError); unknown {
		return []uint32{job.GID}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot look up uid %d: %w", job.UID, err)
	}
	names, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("cannot look up groups of uid %d: %w", job.UID, err)
	}
	ids := []uint32{job.GID}
	for _, name := range names {
		id, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("cannot look up groups of uid %d: %w", job.UID, err)
		}
		if uint32(id) != job.GID {
			ids = append(ids, uint32(id))
		}
	}
	return ids, nil
}
