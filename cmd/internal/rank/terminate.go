package rank

import (
	"context"
	"fmt"
	"strings"

	mpirunwrap "github.com/slurm-mps/slurm-mps/mpirun-wrap"
)

// terminate has the daemon end the client with the pid, which must not be stopped: that is serial in the daemon anyway.
// It waits for what it starts, and ends that when ctx does.
func (c control) terminate(ctx context.Context, pid int) error {
	done, err := c.turn(ctx)
	if err != nil {
		return fmt.Errorf("cannot terminate client %d: %w", pid, err)
	}
	defer done()
	servers, err := c.askAgain(ctx, "get_server_list")
	if err != nil {
		return err
	}
	if len(servers) == 0 {
		return mpirunwrap.ErrNoClient
	}
	answer, err := c.ask(ctx, fmt.Sprintf("terminate_client %s %d", servers[0], pid)) // never twice (measured)
	switch {
	case err != nil:
		return err
	case answer == "0":
		return nil
	case strings.Contains(answer, "Invalid process"):
		return mpirunwrap.ErrNoClient
	}
	return fmt.Errorf("cannot terminate client %d: the daemon says %q", pid, answer)
}
