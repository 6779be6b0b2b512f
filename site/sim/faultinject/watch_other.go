// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package faultinject

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
)

// traced knows the calls and registers of amd64 alone.
func traced(context.Context, []string, []string, *os.File, Plan) (syscall.WaitStatus, error) {
	return 0, fmt.Errorf("%w: system calls are decoded on amd64 alone", errors.ErrUnsupported)
}
