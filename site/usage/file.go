// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/slurm-mps/slurm-mps/site/osfile"
)

// Running is the name of a running job's report in the job's folder.
const Running = "report.json"

// RunningOf returns the name of a running job's report in the folder of the lease whose daemons serve the job.
func RunningOf(job, joined uint32) string {
	if joined == 0 {
		return Running
	}
	return fmt.Sprintf("report-%d.json", job)
}

// errInvalid means that a file is not a report that this program knows.
var errInvalid = errors.New("not a report of this version")

// Read reads a report that only root could write. The error wraps fs.ErrNotExist, fs.ErrPermission or ErrInvalid.
func Read(path string) (r Report, err error) {
	content, err := osfile.ReadRootOwnedInContainer(path)
	if err != nil {
		return Report{}, err
	}
	if err := json.Unmarshal(content, &r); err != nil {
		return Report{}, fmt.Errorf("cannot read %s: %w: %w", path, errInvalid, err)
	}
	if !r.sound() {
		return Report{}, fmt.Errorf("cannot read %s: %w", path, errInvalid)
	}
	return r, nil
}

// sound reports whether the report has a known schema and all of its indexes are valid.
func (r Report) sound() bool {
	exists := func(gpu int) bool { return gpu >= 0 && gpu < len(r.GPUs) }
	for _, c := range r.Clients {
		if c.GPU != -1 && !exists(c.GPU) {
			return false
		}
	}
	for _, f := range r.Faults {
		if !exists(f.GPU) {
			return false
		}
	}
	return r.Schema == Schema && r.Job > 0
}

// Write writes a report into an open folder of root. The job's user may read the file, and no group, because at some
// sites all users have one group. A reader sees the old report or the new report. After a crash of the node, the file
// may be missing.
func (r Report) Write(dir *os.File, name string, uid uint32) error {
	content, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("cannot write report of job %d: %w", r.Job, err)
	}
	return osfile.File{Content: append(content, '\n'), Mode: 0o600, Reader: uid}.Write(dir, name)
}
