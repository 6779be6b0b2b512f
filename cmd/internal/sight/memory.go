package sight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/slurm-mps/slurm-mps/site"
)

// errStuck is a process whose memory does not come. Its owner can see to that: a page that a stopped file system, or the
// owner's own program, has to bring first.
var errStuck = errors.New("it holds up its reader")

// memory reads what the kernel fetches from a process's memory, its environment and its command line. A read that hangs
// is left behind, and its process is never asked again.
type memory struct {
	stuck map[site.Proc]bool
	fetch func(path string) ([]byte, error) // readFile but for tests
}

const (
	memoryDeadline = 500 * time.Millisecond
	mostMemory     = 8 << 20 // the kernel allows arguments and environment of 6 MiB
)

func (m *memory) read(ctx context.Context, p site.Proc, file string) ([]byte, error) {
	if m.stuck[p] {
		return nil, errStuck
	}
	type answer struct {
		content []byte
		err     error
	}
	ctx, cancel := context.WithTimeout(ctx, memoryDeadline)
	defer cancel()
	fetch := m.fetch
	if fetch == nil {
		fetch = readFile
	}
	answered := make(chan answer, 1)
	go func() {
		content, err := fetch(fmt.Sprintf("/proc/%d/%s", p.PID, file))
		answered <- answer{content, err}
	}()
	select {
	case a := <-answered:
		return a.content, a.err
	case <-ctx.Done():
		if m.stuck == nil {
			m.stuck = map[site.Proc]bool{}
		}
		m.stuck[p] = true
		return nil, errStuck
	}
}

func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, mostMemory))
}

// commandOf is the name that the kernel has for a process, printable; "" where there is none.
func commandOf(pid int) string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, strings.TrimSuffix(string(name), "\n"))
}

// ended reports that there is no process of this number.
func ended(pid int) bool {
	_, err := site.ReadStat(pid)
	return errors.Is(err, fs.ErrNotExist)
}
