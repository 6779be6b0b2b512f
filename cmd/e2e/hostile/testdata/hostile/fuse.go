package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/slurm-mps/slurm-mps/site/sim/control/wire"
)

// The attack on programs that read the environment of a process. The kernel reads the environment from the process's
// memory, under a lock. A page fault holds the lock until a file system of the user has delivered the page.

// waits is a file that is there once a read waits for its answer for ever.
const waits = "waits"

// Requests of the FUSE protocol, and sizes and numbers in the answers.
const (
	fuseLookup  = 1
	fuseGetattr = 3
	fuseOpen    = 14
	fuseRead    = 15
	fuseFlush   = 25 // the request of a close
	fuseInit    = 26
	headerSize  = 40
	fileNode    = 2
	fileSize    = 1 << 20
)

// fuse is a file system with one file. It answers this many reads of the file with an error, and no read after that.
// From then on it has another file, named waits. If errors is negative, it does not answer a close of the file either.
// It ends after a time. The test has mounted the file system, as fusermount does for users, and passes it as
// descriptor 3.
func fuse(errors int, seconds time.Duration) error {
	device := os.NewFile(3, "fuse")
	reads := 0
	request := make([]byte, 1<<20)
	time.AfterFunc(seconds, func() { os.Exit(0) }) // a test that fails must not block readers of /proc for long
	fmt.Println("ready")
	for {
		n, err := device.Read(request)
		if err != nil || n < headerSize {
			return err
		}
		opcode, unique := binary.LittleEndian.Uint32(request[4:]), binary.LittleEndian.Uint64(request[8:])
		var answer []any
		failed := int32(0)
		switch opcode {
		case fuseInit:
			answer = []any{[2]uint32{7, 31}, uint32(4096), uint32(0), [2]uint16{8, 8}, uint32(4096), [10]uint32{}}
		case fuseLookup:
			if string(bytes.TrimRight(request[headerSize:n], "\x00")) == waits && reads <= errors {
				failed = -int32(syscall.ENOENT)
				break
			}
			answer = append([]any{[4]uint64{fileNode, 0, 60, 60}, [2]uint32{}}, attributes(fileNode)...)
		case fuseGetattr:
			answer = append([]any{uint64(60), [2]uint32{}}, attributes(binary.LittleEndian.Uint64(request[16:]))...)
		case fuseOpen:
			answer = []any{uint64(0), [2]uint32{}}
		case fuseRead:
			if reads++; reads > errors {
				continue
			}
			failed = -int32(syscall.EIO)
		case fuseFlush:
			if errors < 0 {
				continue
			}
			failed = -int32(syscall.ENOSYS)
		default:
			failed = -int32(syscall.ENOSYS)
		}
		if err := reply(device, unique, failed, answer); err != nil {
			return err
		}
	}
}

// attributes returns the attributes of the root folder, which is node 1, or of its only file.
func attributes(node uint64) []any {
	mode := uint32(syscall.S_IFREG | 0o644)
	if node == 1 {
		mode = syscall.S_IFDIR | 0o755
	}
	return []any{[6]uint64{node, fileSize, 8}, [3]uint32{}, mode, uint32(1), [2]uint32{}, [3]uint32{0, 4096, 0}}
}

func reply(device *os.File, unique uint64, failed int32, answer []any) error {
	var body bytes.Buffer
	for _, part := range answer {
		if err := binary.Write(&body, binary.LittleEndian, part); err != nil {
			return err
		}
	}
	var packet bytes.Buffer
	for _, part := range []any{uint32(16 + body.Len()), failed, unique} {
		if err := binary.Write(&packet, binary.LittleEndian, part); err != nil {
			return err
		}
	}
	_, err := device.Write(append(packet.Bytes(), body.Bytes()...))
	return err
}

// stuck is a process that waits for a page of that file, and at the same time for the lock to change its memory. A
// reader of its memory waits until both have ended. The kernel holds the lock when it asks for the page the third
// time.
func stuck(dir string) error {
	file, err := os.Open(filepath.Join(dir, "file"))
	if err != nil {
		return err
	}
	page, err := syscall.Mmap(int(file.Fd()), 0, fileSize, syscall.PROT_READ, syscall.MAP_PRIVATE)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	go func() { fmt.Print(page[0]) }()
	time.Sleep(200 * time.Millisecond)
	go func() { _ = syscall.Mprotect(page, syscall.PROT_READ|syscall.PROT_WRITE) }()
	time.Sleep(lifetime)
	return nil
}

// unkillable is a process that waits for an answer of that file. The kernel does not end the process while it waits,
// once the file system has the question.
func unkillable(dir string) error {
	file, err := os.Open(filepath.Join(dir, "file"))
	if err != nil {
		return err
	}
	go func() {
		for _, err := os.Stat(filepath.Join(dir, waits)); err != nil; _, err = os.Stat(filepath.Join(dir, waits)) {
			time.Sleep(time.Millisecond)
		}
		fmt.Println("ready")
	}()
	_, err = file.Read(make([]byte, 1))
	return err
}

// execs starts this many processes of each name that never finish their exec. They end with this process, as soon as
// their file system lets them.
func execs(dir string, count int, names []string) error {
	runtime.LockOSThread() // the processes end with this thread
	for _, name := range names {
		for range count {
			if err := begin(exec.Command(os.Args[0], "exec", dir, name)); err != nil {
				return err
			}
		}
	}
	return sleep()
}

// execute is a process in the middle of an exec. The kernel closes its file during the exec, while it holds the lock
// that every reader of /proc/PID/stat takes. The file system does not answer the close.
func execute(dir, name string) error {
	runtime.LockOSThread()
	text, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_NAME, uintptr(unsafe.Pointer(text)), 0); errno != 0 {
		return errno
	}
	if _, err := os.OpenFile(filepath.Join(dir, "file"), os.O_RDWR, 0); err != nil {
		return err
	}
	if devices := os.Getenv("DEVICES"); devices != "" { // the process is a client, and then execs
		for path := range strings.SplitSeq(devices, ":") {
			if _, err := syscall.Open(path, syscall.O_RDONLY, 0); err != nil {
				return err
			}
		}
		time.Sleep(time.Second)
	}
	fmt.Println("ready")
	return syscall.Exec("/bin/sleep", []string{"sleep", "100"}, os.Environ())
}

func init() {
	if len(os.Args) > 1 && os.Args[1] == "beheaded" {
		runtime.LockOSThread()
	}
}

// serve replaces the server of a daemon by a server of the user.
func serve(pipe, answers string) error {
	listener, err := replace(pipe)
	if err != nil {
		return err
	}
	go accept(listener, answers)
	return sleep()
}

// between is a pause between two attempts, so that the attacked programs get processor time.
const between = 100 * time.Microsecond

// usurp calls replace as soon as a daemon runs, and again when another daemon starts.
func usurp(pipe, answers string) error {
	path := filepath.Join(pipe, "control")
	var own os.FileInfo
	return until(func() {
		time.Sleep(between)
		info, err := os.Lstat(path)
		if err != nil || own != nil && os.SameFile(info, own) {
			return
		}
		if listener, err := replace(pipe); err == nil {
			own, _ = os.Lstat(path)
			go accept(listener, answers)
		}
	})
}

// quit tells every daemon of a folder to end.
func quit(pipe string) error {
	return until(func() {
		time.Sleep(between)
		conn, err := wire.Dial(filepath.Join(pipe, "control"))
		if err != nil {
			return
		}
		defer conn.Close()
		if conn.Send("ui") == nil && conn.Send("command quit") == nil {
			_, _, _ = conn.Receive()
		}
	})
}

// replace puts a socket of the user at the path of a daemon's socket.
func replace(pipe string) (*net.UnixListener, error) {
	draft := filepath.Join(pipe, "draft")
	listener, err := wire.Listen(draft, 0o666)
	if err != nil {
		return nil, err
	}
	return listener, os.Rename(draft, filepath.Join(pipe, "control"))
}

func accept(listener *net.UnixListener, answers string) {
	for {
		conn, err := wire.Accept(listener)
		if err != nil {
			return
		}
		go converse(conn, answers)
	}
}

// escapes are control sequences of a terminal, a text like a line of the log, and bytes that are no text.
const escapes = "\x1b[2J\x1b]0;owned\x07\u009b31m\u202e{\"level\":\"error\"}\r\xff\xfe\x00"

// converse answers the commands of one control program. The name of the answers may have an argument: "names PID".
func converse(conn wire.Conn, answers string) {
	defer conn.Close()
	kind, argument, _ := strings.Cut(answers, " ")
	for {
		text, _, err := conn.Receive()
		command, isCommand := strings.CutPrefix(text, "command ")
		if err != nil || isCommand && !answer(conn, kind, argument, command) {
			return
		}
	}
}

// answer answers one command and reports whether the conversation continues.
func answer(conn wire.Conn, kind, argument, command string) bool {
	switch kind {
	case "silent":
		time.Sleep(lifetime)
	case "reset":
		return false
	case "drip":
		for conn.Send("out .") == nil {
			time.Sleep(100 * time.Millisecond)
		}
	case "endless":
		for line := "out " + strings.Repeat("endless ", 12000); conn.Send(line) == nil; {
		}
	case "escapes":
		conn.Send("out " + escapes + "\n" + escapes)
	case "refuses":
		conn.Send("out Insufficient privileges")
	case "thousands":
		thousands(conn, command)
	case "names":
		names(conn, argument, command)
	}
	return conn.Send("end 0") == nil
}

// thousands lists more clients than a node can have.
func thousands(conn wire.Conn, command string) {
	for i := 0; strings.HasPrefix(command, "ps") && i < 5000; i++ {
		conn.Send("out " + strconv.Itoa(i+1) + " 1 1")
	}
	conn.Send("out 100.0")
}

// names lists a process of another user as a client, and confirms every command.
func names(conn wire.Conn, pid, command string) {
	switch verb, _, _ := strings.Cut(command, " "); verb {
	case "ps":
		conn.Send("out PID       ID        SERVER")
		conn.Send("out " + pid + " 1 1 GPU-x 1 /victim")
	case "get_default_active_thread_percentage":
		conn.Send("out 100.0")
	case "terminate_client":
		conn.Send("out 0")
	}
}
