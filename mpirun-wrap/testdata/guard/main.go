// Command guard is a wrapper that does nothing but Guard, for tests.
//
//	guard [flags] -- PROGRAM [ARG...]
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	mpirunwrap "github.com/slurm-mps/slurm-mps/mpirun-wrap"
)

func main() {
	o := mpirunwrap.GuardOptions{Err: os.Stderr}
	flag.DurationVar(&o.Drain, "drain", 0, "")
	flag.DurationVar(&o.Grace, "grace", 0, "")
	flag.StringVar(&o.Peers, "peers", "", "")
	flag.StringVar(&o.Device, "device", "", "")
	flag.BoolVar(&o.Broadcast, "broadcast", false, "")
	flag.BoolVar(&o.Verbose, "v", false, "")
	control := flag.String("control", "", "control program: have it terminate clients")
	flag.Parse()
	if *control != "" {
		o.Terminate = func(ctx context.Context, pid int) error { return terminate(ctx, *control, pid) }
	}
	code, err := mpirunwrap.Guard(flag.Args(), os.Environ(), o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "guard:", err)
		code = 125
		var program *mpirunwrap.ProgramError
		if errors.As(err, &program) {
			code = program.Code
		}
	}
	os.Exit(code)
}

// terminate asks a daemon as a person would: for its server, then for the end of the client.
func terminate(ctx context.Context, control string, pid int) error {
	servers, err := ask(ctx, control, "get_server_list")
	if err != nil {
		return err
	}
	answer, err := ask(ctx, control, fmt.Sprintf("terminate_client %s %d", strings.TrimSpace(servers), pid))
	if err == nil && strings.TrimSpace(answer) != "0" {
		err = fmt.Errorf("cannot terminate client %d: the daemon says %q", pid, answer)
	}
	return err
}

// ask runs the control program without os/exec, which is not for what links mpirunwrap.
func ask(ctx context.Context, control, line string) (string, error) {
	in, out, err := files(line)
	if err != nil {
		return "", err
	}
	defer discard(in, out)
	process, err := os.StartProcess(control, []string{control}, &os.ProcAttr{Env: os.Environ(), Files: []*os.File{in, out, out}})
	if err != nil {
		return "", err
	}
	stop := context.AfterFunc(ctx, func() { _ = process.Kill() })
	defer stop()
	if _, err := process.Wait(); err != nil {
		return "", err
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	answer, err := os.ReadFile(out.Name())
	return string(bytes.TrimSpace(answer)), err
}

func discard(files ...*os.File) {
	for _, file := range files {
		file.Close()
		os.Remove(file.Name())
	}
}

// files are a stdin that holds a line, and a stdout.
func files(line string) (in, out *os.File, err error) {
	in, err = os.CreateTemp("", "guard")
	if err != nil {
		return nil, nil, err
	}
	out, err = os.CreateTemp("", "guard")
	if err != nil {
		return nil, nil, err
	}
	_, err = in.WriteString(line + "\n")
	if err == nil {
		_, err = in.Seek(0, 0)
	}
	return in, out, err
}
