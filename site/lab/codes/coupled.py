# SPDX-License-Identifier: Apache-2.0
"""coupled.py N SECONDS COMMAND...: what a run of COMMAND each second costs N processes that wait for each other.

The processes have the machine's first N cores, one each. A step is a millisecond of work and a barrier, at which all
spin: so a step takes as long as that of the slowest, like an MPI program's. It prints the times of steps in ms without
the command, with it on any core, and with it on the last core of the machine, if that is not one of the N; and how
many steps took more than twice the median without it. The order is by turns, three of each.
"""
import mmap
import os
import subprocess
import sys
import time

WORK, TURNS = 0.001, 3


def work(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def step(board, rank, n, number):
    """Works, and waits for all. A rank's place on the board has the low byte of its last step."""
    work(WORK)
    board[rank * 64] = number & 255
    for other in range(n):
        while board[other * 64] == (number - 1) & 255:
            pass


def steps(n, cores, seconds):
    """The times of the first process's steps, in ms."""
    board = mmap.mmap(-1, 64 * (n + 1))
    others = []
    for rank in range(1, n):
        pid = os.fork()
        if pid == 0:
            os.sched_setaffinity(0, [cores[rank]])
            number = 0
            while not board[64 * n]:
                number += 1
                step(board, rank, n, number)
            os._exit(0)
        others.append(pid)
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [cores[0]])
    times, number, end = [], 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        number += 1
        began = time.perf_counter()
        step(board, 0, n, number)
        times.append(1000 * (time.perf_counter() - began))
    board[64 * n] = 1
    for number in range(number + 1, number + 4):  # the others pass the barrier that they wait at
        board[0] = number & 255
        time.sleep(0.01)
    os.sched_setaffinity(0, mine)
    for pid in others:
        os.waitpid(pid, 0)
    return times


def beside(command, cores):
    """Starts the command each second on these cores, until the returned function is called. It returns how long the
    runs took."""
    pid_file = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.sched_setaffinity(0, cores)
        with os.fdopen(pid_file[1], "w", buffering=1) as out:
            while True:
                began = time.perf_counter()
                subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
                took = time.perf_counter() - began
                print("%.1f" % (1000 * took), file=out)
                time.sleep(max(0, 1 - took))

    def stop():
        os.close(pid_file[1])
        os.kill(pid, 15)
        os.waitpid(pid, 0)
        with os.fdopen(pid_file[0]) as text:
            return [float(line) for line in text]

    return stop


def line(name, times, limit, runs):
    times = sorted(times)
    at = lambda p: times[min(len(times) - 1, int(p * len(times)))]  # noqa: E731
    slow = sum(t > limit for t in times)
    print(f"{name:24} {len(times):8} {at(0.5):7.2f} {at(0.99):7.2f} {at(0.999):7.2f} {times[-1]:7.2f} {slow:6}  "
          + (f"{len(runs)} runs, median {sorted(runs)[len(runs) // 2]:.0f} ms" if runs else ""), flush=True)


def main(n, seconds, *command):
    every = sorted(os.sched_getaffinity(0))
    n = min(int(n), len(every))
    ways = {"without": None, "on any core": every}
    if n < len(every):
        ways["on a core of its own"] = every[-1:]
    times, runs = {way: [] for way in ways}, {way: [] for way in ways}
    for _ in range(TURNS):
        for way, cores in ways.items():
            stop = beside(command, cores) if cores else list
            times[way] += steps(n, every, float(seconds) / TURNS)
            runs[way] += stop()
    print(f"{n} processes; {' '.join(command)} each second\n"
          f"{'the command runs':24} {'steps':>8} {'p50':>7} {'p99':>7} {'p99.9':>7} {'max':>7} {'slow':>6}")
    limit = 2 * sorted(times["without"])[len(times["without"]) // 2]
    for way in ways:
        line(way, times[way], limit, runs[way])


if __name__ == "__main__":
    main(*sys.argv[1:])
