/* Checks of what must be true. Included again, it follows NDEBUG anew. */

#undef assert

#ifdef NDEBUG
#define assert(condition) ((void)0)
#else
#define assert(condition) ((condition) ? (void)0 : assert_failed(#condition, __FILE__, __LINE__))
#endif

#ifndef ASSERT_H
#define ASSERT_H

void assert_failed(const char *condition, const char *file, int line) __attribute__((noreturn));

#endif
