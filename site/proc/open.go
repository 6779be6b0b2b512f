// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	openTime = 2 * time.Second // for all processes of the node
	maxMaps  = 8 << 20         // bytes of a process's list of mapped files
)

// FilesOn returns the regular files of a file system that processes have open or mapped, as paths below /proc, within
// two seconds. It returns max of them, about. No file system is asked.
func FilesOn(ctx context.Context, dev uint64, max int) (paths []string) {
	pids, err := PIDs()
	if err != nil {
		return nil
	}
	procs := make([]Process, len(pids))
	for i, pid := range pids {
		procs[i].PID = pid
	}
	take := func(ctx context.Context, p Process) ([]string, error) { return filesOn(ctx, p.PID, dev, max) }
	for _, a := range eachUpTo(ctx, states, maxSilent, openTime, procs, take) {
		if paths = append(paths, a.value...); len(paths) >= max {
			break
		}
	}
	return paths
}

func filesOn(ctx context.Context, pid int, dev uint64, max int) (paths []string, err error) {
	var numbers []int
	thread, _ := EachDescriptor(pid, func(dir, number int) bool {
		var st unix.Statx_t
		err := unix.Statx(dir, strconv.Itoa(number), unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
		if err == nil && unix.Mkdev(st.Dev_major, st.Dev_minor) == dev && st.Mode&unix.S_IFMT == unix.S_IFREG {
			numbers = append(numbers, number)
		}
		return len(numbers) < max && ctx.Err() == nil
	})
	for _, number := range numbers {
		paths = append(paths, fmt.Sprintf("%s/fd/%d", threadFolder(pid, thread), number))
	}
	areas := func(text io.Reader) ([]string, error) { return mappedOn(text, dev, max) }
	mapped, err := file(states, "maps", areas)(ctx, Process{PID: pid})
	for _, area := range mapped {
		paths = append(paths, folder(pid)+"/map_files/"+area)
	}
	return paths, err
}

// mappedOn returns the areas of a process's memory to which files of a file system are mapped, as /proc/PID/map_files
// names them. It reads lines of /proc/PID/maps, which name a device by hexadecimal numbers:
//
//	7f3c8a400000-7f3c8a428000 rw-s 00000000 00:3a 1048602                    /run/x (deleted)
func mappedOn(text io.Reader, dev uint64, max int) (areas []string, err error) {
	device := fmt.Sprintf("%02x:%02x", unix.Major(dev), unix.Minor(dev))
	lines := bufio.NewScanner(io.LimitReader(text, maxMaps))
	for lines.Scan() && len(areas) < max {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 || fields[3] != device {
			continue
		}
		var from, to uint64 // map_files has no zeros before a number
		if _, err := fmt.Sscanf(fields[0], "%x-%x", &from, &to); err == nil {
			areas = append(areas, fmt.Sprintf("%x-%x", from, to))
		}
	}
	return areas, lines.Err()
}
