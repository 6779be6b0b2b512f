// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// Each cluster has a block of ports below Linux's ephemeral ones (32768 and up), so that no client's socket takes one.
const (
	portsPerLab = 32 // the controller's and its nodes'
	firstPort   = 20000
	lastPort    = 32000
)

// claim holds a name of this host until it is released or the process ends. An abstract socket does that without a
// file that somebody would have to clean up. It reports whether the name was free.
func claim(name string) (release func(), ok bool) {
	l, err := net.Listen("unix", "@slurm-mps-lab."+name)
	if err != nil {
		return nil, false
	}
	return func() { l.Close() }, true
}

// reservePorts returns the first of portsPerLab ports that no other cluster has and nobody listens on.
func reservePorts() (base int, release func(), err error) {
	blocks := (lastPort - firstPort) / portsPerLab
	for i := range blocks {
		// Processes start at different places, so that they seldom meet.
		base := firstPort + (os.Getpid()+i)%blocks*portsPerLab
		free, ok := claim(fmt.Sprintf("ports.%d", base))
		if !ok {
			continue
		}
		if portsFree(base) {
			return base, free, nil
		}
		free()
	}
	return 0, nil, fmt.Errorf("cannot find %d free ports from %d to %d", portsPerLab, firstPort, lastPort)
}

func portsFree(base int) bool {
	for port := base; port < base+portsPerLab; port++ {
		l, err := net.Listen("tcp4", fmt.Sprintf(":%d", port))
		if err != nil {
			return false
		}
		l.Close()
	}
	return true
}

// reserveGroups takes the nodes' control groups. Slurm names them after the node alone, so clusters with equal names
// that use them cannot run at once; the second one waits for the first.
func reserveGroups(ctx context.Context, names []string) (release func(), err error) {
	var held []func()
	release = func() {
		for _, free := range held {
			free()
		}
	}
	for _, name := range names {
		if err := until(ctx, 20*time.Millisecond, func() (bool, error) {
			free, ok := claim("cgroup." + name)
			if ok {
				held = append(held, free)
			}
			return ok, nil
		}); err != nil {
			release()
			return nil, fmt.Errorf("cannot take the control groups of node %s: another cluster has them: %w", name, err)
		}
	}
	if err := errors.Join(checkGroups(), removeGroups(ctx, names)); err != nil {
		release()
		return nil, err
	}
	return release, nil
}
