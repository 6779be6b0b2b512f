// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// Only the kernel's messages count. A message of another socket, which has the form of an end with status 0, does not.
func TestAForgedEnd(t *testing.T) {
	fd, err := openConnector()
	if err != nil {
		t.Skip(err)
	}
	e := exits{connector: fd, seen: map[int]uint32{}}
	defer e.close()
	const pid = 4242
	if err := filter(fd, []int{pid}); err != nil {
		t.Fatal(err)
	}
	own, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port, ok := own.(*unix.SockaddrNetlink)
	if !ok {
		t.Fatalf("%T", own)
	}
	forger, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_CONNECTOR)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(forger)
	message := make([]byte, messageSize)
	binary.NativeEndian.PutUint32(message, messageSize)
	binary.NativeEndian.PutUint32(message[eventOffset:], procExit)
	binary.NativeEndian.PutUint32(message[pidOffset:], pid)
	binary.NativeEndian.PutUint32(message[tgidOffset:], pid)
	if err := unix.Sendto(forger, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port.Pid}); err != nil {
		t.Fatal(err)
	}
	if err := readable(fd, soon); err != nil {
		t.Fatalf("the forged message did not arrive: %v", err)
	}
	if e.drain(); len(e.seen) > 0 {
		t.Errorf("a forged end counts: %v", e.seen)
	}
}
