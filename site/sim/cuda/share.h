/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of MPS shares of driver 580.159.04 on an H200: percentage → SMs → memory of a context. These
 * functions use no state. The conformance suite compares them with all points of the recorded sweep.
 */
#ifndef SIMULATED_SHARE_H
#define SIMULATED_SHARE_H

#include <stdlib.h>

/* Reads a percentage from CUDA_MPS_ACTIVE_THREAD_PERCENTAGE. Returns 100 for a value that is ignored silently:
 * unset, empty, no number, 0 or less, more than 100. Decimals count: 33.333333 and 33.333334 differ. */
static inline double share_percentage(const char *text)
{
	char *end;
	if (!text || !*text)
		return 100;
	double percentage = strtod(text, &end);
	return *end || !(percentage > 0 && percentage <= 100) ? 100 : percentage;
}

enum { share_min = 8 }; /* SMs: 1 to 7 percent of 132 all give 8 */

/* Returns the SMs for a percentage of a device with TPCs of `tpc` SMs. It rounds down to whole TPCs, but not below
 * 8 SMs. */
static inline int share_sms(int sms, int tpc, double percentage)
{
	int min_sms = sms < share_min ? sms : share_min;
	int share = (int)(sms * percentage / 100 / tpc) * tpc;
	return share < min_sms ? min_sms : share;
}

/* Returns the MiB by which a client with this number of SMs reduces the free memory, with its server's 66 MiB.
 * This was measured for each even number from 8 to 132. An odd number counts as the even number below it. Above 132
 * each SM adds 3.7 MiB. */
static inline int share_context_mib(int sms)
{
	static const short measured[] = {
		132, 138, 146, 152, 160, 168, 176, 182, 190, 196, 204, 210, 218, 226, 234, 240, 248, 254, 262, 268, 276,
		286, 292, 300, 306, 314, 320, 328, 336, 348, 354, 362, 368, 376, 382, 390, 396, 406, 412, 420, 426, 434,
		440, 448, 456, 464, 472, 478, 486, 492, 500, 506, 514, 522, 530, 536, 544, 550, 558, 564, 572, 582, 590,
	};
	enum { count = sizeof measured / sizeof *measured };
	if (sms < share_min)
		return measured[0];
	int i = (sms - share_min) / 2;
	return i < count ? measured[i] : measured[count - 1] + (sms - 132) * 37 / 10;
}

#endif
