// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

const uid, gid = 2001, 2001

// hookLimit is the time after which slurmd drains a node because its hook does not end: the usual PrologEpilogTimeout
// of sites is minutes.
const hookLimit = 2 * time.Minute

// pairs runs hooks on a node of its own until ctx ends. A pair that has begun is finished. After a false drain it goes
// on with a new node, and kept has the old one's log.
func pairs(ctx context.Context, built, kept string) (sum run, err error) {
	for ctx.Err() == nil {
		err := onNode(built, func(n testnode.Node, conf string) error {
			for ctx.Err() == nil {
				drained, err := pair(n, conf, uint32(1+sum.pairs))
				if err != nil {
					return err
				}
				sum.pairs++
				if drained != "" {
					sum.drains++
					return keep(n, kept, sum.drains, drained)
				}
			}
			left, err := n.Left()
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("after %d pairs the node has left: %q", sum.pairs, left)
			}
			return err
		})
		if err != nil {
			return sum, err
		}
	}
	return sum, nil
}

// onNode makes a node with two GPUs.
func onNode(built string, use func(n testnode.Node, conf string) error) error {
	dir, err := os.MkdirTemp("/tmp", "million")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	n, err := testnode.New(dir, built, "", node.H200, node.H200)
	conf := filepath.Join(dir, "slurm.conf")
	err = errors.Join(err, os.Chmod(dir, 0o755), os.WriteFile(conf, []byte("NodeName=n1 Gres=gpu:2\n"), 0o644),
		os.WriteFile(filepath.Join(dir, "gres.conf"), []byte("Name=gpu File=/dev/nvidia[0-1]\n"), 0o644))
	if err != nil {
		return err
	}
	return use(n, conf)
}

// pair runs the hooks of a job with one GPU or with two. It returns what the hook printed that would drain the node.
func pair(n testnode.Node, conf string, id uint32) (drained string, err error) {
	job := testnode.Job{ID: id, UID: uid, GID: gid, GPUs: []string{"0", "0,1"}[id%2], Features: "mps", Conf: conf}
	for _, program := range []string{"prolog", "epilog"} {
		ctx, cancel := context.WithTimeout(context.Background(), hookLimit)
		result, err := n.Run(ctx, job.Environment(program+"_slurmd"), program)
		timedOut := ctx.Err() != nil
		cancel()
		switch {
		case timedOut:
			return fmt.Sprintf("the %s of job %d takes longer than %v\n%s", program, id, hookLimit, result.Output), nil
		case err != nil:
			return "", err
		case result.Code != 0:
			return fmt.Sprintf("the %s of job %d ends with %d\n%s", program, id, result.Code, result.Output), nil
		}
	}
	return "", nil
}

// keep writes what is known of a false drain.
func keep(n testnode.Node, folder string, number int, drained string) error {
	log, err := os.ReadFile(n.Paths().Log())
	if err != nil {
		log = []byte(err.Error())
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	text := drained + "\nThe node's log:\n" + string(log)
	return os.WriteFile(filepath.Join(folder, fmt.Sprintf("drain-%d.txt", number)), []byte(text), 0o644)
}
