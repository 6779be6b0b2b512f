// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/slurm-mps/slurm-mps/site/osfile"
)

// A job file names the job of a GPU for dcgm-exporter: its name is the GPU's number, and it has a job on each line.
// Only the job that has the claim on the GPU may write the file, so it has one writer.

// WriteJobFile writes the job into a job file, in a folder that only root can change.
func WriteJobFile(path string, job uint32) error {
	if err := trusted(filepath.Dir(path)); err != nil {
		return err
	}
	return state(fmt.Append(nil, job), 0o644).WriteTo(path)
}

// RemoveJobFile removes a job file and what a killed writer has left of it. A file that names another job stays.
func RemoveJobFile(path string, job uint32) error {
	err := trusted(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(remove(osfile.Temporary(path)), removeOwn(path, job))
}

func removeOwn(path string, job uint32) error {
	content, err := osfile.ReadRootOwned(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case string(content) != fmt.Sprintln(job):
		return nil
	}
	return remove(path)
}

// trusted returns an error if another user could decide what a folder is.
func trusted(folder string) error {
	dir, err := osfile.OpenTrustedFolder(folder)
	if err != nil {
		return err
	}
	return dir.Close()
}
