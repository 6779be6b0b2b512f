// SPDX-License-Identifier: Apache-2.0

package mpsctl

import (
	"context"
	"os"

	"golang.org/x/sys/unix"
)

// key is a command of a person to a screen that scrolls.
type key int

const (
	keyUp key = iota + 1
	keyDown
	keyPageUp
	keyPageDown
	keyTop
	keyQuit
)

// keys are the bytes that a terminal sends.
var keys = map[string]key{
	"k": keyUp, "\x1b[A": keyUp, "\x1bOA": keyUp, "j": keyDown, "\x1b[B": keyDown, "\x1bOB": keyDown, "b": keyPageUp, "\x1b[5~": keyPageUp,
	" ": keyPageDown, "\x1b[6~": keyPageDown, "g": keyTop, "\x1b[H": keyTop, "q": keyQuit,
}

// readKeys reads keys from a terminal until ctx ends, and returns a function that restores the terminal. In the
// background, and without a terminal, it reads none.
func readKeys(ctx context.Context, in *os.File) (pressed <-chan key, restore func()) {
	fd := int(in.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, func() {}
	}
	if group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err != nil || group != unix.Getpgrp() {
		return nil, func() {}
	}
	single := *before
	single.Lflag &^= unix.ICANON | unix.ECHO // Ctrl-C still ends the program
	single.Cc[unix.VMIN], single.Cc[unix.VTIME] = 1, 0
	if unix.IoctlSetTermios(fd, unix.TCSETS, &single) != nil {
		return nil, func() {}
	}
	read := make(chan key)
	go func() {
		buffer := make([]byte, 16)
		for {
			n, err := in.Read(buffer)
			if err != nil || n == 0 {
				return
			}
			select {
			case read <- keys[string(buffer[:n])]:
			case <-ctx.Done():
				return
			}
		}
	}()
	return read, func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, before) }
}

// scrolled returns the number of the first line to be shown after a key. The text has this many lines, and the screen
// has this many rows.
func scrolled(from int, k key, lines, rows int) int {
	page := max(rows-2, 1)
	switch k {
	case keyUp:
		from--
	case keyDown:
		from++
	case keyPageUp:
		from -= page
	case keyPageDown:
		from += page
	case keyTop:
		from = 0
	}
	if rows <= 1 || lines <= rows-1 {
		return 0
	}
	return max(min(from, lines-page), 0)
}
