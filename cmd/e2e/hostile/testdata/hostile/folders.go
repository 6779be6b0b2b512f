package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// probe tries every operation on every path below a folder, except on the user's own folders. It prints the
// operations that succeed.
func probe(top string, own []string) error {
	return filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if slices.Contains(own, path) {
			return fs.SkipDir
		}
		if err != nil {
			return nil // the user may not read this folder
		}
		for name, try := range operations(path, entry.IsDir()) {
			if try() == nil {
				fmt.Println(name, path)
			}
		}
		return nil
	})
}

// operations are what a user could try on a path of another user.
func operations(path string, isDir bool) map[string]func() error {
	all := map[string]func() error{
		"chmod":  func() error { return os.Chmod(path, 0o777) },
		"chown":  func() error { return os.Chown(path, os.Getuid(), os.Getgid()) },
		"write":  func() error { return opened(path, os.O_WRONLY) },
		"rename": func() error { return os.Rename(path, path+".moved") },
		"link":   func() error { return os.Link(path, filepath.Join(os.TempDir(), "linked")) },
		"utime":  func() error { return os.Chtimes(path, past, past) },
	}
	if isDir {
		all["create"] = func() error { return os.WriteFile(filepath.Join(path, "made"), nil, 0o600) }
		all["symlink"] = func() error { return os.Symlink("/etc", filepath.Join(path, "7.json")) }
		all["mkdir"] = func() error { return os.Mkdir(filepath.Join(path, "99"), 0o700) }
		all["fifo"] = func() error { return syscall.Mkfifo(filepath.Join(path, "lock.new"), 0o600) }
		return all
	}
	all["read"] = func() error { return opened(path, os.O_RDONLY) }
	all["flock"] = func() error { return locked(path) }
	all["truncate"] = func() error { return os.Truncate(path, 0) }
	all["remove"] = func() error { return os.Remove(path) }
	return all
}

func opened(path string, flag int) error {
	file, err := os.OpenFile(path, flag, 0)
	if err == nil {
		file.Close()
	}
	return err
}

// locked locks a file until this process ends.
func locked(path string) error {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB)
}

// deep makes nested folders.
func deep(dir string, levels int) error {
	if err := os.Chdir(dir); err != nil {
		return err
	}
	for range levels {
		if err := os.Mkdir("d", 0o700); err != nil {
			return err
		}
		if err := syscall.Chdir("d"); err != nil {
			return err
		}
	}
	return nil
}

// crowd makes this many files, or as many as fit on the file system.
func crowd(dir string, files int) error {
	for i := range files {
		fd, err := syscall.Open(fmt.Sprintf("%s/%d", dir, i), syscall.O_CREAT|syscall.O_WRONLY, 0o600)
		if err == syscall.ENOSPC {
			return nil
		}
		if err != nil {
			return err
		}
		syscall.Close(fd)
	}
	return nil
}

// fill writes until the file system is full, but not more than 2 GiB.
func fill(dir string) error {
	file, err := os.Create(filepath.Join(dir, "full"))
	if err != nil {
		return err
	}
	chunk := make([]byte, 1<<20)
	for range 2 << 10 {
		if _, err := file.Write(chunk); err != nil {
			return nil
		}
	}
	return nil
}

// hold has the first folder as its cwd, and has everything in all folders open and locked.
func hold(dirs []string) error {
	if err := os.Chdir(dirs[0]); err != nil {
		return err
	}
	for _, dir := range dirs {
		_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, _ error) error {
			_ = locked(path)
			return nil
		})
	}
	return sleep()
}

// refill makes files and folders without end, also in folders that root is about to remove.
func refill(dir string) error {
	if err := os.Chdir(dir); err != nil {
		return err
	}
	n := 0
	return until(func() {
		n++
		_ = os.WriteFile(fmt.Sprint("f", n), nil, 0o600)
		_ = os.Mkdir(fmt.Sprint("d", n), 0o700)
		if n%100 == 0 {
			_ = os.Chdir(fmt.Sprint("d", n))
		}
	})
}

// swap replaces a folder of the user by a link to a folder of root, and the link by the folder, as fast as possible.
func swap(dir, target string) error {
	for _, name := range []string{"x", "y"} {
		if err := os.MkdirAll(filepath.Join(dir, name, "precious"), 0o700); err != nil {
			return err
		}
	}
	link, x, y := filepath.Join(dir, "link"), filepath.Join(dir, "x"), filepath.Join(dir, "y")
	return until(func() {
		_ = os.Symlink(target, link)
		_ = os.MkdirAll(filepath.Join(x, "precious"), 0o700)
		_ = os.Rename(x, y)
		_ = os.Rename(link, x)
		_ = os.Remove(x)
		_ = os.Rename(y, x)
	})
}

// lease makes the kernel block every process that opens a file, because this process has a lease on the file. The
// kernel gives the holder of a lease 45 s to release it.
func lease(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, file.Fd(), syscall.F_SETLEASE, syscall.F_WRLCK); errno != 0 {
		return errno
	}
	return sleep()
}
