// SPDX-License-Identifier: Apache-2.0

package main

// faults is the list of faults, by package. Each fault either passed all tests once, or breaks a promise that a
// user's or a node's safety needs.
var faults = []fault{
	// The records.
	{"another-boot-counts", "R4", "site/lease/files.go", `if head.Boot != boot {`, `if false {`, "./site/lease", "TestBadRecords TestAClaimOfAnEarlierBootHoldsNothing"},
	{"any-schema", "R5", "site/lease/files.go", `if head.Schema != Schema {`, `if false {`, "./site/lease", "TestBadRecords"},
	{"a-record-of-another-job", "R5", "site/lease/store.go", `if l.Job.ID != job {`, `if false {`, "./site/lease", "TestBadRecords"},
	{"a-record-of-another-user", "R5", "site/rootfile.go", `case st.Uid != 0:`, `case st.Uid == 1<<31:`, "./site/lease", "TestBadRecords"},
	{"a-record-that-others-write", "R5", "site/rootfile.go", `case st.Mode&0o022 != 0:`, `case false:`, "./site/lease", "TestBadRecords"},
	{"a-record-behind-a-link", "R5", "site/rootfile.go", `unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK`, `unix.O_RDONLY|unix.O_NONBLOCK`, "./site/lease", "TestBadRecords"},
	{"a-lease-is-written-in-place", "R3", "site/lease/files.go", `temporary := temporaryOf(path)`, `temporary := path`, "./site/lease", "TestARecordIsWholeOrAbsent"},
	{"two-holders", "R6", "site/lease/store.go", `if held && holder != job {`, `if held && holder != job && false {`, "./site/lease", "TestADeviceHasOneHolder"},
	{"a-claim-without-a-lease-holds", "R6", "site/lease/store.go", "return 0, false, nil\n\t}\n\treturn c.Job, true, nil", "return c.Job, true, nil\n\t}\n\treturn c.Job, true, nil", "./site/lease", "TestAClaimWithoutALeaseHoldsNothing"},
	{"an-unreadable-lease-holds-nothing", "R6", "site/lease/store.go", "if errors.Is(err, ErrNotFound) || errors.Is(err, ErrStaleBoot) {\n\t\treturn 0, false, nil\n\t}\n\treturn c.Job", "if err != nil {\n\t\treturn 0, false, nil\n\t}\n\treturn c.Job", "./site/lease", "TestALeaseThatCannotBeReadHoldsItsDevices"},
	{"anothers-claim-is-removed", "R6", "site/lease/store.go", `errors.Is(err, ErrNotFound) || err == nil && c.Job != job`, `errors.Is(err, ErrNotFound)`, "./site/lease", "TestForgetLeavesWhatIsAnothersByNow"},
	{"a-claim-is-left", "R1", "site/lease/store.go", `return errors.Join(err, j.forget(l.Job.ID, uuids(l)))`, `return err`, "./site/lease", "TestADeviceHasOneHolder"},
	{"an-open-lease-opens-again", "R12", "site/lease/phase.go", `if !l.Phase.mayFollow(next) {`, `if false {`,
		"./site/lease", "TestAPhaseFollowsOnlyWhatItMay"},
	{"a-lock-that-no-one-sees", "R7", "site/lease/files.go", `if sameFile(file, path) {`, `if true {`, "./site/lease", "TestOneHolderOfALockWhoseFileIsRemoved"},
	{"a-ticket-for-all", "security", "site/lease/store.go", `0o640, int(t.Job.GID)`, `0o644, int(t.Job.GID)`, "./site/lease", "TestALeaseFromIntentToOblivion"},
	{"the-group-enters-the-folders", "security", "site/lease/jobdirs.go", "if err := mkdir(path, l.Job.UID, l.Job.GID, 0o700)", "if err := mkdir(path, l.Job.UID, l.Job.GID, 0o750)", "./site/lease", "TestFoldersGoWithoutFollowingALink"},
	{"a-box-that-runs-programs", "security", "site/lease/jobdirs.go", `unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC`, `unix.MS_NOSUID|unix.MS_NODEV`, "./cmd", "TestHostileHardLinks"},
	{"state-of-a-user", "security", "site/lease/store.go", `.Uid; owner != 0 {`, `.Uid; owner == 1<<31 && owner != 0 {`, "./cmd", "TestHostileFolderOfState"},

	// Processes.
	{"a-pid-is-a-process", "I2", "site/proc/stat.go", `return stat.Process == p && !dead(`, `return stat.PID == p.PID && !dead(`, "./site/lease", "TestActing"},
	{"a-dead-first-thread-is-an-end", "I2", "site/proc/stat.go", `threads <= 1 }`, `true }`, "./cmd", "TestHostileDaemonThatLooksDead"},
	{"an-environment-without-end", "H1", "site/proc/memory.go", `case total >= MaxBytes || hold`, `case hold`, "./site/proc", "TestSearch"},
	{"a-user-reads-all-the-time", "H1", "site/proc/readers.go", `return r.left[p] == 0 && `, `return `, "./site/proc", "TestProcessesThatHoldUpTheirReaders"},
	{"readers-without-number", "H1", "site/proc/readers.go", ` && r.running < limit`, ``, "./site/proc", "TestReadersHaveABound"},
	{"a-name-is-family", "I3", "site/mps/processes.go", `case environment.Values[pipeVariable] != l.daemon.PipeDir, !runBy`, `case !runBy`, "./cmd", "TestHostileProcesses/a_daemon_of_another_job_of_the_user's"},
	{"a-set-user-id-program-is-family", "I3", "site/mps/processes.go", `!= l.daemon.PipeDir, !runBy(p.PID, l.uid):`, `!= l.daemon.PipeDir:`, "./cmd", "TestHostileProcesses"},

	// The control program.
	{"no-death-signal", "D1", "site/mps/fork.go", `unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL)`, `unix.PR_SET_PDEATHSIG, uintptr(0)`, "./cmd", "TestTheControlProgramEndsWithItsParent"},
	{"descriptors-are-inherited", "D1", "site/mps/fork.go", "im.closeRest()\n\tif !im.asIs", "if !im.asIs", "./site/mps", "TestNoFileIsInherited"},
	{"roots-groups", "D1", "site/mps/fork.go", `unix.SYS_SETGROUPS, uintptr(im.nGroups)`, `unix.SYS_GETGROUPS, uintptr(0)`, "./cmd", "TestHostileDescriptors"},
	{"few-files", "D1", "site/mps/files.go", `Cur: max(limit.Cur, EnoughFiles)`, `Cur: min(limit.Cur, 1024)`, "./cmd", "TestAJobsLife"},
	{"the-daemon-dies-first", "D1", "site/mps/start.go", `[]byte("0"), 0)`, `[]byte("7"), 0)`, "./cmd", "TestAJobsLife"},
	{"a-question-without-end", "D3", "site/mps/query.go", `askDeadline = 5 * time.Second`, `askDeadline = 500 * time.Second`, "./site/mps", "TestBoundsOfAQuestion"},
	{"a-question-for-ever", "D3", "site/mps/query.go", `askTries    = 6`, `askTries    = 9`, "./site/mps", "TestBoundsOfAQuestion"},
	{"a-ceiling-is-believed", "D4", "site/mps/query.go", `> 0.0501 {`, `> 100 {`, "./site/mps", "TestReadBack"},
	{"the-daemon-is-in-no-group", "D5", "site/mps/fork.go", `if group != "" && !im.asIs {`, `if false {`, "./cmd", "TestHostileDaemonThatForks"},
	{"what-a-daemon-started-lives-on", "D5", "epilog/end.go", `errors.Join(err, c.emptyGroup(ctx, d))`, `err`, "./cmd", "TestHostileDaemonThatForks"},

	// The prolog.
	{"a-mode-is-believed", "M1", "prolog/open.go", "if mode != held.NewMode {\n\t\t\treturn", "if false {\n\t\t\treturn", "./cmd", "TestAPrologThatFailsLeavesNothing/the_mode_is_accepted_and_not_set"},
	{"out-of-service-is-used", "M3", "prolog/open.go", `if err == nil && mode == site.ModeProhibited {`, `if false {`, "./cmd", "TestAPrologThatFailsLeavesNothing/an_admin_took_the_GPU_out_of_service"},
	{"a-failure-is-not-undone", "R1", "prolog/open.go", "if undone := o.undo(l); undone != nil {\n\t\treturn dirtyError{errors.Join(err, undone)}\n\t}\n\treturn err\n}\n\n// trialTime", "return err\n}\n\n// trialTime", "./cmd", "TestAPrologThatFailsLeavesNothing/the_daemon_dies_at_its_start"},

	// The epilog.
	{"a-restored-mode-is-believed", "M1", "epilog/modes.go", "if mode != held.OriginalMode {\n\t\treturn fmt", "if false {\n\t\treturn fmt", "./cmd", "TestAnEpilogThatCannotRestoreAMode/it_is_accepted_and_not_done"},
	{"an-admins-mode-is-lost", "M2", "epilog/modes.go", `if mode != held.NewMode {`, `if false {`, "./cmd", "TestModesBefore"},
	{"the-default-is-restored", "M2", "epilog/modes.go", `c.GPUs.SetMode(held.UUID, held.OriginalMode)`, `c.GPUs.SetMode(held.UUID, site.ModeDefault)`, "./cmd", "TestModesBefore/exclusive_thread_before"},
	{"anothers-mode-is-changed", "M2", "epilog/modes.go", `if taken && holder != job {`, `if taken && holder != job && false {`, "./cmd", "TestAnEpilogAgainWhenTheGPUIsAnothers"},
	{"a-lease-goes-too-early", "R1", "epilog/epilog.go", "if failed == nil {\n\t\tfailed = forget", "if true {\n\t\tfailed = forget", "./cmd", "TestAnEpilogThatCannotRestoreAMode"},
	{"a-mimic-drains", "I3", "epilog/end.go", `if errors.Is(err, site.ErrImpostors) {`, `if false {`, "./cmd", "TestHostileMimicThatDoesNotGo"},
	{"folders-are-left", "R1", "epilog/epilog.go", `failed = errors.Join(failed, c.Store.RemoveDirs(l.Job.ID))`, `failed = errors.Join(failed)`, "./cmd", "TestAJobsLife"},
	{"a-ticket-is-left", "R1", "epilog/epilog.go", `failed := c.Store.RemoveTicket(l.Job.ID)`, `failed := error(nil)`, "./cmd", "TestAJobsLife"},
	{"a-log-behind-a-link", "security", "site/serverlog/serverlog.go", `Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,`, ``, "./epilog", "TestSummarise"},
	{"a-log-of-another-user", "security", "site/serverlog/serverlog.go", `|| st.Uid != uid || st.Nlink != 1`, ``, "./cmd", "TestKeepLogsFollowsNoLink"},

	// What Slurm reports.
	{"a-script-in-the-wrong-place", "exit", "site/slurm/job.go", `if Context(got) != want {`, `if false {`, "./site/slurm", "TestReadJobRefuses"},
	{"control-characters-in-names", "security", "site/slurm/job.go", `return r < ' ' || r == 0x7f`, `return false`, "./site/slurm", "TestReadJobRefuses"},
	{"a-doubtful-order-is-guessed", "I1", "site/slurm/resolve.go", "case !complete && len(places) < len(listed):", "case !complete && len(places) < 0:", "./site/slurm", "TestPickPlaces"},
	{"two-types-are-guessed", "I1", "site/slurm/resolve.go", `if len(types) < 2 {`, `if true {`, "./site/slurm", "TestResolveRefuses"},

	// Shares and the policy.
	{"a-share-is-cut", "docs", "policy/divide.go", `*100_000_000 + int64(g.SMs) - 1) /`, `*100_000_000) /`, "./policy", "TestPercentOfInvertsAndIsTheSmallest"},
	{"a-share-in-parts-of-a-tpc", "docs", "policy/divide.go", `max(sms-sms%g.SMsPerTPC, g.minShare())`, `max(sms, g.minShare())`, "./policy", "TestSMsAtIsTheRecordedSweep"},
	{"above-the-rules-options", "docs", "policy/options.go", `if !slices.Contains(allow, s.Name) {`, `if false {`, "./policy", "TestNarrow"},
	{"more-than-is-given", "docs", "policy/grant.go", `if given.Share != ShareNone && factor > given.Overlap {`, `if false {`, "./policy", "TestNarrow"},
	{"no-memory-beside-the-context", "docs", "policy/memory.go", `if limit <= contextMiB {`, `if false {`, "./policy", "TestMemoryEachRefuses"},
	{"two-triggers", "docs", "policy/policyfile/policyfile.go", `if len(d.triggers) > 1 {`, `if false {`, "./policy/policyfile", "TestCorpus/bad-two-triggers"},
	{"two-rules-of-one-name", "docs", "policy/policyfile/policyfile.go", `if first, twice := seen[name]; twice {`, `if first, twice := seen[name]; twice && false {`, "./policy/policyfile", "TestCorpus/bad-duplicate-rule"},
}
