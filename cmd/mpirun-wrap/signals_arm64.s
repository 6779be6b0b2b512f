// SPDX-License-Identifier: Apache-2.0

//go:build !race && !msan && !asan

#include "textflag.h"

// int leaveSignals(int signal, struct sigaction *wanted, struct sigaction *present), as C calls it.
TEXT leaveSignals(SB),NOSPLIT|NOFRAME,$0
	MOVD	$0, R0
	RET

// uintptr_t mapMemory(void *address, size_t size, int prot, int flags, int fd, int offset), as C calls it: an errno is
// below 4096.
TEXT mapMemory(SB),NOSPLIT|NOFRAME,$0
	MOVD	·maskSaved(SB), R9
	CBNZ	R9, map
	MOVD	$1, R9
	MOVD	R9, ·maskSaved(SB)
	MOVD	R0, R9
	MOVD	R1, R10
	MOVD	R2, R11
	MOVD	R3, R12
	MOVD	$0, R0	// rt_sigprocmask(SIG_BLOCK, NULL, &startMask, 8)
	MOVD	$0, R1
	MOVD	$·startMask(SB), R2
	MOVD	$8, R3
	MOVD	$135, R8
	SVC
	MOVD	R9, R0
	MOVD	R10, R1
	MOVD	R11, R2
	MOVD	R12, R3
map:
	MOVD	$222, R8	// mmap
	SVC
	CMN	$4095, R0
	BCC	done
	NEG	R0, R0
done:
	RET
