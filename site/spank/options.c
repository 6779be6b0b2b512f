// SPDX-License-Identifier: Apache-2.0

//go:build ignore
// The Go tool would refuse a C file beside this folder's Go tests; make spank compiles it.

#include "options.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* ---- numbers ---- */

static const int64_t ONE = 1000000; /* 1 in millionths */

static bool is(const char *value, const char *word)
{
	return strcmp(value, word) == 0;
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Reads digits alone, up to most; more of them are no number. */
static bool whole(const char *s, size_t length, int64_t most, int64_t *n)
{
	*n = 0;
	for (size_t i = 0; i < length; i++) {
		if (!is_digit(s[i]))
			return false;
		*n = *n * 10 + (s[i] - '0');
		if (*n > most)
			return false;
	}
	return length > 0;
}

/* Reads a plain decimal of at most 12 digits before the point and 6 behind it, exactly. */
static bool millionths(const char *s, size_t length, int64_t *amount)
{
	const char *point = memchr(s, '.', length);
	size_t before = point ? (size_t)(point - s) : length;
	size_t behind = point ? length - before - 1 : 0;
	int64_t decimals = 0;

	if (before > 12 || behind > 6 || !whole(s, before, INT64_MAX / 10, amount))
		return false;
	if (point && !whole(point + 1, behind, ONE, &decimals))
		return false;
	for (; behind < 6; behind++)
		decimals *= 10;
	*amount = *amount * ONE + decimals;
	return true;
}

static bool within(const char *s, size_t length, int64_t least, int64_t most)
{
	int64_t amount;

	return millionths(s, length, &amount) && amount >= least && amount <= most;
}

/* ---- times, as Go's time.ParseDuration reads them ---- */

static const int64_t LONGEST = 600LL * 1000000000; /* ns: policy.MaxDrainGrace and policy.MaxHold */

static int64_t unit_of(const char *s, size_t length)
{
	static const struct {
		const char *name;
		int64_t ns;
	} units[] = {
		{ "ns", 1 }, { "us", 1000 }, { "\xc2\xb5s", 1000 }, { "\xce\xbcs", 1000 }, { "ms", 1000000 },
		{ "s", 1000000000 }, { "m", 60000000000 }, { "h", 3600000000000 },
	};

	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
		if (strlen(units[i].name) == length && memcmp(units[i].name, s, length) == 0)
			return units[i].ns;
	return 0;
}

/* Reads the digits behind the point; those that are too many for 64 bits are passed over. */
static const char *fraction(const char *s, uint64_t *f, double *scale)
{
	for (bool full = false; is_digit(*s); s++) {
		uint64_t next = *f * 10 + (uint64_t)(*s - '0');
		full = full || *f > INT64_MAX / 10 || next > 1ULL << 63;
		if (full)
			continue;
		*f = next;
		*scale *= 10;
	}
	return s;
}

/* Reads one number with its unit and adds it; NULL where there is none, or all is longer than LONGEST. */
static const char *addend(const char *s, int64_t *sum)
{
	const char *digits = s, *unit;
	int64_t n = 0, ns;
	uint64_t f = 0;
	double scale = 1;

	s += strspn(s, "0123456789");
	size_t before = (size_t)(s - digits), behind = 0;
	if (before > 0 && !whole(digits, before, LONGEST, &n))
		return NULL;
	if (*s == '.') {
		digits = s + 1;
		s = fraction(digits, &f, &scale);
		behind = (size_t)(s - digits);
	}
	unit = s;
	s += strcspn(s, ".0123456789");
	ns = unit_of(unit, (size_t)(s - unit));
	if (before + behind == 0 || ns == 0 || n > LONGEST / ns)
		return NULL;
	*sum += n * ns + (int64_t)((double)f * ((double)ns / scale));
	return *sum <= LONGEST ? s : NULL;
}

static bool is_duration(const char *s)
{
	bool negative = *s == '-';
	int64_t sum = 0;

	if (*s == '-' || *s == '+')
		s++;
	if (*s == '\0')
		return false;
	if (is(s, "0"))
		return true;
	while (s && *s)
		s = addend(s, &sum);
	return s && !(negative && sum > 0);
}

/* ---- options: each says why a value is none, or NULL ---- */

static const char *scope(const char *v)
{
	return is(v, "job") || is(v, "gpu") ? NULL : "want job or gpu";
}

static const char *compute_mode(const char *v)
{
	return is(v, "exclusive_process") || is(v, "unchanged") ? NULL : "want exclusive_process or unchanged";
}

/* Says whether a share is one that mpirun-wrap would take, beside none, even and overlap. */
static bool is_own_share(const char *v)
{
	size_t length = strlen(v);
	int64_t sms;

	if (strncmp(v, "weight:", 7) == 0)
		return within(v + 7, length - 7, 1, 1000000 * ONE);
	if (length > 0 && v[length - 1] == '%')
		return within(v, length - 1, 1, 100 * ONE);
	return length > 1 && is(v + length - 2, "sm") && whole(v, length - 2, 10000, &sms) && sms > 0;
}

static const char *share(const char *v)
{
	if (is(v, "none") || is(v, "even") || (strncmp(v, "overlap:", 8) == 0 && within(v + 8, strlen(v + 8), ONE, 48 * ONE)))
		return NULL;
	if (is_own_share(v))
		return "want none, even or overlap:F; one rank's own share is set by mpirun-wrap --share";
	return "want none, even or overlap:F";
}

static const char *overlap(const char *v)
{
	return within(v, strlen(v), ONE, 48 * ONE) ? NULL : "want a number from 1 to 48";
}

static const char *ceiling(const char *v)
{
	return within(v, strlen(v), ONE, 100 * ONE) ? NULL : "want a number from 1 to 100";
}

/* A size is a number of whole MiB, at most 2^30 of them. */
static bool is_size(const char *v)
{
	size_t length = strlen(v);
	const char *unit = length > 0 ? strchr("MGT", v[length - 1]) : NULL;
	int64_t mib = 1, amount;

	if (!unit || !millionths(v, length - 1, &amount))
		return false;
	for (; *unit != 'M'; unit--)
		mib *= 1024;
	return amount > 0 && amount <= (ONE << 30) / mib && amount * mib % ONE == 0;
}

static const char *memory(const char *v)
{
	return is(v, "none") || is(v, "even") || is_size(v) ? NULL : "want none, even, or a size like 8G";
}

static const char *priority(const char *v)
{
	return is(v, "low") || is(v, "normal") ? NULL : "want low or normal";
}

static const char *max_clients(const char *v)
{
	int64_t n;

	return whole(v, strlen(v), 48, &n) && n > 0 ? NULL : "want a whole number from 1 to 48";
}

static const char *duration(const char *v)
{
	return is_duration(v) ? NULL : "want a time like 10s, up to 10m0s";
}

static const char *keep_logs(const char *v)
{
	return is(v, "never") || is(v, "on_failure") || is(v, "always") ? NULL : "want never or on_failure or always";
}

static const struct option {
	const char *name;
	const char *(*wrong)(const char *value);
} options[] = {
	{ "scope", scope }, { "compute_mode", compute_mode }, { "share", share }, { "overlap", overlap },
	{ "ceiling", ceiling }, { "memory", memory }, { "memory_overlap", overlap }, { "priority", priority },
	{ "max_clients", max_clients }, { "hold", duration }, { "drain_grace", duration }, { "keep_logs", keep_logs },
};

enum { OPTIONS = sizeof(options) / sizeof(options[0]) };

/* "mem" is what mpirun-wrap calls the memory. Returns OPTIONS where there is no such option. */
static size_t named(const char *name)
{
	size_t i;

	if (is(name, "mem"))
		name = "memory";
	for (i = 0; i < OPTIONS && !is(name, options[i].name); i++)
		;
	return i;
}

/* ---- sentences ---- */

/* A text that is being written: what does not fit is left out. */
struct text {
	char *at;
	size_t left;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *t, const char *format, ...)
{
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = vsnprintf(t->at, t->left, format, arguments);
	va_end(arguments);
	size_t written = length < 0 ? 0 : (size_t)length < t->left ? (size_t)length : t->left - 1;
	t->at += written;
	t->left -= written;
}

/* Reads one character of UTF-8 and returns its length, or 0 where there is none: overlong forms and surrogates are none. */
static size_t decode(const unsigned char *s, size_t length, uint32_t *rune)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t size = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;

	if (s[0] < 0xc0 || s[0] > 0xf7 || size > length)
		return 0;
	*rune = s[0] & (0xff >> (size + 1));
	for (size_t i = 1; i < size; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		*rune = *rune << 6 | (s[i] & 0x3f);
	}
	bool valid = *rune >= least[size] && *rune <= 0x10ffff && (*rune < 0xd800 || *rune > 0xdfff);
	return valid ? size : 0;
}

/* Adds one byte of ASCII. */
static void add_byte(struct text *t, unsigned char c)
{
	static const char escaped[] = "\a\b\f\n\r\t\v\"\\", letters[] = "abfnrtv\"\\";
	const char *found = c ? strchr(escaped, c) : NULL;

	if (found)
		add(t, "\\%c", letters[found - escaped]);
	else if (c < ' ' || c >= 0x7f)
		add(t, "\\x%02x", c);
	else
		add(t, "%c", c);
}

static void add_quoted(struct text *t, const char *value)
{
	enum { MOST = 64 };
	const unsigned char *s = (const unsigned char *)value;
	size_t length = strlen(value), shown = length < MOST ? length : MOST, size;
	uint32_t rune;

	add(t, "\"");
	for (size_t i = 0; i < shown; i += size ? size : 1) {
		size = decode(s + i, shown - i, &rune);
		if (size == 0)
			add_byte(t, s[i]);
		else
			add(t, rune < 0x10000 ? "\\u%04x" : "\\U%08x", rune);
	}
	add(t, length > MOST ? "\"\xe2\x80\xa6" : "\"");
}

char *mps_quote(const char *text, char *quoted, size_t size)
{
	struct text t = { quoted, size };

	add_quoted(&t, text);
	return quoted;
}

/* ---- the text ---- */

/* Cuts the spaces off both ends, in place. */
static char *trim(char *s)
{
	s += strspn(s, " ");
	for (size_t length = strlen(s); length > 0 && s[length - 1] == ' '; length--)
		s[length - 1] = '\0';
	return s;
}

/* Reads one name=value, which is cut in place. What is wrong with it is added to the sentence. */
static bool read_option(char *item, bool given[OPTIONS], struct text *t)
{
	bool empty = *item == '\0';
	char *value = strchr(item, '=');
	size_t i, n;

	if (value)
		*value++ = '\0';
	i = named(item);
	if (empty) {
		add(t, "an option is empty: want NAME=VALUE, separated by commas");
	} else if (i == OPTIONS) {
		add(t, "there is no option ");
		add_quoted(t, item);
		for (n = 0; n < OPTIONS; n++)
			add(t, "%s%s", n == 0 ? ": want " : ", ", options[n].name);
	} else if (!value || *value == '\0') {
		add(t, "%s has no value: want %s=VALUE", options[i].name, options[i].name);
	} else if (given[i]) {
		add(t, "%s is given twice", options[i].name);
	} else if (options[i].wrong(value)) {
		add(t, "%s is ", options[i].name);
		add_quoted(t, value);
		add(t, ": %s", options[i].wrong(value));
	} else {
		given[i] = true;
		return true;
	}
	return false;
}

bool mps_read_options(const char *text, char sentence[MPS_SENTENCE_MAX])
{
	struct text t = { sentence, MPS_SENTENCE_MAX };
	bool given[OPTIONS] = { false };
	char copy[MPS_OPTIONS_MAX + 1], *rest = copy, *item;
	size_t length = strlen(text);

	add(&t, "cannot read options ");
	add_quoted(&t, text);
	add(&t, ": ");
	if (length > MPS_OPTIONS_MAX) {
		add(&t, "%zu bytes, want at most %d", length, MPS_OPTIONS_MAX);
		return false;
	}
	memcpy(copy, text, length + 1);
	if (*trim(copy) == '\0')
		return true;
	while ((item = strsep(&rest, ",")))
		if (!read_option(trim(item), given, &t))
			return false;
	return true;
}
