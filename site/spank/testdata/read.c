//go:build ignore

/* Reads texts, each ended by a zero byte, and prints for each what options.c says of it, ended by a zero byte. */
#include "../options.h"

#include <stdio.h>
#include <stdlib.h>

int main(void)
{
	char *text = NULL, sentence[MPS_SENTENCE_MAX];
	size_t room = 0;

	while (getdelim(&text, &room, '\0', stdin) > 0) {
		if (!mps_read_options(text, sentence))
			fputs(sentence, stdout);
		putchar('\0');
	}
	free(text);
	return 0;
}
