// SPDX-License-Identifier: Apache-2.0

//go:build !race && !msan && !asan

#include "textflag.h"

// int leaveSignals(int signal, struct sigaction *wanted, struct sigaction *present), as C calls it.
TEXT leaveSignals(SB),NOSPLIT|NOFRAME,$0
	XORL	AX, AX
	RET

// uintptr_t mapMemory(void *address, size_t size, int prot, int flags, int fd, int offset), as C calls it: an errno is
// below 4096.
TEXT mapMemory(SB),NOSPLIT|NOFRAME,$0
	CMPQ	·maskSaved(SB), $0
	JNE	map
	MOVQ	$1, ·maskSaved(SB)
	PUSHQ	DI
	PUSHQ	SI
	PUSHQ	DX
	PUSHQ	CX
	MOVL	$14, AX	// rt_sigprocmask(SIG_BLOCK, NULL, &startMask, 8)
	XORL	DI, DI
	XORL	SI, SI
	LEAQ	·startMask(SB), DX
	MOVL	$8, R10
	SYSCALL
	POPQ	CX
	POPQ	DX
	POPQ	SI
	POPQ	DI
map:
	MOVQ	CX, R10
	MOVL	$9, AX	// mmap
	SYSCALL
	CMPQ	AX, $0xfffffffffffff001
	JCS	done
	NEGQ	AX
done:
	RET
