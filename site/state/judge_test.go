// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/clientenv"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
)

const (
	gpuA = site.UUID("GPU-aaaaaaaa-0000-0000-0000-000000000001")
	gpuB = site.UUID("GPU-bbbbbbbb-0000-0000-0000-000000000002")
)

var daemon7 = lease.Daemon{Devices: []site.UUID{gpuA}, PipeDir: "/run/slurm-mps/jobs/7/0/pipe", Proc: proc.Process{PID: 100, Start: 1}}

// good is a node where all is well: job 7 has GPU 0 with two clients of its daemon, and no job has GPU 1.
func good() Node {
	seven, ceiling := uint32(7), 100.0
	ticket := &lease.Ticket{Grant: policy.Grant{Share: policy.Overlap(1), Ceiling: 100}}
	mib := 4096
	client := func(pid int) Client {
		return Client{PID: pid, Command: "lmp", Server: 101, Percent: policy.PercentFrom(50), SMs: 66, MemoryMiB: &mib}
	}
	return Node{
		Root: true, run: "/run/slurm-mps", driverAnswered: true,
		Jobs: []Job{{
			ID: 7, User: "hpc1", UID: 2001, Rule: "mps", Phase: Opened, leased: true, dir: true, ticket: ticket,
			Share: "even", Memory: "even", Ceiling: policy.PercentFrom(100),
			Devices: []Held{{UUID: gpuA, Set: site.ModeExclusiveProcess, Clients: []Client{client(200), client(201)}}},
			Daemons: []Daemon{{
				PID: 100, Devices: daemon7.Devices, PipeDir: daemon7.PipeDir, State: Serves, Ceiling: &ceiling,
				Servers: []mps.Server{{PID: 101, Status: "ACTIVE", Percent: 100}}, record: daemon7,
			}},
		}},
		GPUs: []GPU{
			{Index: 0, UUID: gpuA, SMs: 132, tpc: 2, Mode: site.ModeExclusiveProcess, Holder: &seven, Held: true, Processes: []Process{
				{101, kindServer, "nvidia-cuda-mps", 0}, {200, KindClient, "lmp", 0}, {201, KindClient, "lmp", 0},
			}},
			{Index: 1, UUID: gpuB, SMs: 132, tpc: 2, Mode: site.ModeDefault, Processes: []Process{}},
		},
		census: []mps.Process{
			{Process: daemon7.Proc, UID: 2001, Role: mps.RoleDaemon, PipeDir: daemon7.PipeDir},
			{Process: proc.Process{PID: 101, Start: 2}, UID: 2001, Parent: 100, Role: mps.RoleServer, PipeDir: daemon7.PipeDir},
		},
	}
}

// recorded adds job 8, which runs on GPU 1 without MPS.
func recorded(j Job) func(*Node) {
	j.ID, j.Phase, j.leased, j.dir, j.ticketErr = 8, Recorded, true, true, lease.ErrNotFound
	j.Devices = []Held{{UUID: gpuB}}
	return func(n *Node) {
		n.Jobs = append(n.Jobs, j)
		n.GPUs[1].Processes = []Process{{300, KindCompute, "python", 0}}
	}
}

// Each thing that goes wrong alone is one finding of its kind, where it is; what only looks like it is none.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(*Node)
		want  string // kind at where, "" for nothing
	}{
		{"all is well", func(*Node) {}, ""},
		{"the mode was changed", func(n *Node) { n.GPUs[0].Mode = site.ModeDefault }, "mode-differs at job 7, GPU 0 (" + string(gpuA) + ")"},
		{"the mode was left alone", func(n *Node) { n.GPUs[0].Mode, n.Jobs[0].Devices[0].Set = site.ModeDefault, "" }, ""},
		{"the mode is not known", func(n *Node) { n.GPUs[0].Mode = "" }, ""},
		{"a GPU fell off the bus", func(n *Node) { n.GPUs = n.GPUs[1:] }, "gpu-missing at job 7, " + string(gpuA)},
		{"the driver did not answer", func(n *Node) { n.GPUs, n.driverAnswered = nil, false }, ""},
		{"an exclusive GPU of no job", func(n *Node) { n.GPUs[1].Mode = site.ModeExclusiveProcess }, "exclusive-without-lease at GPU 1 (" + string(gpuB) + ")"},
		{"an exclusive GPU of a process that only root sees", func(n *Node) { n.GPUs[1].Mode, n.GPUs[1].Held = site.ModeExclusiveProcess, true }, ""},
		{"a prohibited GPU", func(n *Node) { n.GPUs[1].Mode = site.ModeProhibited }, ""},

		{"the daemon ended", daemonIs(Gone), "daemon-gone at job 7, /run/slurm-mps/jobs/7/0/pipe"},
		{"another took its place", daemonIs(Replaced), "daemon-replaced at job 7, /run/slurm-mps/jobs/7/0/pipe"},
		{"it does not serve", daemonIs(NotServing), "daemon-not-serving at job 7, /run/slurm-mps/jobs/7/0/pipe"},
		{"it is wedged", daemonIs(NoAnswer), "daemon-wedged at job 7, /run/slurm-mps/jobs/7/0/pipe"},
		{"it talks nonsense", daemonIs(Unclear), "daemon-unclear at job 7, /run/slurm-mps/jobs/7/0/pipe"},
		{"it was not asked", daemonIs(Alive), ""},
		{"the server is in fault", func(n *Node) { n.Jobs[0].Daemons[0].Servers[0].Status = "FAULT" }, "server-fault at job 7, server pid 101"},
		{"the server starts", func(n *Node) { n.Jobs[0].Daemons[0].Servers[0].Status = "INITIALIZING" }, ""},
		{"a daemon of ours without a lease", func(n *Node) {
			n.census = append(n.census, mps.Process{Process: proc.Process{PID: 300}, UID: 2001, Role: mps.RoleDaemon, PipeDir: "/run/slurm-mps/jobs/6/0/pipe"})
		}, `daemon-without-lease at pid 300, uid 2001, "/run/slurm-mps/jobs/6/0/pipe"`},
		{"another user's daemon", func(n *Node) {
			n.census = append(n.census, mps.Process{Process: proc.Process{PID: 300}, Role: mps.RoleDaemon})
		}, "daemon-not-of-a-lease at pid 300, uid 0, /tmp/nvidia-mps"},
		{"a question of another process", func(n *Node) {
			n.census = append(n.census, mps.Process{Process: proc.Process{PID: 300}, Role: mps.RoleQuery})
		}, ""},
		{"a daemon that cannot be looked into", func(n *Node) {
			n.census = append(n.census, mps.Process{Process: proc.Process{PID: 300}, Role: mps.RoleDaemon, Err: fs.ErrPermission})
		}, ""},

		{"a job is only recorded", recorded(Job{}), ""},
		{"its epilog was lost", recorded(Job{stepless: true}), "lease-without-step at job 8"},
		{"a mode is left on its GPU", func(n *Node) {
			recorded(Job{})(n)
			n.GPUs[1].Mode = site.ModeExclusiveProcess
		}, "exclusive-without-lease at GPU 1 (" + string(gpuB) + ")"},

		{"its prolog is at work", func(n *Node) {
			n.Jobs[0].Phase, n.Jobs[0].Acting, n.GPUs[0].Mode, n.Jobs[0].Daemons[0].State = Opening, 9, site.ModeDefault, NotStarted
		}, ""},
		{"its prolog died", func(n *Node) { n.Jobs[0].Phase = Opening }, "lease-unfinished at job 7"},
		{"its epilog died", func(n *Node) { n.Jobs[0].Phase = closing }, "lease-unfinished at job 7"},
		{"its epilog was killed at once", func(n *Node) { n.Jobs[0].stepless = true }, "lease-without-step at job 7"},
		{"its epilog begins", func(n *Node) { n.Jobs[0].stepless, n.Jobs[0].Acting = true, 9 }, ""},
		{"its lease is torn", func(n *Node) { n.Jobs[0].Phase, n.Jobs[0].err = Unreadable, lease.ErrCorrupt }, "lease-unreadable at job 7"},
		{"a lease that names nothing readable owns its folder", func(n *Node) {
			n.Jobs[0].Phase, n.Jobs[0].err, n.Jobs[0].Daemons = Unreadable, lease.ErrCorrupt, nil
		}, "lease-unreadable at job 7"},
		{"its ticket is gone", func(n *Node) { n.Jobs[0].ticket, n.Jobs[0].ticketErr = nil, lease.ErrNotFound }, "lease-without-ticket at job 7"},
		{"a ticket without a lease", func(n *Node) {
			n.Jobs = append(n.Jobs, Job{ID: 6, Phase: Orphaned, ticket: &lease.Ticket{}})
		}, "ticket-without-lease at job 6"},
		{"a torn ticket without a lease", func(n *Node) {
			n.Jobs = append(n.Jobs, Job{ID: 6, Phase: Orphaned, ticketErr: lease.ErrCorrupt})
		}, "ticket-without-lease at job 6"},
		{"its ticket is torn", func(n *Node) { n.Jobs[0].ticket, n.Jobs[0].ticketErr = nil, lease.ErrCorrupt }, "lease-without-ticket at job 7"},
		{"a refused job", func(n *Node) {
			n.Jobs = append(n.Jobs, Job{ID: 6, Phase: Refused, Refused: "no GPU", ticket: &lease.Ticket{RefusalReason: "no GPU"}})
		}, ""},
		{"a folder without a lease", func(n *Node) {
			n.Jobs = append(n.Jobs, Job{ID: 6, Phase: Orphaned, dir: true, ticketErr: lease.ErrNotFound})
		}, "directory-without-lease at job 6"},
		{"an epilog removes it", func(n *Node) {
			n.Jobs = append(n.Jobs, Job{ID: 6, Phase: Orphaned, dir: true, Acting: 9, ticketErr: lease.ErrNotFound})
		}, ""},

		{"the user lifted the ceiling", func(n *Node) { n.Jobs[0].Ceiling = policy.PercentFrom(50) }, "ceiling-lifted at job 7, /run/slurm-mps/jobs/7/0/pipe"},
		{"the ceiling is what one decimal says of it", func(n *Node) {
			n.Jobs[0].Ceiling, n.Jobs[0].Daemons[0].Servers[0].Percent, *n.Jobs[0].Daemons[0].Ceiling = policy.PercentFrom(33.333334), 33.3, 33.3
		}, ""},
		{"the user lowered it", func(n *Node) { n.Jobs[0].Daemons[0].Servers[0].Percent, *n.Jobs[0].Daemons[0].Ceiling = 20, 20 }, ""},

		{"a process without MPS", func(n *Node) {
			n.GPUs[0].Processes = append(n.GPUs[0].Processes, Process{PID: 300, Kind: KindCompute, Name: "python"})
		}, "process-without-mps at pid 300, job 7, GPU 0 (" + string(gpuA) + ")"},
		{"a process without MPS on a GPU without MPS", func(n *Node) { n.GPUs[1].Processes = []Process{{PID: 300, Kind: KindCompute, Name: "python"}} }, ""},
		{"a client of another daemon", func(n *Node) {
			n.GPUs[0].Processes = append(n.GPUs[0].Processes, Process{PID: 300, Kind: KindClient, Name: "python"})
		}, "client-of-another-daemon at pid 300, job 7, GPU 0 (" + string(gpuA) + ")"},
		{"a client without a share", func(n *Node) { n.Jobs[0].Devices[0].Clients[1].Percent = 0 },
			"client-without-share at pid 201, job 7, GPU 0 (" + string(gpuA) + ")"},
		{"a client whose limits are not known", func(n *Node) {
			c := &n.Jobs[0].Devices[0].Clients[1]
			c.Percent, c.MemoryMiB, c.Unknown = 0, nil, "the process has ended"
		}, ""},
		{"a client alone has the whole GPU", func(n *Node) {
			d := &n.Jobs[0].Devices[0]
			d.Clients = d.Clients[:1]
			d.Clients[0].Percent = 0
			n.GPUs[0].Processes = n.GPUs[0].Processes[:2]
		}, ""},
		{"two clients have the whole GPU each under overlap 2", func(n *Node) {
			n.Jobs[0].ticket.Grant.Share = policy.Overlap(2)
			n.Jobs[0].Devices[0].Clients[0].Percent, n.Jobs[0].Devices[0].Clients[1].Percent = 0, 0
		}, ""},
		{"a rule without shares", func(n *Node) {
			n.Jobs[0].ticket.Grant.Share, _ = policy.ParseShare("none")
			n.Jobs[0].Devices[0].Clients[0].Percent = 0
		}, ""},
		{"a client without a limit of memory", func(n *Node) { n.Jobs[0].Devices[0].Clients[0].MemoryMiB = nil },
			"client-without-memory-limit at pid 200, job 7, GPU 0 (" + string(gpuA) + ")"},
		{"a rule that limits no memory", func(n *Node) { n.Jobs[0].Devices[0].Clients[0].MemoryMiB, n.Jobs[0].Memory = nil, "none" }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := good()
			c.spoil(&n)
			var got []string
			for _, f := range diagnose(n) {
				got = append(got, fmt.Sprintf("%s at %s", f.Kind, f.Where))
				if f.What == "" || f.Fix == "" {
					t.Errorf("%s does not say what, or what to do: %+v", f.Kind, f)
				}
				for step := range strings.SplitSeq(f.Fix, "; ") { // one without a colon is a remark
					if strings.Contains(step, ": ") {
						e2e.CanBePasted(t, step)
					}
				}
			}
			if strings.Join(got, "; ") != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func daemonIs(state daemonState) func(*Node) {
	return func(n *Node) {
		d := &n.Jobs[0].Daemons[0]
		d.State, d.Reason, d.Ceiling, d.Servers = state, "why", nil, nil
	}
}

// Every kind is status's or audit's, or both's; none is lost on the way.
func TestEachKindIsReported(t *testing.T) {
	both := []Kind{CeilingLifted, exclusiveWithoutLease, daemonWithoutLease, PolicyUnusable, ConfigUnusable}
	for _, kind := range []Kind{
		leaseUnreadable, leaseUnfinished, leaseWithoutTicket, ticketWithoutLease, directoryWithoutLease,
		modeDiffers, gpuMissing, exclusiveWithoutLease, DaemonGone, DaemonReplaced, DaemonNotServing, DaemonNoAnswer, DaemonUnclear,
		daemonWithoutLease, daemonUnknown, ServerFault, CeilingLifted, processWithoutMPS, clientOfAnother, clientWithoutShare, clientWithoutMemoryCap,
		PolicyUnusable, ConfigUnusable,
	} {
		all := []Finding{{Kind: kind}}
		want := 1
		if slices.Contains(both, kind) {
			want = 2
		}
		if got := len(Disagreements(all)) + len(Violations(all)); got != want {
			t.Errorf("%s is reported by %d commands, want %d", kind, got, want)
		}
	}
}

// A finding that only one of two looks has is dropped: a prolog or an epilog was at work.
func TestBothLooksAgree(t *testing.T) {
	mode := Finding{Kind: modeDiffers, Job: 7, GPU: gpuA, Where: "job 7", What: "it is in mode default"}
	gone := Finding{Kind: DaemonGone, Job: 7, PID: 100}
	other := mode
	other.Job = 8
	later := mode
	later.What = "in other words"
	if got := both([]Finding{later, other}, []Finding{mode, gone}); !reflect.DeepEqual(got, []Finding{later}) {
		t.Errorf("agreed on %+v", got)
	}
}

// A percentage is what both the client and its server allow, in whole TPCs.
func TestSMsOfAClient(t *testing.T) {
	for _, c := range []struct {
		own, server float64
		ceiling     float64
		want        int
	}{
		{0, 100, 100, 132}, {50, 100, 100, 66}, {80, 50, 50, 66}, {20, 50, 50, 26}, {0, 50, 50, 66}, {1, 100, 100, 8},
		{0, 33.3, 33.333334, 44}, // the daemon prints one decimal, and means the ceiling
		{0, 33.3, 100, 42},
	} {
		n := good()
		n.Jobs[0].Ceiling, n.Jobs[0].Daemons[0].Servers[0].Percent = policy.PercentFrom(c.ceiling), c.server
		client := Client{Server: 101}
		n.limit(&client, n.Jobs[0], gpuA, clientenv.Environment{Percent: policy.PercentFrom(c.own)})
		if client.SMs != c.want {
			t.Errorf("own %v %%, server %v %%: %d SMs, want %d", c.own, c.server, client.SMs, c.want)
		}
	}
}

// ps cuts a UUID at 22 characters.
func TestWhichDeviceARowIsAbout(t *testing.T) {
	devices := []site.UUID{gpuA, gpuB}
	for beginning, want := range map[string]site.UUID{"GPU-bbbbbbbb-0000-0000": gpuB, "GPU-aaaaaaaa-0000-0000": gpuA, "": gpuA, "GPU-": gpuA, "0": gpuA} {
		for _, uuid := range devices {
			if got := on(beginning, devices, uuid); got != (uuid == want) {
				t.Errorf("%q on %s: %v", beginning, uuid, got)
			}
		}
	}
}

func TestServingOf(t *testing.T) {
	for err, want := range map[error]daemonState{nil: Serves, site.ErrDaemonDown: NotServing, site.ErrNoAnswer: NoAnswer, errors.New("rubbish"): Unclear} {
		if err != nil {
			err = fmt.Errorf("cannot ask: %w", err)
		}
		if got := servingOf(err); got != want {
			t.Errorf("%v is %s, want %s", err, got, want)
		}
	}
}

// A daemon is asked to quit before anything kills it, and what would go with it is said. No text of a user's comes
// into a command.
func TestEndingADaemon(t *testing.T) {
	for dir, want := range map[string]string{
		"":                        "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps nvidia-cuda-mps-control;",
		"/tmp/theirs":             "echo quit | sudo -u '#2002' env CUDA_MPS_PIPE_DIRECTORY=/tmp/theirs nvidia-cuda-mps-control;",
		"/tmp/x;rm -rf /":         "have its control program tell it to quit",
		"/run/slurm-mps/other":    "echo quit | ",
		"/run/slurm-mps/jobs/9/0": "end it: mpsctl reap --job 9",
	} {
		n := good()
		n.census = append(n.census, mps.Process{Process: proc.Process{PID: 300, Start: 3}, UID: 2002, Role: mps.RoleDaemon, PipeDir: dir})
		found := diagnose(n)
		if len(found) != 1 {
			t.Fatalf("%q: %+v", dir, found)
		}
		do := found[0].Fix
		if !strings.Contains(do, want) || strings.Contains(do, "rm -rf") {
			t.Errorf("%q: %s", dir, do)
		}
		quit, kill := strings.Index(do, "quit"), strings.Index(do, "kill -9")
		if kill >= 0 && (quit < 0 || quit > kill || !strings.Contains(do[quit:kill], "every program that computes through them")) {
			t.Errorf("%q: %s", dir, do)
		}
		n.Root = false
		if do := diagnose(n)[0].Fix; strings.Contains(do, "kill -9") || strings.Contains(do, "sudo") {
			t.Errorf("%q: a user reads %s", dir, do)
		}
	}
}

// A process of another user's is no successor of a job's daemon, whatever folder it names.
func TestADaemonIsReplacedByItsUserAlone(t *testing.T) {
	gone := lease.Daemon{PipeDir: "/p", Proc: proc.Process{PID: 1 << 22, Start: 1}}
	for uid, want := range map[uint32]daemonState{2001: Replaced, 2002: Gone} {
		d := Daemon{PipeDir: "/p", State: Alive, record: gone}
		d.look([]mps.Process{{Process: proc.Process{PID: 300, Start: 3}, UID: uid, Role: mps.RoleDaemon, PipeDir: "/p"}}, 2001)
		if d.State != want {
			t.Errorf("uid %d: %s, %s", uid, d.State, d.Reason)
		}
	}
}

// What a lease may name that this user cannot read is no finding.
func TestHiddenJobs(t *testing.T) {
	n := good()
	n.Root, n.Jobs = false, nil
	if found := diagnose(n); len(found) != 1 {
		t.Fatalf("without job 7 the daemon is a finding: %+v", found)
	}
	n.hidden = []uint32{7}
	if found := diagnose(n); len(found) != 0 {
		t.Errorf("%+v", found)
	}
}

// What an admin has written is judged by whether it can be used.
func TestFilesOfTheSite(t *testing.T) {
	n := good()
	n.policy = policyfile.FileStatus{Err: errors.New("cannot read it"), Kept: time.Date(2026, 3, 12, 14, 0, 0, 0, time.UTC)}
	n.config = policyfile.FileStatus{Err: errors.New("cannot read it")}
	found := diagnose(n)
	if len(found) != 2 || found[0].Kind != PolicyUnusable || !strings.HasSuffix(found[0].What, "the one that was kept on 2026-03-12 14:00:00 is used") ||
		found[1].Kind != ConfigUnusable || !strings.HasSuffix(found[1].What, "the defaults hold") {
		t.Errorf("%+v", found)
	}
	n.policy, n.config = policyfile.FileStatus{Err: errors.New("cannot read it"), Hidden: true}, policyfile.FileStatus{}
	found = diagnose(n)
	if len(found) != 1 || !strings.HasSuffix(found[0].What, "the last one that could be used is used if it was kept, which root can see") {
		t.Errorf("%+v", found)
	}
}
