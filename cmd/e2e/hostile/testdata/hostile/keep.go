package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// The attacks on what frees the memory of a job's file system.

const keptSize = 20 << 20

// keeps keeps a new file of a folder in use: open, removed, written (it goes on writing), or in flight over a socket.
func keeps(how, dir string) error {
	file, err := os.OpenFile(filepath.Join(dir, how), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if _, err := file.Write(make([]byte, keptSize)); err != nil {
		return err
	}
	if how != "open" {
		if err := os.Remove(file.Name()); err != nil {
			return err
		}
	}
	switch how {
	case "written":
		buffer := make([]byte, 64<<10)
		return until(func() { _, _ = file.WriteAt(buffer, 0) })
	case "flight":
		pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		if err := syscall.Sendmsg(pair[0], []byte("x"), syscall.UnixRights(int(file.Fd())), nil, 0); err != nil {
			return err
		}
		file.Close()
	}
	return sleep()
}

// locks keeps the locks of a new file and of its folder, while the kernel waits for pages of a file system that does
// not answer. No signal ends a process that waits for such a lock.
func locks(dir, hanging string) error {
	never, err := os.Open(filepath.Join(hanging, "file"))
	if err != nil {
		return err
	}
	page, err := syscall.Mmap(int(never.Fd()), 0, fileSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(dir, "fat"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if _, err := file.Write(make([]byte, keptSize)); err != nil {
		return err
	}
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	go func() { _, _ = file.WriteAt(page[:4096], 0) }()
	go func() { _, _ = syscall.Getdents(int(folder.Fd()), page[8192:16384]) }()
	time.Sleep(300 * time.Millisecond) // both wait in the kernel
	fmt.Println("ready")
	time.Sleep(lifetime)
	return nil
}
