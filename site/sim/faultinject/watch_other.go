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

// traced knows only the calls and registers of amd64.
func traced(context.Context, []string, []string, *os.File, Plan) (syscall.WaitStatus, error) {
	return 0, fmt.Errorf("%w: only amd64 system calls can be decoded", errors.ErrUnsupported)
}
