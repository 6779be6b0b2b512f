package mpirunwrap

import (
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"golang.org/x/sys/unix"
)

// keeper holds duplicates of the driver's files that processes of the rank have open. What takes an MPS client's neighbours
// along when it dies in mid-kernel is not its death but the release of the memory driver's files, which cuInit opens before
// there can be a kernel (measured: docs/decisions/011). Held until the work is done they harm nobody, so a crash of the
// program or an out-of-memory kill does not. Where they may not be duplicated (Yama, seccomp, a process that is not
// dumpable) a rank is as it was without.
//
// The control device's file is held with them, and goes after them, as when a process ends that nobody holds files of: the
// kernel closes the latest opened first. Where it went first, one client in 150 left the job's server in a state in
// which nobody could make a context any more, error 401 (measured: docs/decisions/022). The wrapper's own end may be a
// SIGKILL, so it is the numbers of the duplicates that see to the order.
//
// One goroutine does all of it, so there is no lock; it is told of what happens, and sleeps otherwise.
type keeper struct {
	device string // whose opening tells of a new client, "" for none
	say    func(format string, values ...any)
	events int           // inotify's descriptor, -1 without
	wake   chan struct{} // has one when there may be something new
	files  []heldFile
	ends   map[site.Proc]bool // processes whose end wakes
	mute   bool               // a refusal has been told
	count  atomic.Int32       // of files, for others
}

// heldFile is an open file of one or more processes.
type heldFile struct {
	file   int    // our descriptor
	kind   string // memoryFile or controlFile
	owner  site.Proc
	number int       // the owner's descriptor
	open   bool      // by some process, at the last look
	since  time.Time // when it was first seen that nobody has it open
}

const (
	// firstLook leaves the start of the program alone: to load CUDA takes longer.
	firstLook = 10 * time.Millisecond
	// settling is from an opening to the look: cuInit opens two files, and the first kernel comes 30 ms later (measured).
	settling = 20 * time.Millisecond
	// In its first second a program is looked at every 50 ms, and openings are told from then on: to stop listening takes
	// the kernel 20 ms at the wrapper's end (measured), which a short program is not to pay.
	early     = time.Second
	earlyLook = 50 * time.Millisecond
	// A container may have a device file of its own, whose opening nobody tells. So there are looks without a reason later
	// too, the pauses growing by a quarter: what is opened after t is held by 1.25 t at the latest.
	shortestPause = early / 4
	// afterDeath is how long files are held of a process that died of a signal, or that nobody knows how it ended: kernels
	// of 5 s were tried. One that ends with a code other than 0 has most likely an error behind it and no work.
	afterDeath = 5 * time.Second
	// mostHeld leaves descriptors for the rest of the wrapper: 48 clients on a GPU have 144.
	mostHeld = 192
)

func newKeeper(device string, say func(string, ...any)) *keeper {
	return &keeper{device: device, say: say, events: -1, wake: make(chan struct{}, 1), ends: map[site.Proc]bool{}}
}

// keep looks whenever there may be something new. It does not end: the process does.
func (k *keeper) keep() {
	for began := time.Now(); time.Since(began) < early; time.Sleep(earlyLook) {
		k.look()
	}
	k.listen()
	for pause := shortestPause; ; {
		k.look()
		timer := time.NewTimer(min(pause, k.next(time.Now())))
		select {
		case <-k.wake:
			time.Sleep(settling)
		case <-timer.C:
			pause += pause / 4
		}
		timer.Stop()
	}
}

// listen has every opening of the device file wake the keeper. There are few instances for a user (128, by default): where
// there is none left, looks without a reason must do.
func (k *keeper) listen() {
	if k.device == "" {
		return
	}
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		k.say("cannot watch %s: %v", k.device, err)
		return
	}
	k.events = fd
	if _, err := unix.InotifyAddWatch(fd, k.device, unix.IN_OPEN); err != nil {
		k.say("cannot watch %s: %v", k.device, err)
	}
	go whenReadable(fd, func() bool {
		var events [4096]byte
		n, err := unix.Read(fd, events[:])
		k.nudge()
		return n <= 0 && err != unix.EAGAIN && err != unix.EINTR
	})
}

// nudge wakes the keeper.
func (k *keeper) nudge() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// look takes what is new, and closes what nobody has had open for long enough.
func (k *keeper) look() {
	for i := range k.files {
		k.files[i].open = false
	}
	before := len(k.files)
	for _, p := range descendants() {
		k.take(p)
	}
	if len(k.files) > before {
		k.say("%d more files of the GPU's driver are held", len(k.files)-before)
	}
	k.release(time.Now())
	k.count.Store(int32(len(k.files)))
}

// take duplicates the driver's files of a process that has the memory driver's open, the control device's first, and watches
// the device behind them, which may be a container's.
func (k *keeper) take(p site.Proc) {
	memory, control := driverFiles(p.PID)
	if len(memory) == 0 {
		return
	}
	pidfd := pidfdOf(p)
	if pidfd < 0 {
		return
	}
	defer unix.Close(pidfd)
	k.tellEnd(p)
	for _, number := range control {
		k.duplicate(pidfd, p, number, controlFile)
	}
	for _, number := range memory {
		if file := k.duplicate(pidfd, p, number, memoryFile); file >= 0 && k.events >= 0 {
			_, _ = unix.InotifyAddWatch(k.events, ownFile(file), unix.IN_OPEN)
		}
	}
}

// duplicate holds a file of a process, unless it is held already, is another one by now, or too many are held. It returns
// our descriptor, -1 for none.
func (k *keeper) duplicate(pidfd int, owner site.Proc, number int, kind string) int {
	file, err := unix.PidfdGetfd(pidfd, number, 0)
	if err != nil {
		k.refused(owner, err)
		return -1
	}
	if fileOf(unix.AT_FDCWD, ownFile(file)) != kind || k.has(file, owner, number) || len(k.files) >= mostHeld {
		unix.Close(file)
		return -1
	}
	if kind == memoryFile {
		file = k.aboveControl(file)
	}
	k.files = append(k.files, heldFile{file: file, kind: kind, owner: owner, number: number, open: true})
	return file
}

// aboveControl gives a descriptor a number above those of all held files of the control device, since the kernel closes an
// ending process's files from the highest down.
func (k *keeper) aboveControl(file int) int {
	lowest := 0
	for _, h := range k.files {
		if h.kind == controlFile {
			lowest = max(lowest, h.file+1)
		}
	}
	if file >= lowest {
		return file
	}
	higher, err := unix.FcntlInt(uintptr(file), unix.F_DUPFD_CLOEXEC, lowest)
	if err != nil {
		return file // in the wrong order rather than not at all: that harms one time in 150, this every time
	}
	unix.Close(file)
	return higher
}

// refused tells once that files cannot be held; one that was closed meanwhile is no refusal.
func (k *keeper) refused(p site.Proc, err error) {
	if k.mute || err == unix.EBADF || err == unix.ESRCH {
		return
	}
	k.mute = true
	k.say("cannot hold files of %s: %v: its crash in mid-kernel would harm its neighbours", p, err)
}

// has reports whether a file is held already, perhaps of another process: a fork has the same open files. Where the kernel
// does not compare files, the same descriptor of the same process is taken for the same.
func (k *keeper) has(file int, owner site.Proc, number int) bool {
	for i := range k.files {
		h := &k.files[i]
		order, err := compareFiles(file, h.file)
		if err == nil && order == 0 || err != nil && h.owner == owner && h.number == number {
			h.open = true
			return true
		}
	}
	return false
}

// compareFiles is 0 for two descriptors of this process that are the same open file.
func compareFiles(a, b int) (order int, err error) {
	const kcmpFile = 0
	self := uintptr(unix.Getpid())
	result, _, errno := unix.Syscall6(unix.SYS_KCMP, self, self, kcmpFile, uintptr(a), uintptr(b), 0)
	if errno != 0 {
		return 0, errno
	}
	return int(result), nil
}

// release closes what no process has had open for afterDeath: what was taken last first, so the control device's file after
// the memory driver's.
func (k *keeper) release(now time.Time) {
	due := func(h heldFile) bool { return !h.since.IsZero() && now.Sub(h.since) >= afterDeath }
	for i := range k.files {
		switch h := &k.files[i]; {
		case h.open:
			h.since = time.Time{}
		case h.since.IsZero():
			h.since = now
		}
	}
	for _, h := range slices.Backward(k.files) {
		if due(h) {
			unix.Close(h.file)
		}
	}
	k.files = slices.DeleteFunc(k.files, due)
	for p := range k.ends {
		if !p.Alive() {
			delete(k.ends, p)
		}
	}
}

// next is the time until a file is to be closed.
func (k *keeper) next(now time.Time) time.Duration {
	soonest := time.Duration(1<<63 - 1)
	for _, h := range k.files {
		if !h.since.IsZero() {
			soonest = min(soonest, h.since.Add(afterDeath).Sub(now))
		}
	}
	return soonest
}

// tellEnd has the end of a process wake the keeper.
func (k *keeper) tellEnd(p site.Proc) {
	if k.ends[p] {
		return
	}
	fd := pidfdOf(p)
	if fd < 0 {
		return
	}
	k.ends[p] = true
	go func() {
		whenReadable(fd, func() bool { return true })
		k.nudge()
	}()
}

// pidfdOf is a descriptor of this very process, -1 where it has gone.
func pidfdOf(p site.Proc) int {
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if err != nil {
		return -1
	}
	if !p.Alive() {
		unix.Close(fd)
		return -1
	}
	return fd
}

// holdOn lets the files of a program that has ended by itself live on until its work is done, and counts as draining
// meanwhile: a launcher kills the rest when the first rank goes, and who is killed now releases them.
func (g *guard) holdOn() {
	longest := g.heldFor(g.status)
	if longest == 0 {
		return
	}
	if err := g.peers.enter(); err != nil {
		g.say("%v", err)
	}
	g.linger(longest)
	g.peers.leave()
	g.peers.await(2 * g.Drain)
}

// linger waits with the files held. The first signal and its echoes do not end it, since a launcher sends them to all when
// one has died; another does.
func (g *guard) linger(longest time.Duration) {
	if longest == 0 {
		return
	}
	g.say("it ended with code %d and %d files of the GPU's driver open: held for %v", codeOf(g.status), g.files.count.Load(), longest)
	timer := time.NewTimer(longest)
	defer timer.Stop()
	select {
	case <-timer.C:
		return
	case <-g.asked:
	}
	g.pause(time.Now().Add(g.Drain))
	select {
	case <-timer.C:
	case <-g.signals:
	}
}

// heldFor is how long files are held of a program that ended so: not at all where it ended well. A shell says by 128+n
// that what it ran died of signal n.
func (g *guard) heldFor(status syscall.WaitStatus) time.Duration {
	switch code := codeOf(status); {
	case code == 0 || g.files.count.Load() == 0:
		return 0
	case code > 128:
		return afterDeath
	}
	return longer * g.Drain
}
