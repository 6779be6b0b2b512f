// SPDX-License-Identifier: Apache-2.0

package frame

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"strconv"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// UserGroupNames returns the names of all groups of a user, as the policy gets them for a job.
func UserGroupNames(ctx context.Context, uid, gid uint32) ([]string, error) {
	groups, err := daemons{}.UserGroups(ctx, lease.Job{UID: uid, GID: gid})
	if err != nil {
		return nil, err
	}
	return groupNames(ctx, groups)
}

// groupNames returns the names of groups. If a group has no name on the node, its number is returned. If a directory
// service does not answer before the deadline, groupNames returns an error and does not wait longer.
func groupNames(ctx context.Context, groups []uint32) ([]string, error) {
	names, err := wait.Within(ctx, func() ([]string, error) { return nameAll(groups) })
	if err != nil {
		return nil, fmt.Errorf("cannot look up names of %d groups: %w", len(groups), err)
	}
	return names, nil
}

func nameAll(groups []uint32) ([]string, error) {
	names := make([]string, len(groups))
	for i, id := range groups {
		names[i] = strconv.FormatUint(uint64(id), 10)
		group, err := user.LookupGroupId(names[i])
		if _, ok := errors.AsType[user.UnknownGroupIdError](err); ok {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("group %d: %w", id, err)
		}
		names[i] = group.Name
	}
	return names, nil
}

// daemons are the node's control daemons, with the groups of their users, which package mps does not look up: os/user
// would be linked into the programs of ranks.
type daemons struct{ mps.ControlProgram }

// lookupDeadline bounds a question to the directory service, which may be on the network.
const lookupDeadline = 10 * time.Second

// UserGroups returns the groups of a job's user, the job's group first. For a user unknown to the node it returns
// only that one.
func (daemons) UserGroups(ctx context.Context, job lease.Job) ([]uint32, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, lookupDeadline, fmt.Errorf("no answer within %v", lookupDeadline))
	defer cancel()
	groups, err := wait.Within(ctx, func() ([]uint32, error) { return lookUpGroups(job) })
	if err != nil {
		return nil, fmt.Errorf("cannot look up groups of uid %d: %w", job.UID, err)
	}
	return groups, nil
}

func lookUpGroups(job lease.Job) ([]uint32, error) {
	groups := []uint32{job.GID}
	u, err := user.LookupId(strconv.FormatUint(uint64(job.UID), 10))
	if _, ok := errors.AsType[user.UnknownUserIdError](err); ok {
		return groups, nil
	}
	if err != nil {
		return nil, err
	}
	names, err := u.GroupIds()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		id, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			return nil, err
		}
		if uint32(id) != job.GID {
			groups = append(groups, uint32(id))
		}
	}
	return groups, nil
}
