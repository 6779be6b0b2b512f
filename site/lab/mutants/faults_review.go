// SPDX-License-Identifier: Apache-2.0

package main

// faultsOfReview are faults that passed the tests when others than the authors planted them, and those of clauses that
// had none.
var faultsOfReview = []fault{
	// Processes.
	{"a-signal-before-the-start-time", "I2", "site/proc.go", "if !p.Running() {\n\t\treturn nil\n\t}\n\tif err := unix.PidfdSend", "if p.PID < 0 {\n\t\treturn nil\n\t}\n\tif err := unix.PidfdSend", "./site", "TestKillOfAnotherProcess"},
	{"a-signal-to-what-left-the-group", "I2 D5", "site/cgroup/cgroup.go", `if slices.Contains(second, p.PID) {`, `if slices.Contains(first, p.PID) || second == nil {`, "./site/cgroup", "TestAProcessThatLeftTheGroup"},
	{"a-threaded-group-is-used", "D5", "site/cgroup/cgroup.go", `!= "domain" {`, `== "" {`, "./site/cgroup", "TestAThreadedGroupIsNotUsed"},

	// The daemon.
	{"a-daemon-in-the-prologs-folder", "D1", "site/mps/fork.go", `syscall.RawSyscall6(unix.SYS_CHDIR,`, `syscall.RawSyscall6(unix.SYS_SCHED_YIELD,`, "./site/mps", "TestWhatAControlProgramHas"},
	{"the-prologs-signal-mask", "D1", "site/mps/fork.go", `unix.SIG_SETMASK, uintptr(unsafe.Pointer(&im.none))`, `unix.SIG_SETMASK, uintptr(unsafe.Pointer(&im.mask))`, "./site/mps", "TestWhatAControlProgramHas"},
	{"the-prologs-ignored-signals", "D1", "site/mps/fork.go", `for signal := uintptr(1); signal <= lastSignal; signal++ {`, `for signal := uintptr(lastSignal); signal <= lastSignal; signal++ {`, "./site/mps", "TestWhatAControlProgramHas"},
	{"the-prologs-session", "D1", "site/mps/fork.go", `syscall.RawSyscall6(unix.SYS_SETSID,`, `syscall.RawSyscall6(unix.SYS_SCHED_YIELD,`, "./site/mps", "TestWhatAControlProgramHas"},
	{"a-path-that-is-too-long", "D2", "site/mps/mps.go", `if len(longest) >= sunPath {`, `if len(longest) > sunPath {`, "./site/mps", "TestCheckPath"},
	{"any-number-of-clients", "security", "site/mps/query.go", `if len(clients) > maxClients {`, `if len(clients) < 0 {`, "./site/mps", "TestTooManyClients"},

	// The prolog.
	{"a-refusal-drains", "exit", "prolog/open.go", "if !failedAsUser(err) {\n\t\treturn outcome(err)\n\t}\n\trefusal", "if err != nil {\n\t\treturn outcome(err)\n\t}\n\trefusal", "./prolog", "TestADaemonThatFailsAsTheUserAloneRefusesTheJob"},
	{"a-broken-node-refuses", "exit", "prolog/open.go", `return errors.As(err, &user) && !isDirty(err)`, `return err != nil && user == nil && !isDirty(err)`, "./prolog", "TestALeaseWithoutATicketIsUndone"},
	{"a-group-that-no-lease-names", "R2 D5", "prolog/open.go", `LogDir: filepath.Join(dir, "log"), Group: o.groupOf(v.job.ID, n),`, `LogDir: filepath.Join(dir, "log"),`, "./prolog", "TestALeaseNamesWhatIsUndone"},
	{"a-mode-is-not-read-again", "M2", "prolog/open.go", `l.Held[i].OriginalMode = mode`, `l.Held[i].OriginalMode = min(mode, held.OriginalMode, "a")`, "./prolog", "TestAModeIsReadAgainWhenTheGPUIsClaimed"},
	{"a-trial-restores-modes", "M2", "prolog/open.go", `l.Held[i].OriginalMode, l.Held[i].NewMode, l.Held[i].JobFile = "", "", ""`, `l.Held[i].JobFile = ""`, "./prolog", "TestATrialChangesNoMode"},
	{"an-undo-without-end", "T1", "prolog/open.go", `context.WithTimeout(context.Background(), undoTime)`, `context.WithCancel(context.Background())`, "./prolog", "TestAnUndoHasItsOwnTime"},
	{"a-step-has-all-the-time", "T1", "site/deadline.go", `time.Until(deadline)/3`, `time.Until(deadline)`, "./site", "TestAtMostThird"},

	// The epilog.
	{"an-epilog-ends-an-epilog", "R7", "epilog/epilog.go", `if busy.Closing {`, `if busy.Closing && busy.Holder.PID < 0 {`, "./epilog", "TestWhatAnEpilogEnds"},
	{"an-epilog-forgets-the-guard", "G1", "epilog/epilog.go", `failed = errors.Join(failed, c.Guards.End(ctx, l.Job.ID))`, `_ = c.Guards.End(ctx, l.Job.ID)`, "./epilog", "TestAGuardThatDoesNotEndKeepsTheLease"},
	{"a-report-for-all", "U2", "site/usage/file.go", `0o640, gid)`, `0o644, gid)`, "./epilog", "TestWhoReadsAKeptReport"},
	{"reports-of-any-age", "U2", "epilog/report.go", `maxReportAge = 30 * 24 * time.Hour`, `maxReportAge = 31 * 24 * time.Hour`, "./epilog", "TestReportsAreBounded"},
	{"reports-without-an-end", "U2", "epilog/report.go", `prune(folder, maxReports, maxReportAge)`, `prune(folder, maxReports, 0)`, "./epilog", "TestReportsAreBounded"},
	{"any-number-of-reports", "U2", "epilog/report.go", `prune(folder, maxReports, maxReportAge)`, `prune(folder, 100*maxReports, maxReportAge)`, "./epilog", "TestReportsAreBounded"},
	{"reports-in-a-users-folder", "U2", "epilog/report.go", "dir, err := site.OpenFolder(folder)", "_ = site.OpenFolder\n\tdir, err := os.Open(folder)", "./epilog", "TestReportsInAFolderOfAUser"},
	{"a-job-file-of-another-job", "R13", "site/lease/jobfile.go", `case string(content) != string(jobLine(job)):`, `case len(content) == 0:`, "./epilog", "TestJobFiles"},
	{"a-job-file-of-the-next-holder", "R13", "epilog/jobfiles.go", `taken && holder != l.Job.ID {`, `taken && holder == 0 {`, "./epilog", "TestJobFileOfAGPUThatAnotherJobHolds"},
	{"a-job-file-in-any-folder", "R13", "site/lease/jobfile.go", `site.OpenTrustedFolder(folder)`, `site.OpenFolder("/" + folder[:0])`, "./epilog", "TestJobFilesInAFolderOfOthers"},

	// What is kept, and what is left.
	{"a-users-copy-of-the-policy", "R11", "policy/policyfile/kept.go", "content, err = site.ReadRootOwned(path)", "content, err = os.ReadFile(path)", "./policy/policyfile", "TestACopyThatRootDidNotWrite"},
	{"a-copy-at-each-prolog", "R11", "policy/policyfile/kept.go", `bytes.Equal(kept, content) {`, `bytes.Equal(kept, content) && name == "" {`, "./policy/policyfile", "TestACopyIsWrittenOnce"},
	{"a-copy-for-all", "R11", "policy/policyfile/kept.go", `content, 0o600)`, `content, 0o644)`, "./policy/policyfile", "TestACopyIsWrittenOnce"},
	{"anothers-folder-proves-a-job", "R8", "site/reap/reap.go", `info.Sys().(*syscall.Stat_t).Uid == p.UID`, `info.Sys().(*syscall.Stat_t).Uid != 0`, "./site/reap", "TestWhoseProcessItIs"},
	{"any-folder-proves-a-job", "R8", "site/reap/reap.go", ` || p.PipeDir != filepath.Join(r.store.DaemonDir(uint32(id), int(n)), "pipe") {`, ` || n > 1<<15 {`, "./site/reap", "TestWhoseProcessItIs"},
	{"a-step-is-no-sign", "R8", "site/reap/reap.go", "case sign != \"\":\n\t\treturn line.leave(\"Slurm", "case sign == \"-\":\n\t\treturn line.leave(\"Slurm", "./site/reap", "TestWhichLeasesAreClosed"},
	{"an-open-lease-is-reaped", "R8", "site/reap/reap.go", "case named:\n\t\treturn line.act(Close", "case l.Job.ID > 0:\n\t\treturn line.act(Close", "./site/reap", "TestWhichLeasesAreClosed"},
	{"reap-beside-an-epilog", "R8", "site/reap/reap.go", `acting && holder != r.self {`, `acting && holder.PID < 0 {`, "./site/reap", "TestAJobThatAnotherProgramWorksOn"},

	// The guard's program.
	{"a-guard-that-no-one-finds", "G1", "cmd/internal/guard/guard.go", `if !lock.Signed() {`, `if lock == nil {`, "./cmd/internal/guard", "TestWhichJobsAreGuarded"},
	{"a-guard-of-a-closing-lease", "G1", "cmd/internal/guard/guard.go", `case err == nil && l.Phase == lease.Closing:`, `case err == nil && l.Phase == "":`, "./cmd/internal/guard", "TestWhichJobsAreGuarded"},
	{"a-torn-lease-ends-the-guard", "G1", "cmd/internal/guard/guard.go", `return !errors.Is(err, lease.ErrNotFound) && !errors.Is(err, lease.ErrStaleBoot)`, `return err == nil`, "./cmd/internal/guard", "TestTheLeaseOfARunningGuard"},
	{"a-daemon-that-starts-late-is-not-known", "G2", "cmd/internal/guard/guard.go", `if d.Proc.PID == 0 {`, `if d.Proc.PID < 0 {`, "./cmd/internal/guard", "TestTheLeaseOfARunningGuard"},
	{"a-guard-that-does-not-end", "G1", "site/guard/control.go", `{unix.SIGKILL, killWait}}`, `{unix.SIGTERM, killWait}}`, "./cmd", "TestAGuardThatIsStopped"},

	// The recorder.
	{"a-job-is-recorded-all-the-same", "U1", "cmd/internal/hook/usage.go", `if facts.UsageInterval == 0 {`, `if facts.UsageInterval < 0 {`, "./cmd/internal/hook", "TestAJobIsNotRecorded"},
	{"a-recorder-before-the-job", "U1", "cmd/internal/hook/usage.go", `unix.Setpriority(unix.PRIO_PROCESS, id, modestNice)`, `unix.Setpriority(unix.PRIO_PROCESS, id, -modestNice)`, "./cmd/internal/hook", "TestTheRecorderIsModest"},
	{"a-recorder-that-is-never-killed", "U1", "cmd/internal/hook/usage.go", `os.WriteFile("/proc/self/oom_score_adj", []byte("0"), 0)`, `os.WriteFile("/proc/self/oom_score_adj", []byte("10"), 0)`, "./cmd/internal/hook", "TestTheRecorderIsModest"},
	{"faults-without-number", "U2", "cmd/internal/record/record.go", `&& len(r.report.Faults) < usage.MaxFaults {`, `&& usage.MaxFaults > 0 {`, "./cmd/internal/record", "TestFaultsAreBounded"},
	{"a-whole-log-at-once", "U1", "cmd/internal/record/faults.go", `maxLogPiece = 1 << 20`, `maxLogPiece = 1 << 40`, "./cmd/internal/record", "TestAPieceOfTheLog"},

	// Ranks.
	{"a-daemon-that-is-gone", "K1", "mpirun-wrap/ready.go", `if !s.Daemon.Proc.Running() {`, `if s.Daemon.Proc.PID < 0 {`, "./mpirun-wrap", "TestCheckAsksTheNode"},
	{"any-file-is-a-socket", "K1", "mpirun-wrap/ready.go", `if info.Mode().Type() != fs.ModeSocket {`, `if info.Mode().Type() == fs.ModeDevice {`, "./mpirun-wrap", "TestCheckAsksTheNode"},
	{"a-wait-that-no-log-ends", "K2", "mpirun-wrap/ready.go", `if f.server == 0 {`, `if f.server < 0 {`, "./mpirun-wrap", "TestAWaitEndsByTheLog"},
	{"a-wait-of-five-minutes", "K2", "mpirun-wrap/ready.go", `recovery     = 30 * time.Second`, `recovery     = 300 * time.Second`, "./mpirun-wrap", "TestHowLongARankWaitsForAServer"},
	{"every-rank-says-it", "K2", "mpirun-wrap/ready.go", `unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY`, `unix.O_CREAT|unix.O_WRONLY`, "./mpirun-wrap", "TestOneRankOfALaunchSaysIt"},
	{"a-rank-without-mps-has-its-variables", "K3", "mpirun-wrap/ready.go", `strings.HasPrefix(entry, "CUDA_MPS_")`, `strings.HasPrefix(entry, "CUDA_MPS_P")`, "./mpirun-wrap", "TestTheEnvironmentWithoutMPS"},
	{"without-mps-on-an-exclusive-gpu", "K3", "cmd/internal/wrap/ready.go", `if h.placement.Ticket.Exclusive {`, `if h.placement.Ticket.Exclusive && err == nil {`, "./cmd/internal/wrap", "TestWhichRankRunsWithoutMPS"},
	{"without-mps-against-the-policy", "K3", "cmd/internal/wrap/ready.go", `|| !h.placement.Ticket.RunWithoutMPS {`, `{`, "./cmd/internal/wrap", "TestWhichRankRunsWithoutMPS"},
	{"a-wrapper-with-the-set-group-id-bit", "K5", "cmd/internal/wrap/wrap.go", ` || os.Getegid() != os.Getgid() {`, ` {`, "./mpirun-wrap", "TestAWrapperWithTheSetUserIDBit"},
	{"another-code-of-a-missing-program", "exit", "mpirun-wrap/exec.go", `notFound      = 127`, `notFound      = 126`, "./mpirun-wrap", "TestTheProgramsExitIsTheRanks"},
	{"a-slot-behind-a-second-name", "K6 security", "mpirun-wrap/slots.go", `if st.Nlink != 1 {`, `if st.Nlink < 1 {`, "./mpirun-wrap", "TestASlotsFileWithAnotherName"},
	{"slots-of-any-number", "K6", "mpirun-wrap/slots.go", "if file == nil {\n\t\t\treturn fmt", "if file == nil {\n\t\t\tcontinue\n\t\t}\n\t\tif n < 0 {\n\t\t\treturn fmt", "./mpirun-wrap", "TestSlotsOfAnotherNumber"},
	{"the-fullest-gpu-first", "K6", "mpirun-wrap/slots.go", `taken[gpu] < taken[t.gpus[best]]`, `taken[gpu] > taken[t.gpus[best]]`, "./mpirun-wrap", "TestWhichSlotIsTaken"},
	{"a-slot-on-a-gpu-that-cannot-be-opened", "K6", "mpirun-wrap/slots.go", `slices.Contains(t.usable, gpu) &&`, `slices.Contains(t.gpus, gpu) &&`, "./mpirun-wrap", "TestWhichSlotIsTaken"},
	{"a-slot-in-a-slot", "K6", "mpirun-wrap/slots.go", `case t.family[holder]:`, `case t.family[-1-holder]:`, "./mpirun-wrap", "TestASlotInASlot"},
	{"a-slot-of-a-child-is-free", "K6", "mpirun-wrap/slots.go", `unix.FcntlInt(file.Fd(), unix.F_DUPFD, slotFD)`, `unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, slotFD)`, "./mpirun-wrap", "TestASlotOfAChild"},
	{"gpu-options-of-a-confined-task", "docs", "mpirun-wrap/gpu_select.go", `if confined {`, `if confined && len(devices) == 0 {`, "./mpirun-wrap", "TestATaskThatIsConfinedToItsGPU"},
	{"a-task-prolog-that-fails", "K7", "cmd/internal/wrap/taskprolog.go", "fmt.Fprintf(p.Out, \"print slurm-mps: %.500s\\n\", site.OneLine(err))\n\t\t}", "fmt.Fprintf(p.Out, \"print slurm-mps: %.500s\\n\", site.OneLine(err))\n\t\t\treturn cli.ExitWrapperFailed\n\t\t}", "./cmd/internal/wrap", "TestATaskWithoutMPS"},
	{"every-task-says-why", "K7", "cmd/internal/wrap/taskprolog.go", `err != nil && env["SLURM_LOCALID"] == "0" {`, `err != nil {`, "./cmd/internal/wrap", "TestATaskWithoutMPS"},
	{"a-job-without-mps-is-told", "K7", "cmd/internal/wrap/taskprolog.go", `return nil // the job has no MPS`, `return err`, "./cmd/internal/wrap", "TestATaskWithoutMPS"},

	// Ranks that wait for room.
	{"a-rank-waits-for-no-room", "G2", "mpirun-wrap/room.go", `if err != nil || !full {`, `if err != nil || !full || gpu.Dead > 0 {`, "./mpirun-wrap", "TestHowLongARankWaitsForRoom"},
	{"a-rank-waits-longer-than-hold", "G2", "mpirun-wrap/room.go", `if !time.Now().Before(gpu.Until) {`, `if gpu.Until.IsZero() {`, "./mpirun-wrap", "TestHowLongARankWaitsForRoom"},
	{"a-rank-waits-for-another-gpu", "G2", "mpirun-wrap/room.go", `if own.Device.Minor == gpu.Minor {`, `if own.Device.Minor >= 0 {`, "./mpirun-wrap", "TestHowLongARankWaitsForRoom"},
	{"a-rank-waits-for-its-first-gpu-only", "G2", "mpirun-wrap/room.go", `range append([]GPUShare{s.GPUShare}, s.OtherGPUs...) {`, `range append([]GPUShare{s.GPUShare}, s.OtherGPUs[:0]...) {`, "./mpirun-wrap", "TestHowLongARankWaitsForRoom"},
	{"a-short-wait-is-told", "docs", "mpirun-wrap/room.go", `waits != nil && waited > tellRoom {`, `waits != nil && waited >= 0 {`, "./mpirun-wrap", "TestHowLongARankWaitsForRoom"},
	{"a-wait-is-told-again-and-again", "docs", "mpirun-wrap/room.go", "\t\t\twaits = nil\n", "", "./mpirun-wrap", "TestHowLongARankWaitsForRoom"},
	{"a-wait-without-a-line-fails", "K7", "mpirun-wrap/room.go", `waits != nil && waited`, `waited`, "./mpirun-wrap", "TestAWaitForRoomWithoutALine"},
	{"a-rank-that-waits-does-not-end", "K5", "mpirun-wrap/room.go", `site.Sleep(ctx, roomPause)`, `site.Sleep(context.WithoutCancel(ctx), roomPause)`, "./mpirun-wrap", "TestHowLongARankWaitsForRoom"},
	{"no-wrapper-waits-for-room", "G2", "cmd/internal/wrap/ready.go", `if read := roomOf(paths, h.placement); read != nil {`, `if read := roomOf(paths, h.placement); read != nil && h.p.PID == 0 {`, "./cmd/internal/wrap", "TestRanksWaitForRoom"},
	{"every-rank-says-that-it-waits", "docs", "cmd/internal/wrap/ready.go", `if h.first("room") {`, `if h.first("room") || len(what) > 0 {`, "./cmd/internal/wrap", "TestRanksWaitForRoom"},
	{"no-task-waits-for-room", "G2 K7", "cmd/internal/wrap/taskprolog.go", `if read := roomOf(paths, placement); read != nil {`, `if read := roomOf(paths, placement); read == nil {`, "./cmd/internal/wrap", "TestATaskWaitsForRoom"},
	{"every-task-says-that-it-waited", "K7", "cmd/internal/wrap/taskprolog.go", `waited > time.Second && env["SLURM_LOCALID"] == "0" {`, `waited > time.Second {`, "./cmd/internal/wrap", "TestATaskWaitsForRoom"},
}
