/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The grammar of --mps=OPTIONS: name=value, separated by commas. It is policy.ParseOptions in C, so that a mistake is
 * told on the submit host, in the sentence that the job's ticket would hold. options_test.go holds the two to each other.
 */
#ifndef SLURM_MPS_OPTIONS_H
#define SLURM_MPS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

/* Names of ours are not the loading program's to see. */
#define MPS_OWN __attribute__((visibility("hidden")))

enum {
	MPS_OPTIONS_MAX = 512,   /* bytes that a text may have */
	MPS_SENTENCE_MAX = 1024, /* bytes that the longest sentence has room in, its end included */
};

/* Reports whether the text can be read; where it cannot, the sentence says why. No line break is ever in it. */
MPS_OWN bool mps_read_options(const char *text, char sentence[MPS_SENTENCE_MAX]);

/* Writes a text of a user's as Go's strconv.QuoteToASCII does, cut to 64 bytes. Returns quoted. */
MPS_OWN char *mps_quote(const char *text, char *quoted, size_t size);

#endif
