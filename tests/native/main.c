#include "check.h"

#include <string.h>

struct test *tests;

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		struct test *test = tests;

		while (test && strcmp(test->name, argv[i]))
			test = test->next;
		if (!test) {
			fprintf(stderr, "no test %s\n", argv[i]);
			return 2;
		}
		test->run();
	}
	return 0;
}
