// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
)

// object is an object of JSON. A ticket is read field by field, because every rank reads its ticket when it starts.
// encoding/json would first examine the types of a Ticket, which takes five times as long.
type object struct {
	fields map[string]any
	err    *error // the first error
}

// field returns a field of type T, or the zero value if the field is missing.
func field[T any](o object, name string) (v T) {
	field, there := o.fields[name]
	if v, is := field.(T); is || !there || field == nil {
		return v
	}
	o.wrong(name)
	return v
}

func (o object) wrong(name string) {
	if *o.err == nil {
		*o.err = fmt.Errorf("%s is of another type", name)
	}
}

func (o object) text(name string) string { return field[string](o, name) }
func (o object) is(name string) bool     { return field[bool](o, name) }
func (o object) object(name string) object {
	return object{field[map[string]any](o, name), o.err}
}

// integer returns a field that is a whole number. float64 is exact up to 2^53, far above the largest value.
func integer[T int | uint32 | uint64](o object, name string) T {
	f := field[float64](o, name)
	if float64(T(f)) != f {
		o.wrong(name)
	}
	return T(f)
}

// list returns a field that is a list, with each element converted by make.
func list[E, T any](o object, name string, make func(E) T) (all []T) {
	for _, element := range field[[]any](o, name) {
		e, is := element.(E)
		if !is {
			o.wrong(name)
		}
		all = append(all, make(e))
	}
	return all
}

// parseTicket reads a ticket in the form that WriteTicket writes.
func parseTicket(content []byte) (t Ticket, err error) {
	o := object{err: &err}
	if err := json.Unmarshal(content, &o.fields); err != nil {
		return Ticket{}, err
	}
	job, control, part := o.object("job"), o.object("control_program"), o.object("part")
	t = Ticket{
		Schema: integer[int](o, "schema"), Boot: o.text("boot"), Rule: o.text("rule"),
		RefusalReason: o.text("refusal_reason"), RunWithoutMPS: o.is("run_without_mps"),
		Job: Job{
			ID: integer[uint32](job, "id"), UID: integer[uint32](job, "uid"), GID: integer[uint32](job, "gid"), User: job.text("user"),
			Groups: list(job, "groups", func(gid float64) uint32 { return uint32(gid) }),
		},
		Grant: o.object("grant").grant(), Exclusive: o.is("exclusive"), ExchangeDir: o.text("exchange_dir"),
		ControlProgram: Program{Path: control.text("path"), LibraryPath: control.text("library_path")},
		Devices:        list(o, "devices", func(fields map[string]any) TicketDevice { return object{fields, &err}.device() }),
		Part:           Part{Gres: part.text("gres"), Units: integer[int](part, "units"), Count: integer[int](part, "count")},
		Joined:         integer[uint32](o, "joined"),
		Daemons:        list(o, "daemons", func(fields map[string]any) Daemon { return object{fields, &err}.daemon() }),
	}
	return t, err
}

func (o object) grant() policy.Grant {
	texts := map[string]string{}
	for name := range o.fields {
		texts[name] = o.text(name)
	}
	g, err := policy.ReadGrant(texts)
	*o.err = cmp.Or(*o.err, err)
	return g
}

func (o object) device() TicketDevice {
	return TicketDevice{
		Device: site.Device{
			UUID: site.UUID(o.text("uuid")), Name: o.text("name"), Minor: integer[int](o, "minor"), BusID: o.text("bus_id"), SMs: integer[int](o, "sms"),
			TPC: integer[int](o, "tpc"), MemoryMiB: integer[int](o, "memory_mib"), NUMA: integer[int](o, "numa"), MIGMode: o.is("mig_mode"),
		},
		Position: integer[int](o, "position"), Daemon: integer[int](o, "daemon"),
	}
}

func (o object) daemon() Daemon {
	proc := o.object("proc")
	return Daemon{
		Devices: list(o, "devices", func(uuid string) site.UUID { return site.UUID(uuid) }),
		PipeDir: o.text("pipe_dir"), LogDir: o.text("log_dir"), Group: o.text("group"),
		Proc: site.Process{PID: integer[int](proc, "pid"), Start: integer[uint64](proc, "start")},
	}
}
