// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// User is an account of this machine.
type User struct {
	Name     string
	UID, GID uint32
}

// Root is the account of the daemons.
var Root = User{Name: "root"}

// EnsureUser returns the account with that name. If there is none, it adds one to /etc/passwd and /etc/group. The new
// account has a group of the same name and number, home /tmp and no password. A name with another number, or a number
// with another name, is an error, because tests that expect this account must not run with another one.
func EnsureUser(name string, uid uint32) (User, error) {
	unlock, err := lockAccounts()
	if err != nil {
		return User{}, fmt.Errorf("cannot ensure user %s: %w", name, err)
	}
	defer unlock()
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return User{}, fmt.Errorf("cannot ensure user %s: %w", name, err)
	}
	user, found, err := findUser(string(passwd), name, uid)
	if err != nil || found {
		return user, err
	}
	group, err := os.ReadFile("/etc/group")
	if err != nil {
		return User{}, fmt.Errorf("cannot ensure user %s: %w", name, err)
	}
	user = User{Name: name, UID: uid, GID: uid}
	if !hasGroup(string(group), uid) {
		err = appendLine("/etc/group", group, fmt.Sprintf("%s:x:%d:", name, uid))
	}
	err = errors.Join(err, appendLine("/etc/passwd", passwd, fmt.Sprintf("%s:x:%d:%d::/tmp:/bin/sh", name, uid, uid)))
	if err != nil {
		return User{}, fmt.Errorf("cannot add user %s: %w", name, err)
	}
	return user, nil
}

// findUser searches for a name in the text of /etc/passwd.
func findUser(passwd, name string, uid uint32) (user User, found bool, err error) {
	for _, line := range strings.Split(passwd, "\n") {
		f := strings.Split(line, ":")
		if len(f) < 4 {
			continue
		}
		id, errID := strconv.ParseUint(f[2], 10, 32)
		gid, errGID := strconv.ParseUint(f[3], 10, 32)
		if errID != nil || errGID != nil {
			continue
		}
		sameName, sameID := f[0] == name, uint32(id) == uid
		switch {
		case sameName && sameID:
			return User{Name: name, UID: uid, GID: uint32(gid)}, true, nil
		case sameName, sameID:
			return User{}, false, fmt.Errorf("cannot ensure user %s with uid %d: /etc/passwd has %s with uid %d", name, uid, f[0], id)
		}
	}
	return User{}, false, nil
}

func hasGroup(group string, gid uint32) bool {
	for _, line := range strings.Split(group, "\n") {
		f := strings.Split(line, ":")
		if len(f) >= 3 && f[2] == strconv.FormatUint(uint64(gid), 10) {
			return true
		}
	}
	return false
}

// appendLine appends a line to a file in one write. text is the file's content.
func appendLine(path string, text []byte, line string) error {
	if len(text) > 0 && text[len(text)-1] != '\n' {
		line = "\n" + line
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}

// accountsLimit bounds the wait for another program that changes accounts. useradd itself waits 15 s.
const accountsLimit = 15 * time.Second

// lockAccounts takes the lock that useradd and similar programs take. The lock is an open file description lock, so
// it also excludes other goroutines of this process.
func lockAccounts() (unlock func(), err error) {
	f, err := os.OpenFile("/etc/.pwd.lock", os.O_CREATE|os.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), accountsLimit)
	defer cancel()
	err = until(ctx, 10*time.Millisecond, func() (bool, error) {
		lock := unix.Flock_t{Type: unix.F_WRLCK}
		err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot lock /etc/.pwd.lock: %w", err)
	}
	return func() { f.Close() }, nil
}
