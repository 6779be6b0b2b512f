package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// The attacks on the memory of a closed job's file system.

const keptSize = 8 << 20

// keeps keeps new files of a folder in use: one that is open, removed, written (it goes on writing) or in flight over a
// socket, or folders with ACLs of 128 KiB, which no limit of memory counts.
func keeps(how, dir string) error {
	if how == "folders" {
		return keepsFolders(dir)
	}
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

func keepsFolders(dir string) error {
	acl := make([]byte, 4, 60<<10) // a version, and entries of a tag, a right and a number
	acl[0] = 2
	entry := func(tag, right uint16, id uint32) {
		acl = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(acl, tag), right), id)
	}
	const user, group, groups, mask, others, none = 1, 2, 4, 0x10, 0x20, 1<<32 - 1
	entry(user, 7, none)
	for id := uint32(100000); len(acl) < 59<<10; id++ {
		entry(group, 7, id)
	}
	entry(groups, 0, none)
	entry(mask, 7, none)
	entry(others, 0, none)
	const path = 0x200000 // O_PATH
	for n := range 55 {
		name := filepath.Join(dir, strconv.Itoa(n))
		if err := os.Mkdir(name, 0o700); err != nil {
			return err
		}
		for _, kind := range []string{"access", "default"} {
			if err := syscall.Setxattr(name, "system.posix_acl_"+kind, acl, 0); err != nil {
				return err
			}
		}
		if _, err := syscall.Open(name, path, 0); err != nil {
			return err
		}
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
