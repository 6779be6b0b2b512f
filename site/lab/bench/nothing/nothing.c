// SPDX-License-Identifier: Apache-2.0
/* nothing: a program that ends at once, linked statically. */
int main(void) { return 0; }
