/* nothing: a program that ends at once, linked statically. */
int main(void) { return 0; }
