// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"golang.org/x/sys/unix"
)

// launchSpread is the time within which a launcher starts all ranks of a node.
const launchSpread = time.Second

// printOnce calls report in one of the processes of this user on this node that call it with the same name within a
// second. The others return when it has returned.
//
// The first process binds an abstract socket, which needs no folder and leaves nothing behind: most errors come
// before a rank knows its job's folder. The socket listens when report is done, so a process that can connect need
// not report. In any doubt a process reports, because no launch may fail in silence.
func printOnce(name string, report func()) {
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		report()
		return
	}
	defer unix.Close(socket)
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%d %s", os.Getuid(), name)
	address := &unix.SockaddrUnix{Name: fmt.Sprintf("@slurm-mps-%x", hash.Sum64())}
	ctx, cancel := context.WithTimeout(context.Background(), launchSpread)
	defer cancel()
	for {
		err := unix.Bind(socket, address)
		if err == nil {
			report()
			if unix.Listen(socket, unix.SOMAXCONN) == nil {
				<-ctx.Done() // later ranks must find the socket
			}
			return
		}
		if errors.Is(err, unix.EADDRINUSE) && printed(socket, address) {
			return
		}
		if !errors.Is(err, unix.EADDRINUSE) || !site.Sleep(ctx, time.Millisecond) {
			report()
			return
		}
	}
}

// printed reports whether a process of this user listens at the address.
func printed(socket int, address unix.Sockaddr) bool {
	if err := unix.Connect(socket, address); err != nil {
		return false
	}
	peer, err := unix.GetsockoptUcred(socket, unix.SOL_SOCKET, unix.SO_PEERCRED)
	return err == nil && int(peer.Uid) == os.Getuid()
}
