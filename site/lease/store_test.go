// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// A prolog that has undone a lease still holds the job's lock, and no other process gets it before the release. An
// epilog that has finished has removed the lock file.
//
// Contract: R9
func TestALockOutlivesForgetAndNotFinish(t *testing.T) {
	j := newStore(t)
	ctx := context.Background()
	l := leaseOf(7, gpuA)
	lock, err := j.Lock(ctx, 7)
	must.OK(t, errors.Join(err, j.Create(ctx, l), j.Delete(ctx, l)))
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	var busy *BusyError
	if _, err := j.Lock(short, 7); !errors.As(err, &busy) {
		t.Errorf("another process has the lock after Forget: %v", err)
	}
	must.OK(t, errors.Join(j.Create(ctx, l), j.DeleteAndUnlock(ctx, l)))
	if locked, err := j.LockedJobs(); err != nil || len(locked) != 0 {
		t.Errorf("locked jobs after Finish: %v, %v", locked, err)
	}
	must.Note(t, lock.Release())
}

func TestATicketThatIsTorn(t *testing.T) {
	for content, want := range map[string]string{
		``:                                    "unexpected end",
		`{"schema": 1`:                        "unexpected end",
		`[]`:                                  "cannot unmarshal array",
		`{"schema": "1"}`:                     "cannot unmarshal string",
		`{"job": {"id": -1}}`:                 "cannot unmarshal number",
		`{"grant": "even"}`:                   "cannot unmarshal string",
		`{"grant": {"memory_overlap": "49"}}`: `cannot read grant: memory_overlap is "49": want a number from 1 to 48`,
	} {
		var got Ticket
		err := json.Unmarshal([]byte(content), &got)
		must.Hold(t, err != nil && strings.Contains(err.Error(), want), "%s: %+v, %v, want %s", content, got, err, want)
	}
}

// A user may have filled a folder: a part of it is listed at once, and all of it is removed.
func TestAFullFolderIsListedInParts(t *testing.T) {
	top := must.Get(os.OpenRoot(t.TempDir()))(t)
	defer top.Close()
	for _, folder := range []string{"full", "folders"} {
		must.OK(t, os.Mkdir(filepath.Join(top.Name(), folder), 0o755))
	}
	const files = 5000
	for n := range files {
		err := os.WriteFile(filepath.Join(top.Name(), "full", fmt.Sprint(n)), nil, 0o600)
		if err == nil && n%5 == 0 {
			err = os.Mkdir(filepath.Join(top.Name(), "folders", fmt.Sprint(n)), 0o755)
		}
		must.OK(t, err)
	}
	tr := tree{top: top}
	if listed, err := tr.list("full"); err != nil || len(listed) == 0 || len(listed) > files/2 {
		t.Errorf("%d files are listed at once: %v", len(listed), err)
	}
	must.OK(t, tr.clear())
	if left, err := os.ReadDir(top.Name()); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
