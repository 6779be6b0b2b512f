// Command hostile contains the attacks of cmd/e2e/hostile/hostile_test.go that need a program. It runs as the job's user, with
// only the rights of a user.
//
//	hostile ATTACK [ARG...]
//
// With the arguments of nvidia-cuda-mps-control it replaces that program.
package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// attacks are the attacks by their names. An attack that runs until it is killed first prints "ready".
var attacks = map[string]func(args []string) error{
	"probe":      func(a []string) error { return probe(a[0], a[1:]) },
	"deep":       func(a []string) error { return deep(a[0], number(a[1])) },
	"crowd":      func(a []string) error { return crowd(a[0], number(a[1])) },
	"fill":       func(a []string) error { return fill(a[0]) },
	"hold":       hold,
	"refill":     func(a []string) error { return refill(a[0]) },
	"swap":       func(a []string) error { return swap(a[0], a[1]) },
	"lease":      func(a []string) error { return lease(a[0]) },
	"storm":      func(a []string) error { return storm(number(a[0])) },
	"end":        func([]string) error { return end() },
	"serve":      func(a []string) error { return serve(a[0], a[1]) },
	"usurp":      func(a []string) error { return usurp(a[0], a[1]) },
	"quit":       func(a []string) error { return quit(a[0]) },
	"look":       func([]string) error { return sleep() },
	"fuse":       func(a []string) error { return fuse(number(a[0]), time.Duration(number(a[1]))*time.Second) },
	"execs":      func(a []string) error { return execs(a[0], number(a[1]), a[2:]) },
	"exec":       func(a []string) error { return execute(a[0], a[1]) },
	"stuck":      func(a []string) error { return stuck(a[0]) },
	"opens":      func(a []string) error { return opens(a[0]) },
	"flips":      func(a []string) error { return flips(a[0], a[1], a[2]) },
	"flipping":   func(a []string) error { return flipping(a[0], a[1], a[2], a[3]) },
	"forks":      func(a []string) error { return forks(a[0], a[1]) },
	"fakes":      func(a []string) error { return fakes(a[0], number(a[1]), len(a) > 2) },
	"rush":       func(a []string) error { return rush(a[0], len(a) > 1) },
	"reopens":    func(a []string) error { return reopens(a[0]) },
	"holds":      func(a []string) error { return holds(a[0], number(a[1])) },
	"inject":     func(a []string) error { return inject(number(a[0]), a[1], a[2]) },
	"rights":     func(a []string) error { return rights(number(a[0])) },
	"scribbles":  func(a []string) error { return scribbles(a[0]) },
	"unkillable": func(a []string) error { return unkillable(a[0]) },
	"locks":      func(a []string) error { return locks(a[0], a[1]) },
	"keeps":      func(a []string) error { return keeps(a[0], a[1]) },
	"claims":     func(a []string) error { return claims(number(a[0]), number(a[1]), a[2]) },
	"claim": func(a []string) error {
		entry, err := strconv.Unquote(a[1])
		if err != nil {
			return err
		}
		return claim(number(a[0]), entry)
	},
}

func main() {
	if len(os.Args) == 1 || attacks[os.Args[1]] == nil {
		os.Exit(control(os.Args[1:]))
	}
	if err := attacks[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}

// lifetime is the maximum duration of an attack. It ends the attacks of a test that fails.
const lifetime = 100 * time.Second

func sleep() error {
	fmt.Println("ready")
	time.Sleep(lifetime)
	return nil
}

// until repeats an attack for a lifetime.
func until(attack func()) error {
	fmt.Println("ready")
	for began := time.Now(); time.Since(began) < lifetime; {
		attack()
	}
	return nil
}

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
