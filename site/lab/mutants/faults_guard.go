// SPDX-License-Identifier: Apache-2.0

package main

// faultsOfGuard are the faults of the promise that the other ranks of a GPU live, however a rank ends.
var faultsOfGuard = []fault{
	// When files are closed, and when neighbours are paused.
	{"work-in-flight-is-let-go", "G2", "site/guard/release.go", `case s.inOrder && !s.roomy &&`, `case !s.roomy &&`, "./site/guard", "TestReleaseReason"},
	{"an-ordinary-end-is-held", "G2", "site/guard/release.go", `case s.inOrder && !s.roomy && (!s.pending || s.age >= knowBy):`, `case s.inOrder && !s.roomy && s.age < 0:`, "./site/guard", "TestReleaseReason"},
	{"an-answer-is-not-awaited", "G2", "site/guard/release.go", `(!s.pending || s.age >= knowBy)`, `s.age >= 0`, "./site/guard", "TestReleaseReason"},
	{"the-last-clients-work-is-let-go", "G2", "site/guard/release.go", `!s.pending && (!s.gpuKnown || s.age >= hold):`, `!s.pending:`, "./site/guard", "TestReleaseReason"},
	{"let-go-without-a-pause", "G2", "site/guard/release.go", `s.age >= hold && (s.paused || s.inOrder)`, `s.age >= hold`, "./site/guard", "TestReleaseReason"},
	{"held-for-ever-beside-a-newer-client", "G2", "site/guard/release.go", `(s.newer && s.age >= newcomerHold || s.age >= hold)`, `s.age >= hold`, "./site/guard", "TestReleaseReason"},
	{"a-pause-for-nothing", "G2", "site/guard/release.go", `return s.short && s.neighbours &&`, `return s.neighbours &&`, "./site/guard", "TestReleaseReason"},
	{"a-pause-for-an-ordinary-end", "G2", "site/guard/release.go", `s.gpuKnown && !s.inOrder &&`, `s.gpuKnown &&`, "./site/guard", "TestReleaseReason"},
	{"a-newer-client-waits-for-the-pause", "G2", "site/guard/release.go", `(s.newer || s.age >= pauseAfter)`, `(s.age >= pauseAfter)`, "./site/guard", "TestReleaseReason"},
	{"any-neighbour-is-newer", "G2", "site/guard/release.go", `other.opened.After(c.died)`, `other.opened.After(c.opened)`, "./site/guard", "TestTheSituationOfADeadClient"},
	{"a-fork-is-a-neighbour", "G2", "site/guard/release.go", `if !other.inherits() && shareGPU(c, other) {`, `if shareGPU(c, other) {`, "./site/guard", "TestTheSituationOfADeadClient"},
	{"a-needed-room-is-forgotten", "G2", "site/guard/release.go", `c.needed = c.needed || s.short`, `c.needed = s.short`, "./site/guard", "TestTheSituationOfADeadClient"},
	{"a-fork-takes-a-place", "G2", "site/guard/release.go", `return !c.inherits() && c.gpus != 0 }`, `return c.gpus != 0 }`, "./site/guard", "TestPlaces"},
	{"a-user-takes-places-without-a-gpu", "G2", "site/guard/release.go", `return !c.inherits() && c.gpus != 0 }`, `return !c.inherits() }`, "./site/guard", "TestPlaces"},
	{"a-dead-client-takes-no-place", "G2", "site/guard/release.go", "for _, other := range g.dead {\n\t\tif other.takesPlace()", "for _, other := range g.dead {\n\t\tif false && other.takesPlace()", "./site/guard", "TestPlaces"},
	{"a-client-takes-two-places", "G2", "site/guard/release.go", "if other.takesPlace() && shareGPU(c, other) {\n\t\t\tall[other.proc] = true\n\t\t}\n\t}\n\treturn", "if other.takesPlace() && shareGPU(c, other) {\n\t\t\tall[site.Process{PID: -1 - len(all)}] = true\n\t\t}\n\t}\n\treturn", "./site/guard", "TestPlaces TestAClientThatReopensTakesOnePlace"},
	{"any-client-is-on-the-same-gpu", "G2", "site/guard/release.go", `a.gpus == 0 || b.gpus == 0 || a.gpus&b.gpus != 0`, `a.gpus|b.gpus >= 0`, "./site/guard", "TestShareGPU"},
	{"host-memory-is-ignored", "G2", "site/guard/release.go", `c.hostShort = g.hostShort(c)`, `c.hostShort = false`, "./site/guard", "TestShortHostMemory"},
	{"control-files-close-first", "G2", "site/guard/release.go", `slices.Concat(memory, control)`, `slices.Concat(control, memory)`, "./site/guard", "TestMemoryFilesCloseFirst"},
	{"a-neighbours-file-is-closed", "G2", "site/guard/release.go", `if f.users--; f.users > 0 {`, `if f.users--; f.users < 0 {`, "./site/guard", "TestSharedFilesStay"},
	{"files-stay-open-at-the-end", "G2", "site/guard/release.go", "for _, c := range slices.Clone(g.dead) {\n\t\tg.releaseClient(c, atEnd)", "for _, c := range g.dead[:0] {\n\t\tg.releaseClient(c, atEnd)", "./site/guard", "TestAllFilesAreClosedAtTheEnd"},
	{"the-end-waits-for-a-driver", "T2", "site/guard/release.go", `deadline := time.After(endWait)`, `deadline := time.After(100 * endWait)`, "./site/guard", "TestFilesThatTheDriverDoesNotClose"},

	// What is known of the GPU.
	{"work-before-the-death-proves-idleness", "G2", "site/guard/usage.go", `max(uint64(c.died.Add(sampleTime).UnixMicro()), u.idle[i].first)`, `max(uint64(c.died.UnixMicro()), u.idle[i].first)`, "./site/guard", "TestIdle"},
	{"one-sample-beside-neighbours", "G2", "site/guard/usage.go", `from += uint64(sampleGap.Microseconds())`, `from += 0`, "./site/guard", "TestIdle"},
	{"work-does-not-end-idleness", "G2", "site/guard/usage.go", `u.idle[i], u.busy[i] = span{}, s.Micros`, `u.busy[i] = s.Micros`, "./site/guard", "TestIdle"},
	{"an-old-line-counts", "G2", "site/guard/usage.go", `|| now.Sub(u.of) > usageAge {`, `{`, "./site/guard", "TestShortOfGPUMemory"},
	{"a-line-from-before-the-death-counts", "G2", "site/guard/usage.go", `u.gauge == nil || u.of.Before(c.died) ||`, `u.gauge == nil ||`, "./site/guard", "TestShortOfGPUMemory"},
	{"one-gpu-speaks-for-another", "G2", "site/guard/usage.go", `s.gpuKnown = s.gpuKnown && usage.Known`, `s.gpuKnown = usage.Known`, "./site/guard", "TestAClientOfTwoGPUs"},
	{"a-full-gpu-is-forgotten", "G2", "site/guard/usage.go", `s.roomy = s.roomy && usage.Known && roomy`, `s.roomy = usage.Known && roomy`, "./site/guard", "TestAClientOfTwoGPUs"},
	{"an-ordinary-end-is-in-flight", "G2", "site/guard/usage.go", "if !c.inOrder {\n\t\t\td.inFlight", "if true {\n\t\t\td.inFlight", "./site/guard", "TestShortOfGPUMemory"},
	{"a-program-that-starts-needs-nothing", "G2", "site/guard/usage.go", `u.FreeMiB < d.grow+max(`, `u.FreeMiB < max(`, "./site/guard", "TestShortOfGPUMemory"},
	{"a-successor-needs-nothing", "G2", "site/guard/usage.go", `max(d.successors, d.inFlight)`, `d.inFlight`, "./site/guard", "TestSuccessorsAreExpected"},
	{"a-successor-is-expected-for-ever", "G2", "site/guard/usage.go", `if now.Sub(e.at) < growing &&`, `if`, "./site/guard", "TestSuccessorsAreExpected"},
	{"gpu-usage-is-asked-once", "G2", "site/guard/usage.go", `case !u.answered && age < usageAge:`, `case !u.answered:`, "./site/guard", "TestWhenUsageIsAsked"},
	{"an-answer-is-awaited-for-ever", "G2", "site/guard/usage.go", ` && now.Sub(since) < usageStart`, ` && now.After(since.Add(-1))`, "./site/guard", "TestAnAnswerThatIsAwaited"},

	// Pauses.
	{"a-pause-without-end", "G2 T2", "site/guard/pause.go", `case now.Sub(p.began) >= g.Pause:`, `case now.Sub(p.began) < 0:`, "./site/guard", "TestTheEndOfAPause"},
	{"a-pause-that-ends-too-early", "G2", "site/guard/pause.go", `case len(needing) == 0 && len(g.closing) == 0:`, `case len(needing) == 0:`, "./site/guard", "TestTheEndOfAPause"},
	{"a-pause-that-failed-goes-on", "G2", "site/guard/pause.go", "g.logOnce(\"cannot pause the neighbours of a dead client\", err)\n\t\t\tg.endPause(now, false)", "g.logOnce(\"cannot pause the neighbours of a dead client\", err)", "./site/guard", "TestTheEndOfAPause"},
	{"no-rest-between-pauses", "G2", "site/guard/pause.go", `now.Add(max(took, minRest))`, `now`, "./site/guard", "TestTheEndOfAPause"},
	{"a-pause-that-the-policy-forbids", "G2 docs", "site/guard/pause.go", `len(needing) > 0 && !g.pauses.never &&`, `len(needing) > 0 &&`, "./site/guard", "TestWhenAPauseBegins"},
	{"pauses-without-a-rest", "G2", "site/guard/pause.go", ` && !now.Before(g.pauses.next) {`, ` {`, "./site/guard", "TestWhenAPauseBegins"},
	{"clients-of-other-gpus-are-paused", "G2", "site/guard/pause.go", `if shareGPU(c, other) {`, `if c != other {`, "./site/guard", "TestWhoIsPaused"},
	{"newcomers-run-on-in-a-pause", "G2", "site/guard/pause.go", "g.endPause(now, false)\n\t\treturn\n\t}\n\tg.pauseMore(needing)", "g.endPause(now, false)\n\t\treturn\n\t}\n\tg.pauseMore(nil)", "./site/guard", "TestWhoIsPaused"},
	{"an-early-pause-counts-after-hold", "G2", "site/guard/pause.go", `p.now == nil && p.failed.After(hold)`, `p.now == nil && !p.failed.IsZero()`, "./site/guard", "TestWhetherAPauseIsOver"},
	{"neighbours-stay-paused-at-the-end", "G2", "site/guard/guard.go", "}\n\tg.endPause(time.Now(), false)", "}", "./site/guard", "TestAGuardThatEndsDuringAPause"},
	{"the-kernel-does-not-end-a-pause", "G2", "site/guard/pause.go", `killAfter(limit + pauseSlack)`, `killAfter(limit + 3600*pauseSlack)`, "./site/guard", "TestAPauseEndsWithItsProcess"},
	{"other-threads-run-on-in-a-pause", "G2", "site/guard/pause.go", `if _, known := t.stopped[thread]; known || err != nil {`, `if _, known := t.stopped[thread]; known || err != nil || thread != pid {`, "./site/guard", "TestAPauseEndsWithItsProcess"},
	{"a-pause-hides-a-death", "G2", "site/guard/pause.go", `for t.wait() {`, `for false {`, "./site/guard", "TestAProcessThatIsKilledDuringAPause"},

	// How a client has ended.
	{"an-unknown-end-is-in-order", "G2", "site/guard/exits.go", `return s.known && s.raw&0xffff == 0`, `return s.raw&0xffff == 0`, "./site/guard", "TestAnEndThatIsNotKnown"},
	{"a-signal-is-in-order", "G2", "site/guard/exits.go", `s.raw&0xffff == 0`, `s.raw&0xff00 == 0`, "./site/guard", "TestAnEndThatIsNotKnown TestHowAProcessEnded"},
	{"an-exit-code-is-in-order", "G2", "site/guard/exits.go", `s.raw&0xffff == 0`, `s.raw&0xff == 0`, "./site/guard", "TestAnEndThatIsNotKnown TestHowAClientEnded"},
	{"a-process-that-runs-has-ended", "G2", "site/guard/exits.go", `|| string(fields[state]) != "Z" {`, `{`, "./site/guard", "TestHowAProcessEnded"},
	{"every-end-is-in-order", "G2", "site/guard/clients.go", `c.inOrder = c.exit.inOrder()`, `c.inOrder = true`, "./site/guard", "TestHowAClientEnded"},

	// What new ranks are told.
	{"a-new-rank-does-not-wait-for-an-answer", "G2", "site/guard/room.go", `s.short || s.pending {`, `s.short {`, "./site/guard", "TestTheRoomThatIsPublished"},
	{"a-new-rank-does-not-wait-for-a-close", "G2", "site/guard/room.go", `if !c.wasRoomy {`, `if c.wasRoomy && false {`, "./site/guard", "TestTheRoomThatIsPublished"},
	{"a-new-rank-waits-for-another-gpu", "G2", "site/guard/room.go", `c.gpus&(1<<i) == 0 {`, `c.gpus&(1<<(i|minor)) == 0 {`, "./site/guard", "TestTheRoomThatIsPublished"},
	{"the-earliest-time-counts", "G2", "site/guard/room.go", `if until.After(gpu.Until) {`, `if gpu.Until.IsZero() || until.Before(gpu.Until) {`, "./site/guard", "TestTheRoomThatIsPublished"},
	{"a-guard-waits-for-a-disk", "G2", "site/guard/room.go", `r.next, r.saved = make(chan lease.Room, 1)`, `r.next, r.saved = make(chan lease.Room)`, "./site/guard", "TestRoomsOnASlowDisk"},
	{"no-room-after-the-guards-end", "G2", "site/guard/room.go", "r.publish(lease.Room{})\n", "", "./site/guard", "TestRoomsOnASlowDisk"},
	{"the-end-waits-for-a-disk", "T2", "site/guard/room.go", `case <-time.After(saveWait):`, `case <-time.After(100 * saveWait):`, "./site/guard", "TestRoomsOnADiskThatDoesNotAnswer"},

	// Whose files are held.
	{"another-jobs-process-is-a-client", "G2 G3", "site/guard/clients.go", `|| slices.ContainsFunc(jobs, another) ||`, `|| jobs == nil && another(0) ||`, "./site/guard", "TestWhoIsAdmitted"},
	{"another-users-process-is-a-client", "G3", "site/guard/clients.go", `case err != nil || !ok || uid != g.UID:`, `case err != nil || !ok || uid+1 == 0:`, "./site/guard", "TestWhoIsAdmitted TestAnotherUsersProcessIsNoClient"},
	{"a-reused-pid-is-a-client", "I2 G3", "site/guard/clients.go", `case pollable(pidfd): // what was read`, `case pidfd < 0: // what was read`, "./site/guard", "TestAProcessThatEndsIsNotAdmitted"},
	{"roots-processes-are-looked-at", "G2", "site/guard/clients.go", `!ok || effective != g.UID {`, `!ok || effective == 1<<31 {`, "./site/guard", "TestRootsProcessesAreNoCandidates"},
	{"a-server-is-a-client", "G2", "site/guard/clients.go", `case g.isDaemon(stat.Parent):`, `case stat.Parent < 0:`, "./site/guard", "TestAServerIsNotAdmitted"},
	{"a-guard-is-a-client", "G2", "site/guard/clients.go", ` || g.kernel.sameProgram(g.kernel.self, pid):`, `:`, "./site/guard", "TestAGuardIsNoClient"},
	{"files-without-a-bound", "security", "site/guard/clients.go", `if g.files >= maxFiles && !g.makeRoom() {`, `if g.files < 0 && !g.makeRoom() {`, "./site/guard", "TestTheBoundOfFiles"},
	{"control-files-above-memory-files", "G2", "site/guard/clients.go", `if fd >= lowest {`, `if fd >= 0 {`, "./site/guard", "TestAboveControl"},
	{"closed-files-are-not-held", "G2", "site/guard/clients.go", `return
	}
	c.files = slices.DeleteFunc(c.files, func(f *file) bool { return slices.Contains(closed, f) })`, `return
	}
	c.files = slices.DeleteFunc(c.files, func(f *file) bool { return slices.Contains(closed, f) })
	closed = nil`, "./site/guard", "TestAClientThatClosesItsFiles"},

	// Host memory.
	{"host-memory-of-the-dead-is-not-needed", "G2", "site/guard/memory.go", `max(limit/shortPart, needed)`, `max(limit/shortPart, needed/1000)`, "./site/guard", "TestShortOf"},
	{"a-group-without-ranks-is-short", "G2", "site/guard/memory.go", ` && g.kernel.inhabited(group, g.UID) {`, ` {`, "./site/guard", "TestHostShort"},
	{"the-groups-above-are-not-read", "G2", "site/guard/memory.go", `group = filepath.Dir(group) {`, `group = "" {`, "./site/guard", "TestHostShort"},
	{"cached-files-are-memory", "G2", "site/guard/memory.go", `used - min(used, fileCache(group))`, `used`, "./site/guard", "TestGroupMemory"},

	// The process that duplicates files.
	{"a-taker-believes-the-file", "G3", "site/guard/taker.go", `|| identityOf(&st) != r.Wanted {`, `{`, "./site/guard", "TestTakers"},
	{"a-taker-sends-another-file", "G3", "site/guard/taker.go", `if code != 0 && fd >= 0 {`, `if code != 0 && fd < 0 {`, "./site/guard", "TestTakers"},
	{"stuck-takers-without-number", "security", "site/guard/taker.go", `if t.stuck.Load() >= maxStuck {`, `if t.stuck.Load() >= 1000*maxStuck {`, "./site/guard", "TestTakersThatDoNotAnswer"},

	// Processes outside of MPS.
	{"one-pipe-is-enough", "K4", "site/guard/verify.go", `if shared >= clientPipes {`, `if shared > 0 {`, "./site/guard", "TestAProcessOutsideOfMPS"},
	{"reported-at-the-first-check", "K4", "site/guard/verify.go", `if !c.missed {`, `if c.missed {`, "./site/guard", "TestAProcessOutsideOfMPS"},
	{"a-client-is-named", "K4", "site/guard/verify.go", `if servers[pipe] {`, `if !servers[pipe] {`, "./site/guard", "TestAProcessOutsideOfMPS"},
	{"a-list-without-end", "security", "site/guard/verify.go", `if len(g.state.Outside) < maxOutside {`, `if maxOutside > 0 {`, "./site/guard", "TestTheListOfProcessesOutsideIsBounded"},

	// The guard itself.
	{"a-guard-outlives-its-lease", "G1", "site/guard/guard.go", `g.unleased = !g.Leased()`, `g.unleased = false`, "./site/guard", "TestAGuardWithoutALeaseEnds"},
	{"looks-without-a-rest", "security", "site/guard/guard.go", `restLooks*(computed()-before)`, `0*(computed()-before)`, "./site/guard", "TestALookThatTakesLong"},
	{"a-log-without-end", "security", "site/guard/guard.go", `g.lines > maxLines {`, `g.lines < 0 {`, "./site/guard", "TestTheLogIsBounded"},
}
