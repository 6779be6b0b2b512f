package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// past is a time that no file of a test has.
var past = time.Unix(1, 0)

// storm sends a signal to every other process of the user, as fast as possible.
func storm(number int) error {
	return until(func() { _ = syscall.Kill(-1, syscall.Signal(number)) })
}

// end ends every other process of the user, also those that are just starting.
func end() error {
	for began := time.Now(); ; {
		_ = syscall.Kill(-1, syscall.SIGKILL) // first, because the check misses a process that is just starting
		if !others() || time.Since(began) > 5*time.Second {
			return nil
		}
	}
}

// others reports whether other processes of the user are alive.
func others() bool {
	paths, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil || int(info.Sys().(*syscall.Stat_t).Uid) != os.Getuid() || path == fmt.Sprintf("/proc/%d/stat", os.Getpid()) {
			continue
		}
		if content, err := os.ReadFile(path); err == nil && !strings.Contains(string(content), ") Z ") {
			return true
		}
	}
	return false
}

// control replaces the control program. The daemon that it starts ends its first thread at SIGUSR1, so it looks like
// a zombie. control gives the answers that its caller expects.
func control(args []string) int {
	switch {
	case len(args) == 0:
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "get_default") {
				fmt.Println("100.0")
			}
		}
	case args[0] == "-d":
		daemon := exec.Command(os.Args[0], "beheaded")
		daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		out, err := daemon.StdoutPipe()
		if err != nil || daemon.Start() != nil {
			return 1
		}
		_, _ = bufio.NewReader(out).ReadString('\n')
	case args[0] == "beheaded":
		listen()
		fmt.Println("ready")
		os.Stdout.Close()
		go func() { time.Sleep(lifetime); os.Exit(0) }()
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGUSR1)
		<-asked
		// The main goroutine is locked to the first thread by init.
		_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0)
	}
	return 0
}

// listen makes the socket that a rank looks for.
func listen() {
	_ = syscall.Mkfifo(filepath.Join(os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), "control"), 0o600)
}
