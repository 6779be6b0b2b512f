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

// Each cluster has a block of ports below Linux's ephemeral ports (32768 and up), so that no client's socket gets one
// of them.
const (
	portsPerLab = 32 // the ports of the controller and its nodes
	firstPort   = 20000
	lastPort    = 32000
)

// claim reserves a name on this host until the caller releases it or the process ends. It uses an abstract socket,
// because such a socket leaves no file to clean up. It reports whether the name was free.
func claim(name string) (release func(), ok bool) {
	l, err := net.Listen("unix", "@slurm-mps-lab."+name)
	if err != nil {
		return nil, false
	}
	return func() { l.Close() }, true
}

// reservePorts returns the first port of a block of portsPerLab ports that no other cluster has and no process
// listens on.
func reservePorts() (base int, release func(), err error) {
	blocks := (lastPort - firstPort) / portsPerLab
	for i := range blocks {
		// Processes start at different blocks, so that they rarely try the same one.
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

// reserveGroups reserves the nodes' control groups. Slurm names a group only after the node. So clusters that have
// equal names and use control groups cannot run at the same time; the second cluster waits for the first.
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
